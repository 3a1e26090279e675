//! Compression: what it saves, what it never touches, and how units are changed in part.

use super::faults::moody;
use super::*;
use crate::data::flush::writeback::write_back;
use futures_lite::future::poll_once;
use std::sync::atomic::Ordering;
use syncline_format::BLOCK_BYTES;
use syncline_format::items::extent::{Extent, Packed};
use syncline_format::superblock::FEATURE_COMPRESSION;
use syncline_store::Transaction;

const KIB: usize = 1024;
const BOTH: [Algorithm; 2] = [Algorithm::Lz4, Algorithm::Zstd];

/// Text in which no two blocks are equal, and that shrinks to a fraction.
fn text(seed: u64, len: usize) -> Vec<u8> {
    let lines =
        (0..).map(|line| format!("{seed} line {line} of a text that says the same again and again\n"));
    lines.flat_map(String::into_bytes).take(len).collect()
}

fn extents(mount: &Mount, ino: Ino) -> Vec<Extent> {
    block_on(crate::data::extents::lookup::all(mount.fs.store(), ino, 0, u64::MAX)).unwrap()
}

fn back(mount: &Mount, ino: Ino) {
    let inode = block_on(mount.fs.inode(ino)).unwrap();
    block_on(write_back(&mount.fs, &inode)).unwrap();
}

/// A mount whose files are compressed, and one of them.
fn compressed(algorithm: Algorithm) -> (Mount, Ino) {
    let mount = Mount::new();
    mount.compress(ROOT, Some(algorithm));
    let ino = mount.create("file");
    (mount, ino)
}

#[test]
fn text_takes_a_fraction_of_its_blocks_and_comes_back() {
    for algorithm in BOTH {
        let (mount, ino) = compressed(algorithm);
        let contents = text(1, 1000 * KIB + 77);
        mount.write(ino, 0, &contents);
        assert_eq!(mount.blocks(ino), 251 * 8, "nobody knows yet what it will take");
        back(&mount, ino);
        let blocks = mount.blocks(ino) / 8;
        assert!(blocks < 251 / 3, "{algorithm:?}: {blocks} blocks");
        assert_eq!(mount.usage(ino).total_bytes, blocks * BLOCK_BYTES as u64);
        let counters = mount.fs.counters();
        assert_eq!((counters.units_packed, counters.units_unshrunk), (8, 0));
        assert_eq!(counters.packed_bytes_in, 251 * BLOCK_BYTES as u64);
        assert_eq!(counters.packed_bytes_out, blocks * BLOCK_BYTES as u64);
        let mount = mount.reopen();
        let ino = mount.find("file");
        assert!(mount.read(ino, 0, 2000 * KIB) == contents);
        assert!(mount.read(ino, 131_000, 300) == contents[131_000..131_300]);
        mount.check_items(ino);
    }
}

#[test]
fn a_reader_of_small_pieces_decodes_each_unit_once() {
    let (mount, ino) = compressed(Algorithm::Zstd);
    let contents = text(2, 512 * KIB);
    mount.write(ino, 0, &contents);
    back(&mount, ino);
    for at in (0..contents.len()).step_by(4096) {
        assert!(mount.read(ino, at as u64, 4096) == contents[at..at + 4096]);
    }
    assert_eq!(mount.fs.counters().units_unpacked, 4);
    // Decoded contents are not served in place of newer ones.
    mount.write(ino, 0, &text(3, 4096));
    back(&mount, ino);
    assert!(mount.read(ino, 0, 4096) == text(3, 4096));
    assert!(mount.read(ino, 4096, 4096) == contents[4096..8192]);
}

/// Device writes, bytes and flushes of some writes, each with its fsync.
fn cost_of_syncs(compression: Option<Algorithm>, len: usize) -> (u64, u64, u64, u64) {
    // Without the placing task, whose writes must not count here.
    let mount = Mount::timeless(Options { place_ahead_blocks: u64::MAX, ..options() });
    if compression.is_some() {
        mount.compress(ROOT, compression);
    }
    let ino = mount.create("file");
    mount.fsync(ROOT);
    let before = mount.fs.store().counters();
    for index in 0..20 {
        // Appended, or scattered.
        let at = if len < 8192 { index * 100_000 } else { index * len };
        mount.write(ino, at as u64, &text(index as u64, len));
        mount.fsync(ino);
    }
    let now = mount.fs.store().counters();
    assert_eq!(mount.fs.counters().units_packed, 0);
    (
        now.device_writes - before.device_writes,
        now.data_bytes - before.data_bytes,
        now.log_bytes - before.log_bytes,
        now.flushes_issued - before.flushes_issued,
    )
}

#[test]
fn small_syncs_cost_the_same_as_without() {
    for len in [4 * KIB, 64 * KIB] {
        let plain = cost_of_syncs(None, len);
        assert_eq!(plain.3, 20, "one flush each");
        for algorithm in BOTH {
            assert_eq!(cost_of_syncs(Some(algorithm), len), plain, "{len} bytes with {algorithm:?}");
        }
    }
}

#[test]
fn a_sync_compresses_whole_units_only() {
    let (mount, ino) = compressed(Algorithm::Zstd);
    // The end of one unit, a whole one, the beginning of a third.
    mount.write(ino, 64 << 10, &text(4, 256 * KIB));
    mount.fsync(ino);
    let packed: Vec<(u64, u64, bool)> =
        extents(&mount, ino).iter().map(|it| (it.file_block, it.blocks(), it.packed.is_some())).collect();
    assert_eq!(packed, [(16, 16, false), (32, 32, true), (64, 16, false)]);
    let after = mount.crash();
    assert!(after.read(after.find("file"), 64 << 10, 256 * KIB) == text(4, 256 * KIB));
}

#[test]
fn parts_of_a_unit_share_it_until_the_last_one_goes() {
    let (mount, ino) = compressed(Algorithm::Zstd);
    // Created first, so that the directory has its room already.
    let other = mount.create("other");
    let empty = mount.used_blocks();
    let mut contents = text(5, 128 * KIB);
    mount.write(ino, 0, &contents);
    back(&mount, ino);
    let unit = extents(&mount, ino)[0].run();
    let used = mount.used_blocks();
    // Two blocks in the middle: two parts.
    mount.write(ino, 40_960, &pattern(6, 8192));
    contents[40_960..49_152].copy_from_slice(&pattern(6, 8192));
    mount.fsync_placed(ino);
    let parts: Vec<Extent> = extents(&mount, ino).into_iter().filter(|it| it.packed.is_some()).collect();
    assert_eq!(parts.iter().map(Extent::blocks).collect::<Vec<_>>(), [10, 20]);
    assert!(parts.iter().all(|part| part.run() == unit && part.shared));
    mount.check_counts(&[ino, other]);
    mount.check_items(ino);
    assert_eq!(mount.used_blocks(), used + 2, "the unit stays, two blocks come");
    // A copy of a part: a third reference to the whole unit.
    assert_eq!(block_on(mount.fs.copy_range((ino, 8192), (other, 4096), 8192, false)).unwrap(), 8192);
    mount.check_counts(&[ino, other]);
    assert!(mount.read(other, 4096, 8192) == contents[8192..16_384]);
    mount.allocate(ino, Allocation::PunchHole, 0, 40_960).unwrap();
    contents[..40_960].fill(0);
    mount.truncate(ino, 80_000).unwrap();
    contents.truncate(80_000);
    mount.fsync(ROOT);
    let mount = mount.crash();
    let (ino, other) = (mount.find("file"), mount.find("other"));
    mount.check_counts(&[ino, other]);
    mount.check_items(ino);
    assert!(mount.read(ino, 0, 200_000) == contents);
    mount.truncate(ino, 0).unwrap();
    assert!(mount.read(other, 4096, 8192) == text(5, 16_384)[8192..]);
    mount.check_counts(&[ino, other]);
    mount.truncate(other, 0).unwrap();
    mount.check_counts(&[ino, other]);
    assert_eq!(mount.used_blocks(), empty, "the last part took the unit along");
}

#[test]
fn truncation_and_overwrite_while_a_unit_is_in_flight() {
    let (device, mount) = moody(options());
    mount.compress(ROOT, Some(Algorithm::Lz4));
    let ino = mount.create("file");
    let mut expected = text(7, 300_000);
    mount.write(ino, 0, &expected);
    let inode = block_on(mount.fs.inode(ino)).unwrap();
    device.hold();
    std::thread::scope(|scope| {
        let job = scope.spawn(|| block_on(write_back(&mount.fs, &inode)));
        device.wait_for_held(1);
        assert!(mount.read(ino, 0, 400_000) == expected);
        mount.write(ino, 5_000, b"newer than what is in flight");
        expected[5_000..5_028].copy_from_slice(b"newer than what is in flight");
        mount.truncate(ino, 200_001).unwrap();
        mount.truncate(ino, 250_000).unwrap();
        expected.truncate(200_001);
        expected.resize(250_000, 0);
        device.release();
        job.join().unwrap().unwrap();
    });
    assert!(mount.read(ino, 0, 400_000) == expected);
    mount.check_items(ino);
    let blocks: Vec<u64> = extents(&mount, ino).iter().map(Extent::blocks).collect();
    assert!(blocks.iter().sum::<u64>() <= 250_000u64.div_ceil(4096), "{blocks:?}");
    mount.fsync(ino);
    let mount = mount.crash();
    let ino = mount.find("file");
    assert!(mount.read(ino, 0, 400_000) == expected);
    mount.check_items(ino);
    mount.check_counts(&[ino]);
}

#[test]
fn a_failed_write_of_a_unit_leaves_it_dirty() {
    let (device, mount) = moody(options());
    mount.compress(ROOT, Some(Algorithm::Zstd));
    let ino = mount.create("file");
    mount.fsync(ROOT);
    let used = mount.fs.store().space().named;
    mount.write(ino, 0, &text(8, 100_000));
    let inode = block_on(mount.fs.inode(ino)).unwrap();
    device.fail.store(true, Ordering::SeqCst);
    block_on(write_back(&mount.fs, &inode)).unwrap_err();
    device.fail.store(false, Ordering::SeqCst);
    assert!(inode.state.lock().data.has_dirty(), "the data stays in memory (P5)");
    assert!(mount.read(ino, 0, 200_000) == text(8, 100_000));
    assert_eq!(block_on(mount.fs.fsync(ino, false)).unwrap_err().errno(), 5);
    mount.fsync(ino);
    mount.check_items(ino);
    let taken: u64 = extents(&mount, ino).iter().map(|extent| extent.run().blocks).sum();
    assert_eq!(mount.fs.store().space().named, used + taken, "what failed was given back");
    let after = mount.crash();
    assert!(after.read(after.find("file"), 0, 200_000) == text(8, 100_000));
}

#[test]
fn what_does_not_decode_is_an_error_of_those_blocks_only() {
    let (mount, ino) = compressed(Algorithm::Zstd);
    let contents = text(9, 256 * KIB);
    mount.write(ino, 0, &contents);
    back(&mount, ino);
    let inode = block_on(mount.fs.inode(ino)).unwrap();
    let good = extents(&mount, ino)[0].clone();
    let packed = good.packed.unwrap();
    // The checksums are right; each has another false field.
    let lies = [
        Packed { algorithm: Algorithm::Lz4, ..packed },
        Packed { unit_blocks: 31, blocks: 31, ..packed },
        Packed { bytes: packed.bytes - 1, ..packed },
    ];
    for lie in lies {
        let mut transaction = Transaction::new();
        let bad = Extent { packed: Some(lie), ..good.clone() };
        transaction.put(Key::new(ino, Kind::Extent, 0), bad.encode());
        let op = mount.fs.store().commit(transaction).unwrap();
        inode.state.lock().data.logged.set_op(op);
        let error = block_on(mount.fs.read(ino, 100, 50)).unwrap_err();
        assert!(matches!(error, FsError::Undecodable { .. }) && error.errno() == 5, "{error}");
        assert!(mount.read(ino, 128 << 10, 128 * KIB) == contents[128 * KIB..]);
    }
}

#[test]
fn what_is_made_in_a_directory_does_as_it_does() {
    let mount = Mount::new();
    let flags = |mount: &Mount, ino| block_on(mount.fs.file_flags(ino)).unwrap().compression;
    let before = mount.create("before");
    mount.compress(ROOT, Some(Algorithm::Lz4));
    let dir = block_on(mount.fs.mkdir(CALLER, ROOT, b"dir", 0o755)).unwrap().ino;
    let file = block_on(mount.fs.mknod(CALLER, dir, b"file", FileType::Regular, 0o644, 0)).unwrap().ino;
    let pipe = block_on(mount.fs.mknod(CALLER, dir, b"pipe", FileType::Fifo, 0o644, 0)).unwrap().ino;
    assert_eq!(
        [before, dir, file, pipe].map(|ino| flags(&mount, ino)),
        [None, Some(Algorithm::Lz4), Some(Algorithm::Lz4), None]
    );
    mount.compress(file, Some(Algorithm::Zstd));
    mount.compress(dir, None);
    let mount = mount.reopen();
    assert_eq!([dir, file].map(|ino| flags(&mount, ino)), [None, Some(Algorithm::Zstd)]);
    // Without the attribute, old contents can be read, and new ones are not compressed.
    mount.write(file, 0, &text(10, 128 * KIB));
    back(&mount, file);
    mount.compress(file, None);
    mount.write(file, 64 << 10, &text(11, 64 * KIB));
    back(&mount, file);
    let kinds: Vec<bool> = extents(&mount, file).iter().map(|extent| extent.packed.is_some()).collect();
    assert_eq!(kinds, [true, false]);
    assert!(mount.read(file, 0, 64 * KIB) == text(10, 128 * KIB)[..64 * KIB]);
}

/// An older program refuses the image as soon as anything has asked for compression, and not
/// before.
#[test]
fn the_superblock_tells_of_it_before_any_inode_does() {
    use syncline_format::superblock::FEATURE_COMPRESSION;
    let mount = Mount::new();
    mount.create("file");
    let told = |mount: &Mount| mount.fs.store().has_features(FEATURE_COMPRESSION);
    assert!(!told(&mount) && !told(&mount.crash()));
    mount.compress(ROOT, Some(Algorithm::Zstd));
    // Nothing was synced since: the attribute may be lost in the crash, but the superblock has the
    // feature.
    assert!(told(&mount.crash()));
}

#[test]
fn contents_that_never_shrink_are_tried_less_often() {
    let (mount, ino) = compressed(Algorithm::Zstd);
    mount.write(ino, 0, &pattern(12, 128 * 128 * KIB));
    back(&mount, ino);
    let tried = mount.fs.counters().units_unshrunk;
    assert!((16..40).contains(&tried), "{tried} of 128");
    mount.write(ino, 0, &text(13, 32 * 128 * KIB));
    back(&mount, ino);
    assert!(mount.fs.counters().units_packed > 16, "text is found again");
    mount.check_items(ino);
}

#[test]
fn what_was_written_before_is_compressed_when_it_is_written_anew() {
    let mount = Mount::new();
    let ino = mount.create("file");
    let mut contents = text(14, 3_000_000);
    mount.write(ino, 0, &contents);
    mount.fsync(ino);
    let rewrite = |ino| {
        let (mut bytes, mut next) = (0, Some(0));
        while let Some(at) = next {
            let done = block_on(mount.fs.rewrite(ino, at)).unwrap();
            (bytes, next) = (bytes + done.bytes, done.next);
        }
        bytes
    };
    assert_eq!(rewrite(ino), 0, "it lies as it should");
    let before = block_on(mount.fs.getattr(ino)).unwrap();
    mount.compress(ino, Some(Algorithm::Lz4));
    // Dirty data is newer.
    mount.write(ino, 100_000, &[1; 50_000]);
    contents[100_000..150_000].fill(1);
    assert!(rewrite(ino) > 2_900_000);
    assert!(mount.blocks(ino) < before.blocks / 3);
    assert!(mount.read(ino, 0, 4_000_000) == contents);
    mount.check_items(ino);
    mount.compress(ino, None);
    let mtime = block_on(mount.fs.getattr(ino)).unwrap().mtime;
    assert_eq!(rewrite(ino), 733 * BLOCK_BYTES as u64);
    assert_eq!(mount.blocks(ino), before.blocks);
    assert_eq!(block_on(mount.fs.getattr(ino)).unwrap().mtime, mtime, "the contents are what they were");
    let other = mount.create("other");
    mount.copy(ino, other, u64::MAX >> 1);
    mount.compress(ino, Some(Algorithm::Zstd));
    assert_eq!(rewrite(ino), 0, "what is shared stays so");
    mount.fsync(ROOT);
    let mount = mount.crash();
    let ino = mount.find("file");
    assert!(mount.read(ino, 0, 4_000_000) == contents);
    mount.check_items(ino);
}

#[test]
fn a_mount_may_ask_for_the_compression_of_new_files() {
    let mut mount = Mount::new();
    let old = mount.create("old");
    mount.options.compression = Some(Algorithm::Lz4);
    let mount = mount.reopen();
    assert!(!mount.fs.store().has_features(FEATURE_COMPRESSION));
    let contents = text(1, 500 * KIB);
    let compression = |mount: &Mount, ino| block_on(mount.fs.file_flags(ino)).unwrap().compression;
    let (new, old_again) = (mount.create("new"), mount.find("old"));
    assert_eq!((old, compression(&mount, old)), (old_again, None));
    assert_eq!(compression(&mount, new), Some(Algorithm::Lz4));
    assert!(mount.fs.store().has_features(FEATURE_COMPRESSION));
    for ino in [new, old] {
        mount.write(ino, 0, &contents);
        back(&mount, ino);
    }
    assert!(mount.blocks(new) * 2 < mount.blocks(old));
    // A directory's own choice counts, and directories themselves ask for nothing.
    assert_eq!(compression(&mount, ROOT), None);
    mount.compress(ROOT, Some(Algorithm::Zstd));
    assert_eq!(compression(&mount, mount.create("third")), Some(Algorithm::Zstd));
    let mount = mount.reopen();
    assert_eq!(compression(&mount, mount.find("new")), Some(Algorithm::Lz4));
    assert!(mount.read(mount.find("new"), 0, 500 * KIB) == contents);
}

/// A crash would otherwise leave compressed files in an image that older programs open.
#[test]
fn no_new_file_asks_for_compression_before_a_durable_superblock_tells_of_it() {
    let (device, mount) = moody(Options { compression: Some(Algorithm::Lz4), ..options() });
    device.hold();
    std::thread::scope(|scope| {
        let first = scope.spawn(|| mount.create("first"));
        device.wait_for_held(1);
        // The checkpoint that adds the feature is under way.
        let second = mount.fs.mknod(CALLER, ROOT, b"second", FileType::Regular, 0o644, 0);
        let mut second = std::pin::pin!(second);
        let waits = block_on(poll_once(&mut second)).is_none();
        device.release();
        first.join().unwrap();
        assert!(waits, "it was made before the superblock was written");
        let second = block_on(second).unwrap().ino;
        assert_eq!(block_on(mount.fs.file_flags(second)).unwrap().compression, Some(Algorithm::Lz4));
    });
    assert!(mount.crash().fs.store().has_features(FEATURE_COMPRESSION));
}
