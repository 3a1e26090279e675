//! fallocate: what reads as zeros, what is given up, and what a crash leaves.

use super::*;
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
    // Nothing more has to be written for it to be durable.
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
    mount.allocate(ino, PUNCH, 0, 60 * BLOCK).unwrap();
    assert!(mount.fs.store().available_blocks() >= reserved + 50, "their room is free again");
    mount.fsync(ino);
    assert_eq!(mount.fs.counters().submitted_bytes, 4 * BLOCK);
    assert_eq!(mount.read(ino, 0, contents.len()), cleared(&contents, 0..60 * BLOCK_BYTES));
    assert_eq!(mount.blocks(ino), 4 * 8);
}

/// The edges come with the punch, whatever of them was dirty; what is dirty elsewhere may come later.
#[test]
fn a_punch_is_one_change() {
    let mount = Mount::new();
    let (ino, other) = (mount.create("file"), mount.create("other"));
    mount.write(ino, 0, &pattern(3, 8 * BLOCK_BYTES));
    mount.fsync(ino);
    let newer = pattern(4, 8 * BLOCK_BYTES);
    mount.write(ino, 0, &newer);
    mount.allocate(ino, PUNCH, BLOCK + 5, 5 * BLOCK).unwrap();
    // Of another file: all changes of names and attributes before it are durable, and so is the punch.
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
    mount.allocate(ino, ZERO, 500, 1000).unwrap();
    assert_eq!((mount.size(ino), mount.blocks(ino)), (1500, 3));
    mount.allocate(ino, PUNCH, 0, 4096).unwrap();
    assert_eq!((mount.size(ino), mount.blocks(ino)), (1500, 0));
    assert_eq!(mount.read(ino, 0, 5000), [0; 1500]);
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
    assert_eq!(mount.blocks(other), 0);
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
