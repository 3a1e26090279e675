//! Nodes stay reasonably full, whatever is deleted, and merges cost what they should.

mod common;

use common::{Bench, Changes, Model, Numbers, Shape, apply, key, value};
use futures_lite::future::block_on;
use std::time::Instant;
use syncline_format::Key;

const NODE_SIZES: [u32; 3] = [4096, 16384, 65536];

fn filled(node_bytes: u32, items: u64) -> (Bench, Model) {
    let mut bench = Bench::new(node_bytes, 64 << 10, 8 << 20);
    let changes: Changes = (0..items).map(|number| (key(number), Some(value(number, 60)))).collect();
    bench.merge(&changes).unwrap();
    let mut model = Model::new();
    apply(&mut model, &changes);
    bench.check(&model);
    (bench, model)
}

#[test]
fn items_that_come_in_order_fill_the_nodes() {
    for node_bytes in NODE_SIZES {
        let mut bench = Bench::new(node_bytes, 64 << 10, 8 << 20);
        let mut model = Model::new();
        for start in (0..40_000).step_by(2500) {
            let changes: Changes =
                (start..start + 2500).map(|number| (key(number), Some(value(1, 60)))).collect();
            bench.merge(&changes).unwrap();
            apply(&mut model, &changes);
        }
        bench.check(&model);
        let fill = Shape::of(&bench.tree, bench.root).leaf_fill(bench.geometry);
        assert!(fill > 0.93, "{node_bytes}: {fill}");
    }
}

#[test]
fn deleting_most_of_a_tree_at_once_leaves_full_nodes() {
    for node_bytes in NODE_SIZES {
        let (mut bench, mut model) = filled(node_bytes, 40_000);
        let deletes: Changes =
            (0..40_000).filter(|at| at % 20 != 0).map(|number| (key(number), None)).collect();
        bench.merge(&deletes).unwrap();
        apply(&mut model, &deletes);
        assert_eq!(model.len(), 2000);
        bench.check(&model);
        let fill = Shape::of(&bench.tree, bench.root).leaf_fill(bench.geometry);
        assert!(fill > 0.75, "{node_bytes}: {fill}");
    }
}

#[test]
fn deleting_most_of_a_tree_bit_by_bit_leaves_it_half_full() {
    for node_bytes in NODE_SIZES {
        let (mut bench, mut model) = filled(node_bytes, 20_000);
        let mut order: Vec<u64> = (0..20_000).collect();
        let mut numbers = Numbers(u64::from(node_bytes));
        for at in (1..order.len()).rev() {
            order.swap(at, numbers.below(at as u64 + 1) as usize);
        }
        for some in order[..19_000].chunks(100) {
            let deletes: Changes = some.iter().map(|&number| (key(number), None)).collect();
            bench.merge(&deletes).unwrap();
            apply(&mut model, &deletes);
        }
        assert_eq!(model.len(), 1000);
        bench.check(&model);
        let fill = Shape::of(&bench.tree, bench.root).leaf_fill(bench.geometry);
        assert!(fill > 0.45, "{node_bytes}: {fill}");
    }
}

/// Two streams of growth in the middle of the tree, as of two files that are appended to.
#[test]
fn growth_in_the_middle_keeps_nodes_half_full() {
    let (mut bench, mut model) = filled(4096, 5000);
    for round in 0..200u64 {
        let grown = |object: u64, at: u64| Key { object, kind: 99, offset: round * 20 + at };
        let changes: Changes =
            (0..20).flat_map(|at| [7, 31].map(|object| (grown(object, at), Some(value(at, 60))))).collect();
        bench.merge(&changes).unwrap();
        apply(&mut model, &changes);
    }
    bench.check(&model);
    let fill = Shape::of(&bench.tree, bench.root).leaf_fill(bench.geometry);
    assert!(fill > 0.5, "{fill}");
}

/// A checkpoint in small: 200,000 items into an empty tree, then changes all over it. Says how long it took.
#[test]
fn two_hundred_thousand_items() {
    let mut bench = Bench::new(16384, 256 << 10, 64 << 20);
    let mut numbers = Numbers(3);
    let changes: Changes = (0..200_000).map(|number| (key(number * 3), Some(value(number, 80)))).collect();
    let started = Instant::now();
    bench.merge(&changes).unwrap();
    let built = started.elapsed();

    let scattered: Changes =
        (0..50_000).map(|at| (key(numbers.below(600_000)), (at % 3 > 0).then(|| value(at, 80)))).collect();
    let before = bench.tree.counters();
    let started = Instant::now();
    bench.merge(&scattered).unwrap();
    let merged = started.elapsed();
    let after = bench.tree.counters();

    let mut model = Model::new();
    apply(&mut model, &changes);
    apply(&mut model, &scattered);
    bench.check(&model);
    let kept = after.items_kept - before.items_kept;
    let copies = after.copies - before.copies;
    assert!(copies < scattered.len() as u64 * 5 / 4, "about one copy for each change: {copies}");
    assert!(kept > 130_000, "{kept} items were kept");
    println!(
        "built in {built:?}; merged {} changes in {merged:?} with {copies} copies of {kept} items",
        scattered.len()
    );
}

#[test]
fn reading_through_a_cold_tree_reads_each_node_once() {
    let (bench, model) = filled(16384, 40_000);
    let nodes = Shape::of(&bench.tree, bench.root).nodes.len() as u64;
    let tree = bench.cold(64 << 20);
    let chunk = block_on(tree.scan(bench.root, Key::MIN, Key::MAX, usize::MAX)).unwrap();
    assert_eq!(chunk.items.len(), model.len());
    assert_eq!(tree.counters().nodes_read, nodes);
    assert!(tree.try_get(bench.root, key(5)).is_some(), "and keeps them");
    let few = bench.cold(64 << 20);
    block_on(few.scan(bench.root, key(100), key(110), 1000)).unwrap();
    assert_eq!(
        few.counters().nodes_read,
        u64::from(bench.root.level) + 1,
        "a short scan reads no leaf too many"
    );
}
