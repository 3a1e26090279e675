//! Blocks that snapshots and copies share: each is read once, and damage is found for all of them.

use crate::common::{SIZE, empty, examine, extents, plant, rot, sample};
use std::sync::Arc;
use syncline::{Filesystem, ImageOptions, OpenOptions};
use syncline_check::{FindingKind, Report};
use syncline_device::MemoryDevice;
use syncline_format::items::extent::Extent;
use syncline_format::{Key, Kind};

fn open(device: &Arc<MemoryDevice>) -> Filesystem {
    Filesystem::open_device(device.clone(), ImageOptions::default()).unwrap()
}

/// Opens a filesystem, changes something and closes it.
fn change(device: &Arc<MemoryDevice>, change: impl FnOnce(&Filesystem)) {
    let fs = open(device);
    change(&fs);
    fs.close().unwrap();
}

fn clean(device: &Arc<MemoryDevice>) -> Report {
    let report = examine(device.clone());
    assert!(report.is_clean() && !report.incomplete, "{:#?}", report.findings);
    report
}

#[test]
fn blocks_of_many_snapshots_are_read_once() {
    let (device, _) = sample();
    let blocks = clean(&device).data_blocks;
    for number in 0..5 {
        change(&device, |fs| fs.create_snapshot(&format!("number {number}")).unwrap());
    }
    assert_eq!(clean(&device).data_blocks, blocks);
    // Only what was written between two snapshots comes in addition: a part of a file, whose extent
    // is whole in the older snapshots, and a file that is gone since.
    change(&device, |fs| {
        let large = OpenOptions::new().write(true).open(fs, "large").unwrap();
        large.write_all_at(&[9; 8192], 4096).unwrap();
        fs.write("short-lived", vec![3; 40_960]).unwrap();
        fs.create_snapshot("more").unwrap();
        fs.remove_file("short-lived").unwrap();
    });
    assert_eq!(clean(&device).data_blocks, blocks + 2 + 10);
}

#[test]
fn blocks_of_many_copies_are_read_once() {
    let device = empty();
    change(&device, |fs| fs.write("file", vec![7; 2 << 20]).unwrap());
    assert_eq!(clean(&device).data_blocks, 512);
    change(&device, |fs| {
        for number in 0..10 {
            fs.copy("file", format!("copy {number}")).unwrap();
        }
    });
    const { assert!(SIZE > 11 * (2 << 20)) };
    let report = clean(&device);
    // A copy that follows within the reads under way is read again.
    assert!(report.data_blocks < 2 * 512 + 32 * 64, "{}", report.data_blocks);
}

/// A rotten block is damage for every snapshot that shares it.
#[test]
fn damage_in_a_shared_block_is_found_for_each_snapshot() {
    let (device, inodes) = sample();
    let fs = open(&device);
    let second = extents(fs.engine().store(), inodes.second);
    for name in ["one", "two"] {
        fs.create_snapshot(name).unwrap();
    }
    fs.close().unwrap();
    rot(&device, second[0].addr + 3);
    let report = examine(device);
    let told: Vec<_> = report.findings.iter().map(|one| (one.kind, one.object, one.text.as_str())).collect();
    let is = |one: &(FindingKind, Option<u64>, &str), kind, begins: &str| {
        one.0 == kind && one.1 == Some(inodes.second) && one.2.starts_with(begins)
    };
    assert_eq!(told.len(), 3, "{told:#?}");
    assert!(is(&told[0], FindingKind::DataDamaged, "block 3 of the file"), "{told:#?}");
    assert!(is(&told[1], FindingKind::SnapshotDamaged, "snapshot \"one\""), "{told:#?}");
    assert!(is(&told[2], FindingKind::SnapshotDamaged, "snapshot \"two\""), "{told:#?}");
}

/// A block that was found sound is not sound for an item with another checksum.
#[test]
fn a_snapshot_with_another_checksum_for_a_sound_block_is_damaged() {
    let (device, inodes) = sample();
    let put_checksum = |change: u32| {
        plant(&device, |store, transaction| {
            let extent: Extent = extents(store, inodes.second).remove(0);
            let key = Key::new(inodes.second, Kind::Extent, extent.file_block);
            let mut checksums = extent.checksums.clone();
            checksums[2] ^= change;
            transaction.put(key, Extent { checksums, ..extent }.encode());
        });
    };
    put_checksum(1);
    change(&device, |fs| fs.create_snapshot("wrong").unwrap());
    put_checksum(1);
    let report = examine(device);
    let told: Vec<_> = report.findings.iter().map(ToString::to_string).collect();
    assert_eq!(told.len(), 1, "{told:#?}");
    assert!(told[0].contains("snapshot \"wrong\"") && told[0].contains("block 2 of the file"), "{told:#?}");
}
