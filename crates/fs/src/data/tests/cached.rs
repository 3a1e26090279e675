//! Partial writes of blocks over existing contents.

use super::*;
use crate::data::memory::BLOCK;
use std::time::Duration;
use syncline_format::BLOCK_BYTES;

/// Bytes that SQLite writes for a page, and the offset at which the first page begins in its log.
const FRAME: usize = 4120;
const HEADER: usize = 32;
const FRAMES: usize = 100;

/// Writes a log of frames from its beginning on, and syncs each.
fn cycle(mount: &Mount, ino: Ino, contents: &mut Vec<u8>, seed: u64) {
    for frame in 0..FRAMES {
        let at = HEADER + frame * FRAME;
        let bytes = pattern(seed + frame as u64, FRAME);
        mount.write(ino, at as u64, &bytes);
        contents.resize(contents.len().max(at + FRAME), 0);
        contents[at..at + FRAME].copy_from_slice(&bytes);
        mount.fsync(ino);
    }
}

fn reads(mount: &Mount) -> u64 {
    mount.fs.counters().blocks_read_for_write
}

#[test]
fn a_log_that_comes_round_reads_nothing() {
    let mount = Mount::new();
    let ino = mount.create("log");
    let mut contents = Vec::new();
    for seed in [1, 1000, 2000] {
        cycle(&mount, ino, &mut contents, seed);
        mount.fsync_placed(ino);
        assert!(mount.read(ino, 0, contents.len()) == contents);
        let crashed = mount.crash();
        assert!(crashed.read(crashed.find("log"), 0, contents.len()) == contents);
    }
    assert_eq!(reads(&mount), 0);
    // After a remount each block is read once.
    let mount = mount.reopen();
    let ino = mount.find("log");
    cycle(&mount, ino, &mut contents, 3000);
    let once = reads(&mount);
    assert!((FRAMES..=FRAMES + 2).contains(&(once as usize)), "{once}");
    cycle(&mount, ino, &mut contents, 4000);
    assert_eq!(reads(&mount), once);
    assert!(mount.read(ino, 0, contents.len()) == contents);
}

/// After any change of a cached block, the next partial write finds the block as it is then.
#[test]
fn a_cached_block_is_forgotten_when_it_changes() {
    type Change = fn(&Mount, Ino, &mut Vec<u8>);
    let changes: [(&str, Change); 6] = [
        ("a hole", |mount, ino, contents| {
            mount.allocate(ino, Allocation::PunchHole, 10 * BLOCK, 5 * BLOCK).unwrap();
            contents[10 * BLOCK_BYTES..15 * BLOCK_BYTES].fill(0);
        }),
        ("zeros", |mount, ino, contents| {
            mount.allocate(ino, Allocation::ZeroRange { keep_size: true }, 12 * BLOCK, BLOCK).unwrap();
            contents[12 * BLOCK_BYTES..13 * BLOCK_BYTES].fill(0);
        }),
        ("a truncation and growth", |mount, ino, contents| {
            let size = contents.len();
            mount.truncate(ino, 12 * BLOCK + 7).unwrap();
            mount.truncate(ino, size as u64).unwrap();
            contents[12 * BLOCK_BYTES + 7..].fill(0);
        }),
        ("another's blocks", |mount, ino, contents| {
            let other = mount.create("other");
            mount.write(other, 0, &pattern(77, 5 * BLOCK_BYTES));
            let copied = block_on(mount.fs.copy_range((other, 0), (ino, 10 * BLOCK), 5 * BLOCK, false));
            assert_eq!(copied.unwrap(), 5 * BLOCK);
            contents[10 * BLOCK_BYTES..15 * BLOCK_BYTES].copy_from_slice(&pattern(77, 5 * BLOCK_BYTES));
        }),
        ("a range less", |mount, ino, contents| {
            mount.allocate(ino, Allocation::CollapseRange, 2 * BLOCK, 3 * BLOCK).unwrap();
            contents.drain(2 * BLOCK_BYTES..5 * BLOCK_BYTES);
        }),
        ("whole blocks", |mount, ino, contents| {
            mount.write(ino, 10 * BLOCK, &pattern(78, 5 * BLOCK_BYTES));
            contents[10 * BLOCK_BYTES..15 * BLOCK_BYTES].copy_from_slice(&pattern(78, 5 * BLOCK_BYTES));
            mount.fsync(ino);
        }),
    ];
    for (name, change) in changes {
        let mount = Mount::new();
        let ino = mount.create("log");
        let mut contents = Vec::new();
        for seed in [1, 1000, 2000] {
            cycle(&mount, ino, &mut contents, seed);
        }
        mount.fsync_placed(ino);
        change(&mount, ino, &mut contents);
        // A few bytes in the middle of each block.
        for block in 9..16 {
            let at = block * BLOCK_BYTES + 2000;
            mount.write(ino, at as u64, b"part");
            contents[at..at + 4].copy_from_slice(b"part");
        }
        assert!(mount.read(ino, 0, contents.len()) == contents, "{name}");
        mount.fsync(ino);
        let crashed = mount.crash();
        assert!(crashed.read(crashed.find("log"), 0, contents.len()) == contents, "{name}, after a crash");
    }
}

/// Like tar and cp: pieces that are not a multiple of a block, and files that end within one.
#[test]
fn what_was_written_in_parts_is_read_from_memory() {
    let mount = Mount::new();
    let device_reads = || mount.fs.store().counters().device_reads;
    let (archive, small) = (mount.create("archive"), mount.create("small"));
    let contents = pattern(5, 100 * 10_240);
    for (index, piece) in contents.chunks(10_240).enumerate() {
        mount.write(archive, index as u64 * 10_240, piece);
    }
    mount.write(small, 0, &contents[..9000]);
    mount.fsync_placed(archive);
    mount.fsync_placed(small);
    let before = device_reads();
    for piece in (0..contents.len()).step_by(10_240).skip(1).step_by(2) {
        // The block in which one piece ends and the next one begins.
        let block = piece / BLOCK_BYTES;
        assert!(mount.read(archive, block as u64 * BLOCK, 100) == contents[block * BLOCK_BYTES..][..100]);
    }
    assert!(mount.read(small, 2 * BLOCK, BLOCK_BYTES) == contents[2 * BLOCK_BYTES..9000]);
    assert_eq!(device_reads(), before);
    // Whole blocks are in the kernel's page cache and are not cached here.
    assert!(mount.read(archive, 0, 4096) == contents[..4096]);
    assert!(device_reads() > before);
    // A removed file keeps no blocks.
    assert_eq!(mount.fs.data.cached.blocks(), 50 + 1);
    mount.unlink("archive");
    mount.fs.forget(archive, 1);
    while !mount.fs.orphans_settled() {
        std::thread::sleep(Duration::from_millis(2));
    }
    assert_eq!(mount.fs.data.cached.blocks(), 1);
}

#[test]
fn only_so_many_blocks_are_cached() {
    const MAX: u64 = 16;
    let mount = Mount::formatted(64 << 20, 16384, Options { kept_bytes_max: MAX * BLOCK, ..options() });
    let inos: Vec<Ino> = (0..40).map(|file| mount.create(&format!("{file}"))).collect();
    let is_cached = |ino: Ino| {
        let before = mount.fs.store().counters().device_reads;
        assert!(mount.read(ino, 8 * BLOCK, 100) == pattern(ino, 8 * BLOCK_BYTES + 100)[8 * BLOCK_BYTES..]);
        mount.fs.store().counters().device_reads == before
    };
    for &ino in &inos {
        mount.write(ino, 0, &pattern(ino, 8 * BLOCK_BYTES + 100));
        mount.fsync_placed(ino);
        assert!(mount.fs.data.cached.blocks() <= MAX);
    }
    assert!(is_cached(inos[39]) && is_cached(inos[30]) && !is_cached(inos[0]) && !is_cached(inos[20]));
    // A single file cannot exceed the limit either.
    let ino = mount.create("large");
    for block in 0..100 {
        mount.write(ino, block * BLOCK + 7, &pattern(block, 3000));
    }
    mount.fsync_placed(ino);
    assert!(mount.fs.data.cached.blocks() <= MAX);
    let unwanted = Mount::formatted(64 << 20, 16384, Options { kept_bytes_max: 0, ..options() });
    let ino = unwanted.create("file");
    unwanted.write(ino, 0, &pattern(1, 9000));
    unwanted.fsync_placed(ino);
    assert_eq!(unwanted.fs.data.cached.blocks(), 0);
    assert!(unwanted.read(ino, 0, 9000) == pattern(1, 9000));
}
