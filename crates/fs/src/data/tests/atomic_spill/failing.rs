//! Devices that fail, now and then or for good, and rot, while a part of an atomic write is on them.

use super::*;

#[test]
fn a_device_that_fails_while_spilling() {
    let (device, mount) = moody(keeping(64));
    let old = pattern(1, 100_000);
    let ino = mount.synced("database", &old);
    mount.start(ino);
    mount.put(ino, 0, &pattern(2, 250_000));
    let before = mount.whole(ino);
    device.fail.store(true, Ordering::SeqCst);
    assert_eq!(errno(mount.try_put(ino, 250_000, &pattern(3, 250_000))), 5);
    assert!(mount.whole(ino) == before);
    device.fail.store(false, Ordering::SeqCst);
    mount.put(ino, 250_000, &pattern(3, 250_000));
    assert!(mount.spilled_blocks(ino) > 0);
    let now = mount.whole(ino);
    mount.commit(ino);
    assert!(mount.whole_after_crash("database") == now);
    mount.check_items(ino);
}

/// One bad place is no reason to fail a program's write.
#[test]
fn what_the_device_does_not_take_goes_elsewhere() {
    let (device, mount) = moody(keeping(64));
    let ino = mount.synced("database", &pattern(1, 100_000));
    mount.start(ino);
    mount.put(ino, 0, &pattern(2, 250_000));
    device.hold();
    std::thread::scope(|scope| {
        scope.spawn(|| mount.put(ino, 250_000, &pattern(3, 250_000)));
        device.wait_for_held(1);
        device.release_failing();
    });
    assert!(mount.spilled_blocks(ino) > 0);
    let now = mount.whole(ino);
    assert!(now[250_000..] == pattern(3, 250_000));
    mount.commit(ino);
    assert!(mount.whole_after_crash("database") == now);
}

/// Of many writes to a device that fails now and then some fail each time.
#[test]
fn what_the_device_has_taken_is_not_written_again() {
    const WRITES: u64 = 4;
    let (device, mount) = moody(keeping(1024));
    let ino = mount.synced("database", &pattern(1, 100_000));
    mount.start(ino);
    let large = pattern(2, (WRITES as usize) << 20);
    mount.put(ino, 0, &large);
    device.hold_from(500_000);
    std::thread::scope(|scope| {
        // Makes room for itself: all but the first block go to the device, in writes of a mebibyte.
        let put = scope.spawn(|| mount.try_put(ino, 8 << 20, &pattern(3, 4 << 20)));
        for left in (1..=WRITES).rev() {
            device.wait_for_held(left as usize);
            device.release_one();
        }
        put.join().unwrap().unwrap();
    });
    device.release();
    assert!(mount.spilled_blocks(ino) > 1000);
    mount.check_blocks();
    let now = mount.whole(ino);
    assert!(now[..4 << 20] == large && now[8 << 20..] == pattern(3, 4 << 20));
    mount.commit(ino);
    mount.check_items(ino);
    mount.check_blocks();
    assert!(mount.whole_after_crash("database") == now);
}

/// With compressed units among them, over blocks that the file has.
#[test]
fn random_writes_to_a_device_that_fails_one_in_three() {
    for (seed, algorithm) in [(1, None), (2, Some(Algorithm::Lz4)), (3, Some(Algorithm::Zstd))] {
        let mut random = rand::rngs::StdRng::seed_from_u64(seed);
        let (device, mount) = moody(keeping(200));
        let ino = mount.create("database");
        mount.compress(ino, algorithm);
        let old = pattern(seed, 2 << 20);
        mount.write(ino, 0, &old);
        mount.fsync_placed(ino);
        block_on(mount.fs.store().checkpoint()).unwrap();
        let available = mount.fs.statfs().available;
        for commits in [false, true] {
            let mut now = old.clone();
            mount.start(ino);
            device.fail_every.store(3, Ordering::SeqCst);
            for round in 0..200 {
                let at = random.random_range(0..4_usize << 20);
                let len = random.random_range(1..if round % 4 == 0 { 900_000 } else { 9_000 });
                let data = match random.random() {
                    true => vec![round as u8; len],
                    false => pattern(round, len),
                };
                patch(&mut now, at, &data);
                mount.put(ino, at as u64, &data);
            }
            device.fail_every.store(0, Ordering::SeqCst);
            assert!(mount.whole(ino) == now, "seed {seed}");
            mount.check_blocks();
            if commits {
                mount.commit(ino);
                mount.check_blocks();
                mount.check_items(ino);
                mount.check_counts(&[ino]);
                assert!(mount.whole_after_crash("database") == now);
            } else {
                mount.abort(ino);
                assert!(mount.whole(ino) == old);
                assert_eq!(mount.fs.statfs().available, available);
            }
        }
    }
}

/// The pieces of the spill that the device took stay on the device, and an abort frees their blocks.
#[test]
fn a_device_that_takes_only_a_part_of_a_spill() {
    let (device, mount) = moody(keeping(1024));
    let old = pattern(1, 100_000);
    let ino = mount.synced("database", &old);
    block_on(mount.fs.store().checkpoint()).unwrap();
    let available = mount.fs.statfs().available;
    mount.start(ino);
    mount.put(ino, 0, &pattern(2, 4 << 20));
    let before = mount.whole(ino);
    device.hold_from(500_000);
    std::thread::scope(|scope| {
        let put = scope.spawn(|| mount.try_put(ino, 8 << 20, &pattern(3, 4 << 20)));
        device.wait_for_held(4);
        device.release_one();
        for _ in 0..3 {
            device.wait_for_held(3);
            device.fail_held();
        }
        assert_eq!(errno(put.join().unwrap()), 5);
    });
    device.release();
    assert_eq!(mount.spilled_blocks(ino), 256);
    assert!(mount.whole(ino) == before);
    mount.check_blocks();
    mount.put(ino, 8 << 20, &pattern(3, 4 << 20));
    let now = mount.whole(ino);
    assert!(mount.whole_after_crash("database") == old);
    mount.abort(ino);
    assert!(mount.whole(ino) == old && now[..4 << 20] == before);
    assert_eq!(mount.fs.statfs().available, available);
    mount.check_blocks();
}

#[test]
fn a_device_that_fails_while_reading_back() {
    let (device, mount) = moody(keeping(64));
    let ino = mount.synced("database", &pattern(1, 100_000));
    mount.start(ino);
    (0..4).for_each(|index| mount.put(ino, index * 250_000, &pattern(2 + index, 250_000)));
    let before = mount.whole(ino);
    let block = (1..).find(|block| mount.spilled_at(ino, *block).is_some()).unwrap();
    let read = |at: u64| block_on(mount.fs.read(ino, at, 100));
    device.fail_reads.store(true, Ordering::SeqCst);
    assert_eq!(errno(read(block * BLOCK)), 5);
    // Part of the block would have to be read.
    assert_eq!(errno(mount.try_put(ino, block * BLOCK + 1, b"x")), 5);
    device.fail_reads.store(false, Ordering::SeqCst);
    assert!(mount.whole(ino) == before);
    device.fail_reads.store(true, Ordering::SeqCst);
    mount.put(ino, block * BLOCK, &pattern(9, 4096));
    device.fail_reads.store(false, Ordering::SeqCst);
    let mut now = before;
    patch(&mut now, (block * BLOCK) as usize, &pattern(9, 4096));
    assert!(mount.whole(ino) == now);
    mount.commit(ino);
    assert!(mount.whole_after_crash("database") == now);
}

#[test]
fn rot_in_what_is_on_the_device_is_found() {
    for algorithm in [None, Some(Algorithm::Lz4)] {
        let mount = Mount::sized(64 << 20, keeping(64));
        let ino = mount.synced("database", &pattern(1, 100_000));
        mount.compress(ino, algorithm);
        mount.start(ino);
        (0..20).for_each(|index| mount.put(ino, index << 17, &vec![index as u8 + 1; 1 << 17]));
        let block = (100..).find(|block| mount.spilled_at(ino, *block).is_some()).unwrap();
        let stored = mount.spilled_at(ino, block).unwrap();
        assert_eq!(stored.packed.is_some(), algorithm.is_some());
        let rot = vec![Bytes::from(vec![0xa5; 4096])];
        block_on(mount.device.write_at(stored.run.offset_bytes(), rot)).unwrap();
        assert_eq!(errno(block_on(mount.fs.read(ino, block * BLOCK, 100))), 5);
        assert_eq!(mount.fs.store().counters().checksum_errors, 1);
        // Written again as a whole, nothing of it is needed.
        let unit = block / 32 * 32;
        mount.put(ino, unit * BLOCK, &[9; 1 << 17]);
        assert_eq!(mount.read(ino, block * BLOCK, 4096), [9; 4096]);
        mount.commit(ino);
        assert_eq!(mount.whole_after_crash("database")[(unit * BLOCK) as usize..][..1 << 17], [9; 1 << 17]);
    }
}

/// If the writes of a commit fail, the blocks that were on the device before are durable and are not
/// written again.
#[test]
fn a_commit_that_fails_can_be_repeated() {
    let (device, mount) = moody(keeping(64));
    let old = pattern(1, 1 << 20);
    let ino = mount.synced("database", &old);
    mount.start(ino);
    (0..5).for_each(|index| mount.put(ino, index * 200_000, &pattern(2 + index, 200_000)));
    let new = mount.whole(ino);
    assert!(mount.spilled_blocks(ino) > 100);
    device.fail.store(true, Ordering::SeqCst);
    mount.try_commit(ino).unwrap_err();
    device.fail.store(false, Ordering::SeqCst);
    assert!(mount.whole(ino) == new);
    assert!(mount.whole_after_crash("database") == old);
    mount.fs.atomic_write_of(ino).into_iter().for_each(|_| mount.commit(ino));
    mount.fsync(ino);
    assert!(mount.whole_after_crash("database") == new);
    mount.check_items(ino);
    assert_eq!(mount.fs.data.atomic.bytes(), 0);
}
