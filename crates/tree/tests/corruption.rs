//! Damaged nodes yield `Corrupt`, are counted, and never cause a panic, a loop or wrong items.

use crate::common::{Bench, Changes, Model, Numbers, Shape, all_items, key, value};
use futures_lite::future::block_on;
use proptest::prelude::*;
use std::collections::BTreeMap;
use syncline_device::AlignedBuf;
use syncline_format::node::{ENTRY_BYTES, HEADER_BYTES, Node};
use syncline_format::superblock::{Pointer, TreeRoot};
use syncline_format::{BlockAddr, KEY_BYTES, Key, crc};
use syncline_tree::{Tree, TreeError};

/// A tree of three levels with 4 KiB nodes.
fn bench() -> (Bench, Model) {
    let mut bench = Bench::new(4096, 16 << 10, 1 << 20);
    let items: Changes = (0..9000).map(|number| (key(number), Some(value(number, 40)))).collect();
    bench.merge(&items).unwrap();
    assert_eq!(bench.root.level, 2);
    (bench, items.into_iter().map(|(key, value)| (key, value.unwrap())).collect())
}

fn read(bench: &Bench, addr: BlockAddr) -> Vec<u8> {
    block_on(bench.tracker.read(addr * 4096, 4096)).unwrap().to_vec()
}

fn write(bench: &Bench, addr: BlockAddr, bytes: &[u8]) {
    block_on(bench.tracker.write(addr * 4096, vec![AlignedBuf::copy_from(bytes).into_bytes()]).wait())
        .unwrap();
}

/// The addresses from the root to the leaf that holds `key`, each with its index in the node above.
fn path(bench: &Bench, key: Key) -> Vec<(BlockAddr, usize)> {
    let mut path = vec![(bench.root.node.addr, 0)];
    for level in (1..=bench.root.level).rev() {
        let (addr, _) = path[path.len() - 1];
        let node = Node::decode(read(bench, addr).into(), bench.geometry, addr, level).unwrap();
        let child = node.child_for(key);
        path.push((node.child(child).1.addr, child));
    }
    path
}

/// Damages the node `depth` steps below the root and corrects all checksums above it; returns the
/// forged root.
fn forge(bench: &Bench, key: Key, depth: usize, damage: impl FnOnce(&mut Vec<u8>)) -> TreeRoot {
    let path = path(bench, key);
    let mut node = read(bench, path[depth].0);
    damage(&mut node);
    write(bench, path[depth].0, &node);
    let mut checksum = crc(&node);
    for step in (1..=depth).rev() {
        let parent = path[step - 1].0;
        let mut bytes = read(bench, parent);
        let count = u32::from_le_bytes(bytes[24..28].try_into().unwrap()) as usize;
        let at = HEADER_BYTES + count * ENTRY_BYTES + path[step].1 * 12 + 8;
        bytes[at..at + 4].copy_from_slice(&checksum.to_le_bytes());
        write(bench, parent, &bytes);
        checksum = crc(&bytes);
    }
    TreeRoot { node: Pointer::single(bench.root.node.addr, checksum), level: bench.root.level }
}

/// Runs every tree operation; true if any of them met a damaged node.
fn exercise(bench: &Bench, root: TreeRoot) -> bool {
    let tree = bench.cold(4 << 20);
    let mut damaged = false;
    let mut note = |error: TreeError| match error {
        TreeError::Corrupt { .. } => damaged = true,
        other => panic!("{other}"),
    };
    for number in (0..9100).step_by(37) {
        block_on(tree.get(root, key(number))).err().map(&mut note);
        block_on(tree.floor(root, key(number))).err().map(&mut note);
        tree.try_get(root, key(number)).and_then(Result::err).map(&mut note);
    }
    let mut from = Some(Key::MIN);
    while let Some(start) = from {
        match block_on(tree.scan(root, start, Key::MAX, 500)) {
            Ok(chunk) => {
                assert!(chunk.items.is_sorted_by_key(|item| item.0), "a scan went backwards");
                from = chunk.items.last().filter(|_| !chunk.complete).and_then(|item| item.0.next());
            }
            Err(error) => {
                note(error);
                from = None;
            }
        }
    }
    let walked = block_on(tree.walk(root, &mut |_, _, node| {
        node.err().cloned().map(&mut note);
    }));
    assert!(walked.nodes < 1000, "a walk visits each node once");
    assert_eq!(damaged, tree.counters().nodes_corrupt > 0, "damage is counted");
    damaged || merge_fails(bench, &tree, root)
}

/// A merge that touches every leaf; true if it fails because of damage.
fn merge_fails(bench: &Bench, tree: &Tree, root: TreeRoot) -> bool {
    let changes: Changes = (0..9000).step_by(20).map(|number| (key(number), Some(value(1, 10)))).collect();
    match block_on(tree.merge(root, 99, &changes, &|_, wanted| bench.space.allocate(wanted))) {
        Ok(_) => false,
        Err(failed) => {
            assert!(matches!(failed.error, TreeError::Corrupt { .. }), "{failed}");
            true
        }
    }
}

#[test]
fn every_flipped_bit_is_noticed() {
    let (bench, model) = bench();
    let shape = Shape::of(&bench.tree, bench.root);
    let mut numbers = Numbers(7);
    for _ in 0..60 {
        let addr = shape.nodes[numbers.below(shape.nodes.len() as u64) as usize];
        let good = read(&bench, addr);
        let mut bad = good.clone();
        bad[numbers.below(4096) as usize] ^= 1 << numbers.below(8);
        write(&bench, addr, &bad);
        let tree = bench.cold(1 << 20);
        let mut bad_nodes = Vec::new();
        let walked = block_on(tree.walk(bench.root, &mut |_, pointer, node| {
            if let Err(error) = node {
                assert!(matches!(error, TreeError::Corrupt { addr, .. } if *addr == pointer.addr), "{error}");
                bad_nodes.push(pointer.addr);
            }
        }));
        assert_eq!(bad_nodes, [addr], "exactly the damaged node is named");
        assert_eq!((walked.bad_nodes, tree.counters().nodes_corrupt), (1, 1));
        assert!(block_on(tree.scan(bench.root, Key::MIN, Key::MAX, usize::MAX)).is_err());
        assert!(merge_fails(&bench, &tree, bench.root));
        write(&bench, addr, &good);
    }
    assert_eq!(all_items(&bench.cold(1 << 20), bench.root, 1000), model);
}

#[test]
fn a_merge_around_a_damaged_leaf_succeeds_and_one_into_it_does_not() {
    let (mut bench, mut model) = bench();
    let leaf = path(&bench, key(4000))[2].0;
    let good = read(&bench, leaf);
    write(&bench, leaf, &[0; 4096]);
    bench.tree = bench.cold(1 << 20);
    let used = bench.space.used_blocks();
    let error = bench.merge(&Changes::from([(key(4000), None)])).unwrap_err();
    assert!(matches!(error, TreeError::Corrupt { addr, .. } if addr == leaf), "{error}");
    assert_eq!(bench.space.used_blocks(), used, "a failed merge hands everything back");
    bench.merge(&Changes::from([(key(1), None), (key(8000), None)])).unwrap();
    model.remove(&key(1));
    model.remove(&key(8000));
    write(&bench, leaf, &good);
    bench.check(&model);
}

#[test]
fn a_node_that_is_not_where_its_parent_says_is_refused() {
    let (bench, _) = bench();
    let field = |error: TreeError| match error {
        TreeError::Corrupt { detail, .. } => detail.to_string(),
        other => panic!("{other}"),
    };
    // In each forgery all checksums are right.
    let forgeries: [(&str, usize, usize, Vec<u8>); 4] = [
        ("tree node: impossible own address", 2, 8, vec![9]),
        ("tree node: impossible level", 2, 32, vec![1]),
        ("tree node: impossible place in its parent", 2, HEADER_BYTES, vec![0; KEY_BYTES]),
        ("tree node: impossible child address", 1, HEADER_BYTES, Vec::new()),
    ];
    for (wanted, depth, at, bytes) in forgeries {
        let (addr, _) = path(&bench, key(4000))[depth];
        let saved: Vec<_> =
            path(&bench, key(4000)).iter().map(|(addr, _)| (*addr, read(&bench, *addr))).collect();
        let root = forge(&bench, key(4000), depth, |node| {
            let count = u32::from_le_bytes(node[24..28].try_into().unwrap()) as usize;
            match bytes.is_empty() {
                // A child beyond the device.
                true => node[HEADER_BYTES + count * ENTRY_BYTES..][..8].fill(0xff),
                false => node[at..at + bytes.len()].copy_from_slice(&bytes),
            }
        });
        let error = block_on(bench.cold(1 << 20).get(root, key(4000))).unwrap_err();
        assert_eq!(field(error), wanted, "node at {addr}");
        for (addr, bytes) in saved {
            write(&bench, addr, &bytes);
        }
    }
    let outside = TreeRoot { node: Pointer::single(u64::MAX, 0), level: 2 };
    assert!(matches!(block_on(bench.tree.get(outside, key(1))), Err(TreeError::Corrupt { .. })));
    let too_high = TreeRoot { level: 200, ..bench.root };
    assert!(matches!(block_on(bench.tree.get(too_high, key(1))), Err(TreeError::Corrupt { .. })));
}

#[test]
fn a_node_reached_twice_is_refused() {
    let (bench, _) = bench();
    let mut at_child = BTreeMap::new();
    // The second child's pointer becomes the first child's: same level, right checksum, but wrong
    // keys.
    let root = forge(&bench, key(4000), 1, |node| {
        let count = u32::from_le_bytes(node[24..28].try_into().unwrap()) as usize;
        let values = HEADER_BYTES + count * ENTRY_BYTES;
        node.copy_within(values..values + 12, values + 12);
        at_child.insert(count, values);
    });
    assert_eq!(at_child.len(), 1);
    assert!(exercise(&bench, root));
    let mut bad = 0;
    block_on(bench.cold(1 << 20).walk(root, &mut |_, _, node| bad += u64::from(node.is_err())));
    assert_eq!(bad, 1);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 80, ..ProptestConfig::default() })]

    /// Whatever bytes a hostile image holds under right checksums, nothing panics, loops or goes
    /// backwards.
    #[test]
    fn forged_nodes_never_panic(
        number in 0..9000u64,
        depth in 0..3usize,
        damage in prop::collection::vec((0..4096usize, any::<u8>()), 0..4),
        front in prop::collection::vec((0..HEADER_BYTES, any::<u8>()), 0..2),
        copies in prop::collection::vec((0..4096usize, 0..4096usize, 1..64usize), 0..3),
    ) {
        let (bench, _) = bench();
        let root = forge(&bench, key(number), depth, |node| {
            for (from, to, len) in copies {
                let len = len.min(4096 - from).min(4096 - to);
                node.copy_within(from..from + len, to);
            }
            for (at, byte) in damage.into_iter().chain(front) {
                node[at] = byte;
            }
        });
        exercise(&bench, root);
    }
}
