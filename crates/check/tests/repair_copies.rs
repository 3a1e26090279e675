//! Repairs of images that hold their metadata twice.

use crate::common::survey::survey;
use crate::common::{BadBlock, edit_inode, edit_superblock, examine, extents, rot, sample_of, spawn};
use std::sync::Arc;
use syncline::{Filesystem, FormatOptions, ImageOptions};
use syncline_check::{Condition, FindingKind, RepairOptions, repair};
use syncline_device::{Device, block_on};
use syncline_store::{Store, StoreOptions, read_snapshots, read_superblocks};

/// A copy on a sector that stays bad is left as it is; everything else is mended.
#[test]
fn a_copy_that_can_not_be_written_does_not_stop_a_repair() {
    let (device, inodes) = sample_of(&FormatOptions::default());
    let fs = Filesystem::open_device(device.clone(), ImageOptions::default()).unwrap();
    fs.create_snapshot("then").unwrap();
    fs.remove_dir_all("directory").unwrap();
    fs.close().unwrap();
    edit_inode(&device, inodes.large, |item| item.nlink = 5);
    let any: Arc<dyn Device> = device.clone();
    let copy = block_on(read_snapshots(&any)).unwrap().1[0].tree.node.copy;
    let bad = BadBlock::for_good(device.clone(), copy);
    let options = RepairOptions::default();
    let done = block_on(repair(bad.clone(), spawn(), &options, &mut |_| {})).unwrap();
    assert_eq!(done.condition(), Condition::Damaged);
    let changed: Vec<_> = done.changes.iter().map(|change| change.kind).collect();
    assert_eq!(changed, [FindingKind::LinkCount], "{:#?}", done.changes);
    let left = done.after.unwrap().findings;
    assert_eq!(left.len(), 1, "{left:#?}");
    assert_eq!((left[0].kind, left[0].block), (FindingKind::CopyDamaged, Some(copy)));
    assert!(left[0].text.contains("can't be written again"), "{}", left[0].text);
    assert_eq!(examine(bad).findings.len(), 1);
    // On a sound drive the copy is mended.
    rot(&device, copy);
    let done = block_on(repair(device.clone(), spawn(), &options, &mut |_| {})).unwrap();
    assert_eq!(done.condition(), Condition::Repaired);
    assert!(examine(device).is_clean());
}

/// A pointer whose second address is that of a file's block does not make a repair write there.
#[test]
fn a_block_of_a_file_is_not_taken_for_a_damaged_copy() {
    let (device, inodes) = sample_of(&FormatOptions::default());
    let before = survey(&device);
    let (store, _) = block_on(Store::open(
        device.clone(),
        StoreOptions { read_only: true, ..Default::default() },
        spawn(),
    ))
    .unwrap();
    let block = extents(&store, inodes.large)[0].addr;
    edit_superblock(&device, |superblock| superblock.tree.node.copy = block);
    let report = examine(device.clone());
    for kind in [FindingKind::CopyDamaged, FindingKind::BlockUsedTwice] {
        assert!(report.of(kind).next().is_some(), "{:#?}", report.findings);
    }
    let done = block_on(repair(device.clone(), spawn(), &RepairOptions::default(), &mut |_| {})).unwrap();
    assert_eq!(done.condition(), Condition::Repaired, "{:?} {:#?}", done.refused, done.after);
    let any: Arc<dyn Device> = device.clone();
    assert_ne!(block_on(read_superblocks(&any)).unwrap().superblock.tree.node.copy, block);
    let after = survey(&device);
    assert!(after[&inodes.large].contents == before[&inodes.large].contents);
    assert!(examine(device).is_clean());
}
