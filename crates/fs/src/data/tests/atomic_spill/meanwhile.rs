//! Effects on others while a part of an atomic write is on the device: limits, room, snapshots, reads, a
//! size that changes.

use super::*;

#[test]
fn files_share_the_memory_and_each_that_comes_later_finds_some() {
    // Two MiB for all of them.
    let mount = Mount::sized(128 << 20, Options { dirty_bytes_max: 4 << 20, ..options() });
    let inos: Vec<Ino> = (0..4).map(|index| mount.synced(&format!("file {index}"), b"old")).collect();
    inos.iter().for_each(|ino| _ = mount.start(*ino));
    for round in 0..16 {
        for (&ino, seed) in inos.iter().zip(0..) {
            mount.put(ino, round << 17, &pattern(seed + round, 1 << 17));
            assert!(mount.fs.data.atomic.bytes() <= 2 << 20);
        }
    }
    std::thread::scope(|scope| {
        for &ino in &inos {
            let mount = &mount;
            scope.spawn(move || mount.commit(ino));
        }
    });
    assert_eq!(mount.fs.data.atomic.bytes(), 0);
    let mount = mount.crash();
    for (index, seed) in (0..4).zip(0..) {
        let contents = mount.whole(mount.find(&format!("file {index}")));
        (0..16).for_each(|round| {
            assert!(contents[(round << 17) as usize..][..1 << 17] == pattern(seed + round, 1 << 17));
        });
    }
    // Files that hold all of the memory, and wait for their programs, leave nothing for others in the end.
    let idle: Vec<Ino> = (0..40).map(|index| mount.synced(&format!("idle {index}"), b"old")).collect();
    let refused = idle.iter().find_map(|&ino| {
        mount.start(ino);
        mount.try_put(ino, 0, &[1; 1 << 17]).err()
    });
    assert_eq!(refused.unwrap().errno(), 27);
    assert!(mount.fs.data.atomic.bytes() <= 2 << 20);
}

#[test]
fn quotas_count_it_from_the_write_on() {
    let mount = Mount::sized(64 << 20, keeping(16));
    let dir = mount.mkdir_in(ROOT, "dir");
    mount.set_quota(dir, 4 << 20, 0);
    let (ino, other) = (mount.create_in(dir, "database"), mount.create_in(dir, "other"));
    mount.write(ino, 0, &pattern(23, 100_000));
    mount.fsync(ino);
    for commits in [false, true, true, false] {
        mount.start(ino);
        for index in (0..20).cycle().take(60) {
            mount.put(ino, 50_000 + index * 104_858, &pattern(24, 104_858));
        }
        assert!(mount.spilled_blocks(ino) > 400);
        assert_eq!(errno(mount.try_write(other, 0, &vec![1; 2 << 20])), 122);
        assert_eq!(errno(mount.try_put(ino, 3 << 20, &vec![1; 2 << 20])), 122);
        if commits {
            mount.commit(ino);
        } else {
            mount.abort(ino);
        }
        mount.check_quotas();
    }
    let used = mount.quota(dir).used_bytes;
    assert!(((2 << 20) + 50_000..(2 << 20) + 60_000).contains(&used), "{used}");
    mount.write(other, 0, &vec![1; 1 << 20]);
    mount.fsync(other);
    mount.check_quotas();
}

#[test]
fn preallocated_room_is_taken_and_comes_back() {
    let mount = Mount::formatted(16 << 20, 4096, keeping(16));
    let ino = mount.create("file");
    mount.allocate(ino, Allocation::Preallocate { keep_size: false }, 0, 2 << 20).unwrap();
    let filler = mount.create("filler");
    let full = (0..).map(|at| mount.try_write(filler, at << 16, &[7; 1 << 16])).find_map(Result::err);
    assert_eq!(full.unwrap().errno(), 28);
    block_on(mount.fs.syncfs()).unwrap();
    for byte in 1..4 {
        mount.start(ino);
        (0..16).for_each(|at| mount.put(ino, at << 17, &[byte; 1 << 17]));
        mount.fs.data.room.check();
        if byte < 3 {
            mount.abort(ino);
            mount.check_room(&[ino]);
            assert!(mount.read(ino, 0, 2 << 20) == vec![0; 2 << 20]);
        }
    }
    mount.commit(ino);
    assert_eq!(mount.fs.data.room.blocks(), 0);
    mount.check_items(ino);
    mount.check_blocks();
    assert!(mount.whole_after_crash("file") == vec![3; 2 << 20]);
}

/// A snapshot, a trim, a checkpoint, defragmenting and a copy see the file as before, and none of them
/// touches the blocks that the commit will name.
#[test]
fn what_others_do_meanwhile() {
    let mount = Mount::sized(128 << 20, keeping(16));
    let old = pattern(1, 2 << 20);
    let ino = mount.create("database");
    for block in (0..512).rev() {
        mount.write(ino, block * BLOCK, &old[(block * BLOCK) as usize..][..4096]);
        mount.fsync_placed(ino);
    }
    let mut now = old.clone();
    mount.start(ino);
    for round in 0..40 {
        let at = (round * 60_000 % (2 << 20)) as usize;
        let data = pattern(100 + round, 50_000);
        patch(&mut now, at, &data);
        mount.put(ino, at as u64, &data);
        match round {
            5 => drop(block_on(mount.fs.create_snapshot("meanwhile")).unwrap()),
            10 | 25 => {
                let trimmed = block_on(mount.fs.store().trim(0..u64::MAX, 0)).unwrap();
                assert!(trimmed > 50 << 20);
            }
            15 => {
                let mut next = Some(0);
                while let Some(block) = next {
                    next = block_on(mount.fs.defragment(ino, block, false)).unwrap().next;
                }
            }
            20 => {
                let copy = mount.create("copy");
                block_on(mount.fs.copy_range((ino, 0), (copy, 0), 2 << 20, false)).unwrap();
                assert!(mount.whole(copy) == old);
            }
            30 => block_on(mount.fs.delete_snapshot("meanwhile")).unwrap(),
            _ => {}
        }
        assert!(mount.whole(ino) == now, "round {round}");
        mount.check_blocks();
    }
    block_on(mount.fs.create_snapshot("before")).unwrap();
    mount.commit(ino);
    assert!(mount.whole(ino) == now);
    let opened = block_on(Store::open_snapshot(
        mount.device.snapshot(),
        StoreOptions::default(),
        mount.spawn.clone(),
        "before",
    ));
    let fs = block_on(Filesystem::open(opened.unwrap().0, mount.spawn.clone(), options())).unwrap();
    let found = block_on(fs.lookup(ROOT, b"database")).unwrap().ino;
    let contents = block_on(fs.read(found, 0, 3 << 20)).unwrap();
    assert!(crate::data::calls::read::concat(&contents) == old);
    assert!(mount.whole_after_crash("database") == now);
    mount.check_items(ino);
}

/// Growing the image keeps the blocks that nothing names yet. Shrinking is for images that nobody uses: all
/// of these blocks are free there.
#[test]
fn the_image_grows_meanwhile_and_shrinks_after_a_crash() {
    let small = Mount::sized(32 << 20, keeping(16));
    let old = pattern(1, 1 << 20);
    small.synced("database", &old);
    block_on(small.fs.close()).unwrap();
    block_on(small.fs.store().close()).unwrap();
    let large = MemoryDevice::new(128 << 20);
    for (at, piece) in small.device.image().chunks(1 << 20).enumerate() {
        block_on(large.write_at((at as u64) << 20, vec![Bytes::copy_from_slice(piece)])).unwrap();
    }
    let mount = Mount::open(large, small.spawn.clone(), small.options.clone());
    let ino = mount.find("database");
    mount.start(ino);
    (0..10).for_each(|index| mount.put(ino, index << 20, &pattern(index, 1 << 20)));
    block_on(mount.fs.enlarge(None)).unwrap();
    mount.check_blocks();
    (10..40).for_each(|index| mount.put(ino, index << 20, &pattern(index, 1 << 20)));
    mount.check_blocks();
    let now = mount.whole(ino);
    assert_eq!(errno(block_on(mount.fs.enlarge(Some(64 << 20)))), 16, "it is in use");
    // The blocks that nothing names lie behind the new end, too.
    let crashed = mount.device.snapshot();
    let mut progress = |_| {};
    let shrinking = crate::whole::shrink::shrink(
        crashed.clone(),
        StoreOptions::default(),
        mount.spawn.clone(),
        (16 << 20) / BLOCK,
        &mut progress,
    );
    block_on(shrinking).unwrap();
    let smaller = Mount::open(crashed, mount.spawn.clone(), options());
    assert!(smaller.whole(smaller.find("database")) == old);
    mount.commit(ino);
    assert!(mount.whole(ino) == now);
    assert!(mount.whole_after_crash("database") == now);
}

/// Readers see each block old or new, while blocks are put on the device, written again and freed.
#[test]
fn readers_beside_it_never_see_what_others_have_written_to_freed_blocks() {
    let mount = Mount::sized(64 << 20, keeping(8));
    let blocks = 200_u64;
    let fill = |block: u64, round: u64| pattern(block << 32 | round, 4096);
    let first: Vec<u8> = (0..blocks).flat_map(|block| fill(block, 0)).collect();
    let (ino, other) = (mount.synced("database", &first), mount.create("other"));
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for reader in 0..2 {
            let (mount, stop) = (&mount, &stop);
            scope.spawn(move || {
                let mut random = rand::rngs::StdRng::seed_from_u64(reader);
                while !stop.load(Ordering::SeqCst) {
                    let block = random.random_range(0..blocks);
                    let found = mount.read(ino, block * BLOCK, 4096);
                    // A pattern tells its seed in its first word, which no other has.
                    assert!((0..40).any(|round| fill(block, round) == found), "block {block}");
                }
            });
        }
        let mut random = rand::rngs::StdRng::seed_from_u64(9);
        for round in 1..40 {
            mount.start(ino);
            for _ in 0..100 {
                let block = random.random_range(0..blocks);
                mount.put(ino, block * BLOCK, &fill(block, round));
                if random.random_range(0..10) == 0 {
                    mount.write(other, random.random_range(0..50) * BLOCK, &[7; 8192]);
                    mount.fsync(other);
                }
            }
            if round % 2 == 0 {
                mount.commit(ino);
            } else {
                mount.abort(ino);
            }
        }
        stop.store(true, Ordering::SeqCst);
    });
    mount.check_items(ino);
    mount.check_blocks();
}

/// A copy shares the file's blocks below the blocks that the atomic write has put on the device. Each
/// shared block may have a count of its own then, which the commit changes too. If that is more than one
/// transaction takes, the copy does not share the blocks but copies them.
#[test]
fn a_copy_of_the_file_does_not_make_the_commit_too_large() {
    for (extents_max, shares) in [(1000, true), (100, false)] {
        let mount = Mount::sized(128 << 20, Options { atomic_extents_max: extents_max, ..keeping(16) });
        let (old, new) = (pattern(1, 4 << 20), pattern(2, 4 << 20));
        let ino = mount.synced("database", &old);
        mount.start(ino);
        new.chunks(1 << 20).zip(0..).for_each(|(piece, at)| mount.put(ino, at << 20, piece));
        let copy = mount.create("copy");
        let mut copied = 0;
        while copied < 4 << 20 {
            copied += block_on(mount.fs.copy_range((ino, copied), (copy, copied), 4 << 20, false)).unwrap();
        }
        let shared = mount.fs.counters().reflinked_bytes / BLOCK;
        assert_eq!(shared == 1024, shares, "{shared} blocks");
        {
            let inode = block_on(mount.fs.inode(ino)).unwrap();
            let state = inode.state.lock();
            let atomic = state.data.atomic.as_ref().unwrap();
            let (spilled, in_memory) = (&atomic.spilled, atomic.blocks.dirty());
            let counted = crate::data::memory::spilled::weight(spilled.extents(), spilled.replaced());
            assert!(spilled.replaced() >= shared.saturating_sub(in_memory), "{shared} are shared");
            assert!(counted <= extents_max, "{counted}");
        }
        mount.commit(ino);
        assert!(mount.whole(copy) == old && mount.whole_after_crash("database") == new);
        mount.check_counts(&[ino, copy]);
    }
}
