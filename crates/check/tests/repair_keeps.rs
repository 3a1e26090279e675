//! Everything that a mount could read before a repair reads the same after it, byte for byte; or
//! the repair refuses and has changed nothing.

use crate::common::damages::{edit_quota, limit, open_read_only, take_snapshot};
use crate::common::survey::{assert_kept, survey, survey_for_reading, survey_of};
use crate::common::{
    BadBlock, edit_inode, examine, expect, extents, items, leaf_of, plant, rot, sample, single, spawn,
};
use std::sync::Arc;
use syncline::{Filesystem, ImageOptions, OpenOptions, format_device};
use syncline_check::{Condition, FINDINGS_MAX, FindingKind, Flaw, Repair, RepairOptions, repair};
use syncline_device::{Device, DeviceExt, MemoryDevice, block_on};
use syncline_format::items::extent::Extent;
use syncline_format::items::inode::FLAG_UNPLACED;
use syncline_format::items::preallocation::{Preallocation, encode_sum};
use syncline_format::{BLOCK_BYTES, Key, Kind, crc};
use syncline_store::{Transaction, read_superblocks};

fn mend(device: &Arc<MemoryDevice>, options: &RepairOptions) -> Repair {
    mend_any(device.clone(), options)
}

fn mend_any(device: Arc<dyn Device>, options: &RepairOptions) -> Repair {
    block_on(repair(device, spawn(), options, &mut |_| {})).unwrap()
}

fn accepting_loss() -> RepairOptions {
    RepairOptions { accept_loss: true, ..RepairOptions::default() }
}

fn mended(device: &Arc<MemoryDevice>) -> Repair {
    let done = mend(device, &RepairOptions::default());
    assert_eq!(done.condition(), Condition::Repaired, "{:?} {:#?}", done.refused, done.after);
    done
}

/// The blocks that the first pass wrote beside the image are not part of the image.
#[test]
fn a_repair_that_takes_two_passes_is_done() {
    let (device, _) = sample();
    limit(&device);
    edit_quota(&device, |quota| quota.used_units += 1);
    let before = survey(&device);
    let done = mend(&device, &RepairOptions { flaw: Some(Flaw::QuotasLater), ..RepairOptions::default() });
    assert_eq!(done.condition(), Condition::Repaired, "{:?} {:#?}", done.refused, done.after);
    assert_kept(&before, &survey(&device), "two passes");
}

/// Keys are ordered by kind, and no kind has number 0: such an item sorts before the inode item.
#[test]
fn a_stray_item_in_front_of_an_inode_item_takes_nothing_along() {
    let (device, inodes) = sample();
    let fs = Filesystem::open_device(device.clone(), ImageOptions::default()).unwrap();
    let link = fs.symlink_metadata("short link").unwrap().ino();
    let mode = |fs: &Filesystem| fs.symlink_metadata("directory").unwrap().permissions();
    fs.set_permissions("directory", 0o2750).unwrap();
    let permissions = mode(&fs);
    fs.close().unwrap();
    let before = survey(&device);
    let numbers = [1, inodes.small, inodes.large, inodes.directory, inodes.long_link, link];
    let stray = |transaction: &mut Transaction| {
        for object in numbers {
            transaction.put(Key { object, kind: 0, offset: 7 }, vec![1]);
        }
    };
    plant(&device, |_, transaction| stray(transaction));
    assert_eq!(survey(&device), before, "a mount does not mind");
    let done = mended(&device);
    let kinds: Vec<_> = done.changes.iter().map(|change| change.kind).collect();
    assert_eq!(kinds, [FindingKind::ItemMalformed; 6], "{:#?}", done.changes);
    assert_eq!(survey(&device), before);
    let fs = Filesystem::open_device(device, ImageOptions::default()).unwrap();
    assert_eq!(mode(&fs), permissions);
}

/// Plants an extent on the table of snapshots, with a matching checksum.
fn on_the_table(device: &Arc<MemoryDevice>, ino: u64) -> u64 {
    take_snapshot(device);
    let table = open_read_only(device).superblock().snapshots.addr;
    let block = block_on(device.read_at(table * BLOCK_BYTES as u64, BLOCK_BYTES)).unwrap();
    plant(device, |_, transaction| {
        let extent = Extent::plain(1, table, vec![crc(&block)]);
        transaction.put(Key::new(ino, Kind::Extent, 1), extent.encode());
    });
    edit_inode(device, ino, |inode| inode.size = 2 * BLOCK_BYTES as u64);
    table
}

#[test]
fn an_extent_on_the_table_of_snapshots_gets_blocks_of_its_own() {
    let (device, _) = sample();
    let fs = Filesystem::open_device(device.clone(), ImageOptions::default()).unwrap();
    fs.create_file("holes").unwrap().set_len(3).unwrap();
    let ino = fs.symlink_metadata("holes").unwrap().ino();
    fs.close().unwrap();
    let table = on_the_table(&device, ino);
    let before = survey_for_reading(device.clone());
    expect(&examine(device.clone()), FindingKind::BlockUsedTwice);
    mended(&device);
    assert_eq!(survey(&device), before);
    assert_ne!(extents(&open_read_only(&device), ino)[0].addr, table);
    let name = "of the sample";
    let snapshot = Filesystem::open_snapshot_device(device, name, ImageOptions::default()).unwrap();
    assert_eq!(snapshot.read("large").unwrap(), vec![1; 300_000]);
}

/// The snapshots' blocks would become free, although they might still be rescued by other means.
#[test]
fn snapshots_are_given_up_only_if_that_is_accepted() {
    let (device, _) = sample();
    take_snapshot(&device);
    let before = survey(&device);
    rot(&device, open_read_only(&device).superblock().snapshots.addr);
    let image = device.image();
    let done = mend(&device, &RepairOptions::default());
    assert!(done.refused_for_loss && done.refused.is_some_and(|reason| reason.contains("all snapshots")));
    assert!(device.image() == image, "a repair that was refused wrote");
    assert_eq!(mend(&device, &accepting_loss()).condition(), Condition::Repaired);
    assert_eq!(survey(&device), before);
}

/// Reading needs no space map.
#[test]
fn a_wrong_bit_in_the_space_map_keeps_nobody_from_reading() {
    let (device, _) = sample();
    let before = survey(&device);
    rot(&device, open_read_only(&device).space_pages()[0].start);
    let image = device.image();
    assert!(Filesystem::open_device(device.snapshot(), ImageOptions::default()).is_err());
    assert_eq!(survey_for_reading(device.clone()), before);
    assert!(device.image() == image, "a mount for reading wrote");
    mended(&device);
    assert_eq!(survey(&device), before);
}

#[test]
fn a_preallocation_of_more_than_there_is_goes() {
    let (device, inodes) = sample();
    let before = survey(&device);
    let room = |blocks: u64, wide: bool| {
        let device = device.snapshot();
        plant(&device, |_, transaction| {
            let item = Preallocation { file_block: 1000, blocks };
            transaction.put(Key::new(inodes.large, Kind::Preallocation, 1000), item.encode());
            if wide {
                transaction.put(Key::new(0, Kind::Preallocation, inodes.large), encode_sum(blocks));
            }
        });
        device
    };
    // The second count does not exceed the image, but exceeds the free blocks.
    for (blocks, wide) in [(1 << 50, false), (1 << 50, true), (16_380, true)] {
        let device = room(blocks, wide);
        assert!(!examine(device.clone()).is_clean(), "{blocks}");
        mended(&device);
        assert_eq!(survey(&device), before);
        let fs = Filesystem::open_device(device, ImageOptions::default()).unwrap();
        fs.write("new", vec![5; 3_000_000]).unwrap();
        fs.close().unwrap();
    }
}

/// The contents of the lost half are unknown: the block can't be read before or after, and the
/// remaining half stays.
#[test]
fn half_of_a_logged_block_stays_and_is_told() {
    let (device, inodes) = sample();
    plant(&device, |_, transaction| transaction.put(Key::new(inodes.large, Kind::Unplaced, 4), vec![7]));
    edit_inode(&device, inodes.large, |inode| inode.flags |= FLAG_UNPLACED);
    let read = |device: &Arc<MemoryDevice>, at: u64| {
        let fs = Filesystem::open_device(device.snapshot(), ImageOptions::default()).unwrap();
        let file = OpenOptions::new().read(true).open(&fs, "large").unwrap();
        file.read_exact_at(&mut [0; 100], at).is_ok()
    };
    let block = BLOCK_BYTES as u64;
    assert!(!read(&device, 2 * block) && read(&device, 3 * block) && read(&device, block));
    expect(&examine(device.clone()), FindingKind::DataDamaged);
    // Some other damage, so that the repair writes.
    edit_inode(&device, inodes.small, |inode| inode.nlink = 5);
    let done = mend(&device, &RepairOptions::default());
    assert_eq!((done.condition(), &done.refused), (Condition::Damaged, &None));
    assert_eq!(items(&open_read_only(&device), inodes.large, Kind::Unplaced).len(), 1);
    assert!(!read(&device, 2 * block) && read(&device, 3 * block) && read(&device, block));
    let left = examine(device);
    assert!(left.findings.iter().all(|finding| finding.kind == FindingKind::DataDamaged));
}

/// No superblock could count on from such a number: a mount for writing is refused, a read-only
/// mount leaves the item out.
#[test]
fn an_impossible_object_in_the_log_is_left_out() {
    let (device, _) = sample();
    let fs = Filesystem::open_device(device.clone(), ImageOptions::default()).unwrap();
    fs.write("small", "logged").unwrap();
    let mut transaction = Transaction::new();
    transaction.put(Key::new(1 << 63, Kind::Chunk, 0), vec![1]);
    fs.engine().store().commit(transaction).unwrap();
    fs.open_file("small").unwrap().sync_all().unwrap();
    let crashed = device.snapshot();
    drop(fs);
    let image = crashed.image();
    assert!(Filesystem::open_device(crashed.clone(), ImageOptions::default()).is_err());
    assert!(crashed.image() == image, "a refused mount wrote");
    let before = survey_for_reading(crashed.clone());
    expect(&examine(crashed.clone()), FindingKind::ObjectNumber);
    mended(&crashed);
    assert_eq!(survey(&crashed), before);
    let fs = Filesystem::open_device(crashed, ImageOptions::default()).unwrap();
    assert_eq!(fs.read("small").unwrap(), b"logged");
}

/// An image that a repair could only mend by giving something up.
fn hopeless() -> Arc<MemoryDevice> {
    let (device, _) = sample();
    take_snapshot(&device);
    let fs = Filesystem::open_device(device.clone(), ImageOptions::default()).unwrap();
    fs.write("later", "not in the snapshot").unwrap();
    fs.close().unwrap();
    // The snapshot's blocks can no longer be known, but it still mounts.
    let snapshots = block_on(syncline_store::Store::snapshots(&open_read_only(&device)));
    rot(&device, snapshots[0].space.page.addr);
    rot(&device, leaf_of(&device, snapshots[0].tree));
    device
}

#[test]
fn what_would_take_something_away_is_refused_and_changes_nothing() {
    let device = hopeless();
    let before = device.image();
    for dry_run in [true, false] {
        let done = mend(&device, &RepairOptions { dry_run, ..RepairOptions::default() });
        assert_eq!(done.condition(), Condition::Damaged);
        let reason = done.refused.expect("a snapshot would be gone");
        assert!(reason.contains("of the sample"), "{reason}");
        assert!(done.after.is_none() && device.image() == before);
    }
}

/// A power failure during a write may leave an unreadable sector. Whether it belonged to something
/// acknowledged is unknown.
#[test]
fn data_of_the_log_that_cant_be_read_costs_no_more_than_the_end_of_the_log() {
    let (device, _) = sample();
    let before = survey(&device);
    let fs = Filesystem::open_device(device.clone(), ImageOptions::default()).unwrap();
    fs.write("last", vec![9; 200_000]).unwrap();
    fs.open_file("last").unwrap().sync_all().unwrap();
    let crashed = device.snapshot();
    let ino = fs.symlink_metadata("last").unwrap().ino();
    let lost = extents(fs.engine().store(), ino)[0].addr;
    drop(fs);
    let image = crashed.image();
    let bad = BadBlock::new(crashed.clone(), lost);
    assert!(
        Filesystem::open_device(bad.clone(), ImageOptions::default()).is_err(),
        "it may have been acknowledged"
    );
    assert_kept(&before, &survey_for_reading(bad.clone()), "a mount for reading");
    expect(&examine(bad.clone()), FindingKind::LogDamaged);
    assert!(crashed.image() == image, "something wrote");
    let accepting = ImageOptions::new().accept_damaged_log(true);
    let other = BadBlock::new(crashed.snapshot(), lost);
    Filesystem::open_device(other.clone(), accepting).unwrap().close().unwrap();
    assert_kept(&before, &survey_of(other), "a mount that accepts it");
    let done = mend_any(bad.clone(), &RepairOptions::default());
    assert!(done.refused_for_loss, "it was not asked for: {:#?}", done.changes);
    assert!(crashed.image() == image, "something wrote");
    let done = mend_any(bad.clone(), &accepting_loss());
    assert_eq!(done.condition(), Condition::Repaired, "{:?}", done.refused);
    assert!(done.changes.iter().any(|change| change.kind == FindingKind::LogDamaged), "{:#?}", done.changes);
    assert_kept(&before, &survey_of(bad), "repaired");
}

/// A log that the superblock calls empty has no end to give up: a mount skips unreadable blocks
/// behind it, and needs no consent.
#[test]
fn nothing_is_given_up_of_a_log_that_is_empty() {
    let (device, _) = sample();
    let before = survey(&device);
    let superblock = block_on(read_superblocks(&(device.clone() as Arc<dyn Device>))).unwrap().superblock;
    assert!(superblock.clean);
    let bad_block = superblock.log.addr + 2;
    assert!(bad_block + 2 < superblock.log.segment.end());
    let bad = BadBlock::new(device.snapshot(), bad_block);
    Filesystem::open_device(bad, ImageOptions::default()).unwrap().close().unwrap();
    let bad = BadBlock::new(device.snapshot(), bad_block);
    let done = mend_any(bad.clone(), &RepairOptions::default());
    assert!(!done.refused_for_loss, "{:?}", done.refused);
    assert_kept(&before, &survey_of(bad), "repaired");
}

/// Damaged data in the log is reported even if there is other damage.
#[test]
fn a_repair_says_that_data_of_the_log_can_not_be_read() {
    let (device, _) = sample();
    let fs = Filesystem::open_device(device.clone(), ImageOptions::default()).unwrap();
    fs.write("last", vec![9; 200_000]).unwrap();
    fs.open_file("last").unwrap().sync_all().unwrap();
    let crashed = device.snapshot();
    let ino = fs.symlink_metadata("last").unwrap().ino();
    let lost = extents(fs.engine().store(), ino)[0].addr;
    let map = fs.engine().store().space_pages()[0].start;
    drop(fs);
    rot(&crashed, map);
    let bad = BadBlock::new(crashed.clone(), lost);
    let done = mend_any(bad.clone(), &accepting_loss());
    assert_eq!(done.condition(), Condition::Repaired, "{:?}", done.refused);
    let told = done.changes.iter().any(|change| change.kind == FindingKind::LogDamaged);
    assert!(told, "what was synced is gone without a word: {:#?}", done.changes);
}

/// More damaged data than fits a report hides no other finding and prevents no repair.
#[test]
fn a_repair_gets_past_any_amount_of_damaged_data() {
    let device = MemoryDevice::new(128 << 20);
    format_device(device.clone(), &single()).unwrap();
    let fs = Filesystem::open_device(device.clone(), ImageOptions::default()).unwrap();
    fs.write("wrong", "link count").unwrap();
    fs.write("damaged", vec![7; (2 * FINDINGS_MAX + 100) * BLOCK_BYTES]).unwrap();
    let number = |path: &str| fs.symlink_metadata(path).unwrap().ino();
    let (wrong, damaged) = (number("wrong"), number("damaged"));
    fs.close().unwrap();
    for extent in extents(&open_read_only(&device), damaged) {
        for block in (extent.run().start..extent.run().end()).step_by(2) {
            rot(&device, block);
        }
    }
    edit_inode(&device, wrong, |inode| inode.nlink = 9);
    let done = mend(&device, &RepairOptions::default());
    assert_eq!(done.refused, None);
    let after = done.after.expect("it wrote");
    assert!(
        after.findings_dropped > 0 && after.findings.iter().all(|it| it.kind == FindingKind::DataDamaged)
    );
    let fs = Filesystem::open_device(device, ImageOptions::default()).unwrap();
    assert_eq!(fs.symlink_metadata("wrong").unwrap().nlink(), 1);
}
