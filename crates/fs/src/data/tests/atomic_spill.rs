//! Atomic writes that are too large for memory: a part of them waits on the device, unnamed.

mod failing;
mod meanwhile;
mod room;

use super::faults::{moody, moody_breaking};
use super::*;
use crate::data::memory::spilled::Stored;
use rand::{Rng, SeedableRng};
use std::sync::atomic::Ordering;
use syncline_device::DeviceExt;
use syncline_store::{Canary, FormatOptions};

const BLOCK: u64 = 4096;

/// Options with which `blocks` blocks stay in memory.
fn keeping(blocks: u64) -> Options {
    Options { atomic_blocks_max: blocks, ..options() }
}

impl Mount {
    fn whole(&self, ino: Ino) -> Vec<u8> {
        let size = self.size(ino) as usize;
        let contents = self.read(ino, 0, size + 1);
        assert_eq!(contents.len(), size);
        contents
    }

    fn whole_after_crash(&self, name: &str) -> Vec<u8> {
        let mount = self.crash();
        let ino = mount.find(name);
        mount.check_items(ino);
        mount.check_blocks();
        mount.whole(ino)
    }

    /// Fails unless every block that is not free belongs to somebody.
    fn check_blocks(&self) {
        for _ in 0..1000 {
            match self.fs.store().audit_blocks() {
                Some(audited) => return audited.unwrap(),
                None => std::thread::sleep(std::time::Duration::from_millis(1)),
            }
        }
        panic!("the store does not come to rest");
    }

    /// Where a block of the open atomic write lies on the device.
    fn spilled_at(&self, ino: Ino, block: u64) -> Option<Stored> {
        let inode = block_on(self.fs.inode(ino)).unwrap();
        let state = inode.state.lock();
        state.data.atomic.as_ref().unwrap().spilled.stored(block, block + 1)
    }

    fn spilled_blocks(&self, ino: Ino) -> u64 {
        let inode = block_on(self.fs.inode(ino)).unwrap();
        let state = inode.state.lock();
        state.data.atomic.as_ref().map_or(0, |atomic| atomic.spilled.blocks())
    }

    fn synced(&self, name: &str, contents: &[u8]) -> Ino {
        let ino = self.create(name);
        self.write(ino, 0, contents);
        self.fsync_placed(ino);
        ino
    }
}

fn errno<T: std::fmt::Debug>(result: Result<T, FsError>) -> i32 {
    result.unwrap_err().errno()
}

fn patch(contents: &mut Vec<u8>, at: usize, data: &[u8]) {
    contents.resize(contents.len().max(at + data.len()), 0);
    contents[at..at + data.len()].copy_from_slice(data);
}

/// With the limits of a mount: 300 MiB, of which at most 64 MiB are in memory.
#[test]
fn a_sequential_one_of_any_size_is_one_transaction_and_one_flush() {
    const MIB: u64 = 300;
    let mount = Mount::sized(768 << 20, options());
    let ino = mount.synced("large", b"old");
    mount.start(ino);
    for index in 0..MIB {
        mount.put(ino, index << 20, &pattern(index, 1 << 20));
        assert!(mount.fs.data.atomic.bytes() <= 65 << 20, "{} at {index}", mount.fs.data.atomic.bytes());
    }
    assert!(mount.fs.counters().atomic_spilled_bytes >= (MIB - 64) << 20);
    (0..MIB).step_by(7).for_each(|index| {
        assert!(mount.read(ino, index << 20, 1 << 20) == pattern(index, 1 << 20), "{index}");
    });
    assert_eq!(mount.whole_after_crash("large"), b"old");
    let store = mount.fs.store();
    let before = (store.last_op().0, store.counters().batches, store.device_counters().flushes_issued);
    mount.commit(ino);
    let after = (store.last_op().0, store.counters().batches, store.device_counters().flushes_issued);
    assert_eq!((after.0 - before.0, after.1 - before.1), (1, 1));
    assert_eq!(after.2 - before.2, 1, "flushes");
    let told = mount.fs.receipts().last().unwrap().submitted;
    assert_eq!(told.blocks, MIB << 8, "all of it, though most lay on the device before");
    assert_eq!(told.blocks_before_log * BLOCK, mount.fs.counters().atomic_spilled_bytes);
    mount.check_blocks();
    mount.check_items(ino);
    assert_eq!(mount.fs.data.atomic.bytes(), 0);
    let mount = mount.crash();
    let ino = mount.find("large");
    assert_eq!(mount.size(ino), MIB << 20);
    (0..MIB).for_each(|index| assert!(mount.read(ino, index << 20, 1 << 20) == pattern(index, 1 << 20)));
}

/// Small transactions are as they were: nothing of them goes to the device before the commit.
#[test]
fn what_fits_into_memory_stays_there() {
    let mount = Mount::new();
    let ino = mount.synced("database", &pattern(1, 400_000));
    mount.start(ino);
    let before = mount.fs.store().device_counters();
    (0..60).for_each(|block| mount.put(ino, block * BLOCK, &pattern(block, 4096)));
    let between = mount.fs.store().device_counters();
    assert_eq!((between.writes, between.flushes_issued), (before.writes, before.flushes_issued));
    mount.commit(ino);
    let after = mount.fs.store().device_counters();
    assert_eq!((after.writes - between.writes, after.flushes_issued - between.flushes_issued), (2, 1));
    assert_eq!(mount.fs.counters().atomic_spilled_bytes, 0);
}

/// Random writes of all sizes, many over blocks that are on the device, compared with a copy.
#[test]
fn random_writes_over_what_is_on_the_device() {
    for (seed, blocks, algorithm) in [
        (1, 40, None),
        (2, 200, None),
        (3, 40, Some(Algorithm::Lz4)),
        (4, 200, Some(Algorithm::Zstd)),
        (5, 1, None),
    ] {
        let mut random = rand::rngs::StdRng::seed_from_u64(seed);
        let mount = Mount::sized(128 << 20, keeping(blocks));
        let ino = mount.create("database");
        mount.compress(ino, algorithm);
        let old = pattern(seed, 3 << 20);
        mount.write(ino, 0, &old);
        mount.fsync_placed(ino);
        block_on(mount.fs.store().checkpoint()).unwrap();
        let mut now = old.clone();
        mount.start(ino);
        for round in 0..600 {
            let at = random.random_range(0..4_usize << 20);
            let len = random.random_range(1..if round % 4 == 0 { 300_000 } else { 9_000 });
            let data = match random.random() {
                true => vec![round as u8; len],
                false => pattern(round, len),
            };
            patch(&mut now, at, &data);
            mount.put(ino, at as u64, &data);
            if round % 100 == 99 {
                assert!(mount.whole(ino) == now, "seed {seed}, round {round}");
                mount.check_blocks();
                block_on(mount.fs.syncfs()).unwrap();
                assert!(mount.whole_after_crash("database") == old);
            }
        }
        assert!(mount.fs.counters().atomic_spilled_bytes > 2 << 20);
        mount.commit(ino);
        mount.check_blocks();
        mount.check_items(ino);
        mount.check_counts(&[ino]);
        assert!(mount.whole(ino) == now);
        assert!(mount.whole_after_crash("database") == now);
        let mount = mount.reopen();
        assert!(mount.whole(mount.find("database")) == now);
    }
}

#[test]
fn an_abort_or_a_crash_frees_what_is_on_the_device() {
    let mount = Mount::sized(64 << 20, keeping(32));
    let old = pattern(1, 1 << 20);
    let ino = mount.synced("database", &old);
    block_on(mount.fs.store().checkpoint()).unwrap();
    let attributes = block_on(mount.fs.getattr(ino)).unwrap();
    let free = (mount.fs.store().space().free, mount.fs.statfs().available);
    mount.start(ino);
    for index in 0..20 {
        mount.put(ino, (index << 19) + 100, &pattern(index, 1 << 19));
    }
    assert!(mount.spilled_blocks(ino) > 2000);
    assert!(mount.fs.store().space().free < free.0 - 2000, "it takes room");
    assert!(mount.whole_after_crash("database") == old);
    mount.abort(ino);
    assert_eq!((mount.fs.store().space().free, mount.fs.statfs().available), free);
    assert_eq!(block_on(mount.fs.getattr(ino)).unwrap(), attributes);
    assert!(mount.whole(ino) == old);
    mount.check_blocks();
    assert_eq!(mount.fs.data.atomic.bytes(), 0);
    // An unmount in the middle is as an abort.
    mount.start(ino);
    (0..20).for_each(|index| mount.put(ino, index << 19, &pattern(index, 1 << 19)));
    let mount = mount.reopen();
    mount.check_blocks();
    let ino = mount.find("database");
    assert!(mount.whole(ino) == old);
}

/// A block that is written again lies in memory again, and its place on the device is free at once:
/// no amount of writing takes more room than the blocks have.
#[test]
fn what_is_written_again_needs_no_more_room() {
    let mount = Mount::formatted(24 << 20, 4096, keeping(16));
    let ino = mount.synced("database", b"old");
    block_on(mount.fs.store().checkpoint()).unwrap();
    mount.start(ino);
    (0..8).for_each(|index| mount.put(ino, index << 20, &pattern(index, 1 << 20)));
    let filler = mount.create("filler");
    let full = (0..).map(|at| mount.try_write(filler, at << 16, &[7; 1 << 16])).find_map(Result::err);
    assert_eq!(full.unwrap().errno(), 28);
    for round in 0..20 {
        (0..8).for_each(|index| mount.put(ino, index << 20, &pattern(round + index, 1 << 20)));
    }
    // New blocks find no room, and nothing has changed then.
    let refused = (8..).map(|index| mount.try_put(ino, index << 20, &[1; 1 << 20])).find_map(Result::err);
    assert_eq!(refused.unwrap().errno(), 28);
    let now = mount.whole(ino);
    (0..8).for_each(|index| {
        assert!(now[index << 20..][..1 << 20] == pattern(19 + index as u64, 1 << 20));
    });
    mount.commit(ino);
    assert!(mount.whole(ino) == now);
    mount.check_items(ino);
    mount.check_blocks();
    assert!(mount.whole_after_crash("database") == now);
}

#[test]
fn a_spill_that_finds_no_place_changes_nothing() {
    let mount = Mount::sized(64 << 20, keeping(64));
    let ino = mount.synced("database", &pattern(1, 100_000));
    mount.start(ino);
    mount.put(ino, 0, &pattern(2, 250_000));
    let before = mount.whole(ino);
    let refused = mount.fs.store().refuse_allocations(0, 1000);
    assert_eq!(errno(mount.try_put(ino, 250_000, &pattern(3, 250_000))), 28);
    assert!(mount.fs.store().refuse_allocations(0, 0) > refused);
    assert!(mount.whole(ino) == before);
    assert_eq!(mount.spilled_blocks(ino), 0);
    mount.check_blocks();
    mount.put(ino, 250_000, &pattern(3, 250_000));
    let now = mount.whole(ino);
    assert!(now[..250_000] == before[..] && now[250_000..] == pattern(3, 250_000));
    // The same at the commit: it is open as before.
    mount.fs.store().refuse_allocations(0, 1000);
    assert_eq!(errno(mount.try_commit(ino)), 28);
    mount.fs.store().refuse_allocations(0, 0);
    assert!(mount.whole(ino) == now);
    assert!(mount.whole_after_crash("database") == pattern(1, 100_000));
    mount.commit(ino);
    assert!(mount.whole_after_crash("database") == now);
}

/// A write is given up while its spill is under way: nothing is lost and nothing stays behind.
#[test]
fn a_caller_that_gives_up_while_spilling() {
    use futures_lite::future::poll_once;
    let (device, mount) = moody(keeping(64));
    let ino = mount.synced("database", &pattern(1, 100_000));
    mount.start(ino);
    mount.put(ino, 0, &pattern(2, 250_000));
    let before = mount.whole(ino);
    device.hold();
    {
        let data = Bytes::from(pattern(3, 250_000));
        let mut write = Box::pin(mount.fs.write_atomically(mount.open_write(ino), 250_000, data, false));
        assert!(block_on(poll_once(write.as_mut())).is_none());
    }
    device.release();
    assert!(mount.whole(ino) == before);
    assert_eq!(mount.spilled_blocks(ino), 0);
    mount.check_blocks();
    mount.put(ino, 250_000, &pattern(3, 250_000));
    let now = mount.whole(ino);
    mount.commit(ino);
    assert!(mount.whole_after_crash("database") == now);
}

/// A write up to the end of the file covers all bytes of the last block: the block is not read first.
#[test]
fn all_bytes_of_a_last_block_replace_what_is_on_the_device() {
    const LAST: u64 = 7 * 32 - 1;
    let mount = Mount::sized(64 << 20, keeping(64));
    let ino = mount.synced("database", &pattern(1, 100_000));
    mount.start(ino);
    (0..6).for_each(|index| mount.put(ino, index << 17, &[1; 1 << 17]));
    mount.put(ino, 6 << 17, &[2; (31 << 12) + 100]);
    (0..4).for_each(|index| mount.put(ino, index << 17, &[3; 1 << 17]));
    let stored = mount.spilled_at(ino, LAST).unwrap();
    let rot = vec![Bytes::from(vec![0xa5; 4096])];
    block_on(mount.device.write_at(stored.run.offset_bytes(), rot)).unwrap();
    assert_eq!(errno(mount.try_put(ino, LAST * BLOCK, &[9; 99])), 5);
    mount.put(ino, LAST * BLOCK, &[9; 100]);
    mount.commit(ino);
    assert_eq!(mount.whole_after_crash("database")[(LAST * BLOCK) as usize..], [9; 100]);
}

#[test]
fn too_many_extents_are_refused() {
    let mount = Mount::sized(64 << 20, Options { atomic_extents_max: 20, ..keeping(16) });
    let old = pattern(1, 8 << 20);
    let ino = mount.synced("database", &old);
    // In sequence, an extent has 32 blocks.
    mount.start(ino);
    mount.put(ino, 0, &pattern(2, 2 << 20));
    mount.commit(ino);
    let mut now = mount.whole(ino);
    mount.start(ino);
    let scattered = |index: u64| (index * 7 + 1) * BLOCK;
    let written =
        (0..100).take_while(|index| mount.try_put(ino, scattered(*index), &pattern(*index, 4096)).is_ok());
    let written = written.count() as u64;
    assert!((20..40).contains(&written), "{written}");
    assert_eq!(errno(mount.try_put(ino, scattered(written), &[1; 4096])), 27);
    (0..written).for_each(|index| patch(&mut now, scattered(index) as usize, &pattern(index, 4096)));
    assert!(mount.whole(ino) == now);
    // Blocks in memory can be written again, and the whole atomic write can be committed.
    mount.put(ino, scattered(written - 1), &pattern(written - 1, 4096));
    mount.commit(ino);
    assert!(mount.whole_after_crash("database") == now);
    mount.check_items(ino);
}

/// A file that lay in its inode item, and is too large for memory before it is committed once.
#[test]
fn a_small_file_outgrows_memory_at_once() {
    for at in [0, 100, 5000, 300_000] {
        let mount = Mount::sized(64 << 20, keeping(4));
        let ino = mount.synced("small", b"contents of the inode item");
        mount.start(ino);
        mount.put(ino, at, &pattern(at, 500_000));
        mount.put(ino, 600_000, &pattern(at, 500_000));
        mount.put(ino, 1_200_000, b"end");
        let new = mount.whole(ino);
        assert_eq!(mount.whole_after_crash("small"), b"contents of the inode item");
        mount.commit(ino);
        assert!(mount.whole(ino) == new);
        assert!(mount.whole_after_crash("small") == new);
        mount.check_items(ino);
    }
}

/// Blocks that a sync has logged before the start have no place yet, and are replaced by blocks that
/// have one already.
#[test]
fn logged_blocks_of_before_are_replaced() {
    for commits in [true, false] {
        let mount = Mount::sized(64 << 20, keeping(4));
        let mut old = pattern(1, 400_000);
        let ino = mount.synced("database", &old);
        for block in [5, 20, 60] {
            mount.write(ino, block * BLOCK, &pattern(block, 4096));
            patch(&mut old, (block * BLOCK) as usize, &pattern(block, 4096));
            mount.fsync(ino);
        }
        mount.start(ino);
        mount.put(ino, BLOCK, &pattern(9, 200_000));
        mount.put(ino, 250_000, &pattern(10, 3));
        let new = mount.whole(ino);
        assert!(mount.spilled_at(ino, 20).is_some());
        assert!(mount.whole_after_crash("database") == old);
        let expected = if commits { &new } else { &old };
        if commits {
            mount.commit(ino);
        } else {
            mount.abort(ino);
        }
        assert!(mount.whole(ino) == *expected);
        assert!(mount.whole_after_crash("database") == *expected);
        mount.check_items(ino);
    }
}

/// The canary of a spill that no flush covers: a crash before the device has it loses the commit.
#[test]
fn a_commit_that_does_not_wait_for_it_is_noticed() {
    let is_lost = |canary| {
        let (device, mount) = moody_breaking(canary, keeping(64));
        let ino = mount.synced("database", &pattern(1, 100_000));
        mount.start(ino);
        // As a whole, though it is more than stays in memory. The next write puts most of it aside.
        mount.put(ino, 0, &pattern(2, 1 << 20));
        // The device holds back writes as large as this one. The writes of the commit are smaller.
        device.hold_from(500_000);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                mount.put(ino, 1 << 20, &pattern(3, 4096));
                mount.commit(ino);
            });
            device.wait_for_held(1);
            if canary.is_none() {
                device.release();
            }
        });
        let lost = mount.whole_after_crash("database").len() == 100_000;
        device.release();
        lost
    };
    assert!(!is_lost(None));
    assert!(is_lost(Some(Canary::SpillUncovered)));
}

/// Formats of nodes of one block, and of 16 KiB, each with an image so small that the reserve counts.
#[test]
fn a_commit_finds_room_on_a_full_filesystem() {
    for node_bytes in [4096, 16384] {
        let format = FormatOptions { node_bytes, ..FormatOptions::default() };
        let mount = Mount::made(32 << 20, format, keeping(16));
        let ino = mount.synced("database", &pattern(1, 4 << 20));
        let filler = mount.create("filler");
        mount.start(ino);
        let mut random = rand::rngs::StdRng::seed_from_u64(1);
        let mut now = mount.whole(ino);
        for round in 0..400 {
            let at = random.random_range(0..1024) * BLOCK;
            patch(&mut now, at as usize, &pattern(round, 4096));
            mount.put(ino, at, &pattern(round, 4096));
        }
        let full = (0..).map(|at| mount.try_write(filler, at << 16, &[7; 1 << 16])).find_map(Result::err);
        assert_eq!(full.unwrap().errno(), 28);
        mount.commit(ino);
        assert!(mount.whole(ino) == now);
        assert!(mount.whole_after_crash("database") == now);
        mount.check_items(ino);
    }
}
