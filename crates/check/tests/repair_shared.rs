//! Damaged marks and reference counts of shared blocks, alone and with other damage, are mended
//! without a byte lost.

use crate::common::damages::{DAMAGES, open_read_only};
use crate::common::survey::{Survey, survey};
use crate::common::{Inodes, edit_inode, examine, extents, plant, rot, sample, spawn};
use std::collections::BTreeSet;
use std::sync::Arc;
use syncline::{Filesystem, ImageOptions};
use syncline_check::{Condition, FindingKind, Repair, RepairOptions, Report, repair};
use syncline_device::{MemoryDevice, block_on};
use syncline_format::items::extent::Extent;
use syncline_format::items::shared::SharedRun;
use syncline_format::node::Node;
use syncline_format::superblock::Pointer;
use syncline_format::{BlockRun, Key, Kind};

/// Two files on the same blocks, in leaves far from each other.
struct Pair {
    device: Arc<MemoryDevice>,
    inodes: Inodes,
    far: u64,
    extent: Extent,
}

/// Damage combined with that of marks and counts.
const OTHERS: [Option<FindingKind>; 6] = [
    None,
    Some(FindingKind::LinkCount),
    Some(FindingKind::BlockUsedTwice),
    Some(FindingKind::BlockLeaked),
    Some(FindingKind::SpaceMapDamaged),
    Some(FindingKind::SuperblockCounter),
];

impl Pair {
    fn new() -> Self {
        let (device, inodes) = sample();
        let fs = Filesystem::open_device(device.clone(), ImageOptions::default()).unwrap();
        fs.create_file("far").unwrap();
        let far = fs.symlink_metadata("far").unwrap().ino();
        fs.close().unwrap();
        let extent = Extent { shared: true, ..extents(&open_read_only(&device), inodes.large)[0].clone() };
        assert_eq!(extent.file_block, 0);
        edit_inode(&device, far, |inode| {
            (inode.size, inode.blocks) = (extent.run().len_bytes(), 8 * extent.blocks());
        });
        plant(&device, |_, transaction| {
            for ino in [inodes.large, far] {
                transaction.put(Key::new(ino, Kind::Extent, 0), extent.encode());
            }
            let counts = SharedRun { run: extent.run(), count: 2 };
            transaction.put(Key::new(0, Kind::Shared, extent.addr), counts.encode());
        });
        let report = examine(device.clone());
        assert!(report.is_clean(), "{:#?}", report.findings);
        Self { device, inodes, far, extent }
    }

    fn damage(&self, kind: FindingKind) {
        DAMAGES.iter().find(|(damaged, _)| *damaged == kind).unwrap().1(&self.device, self.inodes);
    }

    /// Repairs, and compares everything not in `lost`.
    fn mend(&self, before: &Survey, lost: &BTreeSet<u64>, what: &str) -> Repair {
        let options = RepairOptions { accept_loss: !lost.is_empty(), ..RepairOptions::default() };
        let done = block_on(repair(self.device.clone(), spawn(), &options, &mut |_| {})).unwrap();
        let left = done.after.as_ref().map(|after| &after.findings);
        // Blocks lost with a leaf keep failing to read.
        let lost_data = |report: &Report| {
            let data = report.findings.iter().all(|finding| finding.kind == FindingKind::DataDamaged);
            !lost.is_empty() && data
        };
        let mended = done.condition() == Condition::Repaired || done.after.as_ref().is_some_and(lost_data);
        assert!(mended, "{what}: {:?} {left:#?}\n{:#?}", done.refused, done.changes);
        let report = examine(self.device.clone());
        assert!(report.is_clean() || lost_data(&report), "{what}: {:#?}", report.findings);
        let after = survey(&self.device);
        for (ino, seen) in before.iter().filter(|(ino, _)| !lost.contains(ino)) {
            let now = after.get(ino).unwrap_or_else(|| panic!("{what}: {} is gone", seen.path.display()));
            assert_eq!(now.contents, seen.contents, "{what}: {}", seen.path.display());
        }
        done
    }
}

/// Repairs combinations with other damage: `first` damages a sound pair, and the repair must report
/// `told`.
fn mended_with_others(what: &str, told: FindingKind, first: fn(&Pair)) {
    for other in OTHERS {
        let pair = Pair::new();
        let before = survey(&pair.device);
        first(&pair);
        if let Some(other) = other {
            pair.damage(other);
        }
        let what = format!("{what} with {other:?}");
        let done = pair.mend(&before, &BTreeSet::new(), &what);
        assert!(done.changes.iter().any(|change| change.kind == told), "{what}: {:#?}", done.changes);
    }
}

#[test]
fn an_extent_without_the_mark_on_shared_blocks() {
    mended_with_others("a lost mark", FindingKind::BlockUsedTwice, |pair| {
        plant(&pair.device, |_, transaction| {
            let unmarked = Extent { shared: false, ..pair.extent.clone() };
            transaction.put(Key::new(pair.far, Kind::Extent, 0), unmarked.encode());
        });
    });
}

#[test]
fn a_count_of_blocks_that_nobody_shares() {
    mended_with_others("counts of others", FindingKind::ReferenceCount, |pair| {
        plant(&pair.device, |store, transaction| {
            let own = extents(store, pair.inodes.large)[1].run();
            let free = BlockRun::new(store.superblock().geometry.total_blocks - 600, 5);
            for run in [BlockRun::new(own.start, 2), free] {
                let counts = SharedRun { run, count: 7 };
                transaction.put(Key::new(0, Kind::Shared, run.start), counts.encode());
            }
        });
    });
}

#[test]
fn counts_that_are_gone() {
    mended_with_others("no counts", FindingKind::ReferenceCount, |pair| {
        plant(&pair.device, |_, transaction| transaction.delete(Key::new(0, Kind::Shared, pair.extent.addr)));
    });
}

/// The leaf with one file's extents is lost: the other file keeps the blocks, and they no longer
/// count as shared.
#[test]
fn a_lost_node_with_the_extents_of_one_side() {
    for other in [None, Some(FindingKind::LinkCount), Some(FindingKind::ReferenceCount)] {
        let pair = Pair::new();
        if let Some(other) = other {
            pair.damage(other);
        }
        let before = survey(&pair.device);
        let leaves = leaves(&pair.device);
        let (addr, lost) = leaves.iter().find(|(_, objects)| objects.contains(&pair.far)).unwrap();
        assert!(!lost.contains(&pair.inodes.large), "the sides lie in two leaves");
        rot(&pair.device, *addr);
        let done = pair.mend(&before, lost, &format!("a lost leaf with {other:?}"));
        assert!(done.rebuilt);
        let store = open_read_only(&pair.device);
        let kept = &extents(&store, pair.inodes.large)[0];
        assert_eq!(kept.run(), pair.extent.run());
    }
}

/// Objects with an item in each leaf, by the leaf's address.
fn leaves(device: &Arc<MemoryDevice>) -> Vec<(u64, BTreeSet<u64>)> {
    let store = open_read_only(device);
    let superblock = store.superblock();
    let tracker = syncline_device::FlushTracker::new(store.device().clone());
    let tree = syncline_tree::Tree::new(tracker, superblock.geometry, 1 << 20);
    let mut leaves = Vec::new();
    let mut visit = |level: u8, pointer: Pointer, node: Result<&Node, &syncline_tree::TreeError>| {
        if level == 0 {
            let node = node.unwrap();
            leaves.push((pointer.addr, (0..node.len()).map(|index| node.key(index).object).collect()));
        }
    };
    block_on(tree.walk(superblock.tree, &mut visit));
    leaves
}
