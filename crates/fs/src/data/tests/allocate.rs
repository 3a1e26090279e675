//! fallocate: which bytes read as zeros, which blocks are freed, and what a crash leaves.

use super::*;
use crate::types::FileFlags;
use syncline_format::BLOCK_BYTES;

const BLOCK: u64 = BLOCK_BYTES as u64;
const PUNCH: Allocation = Allocation::PunchHole;
const ZERO: Allocation = Allocation::ZeroRange { keep_size: false };
const ZERO_INSIDE: Allocation = Allocation::ZeroRange { keep_size: true };

/// `contents` with zeros in a range.
fn cleared(contents: &[u8], range: std::ops::Range<usize>) -> Vec<u8> {
    let mut cleared = contents.to_vec();
    cleared[range].fill(0);
    cleared
}

#[test]
fn whole_blocks_are_given_up_and_edges_keep_their_rest() {
    let mount = Mount::new();
    let ino = mount.create("file");
    let contents = pattern(1, 100 * BLOCK_BYTES);
    mount.write(ino, 0, &contents);
    mount.fsync(ino);
    let (from, until) = (10 * BLOCK + 100, 90 * BLOCK + 7);
    mount.allocate(ino, PUNCH, from, until - from).unwrap();
    let expected = cleared(&contents, from as usize..until as usize);
    assert_eq!(mount.read(ino, 0, contents.len()), expected);
    assert_eq!(mount.blocks(ino), 21 * 8, "79 of 100 blocks went");
    assert_eq!(block_on(mount.fs.seek_hole(ino, 0)).unwrap(), 11 * BLOCK);
    assert_eq!(block_on(mount.fs.seek_data(ino, 11 * BLOCK)).unwrap(), 90 * BLOCK);
    mount.check_items(ino);
    // No more data has to be written to make it durable.
    let submitted = mount.fs.counters().submitted_bytes;
    mount.fsync(ino);
    assert_eq!(mount.fs.counters().submitted_bytes, submitted);
    let mount = mount.crash();
    let ino = mount.find("file");
    assert_eq!(mount.read(ino, 0, contents.len()), expected);
    mount.check_items(ino);
}

#[test]
fn dirty_data_in_the_range_is_never_written() {
    let mount = Mount::new();
    let ino = mount.create("file");
    let contents = pattern(2, 64 * BLOCK_BYTES);
    mount.write(ino, 0, &contents);
    let reserved = mount.fs.store().available_blocks();
    mount.allocate(ino, PUNCH, 0, 54 * BLOCK).unwrap();
    assert!(mount.fs.store().available_blocks() >= reserved + 48, "their room is free again");
    mount.fsync(ino);
    assert_eq!(mount.fs.counters().submitted_bytes, 10 * BLOCK);
    assert_eq!(mount.read(ino, 0, contents.len()), cleared(&contents, 0..54 * BLOCK_BYTES));
    assert_eq!(mount.blocks(ino), 10 * 8);
}

/// The edges come with the punch, even where they were dirty; dirty data elsewhere may come later.
#[test]
fn a_punch_is_one_change() {
    let mount = Mount::new();
    let (ino, other) = (mount.create("file"), mount.create("other"));
    mount.write(ino, 0, &pattern(3, 8 * BLOCK_BYTES));
    mount.fsync(ino);
    let newer = pattern(4, 8 * BLOCK_BYTES);
    mount.write(ino, 0, &newer);
    mount.allocate(ino, PUNCH, BLOCK + 5, 5 * BLOCK).unwrap();
    // A sync of another file makes all earlier changes of names and attributes durable, and so the
    // punch.
    mount.fsync(other);
    let crashed = mount.crash();
    let found = crashed.read(crashed.find("file"), 0, 8 * BLOCK_BYTES);
    let punched = cleared(&newer, BLOCK_BYTES + 5..6 * BLOCK_BYTES + 5);
    assert_eq!(found[BLOCK_BYTES..7 * BLOCK_BYTES], punched[BLOCK_BYTES..7 * BLOCK_BYTES]);
    assert_eq!(found[..BLOCK_BYTES], pattern(3, BLOCK_BYTES), "was not synced");
    assert_eq!(mount.read(ino, 0, 8 * BLOCK_BYTES), punched);
}

#[test]
fn small_files_stay_in_their_inode_item() {
    let mount = Mount::new();
    let ino = mount.create("file");
    for dirty in [false, true] {
        mount.write(ino, 0, &[7; 1000]);
        if !dirty {
            mount.fsync(ino);
        }
        mount.allocate(ino, PUNCH, 100, 200).unwrap();
        mount.allocate(ino, ZERO_INSIDE, 990, 500).unwrap();
        let expected = [vec![7; 100], vec![0; 200], vec![7; 690], vec![0; 10]].concat();
        assert_eq!(mount.read(ino, 0, 5000), expected);
        assert_eq!(mount.blocks(ino), 2);
        mount.fsync(ino);
        let crashed = mount.crash();
        assert_eq!(crashed.read(crashed.find("file"), 0, 5000), expected);
    }
    mount.allocate(ino, ZERO, 500, 524).unwrap();
    assert_eq!((mount.size(ino), mount.blocks(ino)), (1024, 2));
    mount.allocate(ino, PUNCH, 0, 4096).unwrap();
    assert_eq!((mount.size(ino), mount.blocks(ino)), (1024, 0));
    assert_eq!(mount.read(ino, 0, 5000), [0; 1024]);
    mount.write(ino, 3, b"x");
    mount.allocate(ino, ZERO, 1000, 9000).unwrap();
    assert_eq!(mount.size(ino), 10_000);
    let mut expected = vec![0; 10_000];
    expected[3] = b'x';
    assert_eq!(mount.read(ino, 0, 20_000), expected);
    mount.fsync(ino);
    let mount = mount.reopen();
    assert_eq!(mount.read(mount.find("file"), 0, 20_000), expected);
}

/// Block 0 is dirty, and the inode item has an older version of it.
#[test]
fn what_a_dirty_block_has_replaced_does_not_show_again() {
    let mount = Mount::new();
    let ino = mount.create("file");
    mount.write(ino, 0, &[7; 2000]);
    mount.fsync(ino);
    mount.write(ino, 4096, b"x");
    mount.allocate(ino, PUNCH, 0, 2000).unwrap();
    let expected = [vec![0; 4096], vec![b'x']].concat();
    assert_eq!(mount.read(ino, 0, 5000), expected);
    mount.fsync(ino);
    let mount = mount.crash();
    assert_eq!(mount.read(mount.find("file"), 0, 5000), expected);
}

#[test]
fn zeroing_may_make_the_file_longer() {
    let mount = Mount::new();
    let ino = mount.create("file");
    mount.write(ino, 0, &[1; 10_000]);
    mount.allocate(ino, ZERO_INSIDE, 9000, 50_000).unwrap();
    assert_eq!(mount.size(ino), 10_000);
    mount.allocate(ino, ZERO, 9500, 50_000).unwrap();
    assert_eq!(mount.size(ino), 59_500);
    let expected = [vec![1; 9000], vec![0; 50_500]].concat();
    assert_eq!(mount.read(ino, 0, 100_000), expected);
    mount.fsync(ino);
    let mount = mount.crash();
    assert_eq!(mount.read(mount.find("file"), 0, 100_000), expected);
}

#[test]
fn shared_blocks_are_given_back_once() {
    let mount = Mount::new();
    let (one, other) = (mount.create("one"), mount.create("other"));
    let contents = pattern(5, 40 * BLOCK_BYTES);
    mount.write(one, 0, &contents);
    block_on(mount.fs.copy_range((one, 0), (other, 0), 40 * BLOCK, false)).unwrap();
    mount.allocate(one, PUNCH, 4 * BLOCK - 1, 30 * BLOCK).unwrap();
    mount.check_counts(&[one, other]);
    assert_eq!(mount.read(other, 0, contents.len()), contents);
    let first = cleared(&contents, 4 * BLOCK_BYTES - 1..34 * BLOCK_BYTES - 1);
    assert_eq!(mount.read(one, 0, contents.len()), first);
    mount.allocate(other, ZERO, 0, 40 * BLOCK).unwrap();
    mount.check_counts(&[one, other]);
    assert_eq!(mount.blocks(other), 40 * 8, "what is zeroed is preallocated");
    assert_eq!(mount.fs.data.room.blocks(), 40);
    mount.fsync(other);
    let mount = mount.crash();
    mount.check_counts(&[mount.find("one"), mount.find("other")]);
}

#[test]
fn a_full_image_can_be_punched() {
    let mount = Mount::sized(16 << 20, options());
    let ino = mount.create("file");
    let mut blocks = 0;
    while mount.try_write(ino, blocks * BLOCK, &pattern(blocks, BLOCK_BYTES)).is_ok() {
        blocks += 1;
    }
    mount.fsync(ino);
    mount.allocate(ino, PUNCH, 100, (blocks - 1) * BLOCK).unwrap();
    assert_eq!(mount.read(ino, 0, 100), pattern(0, 100));
    assert_eq!(mount.read(ino, 100, BLOCK_BYTES), [0; BLOCK_BYTES]);
    mount.write(ino, 0, &pattern(6, 100 * BLOCK_BYTES));
    mount.fsync(ino);
}

/// More extents than one transaction takes.
#[test]
fn a_large_range_is_cleared_piece_by_piece() {
    let mount = Mount::sized(512 << 20, options());
    let ino = mount.create("file");
    // Every second block, so that each is an extent of its own.
    let blocks = 9000;
    for block in 0..blocks {
        mount.write(ino, 2 * block * BLOCK, &pattern(block, BLOCK_BYTES));
    }
    mount.fsync(ino);
    mount.write(ino, 2 * (blocks - 1) * BLOCK, &pattern(1, BLOCK_BYTES));
    let end = 2 * (blocks - 1) * BLOCK + 10;
    mount.allocate(ino, PUNCH, BLOCK - 1, end - BLOCK + 1).unwrap();
    assert_eq!(mount.blocks(ino), 2 * 8, "the first block and the last one");
    mount.check_items(ino);
    let last = mount.read(ino, end - 10, BLOCK_BYTES);
    assert_eq!(last, cleared(&pattern(1, BLOCK_BYTES), 0..10));
    assert_eq!(block_on(mount.fs.seek_data(ino, BLOCK)).unwrap(), end - 10);
}

/// As on Linux for files with chattr flags, where it knows of them.
#[test]
fn flags_are_respected() {
    let mount = Mount::new();
    let ino = mount.create("file");
    mount.write(ino, 0, &pattern(1, 10_000));
    let all = [PUNCH, ZERO, ZERO_INSIDE, FILL, FILL_BEYOND];
    let answers = |flags| {
        block_on(mount.fs.set_file_flags(ino, flags)).unwrap();
        all.map(|what| mount.allocate(ino, what, 0, 50_000).map_err(|error| error.errno()))
    };
    assert_eq!(answers(FileFlags { immutable: true, ..FileFlags::default() }), [Err(1); 5]);
    let append_only = answers(FileFlags { append_only: true, ..FileFlags::default() });
    assert_eq!(append_only, [Err(1), Err(1), Err(1), Ok(()), Ok(())]);
    assert_eq!(answers(FileFlags::default()), [Ok(()); 5]);
}

#[test]
fn what_makes_no_sense_is_refused() {
    let mount = Mount::new();
    let ino = mount.create("file");
    let errno = |ino, offset, len| mount.allocate(ino, PUNCH, offset, len).map_err(|error| error.errno());
    assert_eq!(errno(ino, 0, 0), Err(22));
    assert_eq!(errno(ino, i64::MAX as u64, 1), Err(27));
    assert_eq!(errno(ino, u64::MAX, 2), Err(27));
    assert_eq!(errno(ROOT, 0, 1), Err(21));
    assert_eq!(errno(ino, 1 << 40, 1 << 50), Ok(()));
    assert_eq!(mount.size(ino), 0);
}

const FILL: Allocation = Allocation::Preallocate { keep_size: false };
const FILL_BEYOND: Allocation = Allocation::Preallocate { keep_size: true };

impl Mount {
    /// Writes a file until there is no room for more.
    fn fill(&self, name: &str) {
        let ino = self.create(name);
        for blocks in [64, 1] {
            let data = pattern(blocks, blocks as usize * BLOCK_BYTES);
            while self.try_write(ino, self.size(ino), &data).is_ok() {}
        }
        self.fsync(ino);
    }
}

#[test]
fn room_is_kept_when_the_image_is_full() {
    let mut mount = Mount::sized(32 << 20, options());
    let ino = mount.create("file");
    mount.allocate(ino, FILL, 0, 1000 * BLOCK).unwrap();
    assert_eq!((mount.size(ino), mount.blocks(ino)), (1000 * BLOCK, 8000));
    assert_eq!(mount.read(ino, 0, 5 * BLOCK_BYTES), vec![0; 5 * BLOCK_BYTES]);
    assert_eq!(block_on(mount.fs.seek_data(ino, 0)).map_err(|error| error.errno()), Err(6), "it is a hole");
    mount.fsync(ino);
    mount.fill("other");
    // Every second block, through write-back, fsync, a crash and a remount.
    let block = |number: u64| pattern(number, BLOCK_BYTES);
    for number in (0..300).step_by(2) {
        mount.write(ino, number * BLOCK, &block(number));
    }
    mount.fsync(ino);
    mount.check_items(ino);
    mount = mount.crash();
    let ino = mount.find("file");
    for number in (300..600).step_by(2) {
        mount.write(ino, number * BLOCK, &block(number));
    }
    mount = mount.reopen();
    let ino = mount.find("file");
    for number in (600..1000).step_by(2) {
        mount.write(ino, number * BLOCK, &block(number));
    }
    for number in (1..1000).step_by(2) {
        mount.write(ino, number * BLOCK, &block(number));
    }
    mount.fsync(ino);
    assert_eq!(mount.blocks(ino), 8000);
    assert_eq!(mount.fs.data.room.blocks(), 0);
    mount.check_items(ino);
    for number in 0..1000 {
        assert_eq!(mount.read(ino, number * BLOCK, BLOCK_BYTES), block(number), "block {number}");
    }
}

#[test]
fn too_much_is_refused_and_changes_nothing() {
    let mount = Mount::sized(32 << 20, options());
    let ino = mount.create("file");
    mount.write(ino, 0, &pattern(1, 10_000));
    let available = mount.fs.statfs().available;
    for what in [FILL, FILL_BEYOND, ZERO, ZERO_INSIDE] {
        let error = mount.allocate(ino, what, 5000, 1 << 30).unwrap_err();
        assert_eq!(error.errno(), 28);
    }
    assert_eq!(mount.size(ino), 10_000);
    assert_eq!(mount.read(ino, 0, 20_000), pattern(1, 10_000));
    assert_eq!(mount.fs.data.room.blocks(), 0);
    assert!(mount.fs.statfs().available + 100 > available);
}

#[test]
fn only_holes_get_room_and_statfs_tells_of_it() {
    let mount = Mount::new();
    let ino = mount.create("file");
    mount.write(ino, 0, &pattern(1, 9 * BLOCK_BYTES));
    mount.fsync(ino);
    mount.write(ino, 20 * BLOCK, &pattern(2, 4 * BLOCK_BYTES));
    let before = mount.fs.statfs();
    mount.allocate(ino, FILL_BEYOND, 4 * BLOCK + 1, 26 * BLOCK).unwrap();
    assert_eq!(mount.size(ino), 24 * BLOCK);
    let after = mount.fs.statfs();
    assert_eq!(before.free - after.free, 18, "of 27 blocks 5 are there and 4 are dirty");
    assert!(before.available - after.available >= 18);
    mount.allocate(ino, FILL_BEYOND, 0, 31 * BLOCK).unwrap();
    assert_eq!(mount.fs.statfs().free, after.free, "again changes nothing");
    mount.fsync(ino);
    mount.check_items(ino);
    assert_eq!(mount.blocks(ino), (9 + 4 + 18) * 8);
    assert_eq!(mount.fs.data.room.blocks(), 18);
}

#[test]
fn room_past_the_end_stays_until_the_file_is_truncated() {
    let mut mount = Mount::new();
    let ino = mount.create("file");
    mount.write(ino, 0, b"small");
    mount.allocate(ino, FILL_BEYOND, 0, 100 * BLOCK).unwrap();
    mount.fsync(ino);
    for reopen in [true, false] {
        mount = if reopen { mount.reopen() } else { mount.crash() };
        let ino = mount.find("file");
        assert_eq!((mount.size(ino), mount.blocks(ino)), (5, 801));
        assert_eq!(mount.fs.data.room.blocks(), 100);
        // Growing by a write or a truncation takes no room away; shrinking does.
        mount.truncate(ino, 3000).unwrap();
        assert_eq!(mount.fs.data.room.blocks(), 100);
        mount.truncate(ino, 5).unwrap();
        assert_eq!(mount.fs.data.room.blocks(), 0);
        mount.allocate(ino, FILL_BEYOND, 0, 100 * BLOCK).unwrap();
        mount.fsync(ino);
    }
    let ino = mount.find("file");
    mount.truncate(ino, 5).unwrap();
    assert_eq!((mount.blocks(ino), mount.fs.data.room.blocks()), (9, 1), "to the size it has: block 0 stays");
    mount.check_items(ino);
}

#[test]
fn punching_truncating_and_unlinking_give_room_back() {
    let mount = Mount::new();
    let ino = mount.create("file");
    let available = mount.fs.statfs().available;
    mount.allocate(ino, FILL, 0, 1000 * BLOCK).unwrap();
    mount.allocate(ino, PUNCH, 10 * BLOCK + 1, 100 * BLOCK).unwrap();
    assert_eq!(mount.fs.data.room.blocks(), 901, "of a block that is cleared in part it stays");
    mount.write(ino, 500 * BLOCK, &pattern(1, 10 * BLOCK_BYTES));
    mount.allocate(ino, PUNCH, 505 * BLOCK, 10 * BLOCK).unwrap();
    assert_eq!(mount.fs.data.room.blocks(), 886);
    mount.check_room(&[ino]);
    mount.truncate(ino, 503 * BLOCK).unwrap();
    assert_eq!(mount.fs.data.room.blocks(), 401);
    mount.check_room(&[ino]);
    mount.fsync(ino);
    mount.check_items(ino);
    mount.unlink("file");
    mount.fs.clone().forget(ino, 2);
    block_on(mount.fs.wait_for_orphans());
    assert_eq!(mount.fs.data.room.blocks(), 0);
    assert!(mount.fs.statfs().available + 50 > available);
    block_on(mount.fs.syncfs()).unwrap();
    let crashed = mount.crash();
    assert_eq!(crashed.fs.data.room.blocks(), 0);
}

/// All blocks that are called available can be preallocated, but for the share that naming each
/// block by itself takes.
#[test]
fn nearly_all_that_is_available_can_be_preallocated() {
    for what in [FILL, ZERO] {
        let mount = Mount::sized(64 << 20, options());
        let ino = mount.create("file");
        let blocks = mount.fs.statfs().available * 92 / 100;
        mount.allocate(ino, what, 0, blocks * BLOCK).unwrap();
        mount.fill("other");
        mount.write(ino, 0, &pattern(1, blocks as usize * BLOCK_BYTES));
        mount.fsync(ino);
        assert_eq!(
            mount.read(ino, 0, blocks as usize * BLOCK_BYTES),
            pattern(1, blocks as usize * BLOCK_BYTES)
        );
    }
}

/// A small file that lies in its inode item keeps the room for block 0 until that block is written.
#[test]
fn small_files_have_room_for_when_they_grow() {
    let mount = Mount::sized(32 << 20, options());
    let ino = mount.create("file");
    mount.write(ino, 0, b"small");
    mount.allocate(ino, FILL_BEYOND, 0, 2 * BLOCK).unwrap();
    mount.fsync(ino);
    mount.fill("other");
    assert_eq!(mount.fs.data.room.blocks(), 2);
    mount.write(ino, 5, b" still");
    mount.fsync(ino);
    assert_eq!(mount.fs.data.room.blocks(), 1);
    mount.write(ino, BLOCK, &pattern(1, 1000));
    mount.fsync(ino);
    assert_eq!(mount.fs.data.room.blocks(), 0);
    let zeros = vec![0; BLOCK_BYTES - 11];
    assert_eq!(mount.read(ino, 0, 6000), [&b"small still"[..], &zeros, &pattern(1, 1000)].concat());
    mount.check_items(ino);
}

/// A write to room behind a small file moves block 0 out of the inode item, and there is room for
/// that too.
#[test]
fn room_behind_a_small_file_is_room_for_its_first_block_too() {
    for synced in [false, true] {
        let mount = Mount::sized(32 << 20, options());
        let ino = mount.create("file");
        mount.write(ino, 0, b"small");
        if synced {
            mount.fsync(ino);
        }
        mount.allocate(ino, FILL_BEYOND, BLOCK, BLOCK).unwrap();
        assert_eq!(mount.fs.data.room.blocks(), 2);
        mount.fsync(ino);
        mount.fill("other");
        mount.write(ino, BLOCK, &pattern(1, BLOCK_BYTES));
        mount.fsync(ino);
        assert_eq!(mount.fs.data.room.blocks(), 0);
        assert_eq!(mount.read(ino, 0, 5), b"small");
        assert_eq!(mount.read(ino, BLOCK, BLOCK_BYTES), pattern(1, BLOCK_BYTES));
        mount.check_items(ino);
    }
}

/// Data that was not synced is lost: zeros are left, and the room for it.
#[test]
fn a_crash_leaves_zeros_and_the_room() {
    let mount = Mount::new();
    let ino = mount.create("file");
    mount.allocate(ino, FILL, 0, 100 * BLOCK).unwrap();
    mount.fsync(ino);
    mount.write(ino, 0, &pattern(1, 50 * BLOCK_BYTES));
    mount.check_room(&[ino]);
    let crashed = mount.crash();
    let ino = crashed.find("file");
    assert_eq!(crashed.read(ino, 0, 50 * BLOCK_BYTES), vec![0; 50 * BLOCK_BYTES]);
    assert_eq!(crashed.fs.data.room.blocks(), 100);
    crashed.check_items(ino);
}

/// The feature flag comes with the first preallocation and before any item of it.
#[test]
fn an_image_tells_of_preallocation_once_there_was_some() {
    let mount = Mount::new();
    let ino = mount.create("file");
    mount.write(ino, 0, &pattern(1, 20_000));
    mount.allocate(ino, PUNCH, 0, 10_000).unwrap();
    assert_eq!(mount.fs.store().superblock().features & 2, 0);
    mount.allocate(ino, FILL, 0, 10_000).unwrap();
    let crashed = mount.crash();
    assert_eq!(crashed.fs.store().superblock().features & 2, 2);
}
