//! Lost pages of space maps, of the filesystem or of snapshots, are restored in place.

use crate::alone::is_alone;
use crate::common::damages::open_read_only;
use crate::common::survey::{assert_kept, survey};
use crate::common::{edit_inode, edit_superblock, examine, leaf_of, rot, spawn};
use std::sync::Arc;
use syncline::{Allocation, Filesystem, FormatOptions, ImageOptions, OpenOptions, format_device};
use syncline_check::{Condition, FindingKind, Repair, RepairOptions, repair};
use syncline_device::{AlignedBuf, Device, DeviceExt, MemoryDevice, block_on};
use syncline_format::snapshots::{decode_block, encode_block};
use syncline_format::space::{
    BITS, MAGIC, WORDS, claimed_page, decode_bitmap, encode_bitmap, usable_in_page,
};
use syncline_format::superblock::Pointer;
use syncline_format::{BLOCK_BYTES, BlockAddr};
use syncline_store::{Store, read_superblocks};

/// Snapshots with few changes between them, so that their maps share most pages with each other and
/// with the filesystem.
fn sample(size_bytes: u64) -> Arc<MemoryDevice> {
    let device = MemoryDevice::new(size_bytes);
    format_device(device.clone(), &FormatOptions::default()).unwrap();
    let fs = Filesystem::open_device(device.clone(), ImageOptions::default()).unwrap();
    for index in 0..200 {
        fs.write(format!("file {index:03}"), format!("{index}").repeat(2000)).unwrap();
    }
    for round in 0..3 {
        fs.write("large", vec![round; 4_000_000]).unwrap();
        fs.create_snapshot(&format!("then {round}")).unwrap();
    }
    fs.write("later", "not in a snapshot").unwrap();
    fs.close().unwrap();
    device
}

fn mend(device: &Arc<MemoryDevice>, accept_loss: bool) -> Repair {
    let options = RepairOptions { accept_loss, ..RepairOptions::default() };
    block_on(repair(device.clone(), spawn(), &options, &mut |_| {})).unwrap()
}

fn block(device: &Arc<MemoryDevice>, addr: BlockAddr) -> Vec<u8> {
    block_on(device.read_at(addr * BLOCK_BYTES as u64, BLOCK_BYTES)).unwrap().to_vec()
}

/// Blocks that are or once were pages of a map, with their levels.
fn pages(device: &Arc<MemoryDevice>) -> Vec<(BlockAddr, u8)> {
    let blocks = (1 << 30).min(device.size_bytes()) / BLOCK_BYTES as u64;
    let looks = |addr: &BlockAddr| block(device, *addr)[..MAGIC.len()] == MAGIC;
    let level = |addr| claimed_page(&block(device, addr), addr).map(|(id, _)| (addr, id.level));
    (0..blocks).filter(looks).filter_map(level).collect()
}

fn each_page_comes_back(size_bytes: u64, levels: u8) {
    let sound = sample(size_bytes);
    let before = survey(&sound);
    let mut mended = vec![0; usize::from(levels)];
    for (addr, level) in pages(&sound) {
        let rotten = sound.snapshot();
        rot(&rotten, addr);
        if examine(rotten.clone()).is_clean() {
            // A page of an earlier map.
            continue;
        }
        let done = mend(&rotten, false);
        assert_eq!(done.condition(), Condition::Repaired, "page {addr}, level {level}: {:?}", done.refused);
        assert_eq!(block(&rotten, addr), block(&sound, addr));
        assert_kept(&before, &survey(&rotten), "a page of a space map");
        Filesystem::open_device(rotten.clone(), ImageOptions::default()).unwrap().close().unwrap();
        mended[usize::from(level)] += 1;
    }
    assert!(mended.iter().all(|&pages| pages >= 3), "{mended:?} pages of each level");
}

#[test]
fn a_map_of_one_page_comes_back() {
    each_page_comes_back(64 << 20, 1);
}

#[test]
fn pages_of_two_levels_come_back() {
    each_page_comes_back(600 << 20, 2);
}

#[test]
fn pages_of_three_levels_come_back() {
    each_page_comes_back(64 << 30, 3);
}

/// Bitmap pages of two maps have the same bits in different places: each of 24 pages has two that
/// fit.
#[test]
fn pages_with_the_same_bits_are_told_apart() {
    let sound = MemoryDevice::new(3 << 30);
    format_device(sound.clone(), &FormatOptions::default()).unwrap();
    let fs = Filesystem::open_device(sound.clone(), ImageOptions::default()).unwrap();
    for part in 0..24u64 {
        let file = OpenOptions::new().write(true).create(true).open(&fs, format!("part {part}")).unwrap();
        file.allocate(Allocation::Preallocate { keep_size: false }, 0, 4096).unwrap();
        fs.write(format!("large {part}"), vec![part as u8; 3_000_000]).unwrap();
    }
    fs.create_snapshot("first").unwrap();
    for round in 0..2u8 {
        for part in 0..24u64 {
            fs.write(format!("for a while {part}"), vec![round; 3_000_000]).unwrap();
        }
        block_on(fs.engine().syncfs()).unwrap();
        for part in 0..24u64 {
            fs.remove_file(format!("for a while {part}")).unwrap();
        }
        fs.create_snapshot(&format!("later {round}")).unwrap();
    }
    fs.close().unwrap();
    let before = survey(&sound);
    let mut mended = 0;
    for snapshot in block_on(Store::snapshots(&open_read_only(&sound))) {
        let rotten = sound.snapshot();
        rot(&rotten, snapshot.space.page.addr);
        let done = mend(&rotten, false);
        assert_eq!(done.condition(), Condition::Repaired, "{}: {:?}", snapshot.name, done.refused);
        assert_kept(&before, &survey(&rotten), "an index page");
        mended += 1;
    }
    assert_eq!(mended, 3);
}

/// A map with correct checksums that does not name what its snapshot uses: a repair must not write
/// there.
#[test]
fn what_a_snapshot_uses_is_not_written_over_whatever_its_map_says() {
    const FILES: usize = 6000;
    let (device, inodes) = crate::common::sample();
    let contents = |index: usize, then: &str| format!("{index}{then}").into_bytes();
    let fs = Filesystem::open_device(device.clone(), ImageOptions::default()).unwrap();
    for then in ["", "!"] {
        for index in 0..FILES {
            fs.write(format!("directory/file {index}"), contents(index, then)).unwrap();
        }
        if then.is_empty() {
            fs.create_snapshot("kept").unwrap();
        }
    }
    fs.close().unwrap();
    edit_inode(&device, inodes.linked, |inode| inode.nlink = 3);
    let any: Arc<dyn Device> = device.clone();
    let superblock = block_on(read_superblocks(&any)).unwrap().superblock;
    let (geometry, table) = (superblock.geometry, superblock.snapshots);
    let bitmap = |page: Pointer| decode_bitmap(&block(&device, page.addr), geometry, 0, page).unwrap().0;
    let put = |addr: BlockAddr, bytes: AlignedBuf| {
        block_on(device.write_at(addr * BLOCK_BYTES as u64, vec![bytes.into_bytes()])).unwrap();
    };
    let (mut entries, next) = decode_block(&block(&device, table.addr), geometry, table).unwrap();
    let page = entries[0].space.page;
    let mut words = bitmap(page);
    let present = bitmap(superblock.space.page);
    words.iter_mut().zip(present.iter()).for_each(|(word, present)| *word &= present);
    words[page.addr as usize / 64] |= 1 << (page.addr % 64);
    let mut bytes = AlignedBuf::zeroed(BLOCK_BYTES);
    let made = encode_bitmap(&mut bytes, 0, page.addr, &words);
    put(page.addr, bytes);
    (entries[0].space.page, entries[0].used_blocks) = (made.page, made.used.into());
    let mut bytes = AlignedBuf::zeroed(BLOCK_BYTES);
    let pointer = encode_block(&mut bytes, table.addr, next, &entries);
    put(table.addr, bytes);
    edit_superblock(&device, |superblock| {
        superblock.snapshots = pointer;
        superblock.used_blocks += 1;
    });
    let before = device.image();
    let done = mend(&device, false);
    if done.refused.is_some() {
        assert!(device.image() == before, "it was refused, and something was written");
    }
    let fs = Filesystem::open_snapshot_device(device.clone(), "kept", ImageOptions::default()).unwrap();
    for index in 0..FILES {
        assert_eq!(fs.read(format!("directory/file {index}")).unwrap(), contents(index, ""));
    }
}

/// If a snapshot's map and a leaf of its tree are lost, the blocks it keeps are unknown: it can only be
/// given up.
#[test]
fn a_map_whose_tree_is_torn_does_not_come_back() {
    let device = sample(64 << 20);
    let snapshot = block_on(Store::snapshots(&open_read_only(&device))).remove(0);
    rot(&device, snapshot.space.page.addr);
    rot(&device, leaf_of(&device, snapshot.tree));
    let before = device.image();
    let refused = mend(&device, false);
    assert!(refused.refused_for_loss && device.image() == before, "{:?}", refused.condition());
    let done = mend(&device, true);
    // The other snapshots share the leaf.
    let after = done.after.expect("it was given up");
    assert!(after.findings.iter().all(|finding| finding.kind == FindingKind::SnapshotDamaged), "{after:#?}");
    Filesystem::open_device(device.clone(), ImageOptions::default()).unwrap().close().unwrap();
    let left = block_on(Store::snapshots(&open_read_only(&device)));
    assert!(left.len() == 2 && !left.contains(&snapshot), "{left:?}");
}

/// Every free block looks like a page for the same place, with all blocks in use: a repair must not
/// consider them all.
#[test]
fn pages_made_to_mislead_take_no_memory() {
    if !is_alone("repair_maps::pages_made_to_mislead_take_no_memory") {
        return;
    }
    let device = MemoryDevice::new(260 << 20);
    format_device(device.clone(), &FormatOptions::default()).unwrap();
    let any: Arc<dyn Device> = device.clone();
    let superblock = block_on(read_superblocks(&any)).unwrap().superblock;
    let area = usable_in_page(superblock.geometry, 1).unwrap();
    let mut words = [0; WORDS];
    for at in area.start - BITS..area.end() - BITS {
        words[(at / 64) as usize] |= 1 << (at % 64);
    }
    for at in area.start..area.end() {
        if block(&device, at).iter().all(|&byte| byte == 0) {
            let mut bytes = AlignedBuf::zeroed(BLOCK_BYTES);
            encode_bitmap(&mut bytes, 1, at, &words);
            block_on(device.write_at(at * BLOCK_BYTES as u64, vec![bytes.into_bytes()])).unwrap();
        }
    }
    rot(&device, superblock.space.page.addr);
    let resident = || {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.split_whitespace().next().unwrap().parse::<u64>().unwrap() >> 10
    };
    let before = resident();
    let repaired = {
        let device = device.clone();
        std::thread::spawn(move || mend(&device, true).condition())
    };
    while !repaired.is_finished() {
        std::thread::sleep(std::time::Duration::from_millis(100));
        assert!(resident() < before + 2048, "{} MiB, {before} before", resident());
    }
    assert_eq!(repaired.join().unwrap(), Condition::Repaired);
}
