//! Ranges removed from files and inserted, and shared blocks replaced by a file's own: what is
//! copied, what a crash leaves, what is refused.

use super::*;
use crate::data::calls::allocate::SHIFTED_EXTENTS_MAX;
use crate::types::FileFlags;
use syncline_format::BLOCK_BYTES;
use syncline_format::items::extent::EXTENT_BLOCKS_MAX;

const BLOCK: u64 = BLOCK_BYTES as u64;
const COLLAPSE: Allocation = Allocation::CollapseRange;
const INSERT: Allocation = Allocation::InsertRange;
const UNSHARE: Allocation = Allocation::UnshareRange { keep_size: true };

#[test]
fn what_moves_is_not_copied() {
    let mount = Mount::new();
    let ino = mount.create("file");
    let mut contents = pattern(1, 1000 * BLOCK_BYTES + 77);
    mount.write(ino, 0, &contents);
    mount.fsync(ino);
    let written = mount.fs.counters().submitted_bytes;
    mount.allocate(ino, COLLAPSE, 3 * BLOCK, 50 * BLOCK).unwrap();
    contents.drain(3 * BLOCK_BYTES..53 * BLOCK_BYTES);
    assert_eq!(mount.read(ino, 0, contents.len() + 1), contents);
    assert_eq!(mount.blocks(ino), 951 * 8);
    mount.allocate(ino, INSERT, 7 * BLOCK, 9 * BLOCK).unwrap();
    contents.splice(7 * BLOCK_BYTES..7 * BLOCK_BYTES, vec![0; 9 * BLOCK_BYTES]);
    assert_eq!(mount.read(ino, 0, contents.len() + 1), contents);
    assert_eq!(mount.blocks(ino), 951 * 8, "a hole was put in");
    assert_eq!(block_on(mount.fs.seek_hole(ino, 0)).unwrap(), 7 * BLOCK);
    assert_eq!(block_on(mount.fs.seek_data(ino, 7 * BLOCK)).unwrap(), 16 * BLOCK);
    assert_eq!(mount.fs.counters().submitted_bytes, written);
    mount.check_items(ino);
    mount.fsync(ino);
    let mount = mount.crash();
    assert_eq!(mount.read(mount.find("file"), 0, contents.len() + 1), contents);
}

/// Dirty data is submitted first, and a crash leaves the whole file either as it was or shifted.
#[test]
fn a_shift_is_one_change() {
    let mount = Mount::new();
    let (ino, other) = (mount.create("file"), mount.create("other"));
    mount.write(ino, 0, &pattern(2, 500 * BLOCK_BYTES));
    mount.fsync(ino);
    mount.write(ino, 400 * BLOCK, &pattern(3, BLOCK_BYTES));
    let mut contents = mount.read(ino, 0, 500 * BLOCK_BYTES);
    mount.allocate(ino, COLLAPSE, 0, 100 * BLOCK).unwrap();
    let before = mount.crash();
    let found = before.read(before.find("file"), 0, 501 * BLOCK_BYTES);
    assert!(found.len() == 500 * BLOCK_BYTES, "nothing made it durable");
    // A sync of another file makes all earlier changes of names and attributes durable, and so the
    // shift.
    mount.fsync(other);
    contents.drain(..100 * BLOCK_BYTES);
    let after = mount.crash();
    assert_eq!(after.read(after.find("file"), 0, 501 * BLOCK_BYTES), contents);
}

#[test]
fn small_contents_leave_their_inode_item() {
    let mount = Mount::new();
    let ino = mount.create("file");
    mount.write(ino, 0, b"small");
    mount.fsync(ino);
    mount.allocate(ino, INSERT, 0, 2 * BLOCK).unwrap();
    assert_eq!(mount.read(ino, 0, 20_000), [&[0; 8192][..], b"small"].concat());
    assert_eq!((mount.size(ino), mount.blocks(ino)), (8197, 8));
    mount.check_items(ino);
    mount.allocate(ino, COLLAPSE, 0, 2 * BLOCK).unwrap();
    assert_eq!(mount.read(ino, 0, 20_000), b"small");
    // Contents in the inode item that need not move stay there.
    mount.truncate(ino, 0).unwrap();
    mount.write(ino, 0, b"beginning");
    mount.fsync(ino);
    mount.truncate(ino, 5 * BLOCK).unwrap();
    mount.allocate(ino, INSERT, BLOCK, BLOCK).unwrap();
    mount.allocate(ino, COLLAPSE, 2 * BLOCK, BLOCK).unwrap();
    assert_eq!((mount.size(ino), mount.blocks(ino)), (5 * BLOCK, 1));
    assert_eq!(mount.read(ino, 0, 9), b"beginning");
    mount.allocate(ino, COLLAPSE, 0, BLOCK).unwrap();
    assert_eq!((mount.read(ino, 0, 20), mount.blocks(ino)), (vec![0; 20], 0));
    mount.check_items(ino);
}

#[test]
fn what_is_shared_stays_shared_until_it_is_to_be_ones_own() {
    let mount = Mount::new();
    let (one, other) = (mount.create("one"), mount.create("other"));
    let contents = pattern(4, 300 * BLOCK_BYTES);
    mount.write(one, 0, &contents);
    mount.copy(one, other, contents.len() as u64);
    mount.allocate(other, INSERT, 10 * BLOCK, 5 * BLOCK).unwrap();
    mount.allocate(other, COLLAPSE, 100 * BLOCK, 50 * BLOCK).unwrap();
    assert_eq!(mount.usage(other).shared_bytes, 250 * BLOCK);
    assert_eq!(mount.usage(one).shared_bytes, 250 * BLOCK);
    mount.check_counts(&[one, other]);
    let shifted = mount.read(other, 0, contents.len());
    mount.allocate(other, UNSHARE, 20 * BLOCK, 30 * BLOCK).unwrap();
    assert_eq!(mount.usage(other).shared_bytes, 220 * BLOCK);
    mount.allocate(other, UNSHARE, 0, 300 * BLOCK).unwrap();
    assert_eq!(mount.usage(other).shared_bytes, 0);
    assert_eq!(mount.usage(one).shared_bytes, 0);
    // Former holes have room of their own too, and so have the blocks past the end.
    assert_eq!(mount.blocks(other), 300 * 8);
    assert_eq!(mount.read(other, 0, contents.len()), shifted);
    assert_eq!(mount.read(one, 0, contents.len()), contents);
    mount.check_counts(&[one, other]);
    mount.check_room(&[one, other]);
}

#[test]
fn room_that_was_set_aside_moves_along() {
    let mount = Mount::new();
    let ino = mount.create("file");
    mount.write(ino, 0, &pattern(5, 10 * BLOCK_BYTES));
    mount.allocate(ino, Allocation::Preallocate { keep_size: true }, 0, 40 * BLOCK).unwrap();
    let available = mount.fs.store().available_blocks();
    mount.allocate(ino, INSERT, 5 * BLOCK, 8 * BLOCK).unwrap();
    assert_eq!((mount.size(ino), mount.blocks(ino)), (18 * BLOCK, 40 * 8));
    mount.check_room(&[ino]);
    mount.allocate(ino, COLLAPSE, 0, 13 * BLOCK).unwrap();
    assert_eq!((mount.size(ino), mount.blocks(ino)), (5 * BLOCK, 35 * 8));
    mount.check_room(&[ino]);
    assert!(mount.fs.store().available_blocks().abs_diff(available) < 10);
    let mount = mount.reopen();
    let ino = mount.find("file");
    assert_eq!(mount.blocks(ino), 35 * 8);
    mount.check_room(&[ino]);
}

#[test]
fn more_than_one_change_can_hold_is_refused_before_any_effect() {
    let mount = Mount::sized(1 << 30, options());
    let ino = mount.create("file");
    for extent in 0..=SHIFTED_EXTENTS_MAX as u64 {
        mount.write(ino, extent * EXTENT_BLOCKS_MAX * BLOCK, &extent.to_le_bytes());
    }
    let size = mount.size(ino);
    for what in [COLLAPSE, INSERT] {
        assert!(matches!(mount.allocate(ino, what, 0, BLOCK), Err(FsError::TooManyExtents)));
    }
    assert_eq!(mount.size(ino), size);
    // Extents before the range need not move.
    mount.allocate(ino, INSERT, 1000 * EXTENT_BLOCKS_MAX * BLOCK, BLOCK).unwrap();
    assert_eq!(mount.read(ino, size + BLOCK - 8, 8), (SHIFTED_EXTENTS_MAX as u64).to_le_bytes());
    mount.check_items(ino);
}

#[test]
fn ranges_that_make_no_sense_are_refused() {
    let mount = Mount::new();
    let ino = mount.create("file");
    mount.write(ino, 0, &pattern(6, 10 * BLOCK_BYTES));
    let errno = |what, offset, len| mount.allocate(ino, what, offset, len).unwrap_err().errno();
    for what in [COLLAPSE, INSERT] {
        assert_eq!(errno(what, 1, BLOCK), 22);
        assert_eq!(errno(what, 0, BLOCK + 1), 22);
        assert_eq!(errno(what, 0, 0), 22);
        assert_eq!(errno(what, 10 * BLOCK, BLOCK), 22, "at the end");
    }
    assert_eq!(errno(COLLAPSE, 9 * BLOCK, BLOCK), 22, "up to the end");
    assert_eq!(errno(INSERT, 0, i64::MAX as u64 / BLOCK * BLOCK), 27);
    let append_only = FileFlags { append_only: true, ..FileFlags::default() };
    block_on(mount.fs.set_file_flags(ino, append_only)).unwrap();
    assert_eq!(errno(COLLAPSE, 0, BLOCK), 1);
    assert_eq!(errno(INSERT, 0, BLOCK), 1);
}
