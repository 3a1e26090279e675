//! Scattered files are put together, and nothing else changes.

use super::faults::moody;
use super::*;
use crate::Fragments;
use std::sync::atomic::{AtomicBool, Ordering};

impl Mount {
    fn fragments(&self, ino: Ino) -> Fragments {
        block_on(self.fs.fragments(ino)).unwrap()
    }

    /// Defragments the whole file, and returns the bytes that moved.
    pub(super) fn defragment(&self, ino: Ino, unshare: bool) -> u64 {
        let (mut next, mut moved) = (Some(0), 0);
        while let Some(first) = next {
            let done = block_on(self.fs.defragment(ino, first, unshare)).unwrap();
            assert!(done.next.is_none_or(|next| next > first), "it makes progress");
            moved += done.moved_bytes;
            next = done.next;
        }
        moved
    }

    /// Two files whose blocks alternate.
    fn scattered(&self, blocks: u64) -> [Ino; 2] {
        let inos = ["one", "other"].map(|name| self.create(name));
        for block in 0..blocks {
            for (seed, &ino) in (0..).zip(&inos) {
                self.write(ino, block * 4096, &pattern(seed * 1000 + block, 4096));
                self.fsync_placed(ino);
            }
        }
        inos
    }

    fn has_scattered(&self, ino: Ino, seed: u64, blocks: u64) -> bool {
        let expected: Vec<u8> = (0..blocks).flat_map(|block| pattern(seed * 1000 + block, 4096)).collect();
        self.read(ino, 0, expected.len() + 1) == expected
    }
}

#[test]
fn scattered_blocks_come_together_and_nothing_else_changes() {
    let mount = Mount::new();
    let [one, other] = mount.scattered(100);
    assert!(mount.fragments(one).fragments > 20, "{:?}", mount.fragments(one));
    let before = block_on(mount.fs.getattr(one)).unwrap();
    assert_eq!(mount.defragment(one, false), 100 * 4096);
    assert_eq!(mount.fragments(one), Fragments { fragments: 1, blocks: 100 });
    assert_eq!(block_on(mount.fs.getattr(one)).unwrap(), before, "times and all");
    assert_eq!(mount.defragment(one, false), 0, "there is nothing more to do");
    assert_eq!(mount.fs.counters().defragmented_bytes, 100 * 4096);
    mount.fsync(one);
    for mount in [mount.crash(), mount.reopen()] {
        assert!(mount.has_scattered(one, 0, 100) && mount.has_scattered(other, 1, 100));
        mount.check_items(one);
        mount.check_counts(&[one, other]);
    }
}

#[test]
fn more_than_one_step_becomes_one_fragment() {
    let mount = Mount::sized(256 << 20, options());
    let (one, other) = (mount.create("one"), mount.create("other"));
    // 20 MiB in pieces of 64 KiB.
    for piece in 0..320u64 {
        for (seed, ino) in [(1, one), (2, other)] {
            mount.write(ino, piece << 16, &pattern(seed * 1000 + piece, 1 << 16));
            mount.fsync(ino);
        }
    }
    assert!(mount.fragments(one).fragments > 100);
    assert_eq!(mount.defragment(one, false), 20 << 20);
    let fragments = mount.fragments(one).fragments;
    assert!(fragments <= 2, "{fragments} fragments");
    for piece in 0..320u64 {
        assert!(mount.read(one, piece << 16, 1 << 16) == pattern(1000 + piece, 1 << 16));
    }
}

#[test]
fn what_is_shared_stays_shared_unless_it_is_asked_for() {
    let mount = Mount::new();
    let [one, other] = mount.scattered(64);
    let copy = mount.create("copy");
    assert_eq!(block_on(mount.fs.copy_range((one, 0), (copy, 0), 64 * 4096, false)).unwrap(), 64 * 4096);
    let before = mount.fragments(one);
    assert_eq!(mount.defragment(one, false), 0);
    assert_eq!(mount.fragments(one), before);
    assert_eq!(mount.defragment(one, true), 64 * 4096);
    assert_eq!((mount.fragments(one).fragments, mount.fragments(copy)), (1, before));
    mount.check_counts(&[one, other, copy]);
    // The blocks belong to the copy alone now, and are free when it goes.
    let mount = mount.reopen();
    assert!(mount.has_scattered(one, 0, 64) && mount.has_scattered(copy, 0, 64));
    mount.check_counts(&[one, other, copy]);
}

#[test]
fn holes_and_contents_in_the_inode_item_stay_what_they_are() {
    let mount = Mount::new();
    let (sparse, between) = (mount.create("sparse"), mount.create("between"));
    for block in [0u64, 1, 40, 41, 900, 901] {
        mount.write(sparse, block * 4096, &pattern(block, 4096));
        mount.fsync_placed(sparse);
        mount.write(between, block * 4096, &pattern(7, 4096));
        mount.fsync_placed(between);
    }
    let blocks = mount.blocks(sparse);
    assert!(mount.defragment(sparse, false) > 0);
    assert_eq!((mount.fragments(sparse).fragments, mount.blocks(sparse)), (1, blocks));
    for block in [0u64, 1, 40, 41, 900, 901] {
        assert!(mount.read(sparse, block * 4096, 4096) == pattern(block, 4096));
    }
    assert!(mount.read(sparse, 2 * 4096, 38 * 4096).iter().all(|&byte| byte == 0));
    let small = mount.create("small");
    mount.write(small, 0, b"small");
    mount.fsync(small);
    assert_eq!(mount.defragment(small, false), 0);
    assert_eq!(mount.read(small, 0, 10), b"small");
}

/// Each write fills a block with a new pattern. Reads find the newest pattern, also after a sync
/// and a crash.
#[test]
fn writers_are_not_overtaken() {
    let mount = Mount::new();
    let [one, _] = mount.scattered(64);
    let stop = AtomicBool::new(false);
    let mut newest = vec![0u64; 64];
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                mount.defragment(one, true);
            }
        });
        for round in 1..400u64 {
            let block = round * 37 % 64;
            mount.write(one, block * 4096, &pattern(5000 + round, 4096));
            newest[block as usize] = 5000 + round;
            if round % 3 == 0 {
                mount.fsync(one);
            }
            let (read, seed) = (mount.read(one, block * 4096, 4096), newest[block as usize]);
            assert!(read == pattern(seed, 4096), "round {round}");
        }
        stop.store(true, Ordering::Relaxed);
    });
    mount.fsync(one);
    let mount = mount.crash();
    for (block, &seed) in (0..).zip(&newest) {
        let seed = if seed == 0 { block } else { seed };
        assert!(mount.read(one, block * 4096, 4096) == pattern(seed, 4096), "block {block}");
    }
    mount.check_items(one);
}

/// One bad sector is no reason for an error: the copy goes elsewhere. A device that takes nothing
/// is.
#[test]
fn what_the_device_does_not_take_goes_elsewhere() {
    let (device, mount) = moody(options());
    let [one, _] = mount.scattered(20);
    let defragment = |failures: usize| {
        device.hold_from(20 * 4096);
        std::thread::scope(|scope| {
            let done = scope.spawn(|| block_on(mount.fs.defragment(one, 0, false)));
            for _ in 0..failures {
                device.wait_for_held(1);
                device.fail_held();
            }
            if failures < 4 {
                device.wait_for_held(1);
                device.release();
            }
            done.join().unwrap()
        })
    };
    let named = mount.fs.store().space().named;
    assert_eq!(defragment(4).unwrap_err().errno(), 5);
    assert!(mount.fragments(one).fragments > 5 && mount.has_scattered(one, 0, 20));
    assert_eq!(defragment(2).unwrap().moved_bytes, 20 * 4096);
    assert_eq!(mount.fragments(one), Fragments { fragments: 1, blocks: 20 });
    assert!(mount.has_scattered(one, 0, 20));
    mount.check_items(one);
    assert_eq!(mount.fs.store().space().named, named);
}

#[test]
fn a_full_image_is_left_as_it_is() {
    let mount = Mount::sized(16 << 20, options());
    let [one, _] = mount.scattered(64);
    let filler = mount.create("filler");
    let mut offset = 0;
    while mount.try_write(filler, offset, &[1; 65536]).is_ok() {
        offset += 65536;
    }
    // Whether or not there is room, nothing is lost.
    let (mut next, mut failed) = (Some(0), false);
    while let Some(first) = next {
        match block_on(mount.fs.defragment(one, first, false)) {
            Ok(done) => next = done.next,
            Err(error) => {
                assert_eq!(error.errno(), 28, "{error}");
                failed = true;
                break;
            }
        }
    }
    assert!(failed || mount.fs.counters().defragmented_bytes == 0, "there was no room");
    assert!(mount.has_scattered(one, 0, 64));
    mount.check_items(one);
}

/// In the case behind this test, the holder of the lease cuts the file off, extent by extent, on a
/// full filesystem, and each checkpoint on the way needs the blocks that were freed before.
#[test]
fn who_waits_for_the_lease_keeps_nothing_from_being_used_anew() {
    let (device, mount) = moody(options());
    let [one, other] = mount.scattered(100);
    let inode = block_on(mount.fs.inode(one)).unwrap();
    let checkpoint = || block_on(mount.fs.store().checkpoint()).unwrap();
    checkpoint();
    device.hold_from(50 * 4096);
    std::thread::scope(|scope| {
        let moving = scope.spawn(|| block_on(mount.fs.defragment(one, 0, false)).unwrap());
        device.wait_for_held(1);
        let lease = block_on(inode.lease.write());
        device.release();
        let before = mount.fs.store().space();
        mount.truncate(other, 0).unwrap();
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(120);
        loop {
            checkpoint();
            let now = mount.fs.store().space();
            if now.free > before.free + 90 {
                break;
            }
            assert!(std::time::Instant::now() < deadline, "{now:?}, before {before:?}");
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        drop(lease);
        // Checkpoints have come and gone, and the extents have the contents that they had.
        assert_eq!(moving.join().unwrap().moved_bytes, 100 * 4096);
    });
    assert!(mount.has_scattered(one, 0, 100));
    mount.check_items(one);
}

/// A message may name any block.
#[test]
fn a_step_may_begin_anywhere() {
    let mount = Mount::new();
    let [ino, _] = mount.scattered(4);
    for first in [100, 1 << 52, u64::MAX - 4096, u64::MAX - 4095, u64::MAX] {
        let done = block_on(mount.fs.defragment(ino, first, false)).unwrap();
        assert_eq!((done.next, done.moved_bytes), (None, 0));
    }
}
