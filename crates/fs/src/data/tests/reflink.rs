//! Sharing blocks: which are shared, what it costs, and what happens when one side changes.

use super::*;
use crate::Usage;
use syncline_format::BLOCK_BYTES;

const MIB: usize = 1 << 20;

impl Mount {
    pub(super) fn copy(&self, from: Ino, to: Ino, len: u64) -> u64 {
        block_on(self.fs.copy_range((from, 0), (to, 0), len, false)).unwrap()
    }

    pub(super) fn usage(&self, ino: Ino) -> Usage {
        block_on(self.fs.usage(ino)).unwrap()
    }

    /// Blocks in use.
    pub(super) fn used_blocks(&self) -> u64 {
        block_on(self.fs.store().checkpoint()).unwrap();
        self.fs.store().named_runs().iter().map(|run| run.blocks).sum()
    }
}

#[test]
fn a_copy_writes_no_data_and_both_go_their_own_way() {
    let mount = Mount::new();
    let (one, other) = (mount.create("one"), mount.create("other"));
    let contents = pattern(1, MIB + 1000);
    mount.write(one, 0, &contents);
    mount.fsync(one);
    let before = mount.fs.counters().submitted_bytes;
    assert_eq!(mount.copy(one, other, u64::MAX >> 1), contents.len() as u64);
    assert_eq!(mount.fs.counters().submitted_bytes, before, "no data was written");
    assert_eq!(mount.fs.counters().reflinked_bytes, contents.len() as u64);
    assert_eq!(mount.read(other, 0, 2 * MIB), contents);
    let blocks = 257 * BLOCK_BYTES as u64;
    for ino in [one, other] {
        assert_eq!(mount.usage(ino), Usage { total_bytes: blocks, shared_bytes: blocks });
    }
    mount.write(other, 8192, &pattern(2, 8192));
    mount.fsync_placed(other);
    assert_eq!(mount.read(one, 0, 2 * MIB), contents);
    assert_eq!(mount.read(other, 8192, 8192), pattern(2, 8192));
    assert_eq!(mount.usage(one).shared_bytes, blocks - 8192);
    mount.check_counts(&[one, other]);
    mount.truncate(one, 4096).unwrap();
    assert_eq!(mount.usage(other), Usage { total_bytes: blocks, shared_bytes: 4096 });
    mount.check_counts(&[one, other]);
    let mount = mount.crash();
    mount.check_counts(&[mount.find("one"), mount.find("other")]);
}

#[test]
fn blocks_are_free_when_the_last_of_many_goes() {
    let mount = Mount::new();
    // Created first, so that the directory has its room already.
    let inos: Vec<Ino> = (0..10).map(|file| mount.create(&format!("{file}"))).collect();
    let empty = mount.used_blocks();
    mount.write(inos[0], 0, &pattern(3, MIB));
    for pair in inos.windows(2) {
        mount.copy(pair[0], pair[1], MIB as u64);
    }
    let full = mount.used_blocks();
    assert!(full - empty < 256 + 40, "ten files use the room of one: {}", full - empty);
    mount.check_counts(&inos);
    for (file, &ino) in inos.iter().enumerate().take(9) {
        mount.unlink(&format!("{file}"));
        mount.fs.clone().forget(ino, 2);
        block_on(mount.fs.wait_for_orphans());
        assert!(mount.used_blocks() >= empty + 256 - 20);
    }
    mount.check_counts(&inos[9..]);
    assert_eq!(mount.read(inos[9], 0, MIB), pattern(3, MIB));
    mount.truncate(inos[9], 0).unwrap();
    let left = mount.used_blocks();
    assert!(left < empty + 20, "{left} after {empty}");
}

#[test]
fn unmarked_extents_cost_no_lookup() {
    let mount = Mount::new();
    let (plain, one, other) = (mount.create("plain"), mount.create("one"), mount.create("other"));
    for ino in [plain, one] {
        mount.write(ino, 0, &pattern(4, MIB));
        mount.fsync(ino);
    }
    mount.copy(one, other, MIB as u64);
    let lookups = || mount.fs.counters().shared_lookups;
    let before = lookups();
    mount.write(plain, 0, &pattern(5, MIB));
    mount.fsync(plain);
    mount.truncate(plain, 1).unwrap();
    assert_eq!(lookups(), before, "nothing of this file was ever shared");
    mount.write(one, 0, &pattern(5, 4096));
    mount.fsync_placed(one);
    assert_eq!(lookups(), before + 1);
    // The block that was written is the file's own again; the others are not.
    mount.write(one, 0, &pattern(6, 4096));
    mount.fsync_placed(one);
    assert_eq!(lookups(), before + 1, "a block's own extent has no mark");
}

#[test]
fn ranges_within_a_file_can_be_shared() {
    let mount = Mount::new();
    let ino = mount.create("file");
    let contents = pattern(7, 40 * BLOCK_BYTES);
    mount.write(ino, 0, &contents);
    let copy = |from: u64, to: u64, len: u64| {
        block_on(mount.fs.copy_range((ino, from), (ino, to), len, false)).map_err(|error| error.errno())
    };
    // Within one extent item, then past the end.
    assert_eq!(copy(4096, 5 * 4096, 3 * 4096), Ok(3 * 4096));
    assert_eq!(copy(0, 64 * 4096, 40 * 4096), Ok(40 * 4096));
    assert_eq!(copy(0, 4096, 8192), Err(22));
    let mut expected = contents.clone();
    expected.copy_within(4096..4 * 4096, 5 * 4096);
    let first = expected.clone();
    expected.resize(64 * BLOCK_BYTES, 0);
    expected.extend_from_slice(&first);
    assert_eq!(mount.read(ino, 0, MIB), expected);
    mount.check_counts(&[ino]);
    mount.truncate(ino, 0).unwrap();
    mount.check_counts(&[ino]);
}

#[test]
fn small_and_unaligned_pieces_are_copied() {
    let mount = Mount::new();
    let (one, other) = (mount.create("one"), mount.create("other"));
    mount.write(one, 0, b"in the inode item");
    assert_eq!(mount.copy(one, other, 100), 17);
    assert_eq!(mount.read(other, 0, 100), b"in the inode item");
    let contents = pattern(8, 100_000);
    mount.write(one, 0, &contents);
    // The same offset within a block: edges are copied, the middle is shared.
    let copied = block_on(mount.fs.copy_range((one, 5000), (other, 904 + 4096), 60_000, false)).unwrap();
    assert_eq!(copied, 60_000);
    assert_eq!(mount.read(other, 5000, 60_000), contents[5000..65_000]);
    assert!(mount.fs.counters().reflinked_bytes >= 13 * 4096);
    let shared = mount.fs.counters().reflinked_bytes;
    assert_eq!(block_on(mount.fs.copy_range((one, 1), (other, 0), 50_000, false)).unwrap(), 50_000);
    assert_eq!(
        mount.fs.counters().reflinked_bytes,
        shared,
        "nothing can be shared at different places of a block"
    );
    assert_eq!(mount.read(other, 0, 50_000), contents[1..50_001]);
    mount.check_counts(&[one, other]);
}

#[test]
fn a_copy_comes_back_whole_after_a_crash_or_not_at_all() {
    let mount = Mount::new();
    let (one, other) = (mount.create("one"), mount.create("other"));
    mount.fsync(other);
    mount.write(one, 0, &pattern(10, MIB));
    mount.copy(one, other, MIB as u64);
    let mount = mount.crash();
    let other = mount.find("other");
    let size = mount.size(other);
    assert!(size == 0 || size == MIB as u64);
    assert_eq!(mount.read(other, 0, MIB), pattern(10, size as usize));
    mount.check_counts(&[mount.find("one"), other]);
}

#[test]
fn a_copy_that_finds_no_room_tells_of_all_that_it_copied() {
    let mount = Mount::sized(16 << 20, options());
    let (one, other, filler) = (mount.create("one"), mount.create("other"), mount.create("filler"));
    // In many pieces: every second block is a hole.
    for block in (0..2 * MIB).step_by(2 * BLOCK_BYTES) {
        mount.write(one, block as u64, &pattern(11 + block as u64, BLOCK_BYTES));
    }
    mount.fsync(one);
    let piece = pattern(12, 64 << 10);
    let full = (0..).find(|index| mount.try_write(filler, index * piece.len() as u64, &piece).is_err());
    let mut full = full.unwrap() * piece.len() as u64;
    mount.fsync(filler);
    while mount.try_write(filler, full, &piece[..4096]).is_ok() {
        full += 4096;
        mount.fsync(filler);
    }
    mount.truncate(filler, full - (700 << 10)).unwrap();
    block_on(mount.fs.syncfs()).unwrap();
    // At different offsets within a block, so that nothing is shared.
    let mut told = 0;
    let error = loop {
        let (from, to) = ((one, 1 + told), (other, told));
        match block_on(mount.fs.copy_range(from, to, 2 * MIB as u64 - 1 - told, false)) {
            Ok(bytes) => told += bytes,
            Err(error) => break error.errno(),
        }
        assert!(told < MIB as u64, "there was no room for so much");
    };
    assert_eq!((error, mount.size(other)), (28, told));
    assert!(told > 0, "there was room for some");
    assert_eq!(mount.read(other, 0, MIB), mount.read(one, 1, told as usize));
}
