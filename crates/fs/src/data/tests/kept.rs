//! Files that are written in parts of blocks, over what is there.

use super::super::BLOCK;
use super::*;
use syncline_format::BLOCK_BYTES;

/// What SQLite writes for a page, and where its log begins.
const FRAME: usize = 4120;
const HEADER: usize = 32;
const FRAMES: usize = 100;

/// Writes a log of frames from its beginning on, each synced.
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
fn a_log_that_comes_round_reads_its_blocks_once() {
    let mount = Mount::new();
    let ino = mount.create("log");
    let mut contents = Vec::new();
    cycle(&mount, ino, &mut contents, 1);
    assert_eq!(reads(&mount), 0);
    cycle(&mount, ino, &mut contents, 1000);
    let second = reads(&mount);
    assert!(second > 0, "nobody knew that it would come round");
    for seed in [2000, 3000] {
        cycle(&mount, ino, &mut contents, seed);
        assert!(mount.read(ino, 0, contents.len()) == contents);
        let crashed = mount.crash();
        assert!(crashed.read(crashed.find("log"), 0, contents.len()) == contents);
    }
    assert!(reads(&mount) - second < 5, "{} and then {}", second, reads(&mount) - second);
}

/// Whatever changes a block that is kept, the next part that is written meets the block as it is.
#[test]
fn a_kept_block_is_forgotten_when_it_changes() {
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

#[test]
fn few_files_keep_blocks() {
    let mount = Mount::new();
    let inos: Vec<Ino> = (0..40).map(|file| mount.create(&format!("{file}"))).collect();
    for &ino in &inos {
        mount.write(ino, 0, &pattern(ino, 8 * BLOCK_BYTES));
        mount.fsync(ino);
    }
    let round = |byte: u8| {
        for &ino in &inos {
            mount.write(ino, 3 * BLOCK + 5, &[byte]);
            mount.fsync_placed(ino);
        }
    };
    round(1);
    let before = reads(&mount);
    assert_eq!(before, 40);
    // Each comes when it has just been forgotten.
    round(2);
    assert_eq!(reads(&mount) - before, 40);
    for &ino in &inos {
        let mut expected = pattern(ino, 8 * BLOCK_BYTES);
        expected[3 * BLOCK_BYTES + 5] = 2;
        assert!(mount.read(ino, 0, expected.len()) == expected);
    }
}
