//! Nodes with two copies: one of them may be damaged anywhere, and is mended.

use crate::common::{Bench, Changes, Model, all_items, key, value};
use std::collections::BTreeSet;
use syncline_device::{AlignedBuf, block_on};
use syncline_format::superblock::Pointer;
use syncline_format::{BlockAddr, BlockRun, Key, Metadata};
use syncline_tree::TreeError;

fn bench() -> (Bench, Model) {
    let mut bench = Bench::with(Metadata::Dup, 4096, 16 << 10, 1 << 20);
    let items: Changes = (0..9000).map(|number| (key(number), Some(value(number, 40)))).collect();
    bench.merge(&items).unwrap();
    assert_eq!(bench.root.level, 2);
    (bench, items.into_iter().map(|(key, value)| (key, value.unwrap())).collect())
}

fn pointers(bench: &Bench) -> Vec<Pointer> {
    let mut pointers = Vec::new();
    block_on(bench.cold(1 << 20).walk(bench.root, &mut |_, pointer, _| pointers.push(pointer)));
    pointers
}

fn read(bench: &Bench, addr: BlockAddr) -> Vec<u8> {
    block_on(bench.tracker.read(addr * 4096, 4096)).unwrap().to_vec()
}

fn write(bench: &Bench, addr: BlockAddr, bytes: &[u8]) {
    let bytes = AlignedBuf::copy_from(bytes).into_bytes();
    block_on(bench.tracker.write(addr * 4096, vec![bytes]).wait()).unwrap();
}

#[test]
fn a_tree_changes_like_one_with_single_nodes() {
    let (mut bench, mut model) = bench();
    bench.check(&model);
    for round in 0..20 {
        let changed = (round * 300..round * 300 + 400).step_by(3);
        let changes: Changes = changed
            .map(|number| (key(number), (number % 2 == 0).then(|| value(number + round, 90))))
            .collect();
        bench.merge(&changes).unwrap();
        for (key, value) in changes {
            match value {
                Some(value) => model.insert(key, value),
                None => model.remove(&key),
            };
        }
        bench.check(&model);
    }
}

#[test]
fn the_copies_of_a_node_have_the_same_bytes() {
    let (bench, _) = bench();
    let pointers = pointers(&bench);
    for pointer in &pointers {
        assert_eq!(read(&bench, pointer.addr), read(&bench, pointer.copy));
    }
    let places: BTreeSet<_> = pointers.iter().flat_map(|pointer| pointer.places()).collect();
    assert_eq!(places.len(), 2 * pointers.len());
}

#[test]
fn any_one_copy_may_be_damaged_and_is_mended() {
    let (bench, model) = bench();
    for (index, pointer) in pointers(&bench).into_iter().enumerate().step_by(7) {
        for addr in pointer.places() {
            let good = read(&bench, addr);
            let mut bad = good.clone();
            bad[(index * 131) % 4096] ^= 4;
            write(&bench, addr, &bad);
            let tree = bench.cold(4 << 20);
            assert!(all_items(&tree, bench.root, 1000) == model);
            assert_eq!(tree.counters().nodes_corrupt, 0);
            // A reader is content with the first sound copy; a check reads both.
            assert_eq!(tree.counters().copies_rotten == 1, addr == pointer.addr);
            let walked = block_on(tree.walk(bench.root, &mut |_, _, _| {}));
            assert_eq!(walked.bad_nodes, 0);
            let rotten = tree.take_rotten();
            assert_eq!(rotten.iter().map(|copy| copy.addr).collect::<Vec<_>>(), [addr]);
            assert!(block_on(tree.leads_to(bench.root, &rotten[0])).unwrap());
            block_on(tree.mend(&rotten[0])).unwrap();
            assert!(read(&bench, addr) == good);
            assert_eq!(tree.counters().copies_rotten, if addr == pointer.addr { 2 } else { 1 });
        }
    }
}

#[test]
fn a_node_is_lost_only_with_both_copies() {
    let (bench, _) = bench();
    for pointer in [bench.root.node, pointers(&bench)[5]] {
        let good = read(&bench, pointer.addr);
        pointer.places().for_each(|addr| write(&bench, addr, &[0; 4096]));
        let tree = bench.cold(4 << 20);
        let scanned = block_on(tree.scan(bench.root, Key::MIN, Key::MAX, usize::MAX));
        assert!(matches!(scanned, Err(TreeError::Corrupt { addr, .. }) if addr == pointer.addr));
        assert!(tree.take_rotten().is_empty(), "there is nothing to mend it from");
        pointer.places().for_each(|addr| write(&bench, addr, &good));
    }
}

/// A copy is written again only while the tree has the node: its blocks may hold something else later.
#[test]
fn a_node_that_was_freed_is_not_mended() {
    let (mut bench, _) = bench();
    let leaf = *pointers(&bench).last().unwrap();
    write(&bench, leaf.addr, &[0; 4096]);
    let tree = bench.cold(4 << 20);
    block_on(tree.get(bench.root, key(8999))).unwrap().unwrap();
    let rotten = tree.take_rotten();
    assert_eq!(rotten.len(), 1);
    bench.merge(&Changes::from([(key(8999), Some(value(1, 50)))])).unwrap();
    assert!(!bench.space.used_blocks().contains(&leaf.addr));
    assert!(!block_on(bench.cold(1 << 20).leads_to(bench.root, &rotten[0])).unwrap());
    assert!(read(&bench, leaf.addr) == [0; 4096]);
}

#[test]
fn a_merge_reads_past_a_damaged_copy() {
    let (mut bench, mut model) = bench();
    for pointer in pointers(&bench) {
        write(&bench, pointer.addr, &[7; 4096]);
    }
    bench.tree.forget(BlockRun::new(0, 16 << 10));
    let changes: Changes = (0..9000).step_by(20).map(|number| (key(number), Some(value(1, 10)))).collect();
    bench.merge(&changes).unwrap();
    model.extend(changes.into_iter().map(|(key, value)| (key, value.unwrap())));
    assert!(all_items(&bench.cold(4 << 20), bench.root, 1000) == model);
}
