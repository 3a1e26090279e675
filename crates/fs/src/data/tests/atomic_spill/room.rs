//! Room that an atomic write keeps, or promises to others, while a part of it is on the device; and the
//! room that its commit takes.

use super::*;
use futures_lite::future::poll_once;
use std::pin::pin;

/// Fills the filesystem with a file that is made, or goes on at its end.
fn fill(mount: &Mount, ino: Ino) {
    let from = mount.size(ino);
    let full = (0..).map(|at| mount.try_write(ino, from + (at << 12), &[7; 4096])).find_map(Result::err);
    assert_eq!(full.unwrap().errno(), 28);
    block_on(mount.fs.syncfs()).unwrap();
}

fn held_blocks(mount: &Mount) -> (u64, u64) {
    let held = mount.fs.store().held().unwrap();
    (held.reserved_blocks, held.free_blocks)
}

/// A file of which each block is an extent of its own.
fn in_single_blocks(mount: &Mount, name: &str, blocks: u64) -> Ino {
    let ino = mount.create(name);
    for first in 0..2 {
        (first..blocks).step_by(2).for_each(|block| mount.write(ino, block * BLOCK, &pattern(block, 4096)));
        mount.fsync_placed(ino);
    }
    ino
}

/// Compressed blocks take less on the device than they did in memory. If they are preallocated, an
/// abort needs all of their room again, and nobody else may have it.
#[test]
fn preallocated_room_of_compressed_blocks_comes_back() {
    const PIECES: u64 = 96;
    for fails in [false, true] {
        let mount = Mount::formatted(32 << 20, 4096, keeping(16));
        let ino = mount.create("file");
        mount.compress(ino, Some(Algorithm::Lz4));
        mount.allocate(ino, Allocation::Preallocate { keep_size: false }, 0, PIECES << 17).unwrap();
        let filler = mount.create("filler");
        mount.start(ino);
        (0..PIECES).for_each(|at| mount.put(ino, at << 17, &[3; 1 << 17]));
        assert!(mount.spilled_at(ino, 40).unwrap().packed.is_some());
        // Units that are written in part come into memory as a whole, and go back.
        for at in 0..4 * PIECES {
            mount.put(ino, ((at % PIECES) << 17) + 5000, &[at as u8; 100]);
            if at == PIECES {
                fill(&mount, filler);
            }
        }
        if fails {
            mount.fs.store().refuse_allocations(0, 1000);
            mount.try_commit(ino).unwrap_err();
            mount.fs.store().refuse_allocations(0, 0);
        }
        fill(&mount, filler);
        mount.abort(ino);
        mount.check_room(&[ino]);
        let (reserved, free) = held_blocks(&mount);
        assert!(reserved <= free, "{reserved} blocks are promised, {free} are free");
        // All of it is there for contents that are not compressed.
        let contents: Vec<u8> = (0..PIECES).flat_map(|at| pattern(at, 1 << 17)).collect();
        for (at, piece) in contents.chunks(1 << 17).enumerate() {
            mount.write(ino, (at as u64) << 17, piece);
        }
        mount.fsync(ino);
        block_on(mount.fs.syncfs()).unwrap();
        mount.check_items(ino);
        mount.check_blocks();
        assert!(mount.whole_after_crash("file") == contents);
    }
}

/// Blocks far apart in a large file have their names in as many nodes.
#[test]
fn the_room_for_names_is_enough_for_blocks_that_are_far_apart() {
    const BLOCKS: u64 = 30_000;
    let mount = Mount::sized(256 << 20, keeping(4));
    let ino = mount.create("database");
    (0..BLOCKS).for_each(|block| mount.write(ino, 2 * block * BLOCK, &[1; 4096]));
    block_on(mount.fs.syncfs()).unwrap();
    mount.start(ino);
    (0..BLOCKS).step_by(300).for_each(|block| mount.put(ino, 2 * block * BLOCK, &[2; 4096]));
    let room = {
        let inode = block_on(mount.fs.inode(ino)).unwrap();
        let state = inode.state.lock();
        state.data.atomic.as_ref().unwrap().spilled.room.blocks()
    };
    mount.commit(ino);
    let before = mount.fs.store().device_counters().write_bytes;
    block_on(mount.fs.store().checkpoint()).unwrap();
    let taken = (mount.fs.store().device_counters().write_bytes - before) / BLOCK;
    // Superblock, map and the nodes that any checkpoint writes are not in it.
    assert!(taken <= room + 64, "the checkpoint wrote {taken} blocks, room was for {room}");
}

/// Room for names is reserved with the write, so that a commit does not fail on a full filesystem.
#[test]
fn a_commit_finds_its_room_whatever_was_named_since_its_blocks_spilled() {
    const BLOCKS: u64 = 9000;
    const RUNS: u64 = 400;
    // Blocks of the file that were dirty at the start, and blocks of the atomic write that stay in memory.
    for was_dirty in [true, false] {
        let kept = if was_dirty { 4 } else { 2048 };
        let mount = Mount::formatted(64 << 20, 4096, keeping(kept));
        // The tree has many nodes.
        (0..6000).for_each(|index| _ = mount.create(&format!("{index:0200}")));
        block_on(mount.fs.syncfs()).unwrap();
        let ino = mount.create("database");
        (0..BLOCKS).for_each(|block| mount.write(ino, 2 * block * BLOCK, &[1; 4096]));
        if !was_dirty {
            block_on(mount.fs.syncfs()).unwrap();
        }
        mount.start(ino);
        if !was_dirty {
            let pieces = (0..).take_while(|at| {
                mount.put(ino, at << 16, &[3; 1 << 16]);
                mount.spilled_blocks(ino) == 0
            });
            assert!(pieces.count() < 200);
        }
        let first = 4000;
        for run in 0..RUNS {
            mount.put(ino, (first + run * ((2 * BLOCKS - first) / RUNS)) * BLOCK, &[2; 4096]);
        }
        let now = mount.whole(ino);
        fill(&mount, mount.create("filler"));
        let committed = mount.try_commit(ino);
        assert!(committed.is_ok(), "{was_dirty}: {committed:?}");
        assert!(mount.whole_after_crash("database") == now, "{was_dirty}");
    }
}

/// A commit that comes late has taken room for an atomic write that has ended. The room goes back to the
/// filesystem, and not to the next atomic write.
#[test]
fn the_room_of_what_was_taken_back_is_free() {
    let mount = Mount::sized(64 << 20, keeping(16));
    let ino = mount.synced("file", &pattern(1, 100_000));
    mount.start(ino);
    (0..8).for_each(|at| mount.put(ino, at << 17, &pattern(at, 1 << 17)));
    assert!(mount.spilled_blocks(ino) > 0);
    let inode = block_on(mount.fs.inode(ino)).unwrap();
    let busy = block_on(inode.lease.read());
    let first = mount.open_write(ino);
    let mut end = pin!(mount.fs.abort_atomic_write(first));
    let mut next = pin!(mount.fs.start_atomic_write(ino));
    let mut late = pin!(mount.fs.commit_atomic_write(first));
    assert!(block_on(poll_once(end.as_mut())).is_none());
    assert!(block_on(poll_once(next.as_mut())).is_none());
    assert!(block_on(poll_once(late.as_mut())).is_none());
    drop(busy);
    assert!(block_on(end).unwrap());
    block_on(next).unwrap();
    block_on(late).unwrap_err();
    assert_eq!(inode.state.lock().data.atomic.as_ref().unwrap().spilled.room.blocks(), 0);
}

/// Small extents that are replaced by large ones take memory and log as well.
#[test]
fn extents_that_are_replaced_count_too() {
    const PIECES: u64 = 32;
    let mount = Mount::sized(64 << 20, Options { atomic_extents_max: 60, ..keeping(32) });
    let ino = in_single_blocks(&mount, "database", 32 * PIECES);
    let old = mount.whole(ino);
    mount.start(ino);
    let piece = |seed: u64| pattern(seed, 1 << 17);
    let written = (0..PIECES).take_while(|at| mount.try_put(ino, at << 17, &piece(*at)).is_ok()).count();
    assert!((5..12).contains(&written), "{written} of {PIECES}");
    assert_eq!(errno(mount.try_put(ino, 20 << 17, &piece(0))), 27);
    mount.abort(ino);
    assert!(mount.whole(ino) == old);
    // A block that is written again and again counts once.
    mount.start(ino);
    let mut now = old;
    for round in 0..200 {
        let at = ((round % 4) << 17) as usize;
        patch(&mut now, at, &piece(round));
        mount.put(ino, at as u64, &piece(round));
    }
    mount.commit(ino);
    assert!(mount.whole_after_crash("database") == now);
    mount.check_items(ino);
    // As one extent for each 32 blocks, there is room for many more.
    mount.start(ino);
    (0..4).cycle().take(40).for_each(|at| mount.put(ino, at << 17, &piece(at)));
    mount.commit(ino);
    mount.check_items(ino);
}

#[test]
fn a_spill_that_finds_a_part_of_its_place_loses_no_room() {
    let mount = Mount::sized(64 << 20, keeping(2048));
    let ino = mount.synced("database", &pattern(1, 100_000));
    mount.start(ino);
    mount.put(ino, 0, &pattern(2, 8_000_000));
    let before = held_blocks(&mount);
    mount.fs.store().refuse_allocations(1, 1000);
    assert_eq!(errno(mount.try_put(ino, 8_000_000, &pattern(3, 1_000_000))), 28);
    assert!(mount.fs.store().refuse_allocations(0, 0) > 0);
    assert_eq!(held_blocks(&mount), before);
    mount.check_blocks();
    mount.put(ino, 8_000_000, &pattern(3, 1_000_000));
    let now = mount.whole(ino);
    mount.commit(ino);
    assert!(mount.whole_after_crash("database") == now);
}

/// The file leaves one quota and comes into another while its atomic write is open.
#[test]
fn units_of_one_quota_are_not_given_back_to_another() {
    let mount = Mount::sized(64 << 20, keeping(16));
    let dir = mount.mkdir_in(ROOT, "dir");
    mount.set_quota(dir, 8 << 20, 0);
    let (ino, other) = (mount.create_in(dir, "database"), mount.create_in(dir, "other"));
    mount.start(ino);
    mount.put(ino, 0, &pattern(1, 1 << 20));
    block_on(mount.fs.remove_quota(dir)).unwrap();
    mount.set_quota(dir, 8 << 20, 0);
    mount.write(other, 0, &pattern(2, 1 << 19));
    let reserved = mount.quota(dir).reserved_bytes;
    assert_eq!(reserved, 1 << 19);
    mount.put(ino, 1 << 20, &pattern(3, 1 << 18));
    mount.abort(ino);
    assert_eq!(mount.quota(dir).reserved_bytes, reserved, "that of the other file");
    mount.fsync(other);
    mount.check_settled(dir);
}

/// The file comes into a quota while its atomic write is open, and the commit that reserves there fails.
#[test]
fn units_that_a_failed_commit_has_reserved_are_given_back() {
    let mount = Mount::sized(64 << 20, keeping(16));
    let dir = mount.mkdir_in(ROOT, "dir");
    let ino = mount.create_in(dir, "database");
    mount.start(ino);
    mount.put(ino, 0, &pattern(1, 1 << 20));
    mount.put(ino, 1 << 20, &pattern(2, 1 << 16));
    mount.set_quota(dir, 8 << 20, 0);
    mount.fs.store().refuse_allocations(0, 1000);
    assert_eq!(errno(mount.try_commit(ino)), 28);
    mount.fs.store().refuse_allocations(0, 0);
    mount.abort(ino);
    mount.check_settled(dir);
}
