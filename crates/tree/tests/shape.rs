//! Nodes stay reasonably full, whatever is deleted, and merges do not cost more than they should.

use crate::common::{Bench, Changes, Model, Numbers, Shape, apply, key, value};
use futures_lite::future::block_on;
use std::time::Instant;
use syncline_format::{BlockRun, Key};

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

/// Deletes so few items at a time that each leaf loses its items while its neighbours stay as they
/// are.
#[test]
fn deleting_most_of_a_tree_bit_by_bit_leaves_it_half_full() {
    for (node_bytes, items) in [(4096, 6000), (16384, 12_000)] {
        let (mut bench, mut model) = filled(node_bytes, items);
        let mut order: Vec<u64> = (0..items).collect();
        let mut numbers = Numbers(u64::from(node_bytes));
        for at in (1..order.len()).rev() {
            order.swap(at, numbers.below(at as u64 + 1) as usize);
        }
        for some in order[..order.len() * 19 / 20].chunks(3) {
            let deletes: Changes = some.iter().map(|&number| (key(number), None)).collect();
            bench.merge(&deletes).unwrap();
            apply(&mut model, &deletes);
        }
        bench.check(&model);
        let shape = Shape::of(&bench.tree, bench.root);
        let fill = shape.leaf_fill(bench.geometry);
        assert!(fill > 0.4, "{node_bytes}: {fill}");
    }
}

/// A leaf loses all items but one while everything around it stays: it absorbs its neighbour, and
/// the two share evenly.
#[test]
fn a_nearly_empty_leaf_takes_in_its_neighbour() {
    let (mut bench, mut model) = filled(4096, 3000);
    let before = Shape::of(&bench.tree, bench.root);
    let deletes: Changes = (1001..1049).map(|number| (key(number), None)).collect();
    bench.merge(&deletes).unwrap();
    apply(&mut model, &deletes);
    bench.check(&model);
    let after = Shape::of(&bench.tree, bench.root);
    assert!(
        after.used_bytes[&0].iter().rev().skip(1).all(|used| *used > 4096 * 2 / 5),
        "{:?}",
        after.used_bytes[&0]
    );
    assert!(after.used_bytes[&0].len() <= before.used_bytes[&0].len());
}

/// The last internal node has one child; when everything before it is deleted, that child becomes
/// the root, not a chain down to it.
#[test]
fn a_root_with_one_old_child_gives_way() {
    let (mut bench, mut model) = filled(4096, 6110);
    assert_eq!(bench.root.level, 2);
    let shape = Shape::of(&bench.tree, bench.root);
    assert_eq!(
        shape.used_bytes[&1][1],
        syncline_format::node::HEADER_BYTES + 33,
        "a node with a single child"
    );
    let deletes: Changes = (0..6100).map(|number| (key(number), None)).collect();
    bench.merge(&deletes).unwrap();
    apply(&mut model, &deletes);
    assert_eq!(bench.root.level, 0);
    bench.check(&model);
}

/// Two streams of growth in the middle of the tree, like two files that are appended to.
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

/// A small checkpoint: 200,000 items into an empty tree, then changes all over it. Prints how long
/// it took.
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

#[test]
fn forgotten_nodes_are_not_answered_from_memory() {
    let (bench, _) = filled(16384, 40_000);
    // Large enough that nothing is ever evicted, however the nodes are spread over the cache's
    // shards.
    let tree = bench.cold(256 << 20);
    let run = |addr| BlockRun::new(addr, bench.geometry.node_blocks());
    let root = run(bench.root.node.addr);
    // The root alone, everything, nothing on the path to the item, and all of that path except the
    // root.
    for (forgotten, is_gone) in [
        (root, true),
        (bench.geometry.usable(), true),
        (BlockRun::new(root.start - 4, 4), false),
        (BlockRun::new(64, root.start - 64), true),
    ] {
        block_on(tree.scan(bench.root, Key::MIN, Key::MAX, usize::MAX)).unwrap();
        assert!(tree.try_get(bench.root, key(5)).is_some());
        tree.forget(forgotten);
        let read = tree.counters().nodes_read;
        block_on(tree.get(bench.root, key(5))).unwrap().unwrap();
        assert_eq!(tree.counters().nodes_read > read, is_gone, "{forgotten:?}");
    }
}
