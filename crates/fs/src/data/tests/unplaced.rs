//! Small synced writes whose contents are in the log.

use super::*;
use crate::data::memory::BLOCK;
use syncline_format::BLOCK_BYTES;
use syncline_format::superblock::FEATURE_UNPLACED;

impl Mount {
    /// Blocks of a file that are in the log and have no place.
    pub(super) fn unplaced(&self, ino: Ino) -> Vec<u64> {
        self.check_unplaced(&block_on(self.fs.inode(ino)).unwrap())
    }

    /// A file of `blocks` blocks that are all placed.
    pub(super) fn file(&self, name: &str, blocks: usize) -> (Ino, Vec<u8>) {
        let ino = self.create(name);
        let contents = pattern(1, blocks * BLOCK_BYTES);
        self.write(ino, 0, &contents);
        self.fsync(ino);
        assert_eq!(self.unplaced(ino), []);
        (ino, contents)
    }

    /// Writes part of a file and syncs it.
    pub(super) fn update(&self, ino: Ino, contents: &mut [u8], at: usize, bytes: &[u8]) {
        self.write(ino, at as u64, bytes);
        contents[at..at + bytes.len()].copy_from_slice(bytes);
        self.fsync(ino);
    }

    fn blocks_in_log(&self) -> u64 {
        self.fs.counters().blocks_in_log
    }
}

#[test]
fn a_lone_sync_logs_eight_blocks_and_places_nine() {
    let mount = Mount::new();
    let (ino, mut contents) = mount.file("file", 100);
    for (blocks, logged) in [(8, 8), (9, 0)] {
        let before = mount.blocks_in_log();
        mount.update(ino, &mut contents, 20 * BLOCK_BYTES, &pattern(2 + blocks as u64, blocks * BLOCK_BYTES));
        assert_eq!(mount.blocks_in_log() - before, logged);
        assert_eq!(mount.unplaced(ino).len() as u64, logged);
        mount.check_items(ino);
    }
    let crashed = mount.crash();
    assert!(crashed.read(crashed.find("file"), 0, contents.len()) == contents);
}

#[test]
fn a_small_sync_is_one_write_and_survives() {
    let mount = Mount::timeless(options());
    let (ino, mut contents) = mount.file("file", 100);
    let before = mount.fs.store().counters().device_writes;
    mount.update(ino, &mut contents, 7 * BLOCK_BYTES + 5, &pattern(2, 100));
    assert_eq!(mount.fs.store().counters().device_writes, before + 1);
    assert_eq!((mount.blocks_in_log(), mount.unplaced(ino)), (1, vec![7]));
    mount.check_items(ino);
    assert!(mount.read(ino, 0, contents.len()) == contents);
    // Logged contents are not logged again: another sync, or a change of the times, logs none.
    mount.fsync(ino);
    assert_eq!(mount.blocks_in_log(), 1);
    for _ in 0..2 {
        // The block is found again after a crash, and after two.
        let mount = mount.crash().crash();
        let ino = mount.find("file");
        assert!(mount.read(ino, 0, contents.len()) == contents);
        assert_eq!(mount.unplaced(ino), [7]);
        mount.check_items(ino);
        // It is placed like any dirty block.
        let mount = mount.reopen();
        let ino = mount.find("file");
        assert_eq!(mount.unplaced(ino), []);
        mount.check_items(ino);
        assert!(mount.read(ino, 0, contents.len()) == contents);
    }
}

#[test]
fn a_crash_leaves_what_was_synced_last() {
    let mount = Mount::new();
    let (ino, mut contents) = mount.file("file", 10);
    for round in 0..5 {
        mount.update(ino, &mut contents, 3 * BLOCK_BYTES, &pattern(10 + round, BLOCK_BYTES));
        // Written again and not synced: the log has the older contents, memory the newer.
        mount.write(ino, 3 * BLOCK + 100, &pattern(20 + round, 200));
        let crashed = mount.crash();
        assert!(crashed.read(crashed.find("file"), 0, contents.len()) == contents);
        let here = mount.read(ino, 3 * BLOCK + 100, 200);
        assert_eq!(here, pattern(20 + round, 200));
        contents[3 * BLOCK_BYTES + 100..][..200].copy_from_slice(&here);
        assert_eq!(mount.unplaced(ino), [3]);
    }
    mount.fsync(ino);
    let crashed = mount.crash();
    assert!(crashed.read(crashed.find("file"), 0, contents.len()) == contents);
}

#[test]
fn appends_are_logged_until_there_are_many() {
    let mount = Mount::new();
    let ino = mount.create("file");
    let mut contents = Vec::new();
    let placed = || mount.fs.counters().submitted_bytes + mount.fs.counters().writeback_bytes;
    // A task may place them too, at any moment.
    let (mut times, mut before) = (0, 0);
    for append in 0..400 {
        let bytes = pattern(append, 1500);
        mount.write(ino, contents.len() as u64, &bytes);
        contents.extend(bytes);
        mount.fsync(ino);
        mount.check_items(ino);
        let crashed = mount.crash();
        assert!(crashed.read(crashed.find("file"), 0, contents.len() + 1) == contents);
        let now = placed();
        times += u64::from(now > before);
        before = now;
    }
    assert!((2..16).contains(&times), "placed {times} times");
    // Placed together, so that the file has few fragments although it was synced 400 times.
    assert!(block_on(mount.fs.fragments(ino)).unwrap().fragments < 8);
}

/// Each of these operations must remove the logged contents, or they would come back after a crash.
#[test]
fn what_is_cut_off_does_not_come_back() {
    type Cut = fn(&Mount, Ino, &mut Vec<u8>);
    let cuts: [(&str, Cut); 7] = [
        ("to a block", |mount, ino, contents| {
            mount.truncate(ino, 4 * BLOCK).unwrap();
            contents.truncate(4 * BLOCK_BYTES);
        }),
        ("within the block", |mount, ino, contents| {
            mount.truncate(ino, 5 * BLOCK + 10).unwrap();
            contents.truncate(5 * BLOCK_BYTES + 10);
        }),
        ("to a small file", |mount, ino, contents| {
            mount.truncate(ino, 10).unwrap();
            contents.truncate(10);
        }),
        ("a hole", |mount, ino, contents| {
            mount.allocate(ino, Allocation::PunchHole, 4 * BLOCK, 3 * BLOCK).unwrap();
            contents[4 * BLOCK_BYTES..7 * BLOCK_BYTES].fill(0);
        }),
        ("a hole in the block", |mount, ino, contents| {
            mount.allocate(ino, Allocation::PunchHole, 5 * BLOCK + 100, 200).unwrap();
            contents[5 * BLOCK_BYTES + 100..][..200].fill(0);
        }),
        ("zeros", |mount, ino, contents| {
            mount.allocate(ino, Allocation::ZeroRange { keep_size: true }, 5 * BLOCK, BLOCK).unwrap();
            contents[5 * BLOCK_BYTES..6 * BLOCK_BYTES].fill(0);
        }),
        ("another file's blocks", |mount, ino, contents| {
            let other = mount.find("other");
            assert_eq!(
                block_on(mount.fs.copy_range((other, 0), (ino, 4 * BLOCK), 3 * BLOCK, false)).unwrap(),
                3 * BLOCK
            );
            let (from, to) = (mount.read(other, 0, 3 * BLOCK_BYTES), 4 * BLOCK_BYTES..7 * BLOCK_BYTES);
            contents[to].copy_from_slice(&from);
        }),
    ];
    for (name, cut) in cuts {
        let mount = Mount::new();
        mount.file("other", 20);
        let (ino, mut contents) = mount.file("file", 9);
        // Updates a block that has a place, and one behind the end that has none.
        contents.extend(vec![0; BLOCK_BYTES]);
        mount.update(ino, &mut contents, 5 * BLOCK_BYTES, &pattern(3, BLOCK_BYTES));
        mount.update(ino, &mut contents, 9 * BLOCK_BYTES, &pattern(4, BLOCK_BYTES));
        assert_eq!(mount.unplaced(ino), [5, 9], "{name}");
        cut(&mount, ino, &mut contents);
        mount.check_items(ino);
        assert!(mount.read(ino, 0, 1 << 16) == contents, "{name}");
        mount.fsync(ROOT);
        // If contents that were cut off still exist anywhere, they show when the file grows over
        // them.
        let grown = [&contents[..], &vec![0; 11 * BLOCK_BYTES - contents.len()]].concat();
        let crashed = mount.crash();
        let ino = crashed.find("file");
        assert!(crashed.read(ino, 0, 1 << 16) == contents, "{name}, after a crash");
        crashed.check_items(ino);
        crashed.truncate(ino, grown.len() as u64).unwrap();
        assert!(crashed.read(ino, 0, 1 << 16) == grown, "{name}, grown after a crash");
        let crashed = crashed.reopen();
        let ino = crashed.find("file");
        assert!(crashed.read(ino, 0, 1 << 16) == grown, "{name}, placed");
        crashed.check_items(ino);
        assert_eq!(crashed.unplaced(ino), []);
    }
}

#[test]
fn a_removed_file_leaves_nothing() {
    let mount = Mount::new();
    let (ino, mut contents) = mount.file("file", 10);
    mount.update(ino, &mut contents, 0, b"logged");
    assert_eq!(mount.unplaced(ino), [0]);
    mount.unlink("file");
    mount.fs.clone().forget(ino, 2);
    block_on(mount.fs.wait_for_orphans());
    let items = |mount: &Mount| {
        let (first, last) = (Key::new(ino, Kind::Inode, 0), Key::new(ino, Kind::Quota, u64::MAX));
        block_on(mount.fs.store().scan(first, Key { kind: u8::MAX, ..last }, usize::MAX)).unwrap().items.len()
    };
    assert_eq!(items(&mount), 0);
    mount.fsync(ROOT);
    assert_eq!(items(&mount.crash()), 0);
}

/// A copy shares blocks, so they are placed first; an operation that moves blocks must not touch
/// their logged contents.
#[test]
fn whoever_looks_at_extents_finds_all_of_it() {
    let mount = Mount::new();
    let (ino, mut contents) = mount.file("file", 64);
    let copy = mount.create("copy");
    mount.update(ino, &mut contents, 9 * BLOCK_BYTES, &pattern(5, BLOCK_BYTES));
    let len = contents.len() as u64;
    assert_eq!(block_on(mount.fs.copy_range((ino, 0), (copy, 0), len, false)).unwrap(), len);
    assert_eq!(mount.unplaced(ino), []);
    mount.update(ino, &mut contents, 9 * BLOCK_BYTES, &pattern(6, BLOCK_BYTES));
    assert_eq!(block_on(mount.fs.usage(ino)).unwrap().shared_bytes, len - BLOCK);
    mount.update(ino, &mut contents, 9 * BLOCK_BYTES, &pattern(7, BLOCK_BYTES));
    mount.defragment(ino, true);
    mount.fsync(ROOT);
    for mount in [mount.crash(), mount.reopen()] {
        let ino = mount.find("file");
        assert!(mount.read(ino, 0, contents.len()) == contents);
        mount.check_items(ino);
        mount.check_counts(&[ino, mount.find("copy")]);
    }
}

#[test]
fn an_image_that_does_not_know_of_it_gets_none() {
    let small = Mount::formatted(64 << 20, 4096, options());
    assert_ne!(small.fs.store().superblock().features & FEATURE_UNPLACED, 0);
    let (ino, mut contents) = small.file("file", 10);
    small.update(ino, &mut contents, BLOCK_BYTES, b"too large for a node of 4 KiB");
    assert_eq!((small.blocks_in_log(), small.unplaced(ino)), (0, vec![]));
}

/// In a damaged image, neither zeros nor the older contents are right for the block.
#[test]
fn half_of_a_logged_block_is_an_error_until_the_block_is_written() {
    let mount = Mount::new();
    let (ino, mut contents) = mount.file("file", 10);
    mount.update(ino, &mut contents, 3 * BLOCK_BYTES, &pattern(7, BLOCK_BYTES));
    let mut transaction = syncline_store::Transaction::new();
    transaction.delete(Key::new(ino, Kind::Unplaced, 3 * PIECES + 1));
    mount.fs.store().commit(transaction).unwrap();
    let other = mount.create("other");
    mount.fsync(other);
    let mount = mount.crash();
    let (ino, other) = (mount.find("file"), mount.find("other"));
    let corrupt = |answer: Result<u64, FsError>| matches!(answer, Err(FsError::Corrupt { .. }));
    let read = |at: u64| block_on(mount.fs.read(ino, at, 10)).map(|pieces| pieces.len() as u64);
    assert!(corrupt(read(3 * BLOCK)) && corrupt(read(4 * BLOCK - 5)) && corrupt(read(3 * BLOCK + 2048)));
    for (from, to) in [(0, 3), (4, 10)] {
        let bytes = mount.read(ino, from * BLOCK, (to - from) as usize * BLOCK_BYTES);
        assert!(bytes == contents[from as usize * BLOCK_BYTES..to as usize * BLOCK_BYTES]);
    }
    // Operations that need the old contents fail too.
    let part = bytes::Bytes::from_static(b"part");
    assert!(corrupt(block_on(mount.fs.write(ino, 3 * BLOCK + 9, part, false)).map(|_| 0)));
    assert!(corrupt(block_on(mount.fs.copy_range((ino, 0), (other, 0), u64::MAX >> 1, false))));
    let new = pattern(8, BLOCK_BYTES);
    mount.update(ino, &mut contents, 3 * BLOCK_BYTES, &new);
    for mount in [mount.crash(), mount.reopen()] {
        assert!(mount.read(mount.find("file"), 0, contents.len()) == contents);
    }
}
