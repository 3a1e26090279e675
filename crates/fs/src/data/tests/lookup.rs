//! Finding the extents that dirty blocks will replace.

use super::*;
use crate::data::extents::lookup;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::ops::Range;
use syncline_format::items::extent::Extent;

/// More than one scan returns.
const BLOCKS: u64 = 5000;

/// A file of short extents, with holes.
fn fragmented(mount: &Mount, random: &mut StdRng) -> Ino {
    let ino = mount.create("file");
    let mut block = 0;
    while block < BLOCKS {
        let (count, hole) = (random.random_range(1..4), random.random_range(0..3));
        mount.write(ino, block * 4096, &pattern(block, count as usize * 4096));
        block += count + hole;
    }
    mount.fsync_placed(ino);
    ino
}

fn some_ranges(random: &mut StdRng) -> Vec<Range<u64>> {
    let (mut ranges, mut block) = (Vec::new(), 0);
    let gap = *[2, 20, 200, 2000].get(random.random_range(0..4usize)).unwrap();
    loop {
        let start = block + random.random_range(0..gap);
        let blocks_max = if random.random_bool(0.1) { 1500 } else { 5 };
        block = start + random.random_range(1..blocks_max);
        if block > BLOCKS + 10 {
            return ranges;
        }
        ranges.push(start..block);
    }
}

#[test]
fn what_overlaps_ranges_is_found_wherever_they_lie() {
    let mut random = StdRng::seed_from_u64(20);
    let mount = Mount::new();
    let ino = fragmented(&mount, &mut random);
    // Some extents are in the tree, others have changed since.
    block_on(mount.fs.store().checkpoint()).unwrap();
    for _ in 0..200 {
        let block = random.random_range(0..BLOCKS);
        mount.write(ino, block * 4096, &pattern(block, 4096));
    }
    mount.fsync_placed(ino);
    let store = mount.fs.store();
    let all = block_on(lookup::all(store, ino, 0, u64::MAX)).unwrap();
    assert!(all.len() > 1024, "{} extents", all.len());
    let overlaps =
        |extent: &Extent, range: &Range<u64>| extent.file_block < range.end && range.start < extent.end();
    for _ in 0..300 {
        let ranges = some_ranges(&mut random);
        let found = block_on(lookup::overlapping(store, ino, &ranges)).unwrap();
        let expected: Vec<_> =
            all.iter().filter(|extent| ranges.iter().any(|range| overlaps(extent, range))).cloned().collect();
        assert_eq!(found, expected, "{ranges:?}");
        let Some(range) = ranges.first() else { continue };
        let some = block_on(lookup::some(store, ino, range.start, u64::MAX, 1)).unwrap();
        assert_eq!(some.extents.first(), all.iter().find(|extent| extent.end() > range.start), "{range:?}");
    }
}

fn size(mount: &Mount, ino: Ino) -> u64 {
    block_on(mount.fs.getattr(ino)).unwrap().size
}

/// SEEK_DATA and SEEK_HOLE look at a few items around the offset. Their answers are those that all
/// extents and the blocks in memory give.
#[test]
fn seeks_answer_what_all_extents_and_memory_say() {
    let mut random = StdRng::seed_from_u64(41);
    let mount = Mount::new();
    let ino = fragmented(&mount, &mut random);
    block_on(mount.fs.store().checkpoint()).unwrap();
    // A long run without a hole, more than one lookup finds, and blocks that are in memory only.
    mount.write(ino, 1000 * 4096, &pattern(1, 900 * 4096));
    mount.fsync_placed(ino);
    let all = block_on(lookup::all(mount.fs.store(), ino, 0, u64::MAX)).unwrap();
    let end = size(&mount, ino).div_ceil(4096).max(BLOCKS + 100);
    let mut has_data: Vec<bool> =
        (0..end).map(|block| all.iter().any(|it| (it.file_block..it.end()).contains(&block))).collect();
    for _ in 0..300 {
        let block = random.random_range(0..BLOCKS + 50);
        mount.write(ino, block * 4096, &pattern(block, 4096));
        has_data[block as usize] = true;
    }
    let end = size(&mount, ino) / 4096;
    let next = |from: u64, wanted: bool| (from..end).find(|&block| has_data[block as usize] == wanted);
    for block in 0..end {
        let data = block_on(mount.fs.seek_data(ino, block * 4096 + 7));
        let expected =
            next(block, true).map(|found| if found == block { block * 4096 + 7 } else { found * 4096 });
        assert_eq!(data.ok(), expected, "data from block {block} on");
        let hole = block_on(mount.fs.seek_hole(ino, block * 4096)).unwrap();
        assert_eq!(hole, next(block, false).unwrap_or(end) * 4096, "a hole from block {block} on");
    }
}

/// An item whose length is wrong is damage, not a hole (promise P4).
#[test]
fn a_damaged_length_is_no_hole() {
    for length in [0_u16, 2, 400] {
        let mount = Mount::new();
        let ino = mount.create("file");
        mount.write(ino, 0, &pattern(1, 10 * 4096));
        mount.fsync_placed(ino);
        let key = Key::new(ino, Kind::Extent, 0);
        let mut value = block_on(mount.fs.store().get(key)).unwrap().unwrap().to_vec();
        assert_eq!(value[8..10], 10_u16.to_le_bytes());
        value[8..10].copy_from_slice(&length.to_le_bytes());
        let mut transaction = syncline_store::Transaction::new();
        transaction.put(key, value);
        mount.fs.store().commit(transaction).unwrap();
        let mount = mount.reopen();
        let ino = mount.find("file");
        for block in 0..10 {
            let read = block_on(mount.fs.read(ino, block * 4096, 4096)).map(|_| ());
            assert!(matches!(read, Err(FsError::Corrupt { .. })), "length {length}, block {block}: {read:?}");
        }
    }
}

/// An extent that covers blocks 0 to 9, and one that nobody wrote inside it.
fn with_an_extent_inside_another() -> (Mount, Ino) {
    let mount = Mount::new();
    let ino = mount.create("file");
    mount.write(ino, 0, &pattern(1, 10 * 4096));
    mount.fsync_placed(ino);
    let mut inner = block_on(lookup::all(mount.fs.store(), ino, 0, u64::MAX)).unwrap().remove(0);
    assert_eq!(inner.checksums.len(), 10);
    inner.file_block = 4;
    inner.addr += 4;
    inner.checksums = inner.checksums[4..6].to_vec();
    let mut transaction = syncline_store::Transaction::new();
    transaction.put(Key::new(ino, Kind::Extent, 4), inner.encode());
    mount.fs.store().commit(transaction).unwrap();
    let mount = mount.reopen();
    let ino = mount.find("file");
    (mount, ino)
}

#[test]
fn an_extent_inside_another_is_damage_to_reads_and_truncations() {
    let (mount, ino) = with_an_extent_inside_another();
    for block in [6, 9, 4, 5] {
        let read = block_on(mount.fs.read(ino, block * 4096, 4096));
        assert!(matches!(read, Err(FsError::Corrupt { .. })), "{block}");
    }
    let shorter = SetAttributes { size: Some(4 * 4096), ..SetAttributes::default() };
    let truncated = block_on(mount.fs.setattr(CALLER, ino, shorter));
    assert!(matches!(truncated, Err(FsError::Corrupt { .. })), "{truncated:?}");
}
