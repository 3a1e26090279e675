//! Any series of merges gives the same result as a map, in well-filled nodes, without losing or
//! leaking a block.

use crate::common::{Bench, Changes, Model, all_items, apply, key, value};
use bytes::Bytes;
use futures_lite::future::block_on;
use proptest::prelude::*;
use syncline_format::Key;
use syncline_tree::{Tree, TreeError};

const NODE_SIZES: [u32; 5] = [4096, 8192, 16384, 32768, 65536];

/// One merge: the keys that change, and how.
#[derive(Clone, Debug)]
struct Step {
    first: u64,
    count: u64,
    stride: u64,
    delete_percent: u64,
    /// Longest value, in thousandths of the maximum that the geometry allows.
    longest: usize,
    seed: u64,
}

fn step() -> impl Strategy<Value = Step> {
    let lengths = prop_oneof![4 => Just(20usize), 2 => Just(200), 1 => Just(1000)];
    let deletes = prop_oneof![3 => Just(0u64), 3 => Just(30), 2 => Just(90), 1 => Just(100)];
    (0..4000u64, 1..1500u64, 1..40u64, deletes, lengths, any::<u64>()).prop_map(
        |(first, count, stride, delete_percent, longest, seed)| Step {
            first,
            count,
            stride,
            delete_percent,
            longest,
            seed,
        },
    )
}

impl Step {
    fn changes(&self, max_value_bytes: usize) -> Changes {
        let mut numbers = crate::common::Numbers(self.seed);
        let longest = max_value_bytes * self.longest / 1000;
        (0..self.count)
            .map(|at| {
                let number = self.first + at * self.stride + numbers.below(self.stride);
                let deleted = numbers.below(100) < self.delete_percent;
                let length = numbers.below(longest as u64 + 1) as usize;
                (key(number), (!deleted).then(|| value(numbers.next(), length)))
            })
            .collect()
    }
}

fn check_reads(tree: &Tree, bench: &Bench, model: &Model, seed: u64) {
    let mut numbers = crate::common::Numbers(seed);
    for _ in 0..50 {
        let probe = key(numbers.below(8000));
        assert_eq!(block_on(tree.get(bench.root, probe)).unwrap(), model.get(&probe).cloned());
        let floor = model.range(..=probe).next_back().map(|(key, value)| (*key, value.clone()));
        assert_eq!(block_on(tree.floor(bench.root, probe)).unwrap(), floor);
        if let Some(answer) = tree.try_get(bench.root, probe) {
            assert_eq!(answer.unwrap(), model.get(&probe).cloned());
        }
        let to = key(numbers.below(8000));
        let most = numbers.below(300) as usize + 1;
        let chunk = block_on(tree.scan(bench.root, probe, to, most)).unwrap();
        let wanted: Vec<(Key, Bytes)> = match probe <= to {
            true => model.range(probe..=to).map(|(key, value)| (*key, value.clone())).collect(),
            false => Vec::new(),
        };
        assert_eq!(chunk.complete, wanted.len() <= most);
        assert_eq!(chunk.items[..], wanted[..wanted.len().min(most)]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn merges_give_what_a_map_gives(
        node_size in 0..5usize,
        small_cache in any::<bool>(),
        longest_run_nodes in 1..20u64,
        steps in prop::collection::vec(step(), 1..14),
    ) {
        let cache_bytes = if small_cache { 100 << 10 } else { 64 << 20 };
        let mut bench = Bench::new(NODE_SIZES[node_size], 64 << 10, cache_bytes);
        bench.space.longest_run_nodes = longest_run_nodes;
        let mut model = Model::new();
        for step in &steps {
            let old = (bench.root, model.clone());
            let changes = step.changes(bench.geometry.max_value_bytes());
            let merged = bench.merge_only(&changes).unwrap();
            apply(&mut model, &changes);
            prop_assert_eq!(all_items(&bench.tree, old.0, 1000), old.1, "the old root shows the old items");
            bench.adopt(merged);
            bench.check(&model);
            check_reads(&bench.tree, &bench, &model, step.seed);
        }
        check_reads(&bench.cold(0), &bench, &model, 1);
        check_reads(&bench.cold(1 << 20), &bench, &model, 2);

        let everything: Changes = model.keys().map(|key| (*key, None)).collect();
        bench.merge(&everything).unwrap();
        bench.check(&Model::new());
        prop_assert_eq!(bench.space.used_blocks().len() as u64, bench.geometry.node_blocks());
        prop_assert_eq!(bench.root.level, 0);
    }

    /// However a merge fails for lack of space, the old tree stays whole and every block is handed
    /// back.
    #[test]
    fn a_merge_without_space_leaves_nothing_behind(nodes_left in 0..200u64, step in step(), second in step()) {
        let mut bench = Bench::new(4096, 64 << 10, 1 << 20);
        let mut model = Model::new();
        let changes = step.changes(900);
        bench.merge(&changes).unwrap();
        apply(&mut model, &changes);
        let used = bench.space.used_blocks();
        *bench.space.nodes_left.lock().unwrap() = nodes_left;
        let changes = second.changes(900);
        match bench.merge(&changes) {
            Ok(()) => apply(&mut model, &changes),
            Err(error) => {
                prop_assert!(matches!(error, TreeError::NoSpace), "{error}");
                prop_assert_eq!(used, bench.space.used_blocks());
            }
        }
        bench.check(&model);
    }
}

#[test]
fn a_value_that_is_too_large_is_refused() {
    for node_bytes in NODE_SIZES {
        let mut bench = Bench::new(node_bytes, 8192, 1 << 20);
        let most = bench.geometry.max_value_bytes();
        let just_fits: Changes = (0..9).map(|number| (key(number), Some(value(number, most)))).collect();
        bench.merge(&just_fits).unwrap();
        let too_large = Changes::from([(key(5), Some(value(5, most + 1)))]);
        let error = bench.merge(&too_large).unwrap_err();
        assert!(
            matches!(error, TreeError::ValueTooLarge { len_bytes, .. } if len_bytes == most + 1),
            "{error}"
        );
        bench.check(&just_fits.into_iter().map(|(key, value)| (key, value.unwrap())).collect());
    }
}

#[test]
fn changes_that_change_nothing_write_next_to_nothing() {
    let mut bench = Bench::new(4096, 16 << 10, 1 << 20);
    let items: Changes = (0..2000).map(|number| (key(number * 2), Some(value(number, 50)))).collect();
    bench.merge(&items).unwrap();
    let model: Model = items.iter().map(|(key, value)| (*key, value.clone().unwrap())).collect();
    assert_eq!(bench.root.level, 1);

    let before = bench.root;
    bench.merge(&Changes::new()).unwrap();
    assert_eq!(bench.root, before, "no changes, no writes");

    // Deletes of keys that do not exist and puts of unchanged items: only the root is rewritten.
    let mut nothing: Changes = (0..2000).map(|number| (key(number * 2 + 1), None)).collect();
    nothing.extend(items.iter().take(100).map(|(key, value)| (*key, value.clone())));
    let merged = bench.merge_only(&nothing).unwrap();
    assert_eq!(merged.nodes_written, 1);
    bench.adopt(merged);
    bench.check(&model);
}

#[test]
fn a_single_change_writes_one_node_for_each_level() {
    let mut bench = Bench::new(4096, 64 << 10, 1 << 20);
    let items: Changes = (0..30_000).map(|number| (key(number * 2), Some(value(number, 50)))).collect();
    bench.merge(&items).unwrap();
    assert_eq!(bench.root.level, 2);
    let copies = bench.tree.counters();
    let merged = bench.merge_only(&Changes::from([(key(30_000), Some(value(1, 50)))])).unwrap();
    assert_eq!(merged.nodes_written, 3);
    assert_eq!(merged.freed.iter().map(|run| run.blocks).sum::<u64>(), 3);
    bench.adopt(merged);
    let now = bench.tree.counters();
    assert!(now.items_kept - copies.items_kept > 20, "the leaf's other items were kept");
    assert_eq!(now.nodes_written - copies.nodes_written, 3, "each is counted once");
    assert!(now.copies - copies.copies <= 2, "in two runs, before and after the change");
}

#[test]
fn futures_may_move_between_threads() {
    fn check<T: Send>(_: &T) {}
    let bench = Bench::new(4096, 8192, 1 << 20);
    let changes = Changes::new();
    check(&bench.tree.get(bench.root, key(1)));
    check(&bench.tree.scan(bench.root, Key::MIN, Key::MAX, 1));
    check(&bench.tree.floor(bench.root, key(1)));
    check(&bench.tree.merge(bench.root, 2, &changes, &|_, _| None));
    check(&bench.tree.create(2, &|_, _| None));
    check(&bench.tree.walk(bench.root, &mut |_, _, _| {}));
}
