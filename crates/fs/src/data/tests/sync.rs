//! What fsync and fdatasync make durable, what they cost and wait for, and the bound on dirty memory.

use super::*;

/// No background write-back before the limit is reached.
fn unhurried() -> Options {
    Options { writeback_start_bytes: 256 << 20, ..options() }
}

fn flushes(mount: &Mount) -> u64 {
    mount.fs.store().device_counters().flushes_issued
}

#[test]
fn a_clean_file_costs_nothing() {
    let mount = Mount::new();
    let (one, other) = (mount.create("one"), mount.create("other"));
    mount.write(one, 0, b"aaa");
    mount.write(other, 0, b"aaa");
    mount.fsync(other);
    mount.fsync(one);
    let before = (flushes(&mount), mount.fs.store().last_op());
    mount.fsync(one);
    mount.fsync(other);
    block_on(mount.fs.fsync(one, true)).unwrap();
    assert_eq!((flushes(&mount), mount.fs.store().last_op()), before);
}

#[test]
fn an_fsync_of_64_kib_is_one_flush() {
    let mount = Mount::new();
    let ino = mount.create("append");
    mount.write(ino, 0, &[1; 65536]);
    mount.fsync(ino);
    for round in 1..20u64 {
        let before = flushes(&mount);
        mount.write(ino, round * 65536, &[round as u8; 65536]);
        mount.fsync(ino);
        assert_eq!(flushes(&mount) - before, 1);
    }
    mount.check_items(ino);
}

#[test]
fn most_of_a_large_file_goes_the_background_way() {
    let mount = Mount::sized(128 << 20, unhurried());
    let ino = mount.create("large");
    let data = pattern(6, 1 << 20);
    for index in 0..40 {
        mount.write(ino, index << 20, &data);
    }
    mount.fsync(ino);
    let counters = &mount.fs.counters;
    assert_eq!(counters.writeback_bytes.get(), 39 << 20);
    assert_eq!(counters.submitted_bytes.get(), 1 << 20);
    mount.check_items(ino);
    let mount = mount.crash();
    let ino = mount.find("large");
    assert_eq!(mount.size(ino), 40 << 20);
    for index in 0..40 {
        assert_eq!(mount.read(ino, index << 20, 1 << 20), data);
    }
}

#[test]
fn dirty_data_stays_below_its_limit() {
    let limits = Options { dirty_bytes_max: 4 << 20, writeback_start_bytes: 2 << 20, ..options() };
    let mount = Mount::sized(128 << 20, limits);
    std::thread::scope(|scope| {
        for task in 0..3u64 {
            let mount = &mount;
            scope.spawn(move || {
                let ino = mount.create(&format!("file{task}"));
                for index in 0..80u64 {
                    mount.write(ino, index * 100_000, &pattern(task + index, 100_000));
                    let dirty = mount.fs.data.queue.dirty_bytes();
                    assert!(dirty <= (4 << 20) + 3 * 110_000, "{dirty} bytes are dirty");
                }
            });
        }
    });
    let mount = mount.reopen();
    for task in 0..3u64 {
        let ino = mount.find(&format!("file{task}"));
        for index in 0..80u64 {
            assert_eq!(mount.read(ino, index * 100_000, 100_000), pattern(task + index, 100_000));
        }
        mount.check_items(ino);
    }
}

#[test]
fn old_dirty_data_is_written_back_by_itself() {
    const HOUR_NS: u64 = 3_600_000_000_000;
    for now_ns in [10 * HOUR_NS, 9 * HOUR_NS, 11 * HOUR_NS, 0] {
        let clock = Arc::new(ManualClock::at(10 * HOUR_NS));
        let mount = Mount::sized(64 << 20, Options { clock: clock.clone(), ..options() });
        let ino = mount.create("old");
        mount.write(ino, 0, &pattern(7, 100_000));
        clock.set(now_ns);
        clock.advance(6_000_000_000);
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while mount.fs.data.queue.dirty_bytes() > 0 {
            assert!(std::time::Instant::now() < deadline, "nobody wrote it back with the clock at {now_ns}");
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        assert_eq!(mount.fs.counters().writeback_bytes, 25 * 4096);
        mount.check_items(ino);
    }
}

#[test]
fn dirty_data_is_not_old_because_the_clock_was_set_forward() {
    let clock = Arc::new(ManualClock::at(10_000_000_000));
    let mount = Mount::sized(64 << 20, Options { clock: clock.clone(), ..options() });
    let ino = mount.create("young");
    mount.write(ino, 0, &pattern(7, 100_000));
    clock.set(7_200_000_000_000);
    assert!(mount.fs.data.queue.due(&mount.fs, 1).is_empty());
    assert_eq!(mount.fs.data.queue.dirty_bytes(), 25 * 4096, "nobody else took it");
}

#[test]
fn many_files_share_a_batch_and_a_flush() {
    let mount = Mount::new();
    let inos: Vec<Ino> = (0..10).map(|index| mount.create(&format!("file{index}"))).collect();
    mount.fsync(ROOT);
    for (index, &ino) in inos.iter().enumerate() {
        mount.write(ino, 0, &pattern(index as u64, 10_000));
    }
    let before = flushes(&mount);
    let op = mount.fs.store().last_op().0;
    block_on(mount.fs.sync_many(&inos, 0)).unwrap();
    assert_eq!(flushes(&mount) - before, 1);
    assert_eq!(mount.fs.store().last_op().0 - op, 1, "one transaction, so all or nothing (P6)");
    let mount = mount.crash();
    for index in 0..10 {
        let ino = mount.find(&format!("file{index}"));
        assert_eq!(mount.read(ino, 0, 20_000), pattern(index, 10_000));
    }
}

#[test]
fn too_much_for_one_batch_is_refused_before_any_effect() {
    let mount = Mount::sized(256 << 20, unhurried());
    let ino = mount.create("big");
    for index in 0..65 {
        mount.write(ino, index << 20, &[1; 1 << 20]);
    }
    let op = mount.fs.store().last_op();
    assert!(matches!(block_on(mount.fs.sync_many(&[ino], 0)), Err(FsError::TooLarge)));
    assert_eq!(mount.fs.store().last_op(), op);
    mount.fsync(ino);
}

#[test]
fn small_files_that_went_along_survive_and_large_ones_stay_behind() {
    let mount = Mount::new();
    let small: Vec<Ino> = (0..70).map(|file| mount.create(&format!("small{file}"))).collect();
    let (large, synced) = (mount.create("large"), mount.create("synced"));
    for &ino in &small {
        mount.write(ino, 0, &pattern(ino, 1000));
    }
    mount.write(large, 0, &pattern(large, 5000));
    mount.write(synced, 0, &pattern(synced, 100_000));
    mount.fsync(synced);
    assert_eq!(mount.fs.counters().taken_along, 64);
    let crashed = mount.crash();
    for (file, &ino) in small.iter().enumerate() {
        let found = crashed.find(&format!("small{file}"));
        let expected = if file < 64 { pattern(ino, 1000) } else { Vec::new() };
        assert_eq!(crashed.read(found, 0, 10_000), expected, "file {file}");
    }
    assert_eq!(crashed.size(crashed.find("large")), 0);
    // The rest is taken along with the next fsync; a file that has grown meanwhile is left out.
    mount.write(small[69], 1000, &pattern(1, 2000));
    mount.write(synced, 0, b"again");
    mount.fsync(synced);
    assert_eq!(mount.fs.counters().taken_along, 69);
    assert_eq!(mount.read(small[69], 0, 10_000), [pattern(small[69], 1000), pattern(1, 2000)].concat());
}

#[test]
fn an_fsync_of_what_is_durable_takes_nothing_along() {
    let mount = Mount::timeless(options());
    let (clean, dirty) = (mount.create("clean"), mount.create("dirty"));
    mount.fsync(clean);
    mount.write(dirty, 0, b"small");
    let before = mount.fs.store().counters().batches;
    mount.fsync(clean);
    assert_eq!((mount.fs.store().counters().batches, mount.fs.counters().taken_along), (before, 0));
}

#[test]
fn fdatasync_carries_size_data_and_name() {
    let mount = Mount::new();
    let ino = mount.create("file");
    mount.write(ino, 0, &pattern(8, 10_000));
    let later = mount.create("later");
    block_on(mount.fs.fsync(ino, true)).unwrap();
    let after = mount.crash();
    assert_eq!(after.read(after.find("file"), 0, 20_000), pattern(8, 10_000));
    // Too large to be taken along with another file's fsync.
    mount.write(later, 0, &pattern(9, 5000));
    let before = mount.fs.store().last_op();
    assert!(mount.fs.store().is_durable(before));
    mount.truncate(ino, 5_000).unwrap();
    block_on(mount.fs.fsync(ino, true)).unwrap();
    let after = mount.crash();
    assert_eq!(after.size(after.find("file")), 5_000);
    assert_eq!(after.size(after.find("later")), 0);
}

/// The old contents are durable already, so only the replacement is a reason to write a batch.
#[test]
fn fdatasync_carries_blocks_that_were_replaced() {
    // More than goes into the log: a copy places logged blocks first, and the batch would take it along.
    const LEN: usize = 64 * 4096;
    let zeros = || vec![0; LEN];
    type Replace = fn(&Mount, Ino, Ino);
    let cases: [(&str, Replace, Vec<u8>); 4] = [
        (
            "punch",
            |mount, ino, _| mount.allocate(ino, Allocation::PunchHole, 0, LEN as u64).unwrap(),
            zeros(),
        ),
        (
            "zero",
            |mount, ino, _| {
                let zero = Allocation::ZeroRange { keep_size: false };
                mount.allocate(ino, zero, 0, LEN as u64).unwrap();
            },
            zeros(),
        ),
        (
            "grow",
            |mount, ino, _| {
                let grow = Allocation::Preallocate { keep_size: false };
                mount.allocate(ino, grow, 0, 2 * LEN as u64).unwrap();
            },
            [pattern(10, LEN), zeros()].concat(),
        ),
        ("copy", |mount, ino, other| _ = mount.copy(other, ino, LEN as u64), pattern(11, LEN)),
    ];
    let found = cases.each_ref().map(|(name, replace, _)| {
        let mount = Mount::new();
        let (ino, other) = (mount.create("file"), mount.create("other"));
        mount.write(ino, 0, &pattern(10, LEN));
        mount.write(other, 0, &pattern(11, LEN));
        block_on(mount.fs.sync_many(&[ino, other], 0)).unwrap();
        replace(&mount, ino, other);
        block_on(mount.fs.fsync(ino, true)).unwrap();
        let after = mount.crash();
        (*name, after.read(after.find("file"), 0, 3 * LEN))
    });
    let lost: Vec<_> =
        cases.iter().zip(&found).filter(|(case, found)| case.2 != found.1).map(|(case, _)| case.0).collect();
    assert!(lost.is_empty(), "lost after fdatasync: {lost:?}");
}

/// The file's name, and all that came before the append, is durable already: only the append itself is
/// a reason to write a batch.
#[test]
fn each_sync_makes_the_append_before_it_durable() {
    let logged: Vec<u8> = (1..=3).flat_map(|number| pattern(number, 100)).collect();
    let sizes = [false, true].map(|data_only| {
        let mount = Mount::new();
        let ino = mount.create("log");
        mount.fsync(ino);
        let sizes = [1, 2, 3].map(|number| {
            mount.write(ino, (number - 1) * 100, &pattern(number, 100));
            block_on(mount.fs.fsync(ino, data_only)).unwrap();
            let after = mount.crash();
            let found = after.find("log");
            assert!(logged.starts_with(&after.read(found, 0, 400)));
            after.size(found)
        });
        (if data_only { "fdatasync" } else { "fsync" }, sizes)
    });
    assert_eq!(sizes, [("fsync", [100, 200, 300]), ("fdatasync", [100, 200, 300])]);
}
