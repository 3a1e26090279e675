//! Every kind of damage is planted and found.

use crate::common::damages::{DAMAGES, open_read_only};
use crate::common::{BadBlock, examine, expect, extents, rot, sample, single, spawn};
use std::sync::Arc;
use syncline::format_device;
use syncline_check::{FindingKind, RepairOptions, Report, repair};
use syncline_device::{Device, MemoryDevice, block_on};
use syncline_store::{Store, StoreError, StoreOptions, read_superblocks};

fn damaged(kind: FindingKind) -> Report {
    let (_, damage) = DAMAGES.iter().find(|(damaged, _)| *damaged == kind).unwrap();
    let (device, inodes) = sample();
    let other = damage(&device, inodes);
    examine(other.unwrap_or(device))
}

#[test]
fn each_kind_of_damage_is_found() {
    for (kind, _) in DAMAGES {
        let report = damaged(*kind);
        expect(&report, *kind);
        for finding in &report.findings {
            assert!(finding.to_string().starts_with(finding.kind.id()));
        }
    }
}

#[test]
fn no_kind_goes_without_a_test() {
    let planted: Vec<_> = DAMAGES.iter().map(|(kind, _)| *kind).collect();
    assert_eq!(planted, FindingKind::ALL);
}

/// Each of these damages one thing and gives exactly one finding.
#[test]
fn simple_damage_gives_one_finding() {
    for kind in [
        FindingKind::SuperblockDamaged,
        FindingKind::SuperblockCounter,
        FindingKind::LogDamaged,
        FindingKind::LinkCount,
        FindingKind::DirectoryParent,
        FindingKind::DirectorySize,
        FindingKind::BlockCount,
        FindingKind::DataDamaged,
        FindingKind::DataUnreadable,
        FindingKind::BlockLeaked,
        FindingKind::BlockUnnamed,
        FindingKind::ChunkMissing,
        FindingKind::ChunkUnowned,
        FindingKind::ObjectCount,
        FindingKind::InodeContradiction,
        FindingKind::ParentMissing,
        FindingKind::ParentDangling,
        FindingKind::ParentCount,
        FindingKind::PreallocationOverlap,
        FindingKind::PreallocationSum,
        FindingKind::SnapshotTable,
        FindingKind::SnapshotDamaged,
        FindingKind::QuotaUsage,
        FindingKind::QuotaRoot,
        FindingKind::UnplacedStray,
        FindingKind::LogLead,
    ] {
        let findings = damaged(kind).findings;
        let kinds: Vec<_> = findings.iter().map(|finding| finding.kind).collect();
        assert_eq!(kinds, [kind], "{findings:#?}");
    }
}

#[test]
fn findings_name_the_place_and_become_json() {
    let (device, inodes) = sample();
    let addr = extents(&open_read_only(&device), inodes.large)[0].addr + 2;
    rot(&device, addr);
    let report = examine(device);
    let finding = &report.findings[0];
    assert_eq!((finding.object, finding.block), (Some(inodes.large), Some(addr)));
    let json: serde_json::Value = serde_json::to_value(&report).unwrap();
    assert_eq!(json["findings"][0]["id"], "SL0023");
    assert_eq!(json["findings"][0]["name"], "data-damaged");
    assert_eq!(json["findings"][0]["block"], addr);
}

#[test]
fn a_bad_node_hides_no_sound_file() {
    let (device, _) = sample();
    let nodes = block_on(open_read_only(&device).walk_nodes()).nodes;
    assert!(nodes.len() > 4, "the sample has several leaves");
    let whole = examine(device.snapshot()).inodes;
    for node in &nodes[1..] {
        let copy = device.snapshot();
        rot(&copy, node.start);
        let report = examine(copy);
        expect(&report, FindingKind::NodeDamaged);
        assert!(report.incomplete);
        assert!(report.inodes > 0 && report.inodes < whole, "{} of {whole}", report.inodes);
        assert!(
            report.findings.iter().all(|finding| finding.kind == FindingKind::NodeDamaged),
            "{:#?}",
            report.findings
        );
    }
}

#[test]
fn all_superblocks_lost_is_a_finding_and_no_image_is_an_error() {
    let (device, _) = sample();
    let blocks = device.size_bytes() / 4096;
    for block in [16, 32, blocks - 16, blocks - 8] {
        rot(&device, block);
    }
    let report = examine(device);
    assert_eq!(report.of(FindingKind::SuperblockDamaged).count(), 4);
    let foreign = MemoryDevice::new(crate::common::SIZE);
    assert!(block_on(syncline_check::check(foreign, spawn(), &mut |_| {})).is_err());
}

/// With the newer of two superblocks wiped, the image would silently go back to an earlier state.
#[test]
fn wiped_superblocks_are_told_of() {
    let (device, _) = sample();
    let any: Arc<dyn Device> = device.clone();
    let slots = block_on(read_superblocks(&any)).unwrap();
    let copies = slots.superblock.geometry.superblock_copies(slots.slot);
    let wipe = |device: &Arc<MemoryDevice>, addr: u64| {
        let zeros = vec![vec![0; 4096].into()];
        block_on(syncline_device::DeviceExt::write_at(&**device, addr * 4096, zeros)).unwrap();
    };
    for copy in copies {
        let device = device.snapshot();
        wipe(&device, copy);
        expect(&examine(device.clone()), FindingKind::SuperblockDamaged);
        let (store, report) =
            block_on(Store::open(device.clone(), StoreOptions::default(), spawn())).unwrap();
        assert!(report.notes.iter().any(|note| note.contains("zeros")), "{:?}", report.notes);
        block_on(store.close()).unwrap();
        assert!(examine(device).is_clean(), "it is whole again");
    }
    // Nothing of the slot is intact, which no power cut causes.
    for (rotten, wiped) in [(vec![0], vec![1]), (vec![1], vec![0]), (vec![0, 1], vec![])] {
        let device = device.snapshot();
        rotten.iter().for_each(|copy| rot(&device, copies[*copy]));
        wiped.iter().for_each(|copy| wipe(&device, copies[*copy]));
        assert_eq!(examine(device.clone()).of(FindingKind::SuperblockDamaged).count(), 2);
        let opened = block_on(Store::open(device, StoreOptions::default(), spawn()));
        assert!(matches!(opened, Err(StoreError::Damaged(_))), "{rotten:?} rotten, {wiped:?} wiped");
    }
    for (unreadable, other) in [(0, 1), (1, 0)] {
        let copy = device.snapshot();
        wipe(&copy, copies[other]);
        let bad = || BadBlock::new(copy.clone(), copies[unreadable]);
        assert!(!examine(bad()).is_clean());
        let opened = block_on(Store::open(bad(), StoreOptions::default(), spawn()));
        assert!(matches!(opened, Err(StoreError::Damaged(_))), "copy {unreadable} is unreadable");
        let for_reading = StoreOptions { read_only: true, ..StoreOptions::default() };
        block_on(Store::open(bad(), for_reading, spawn())).unwrap();
    }
    copies.iter().for_each(|copy| wipe(&device, *copy));
    let open = |options: StoreOptions| block_on(Store::open(device.snapshot(), options, spawn()));
    assert!(matches!(open(StoreOptions::default()), Err(StoreError::Damaged(_))));
    let (_, report) = open(StoreOptions { read_only: true, ..StoreOptions::default() }).unwrap();
    assert!(report.notes.iter().any(|note| note.contains("nothing is left")), "{:?}", report.notes);
    let accepting = StoreOptions { accept_damaged_log: true, ..StoreOptions::default() };
    block_on(open(accepting).unwrap().0.close()).unwrap();
    assert_eq!(examine(device.clone()).of(FindingKind::SuperblockDamaged).count(), 2);
    for accept_loss in [false, true] {
        let options = RepairOptions { accept_loss, ..RepairOptions::default() };
        let copy = device.snapshot();
        let done = block_on(repair(copy.clone(), spawn(), &options, &mut |_| {})).unwrap();
        assert_eq!(done.refused_for_loss, !accept_loss, "{:?}", done.refused);
        assert_eq!(examine(copy).is_clean(), accept_loss);
    }
}

fn bytes_at(device: &Arc<MemoryDevice>, at: u64, len: u64) -> Vec<u8> {
    device.image()[at as usize..(at + len) as usize].to_vec()
}

fn put_at(device: &Arc<MemoryDevice>, at: u64, bytes: Vec<u8>) {
    block_on(syncline_device::DeviceExt::write_at(&**device, at, vec![bytes.into()])).unwrap();
}

fn newest(device: &Arc<MemoryDevice>) -> syncline_store::ReadSlots {
    let any: Arc<dyn Device> = device.clone();
    block_on(read_superblocks(&any)).unwrap()
}

const SMALL: u64 = 24 << 20;
const LARGE: u64 = 64 << 20;
/// Distance from the end of the device to its last allocatable block.
const TAIL: u64 = 64 << 10;

/// A filesystem of the small size on a device of the large one.
fn small_on_large() -> Arc<MemoryDevice> {
    let small = MemoryDevice::new(SMALL);
    format_device(small.clone(), &single()).unwrap();
    let large = MemoryDevice::new(LARGE);
    put_at(&large, 0, small.image());
    large
}

fn grow(device: &Arc<MemoryDevice>) {
    let grown = Store::grow(device.clone(), StoreOptions::default(), spawn(), LARGE / 4096);
    block_on(block_on(grown).unwrap().0.close()).unwrap();
}

/// The copies at the end of the device are newer, but belong to a filesystem that no longer exists.
#[test]
fn an_older_smaller_image_copied_over_a_larger_one_counts() {
    let device = small_on_large();
    let (older, generation) = (bytes_at(&device, 0, SMALL), newest(&device).superblock.generation);
    grow(&device);
    assert!(newest(&device).superblock.generation > generation);
    put_at(&device, 0, older);
    let found = newest(&device);
    assert_eq!(found.superblock.generation, generation);
    assert!(examine(device.clone()).is_clean());
    let (store, _) = block_on(Store::open(device.clone(), StoreOptions::default(), spawn())).unwrap();
    block_on(store.close()).unwrap();
    assert_eq!(newest(&device).superblock.geometry.total_blocks, SMALL / 4096);
    let end = bytes_at(&device, LARGE - TAIL, TAIL);
    assert!(end.iter().all(|byte| *byte == 0), "nobody will take it for a superblock later");
}

/// Nor do these copies stand in for a slot of which nothing is left.
#[test]
fn what_is_left_of_a_larger_size_hides_no_loss() {
    let device = small_on_large();
    grow(&device);
    let end = bytes_at(&device, LARGE - TAIL, TAIL);
    let fewer = SMALL / 4096;
    let opened = Store::open_to_shrink(device.clone(), StoreOptions::default(), spawn(), fewer);
    let store = block_on(opened).unwrap().0;
    block_on(store.shrink(fewer)).unwrap();
    block_on(store.close()).unwrap();
    put_at(&device, LARGE - TAIL, end);
    let superblock = newest(&device).superblock;
    assert_eq!(superblock.geometry.total_blocks, fewer);
    for slot in 0..2 {
        let device = device.snapshot();
        superblock.geometry.superblock_copies(slot).into_iter().for_each(|copy| rot(&device, copy));
        let opened = block_on(Store::open(device, StoreOptions::default(), spawn()));
        assert!(matches!(opened, Err(StoreError::Damaged(_))), "slot {slot}");
    }
}

/// Whatever is in an image, a check ends without a panic.
#[test]
fn rot_anywhere_is_survived() {
    let (device, _) = sample();
    let store = open_read_only(&device);
    let mut blocks: Vec<u64> = vec![16, 32];
    blocks.extend(store.space_pages().iter().map(|run| run.start));
    blocks.extend(block_on(store.walk_nodes()).nodes.iter().map(|run| run.start));
    for block in blocks {
        for zeroed in [false, true] {
            let copy = device.snapshot();
            if zeroed {
                block_on(syncline_device::DeviceExt::write_at(
                    &*copy,
                    block * 4096,
                    vec![vec![0; 4096].into()],
                ))
                .unwrap();
            } else {
                rot(&copy, block);
            }
            assert!(!examine(copy).is_clean(), "block {block}");
        }
    }
}
