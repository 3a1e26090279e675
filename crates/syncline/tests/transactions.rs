//! Transactions: all or nothing, for a crash and for other threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use syncline::device::{Device, MemoryDevice};
use syncline::statistics::CountersSnapshot;
use syncline::{Error, Filesystem, FormatOptions, ImageOptions, Transaction, format_device};

fn opened() -> (Arc<MemoryDevice>, Filesystem) {
    let device = MemoryDevice::new(64 << 20);
    format_device(device.clone(), &FormatOptions::default()).unwrap();
    let fs = Filesystem::open_device(device.clone(), ImageOptions::default()).unwrap();
    (device, fs)
}

/// The filesystem that a crash now would leave if no write were lost.
fn crashed(device: &Arc<MemoryDevice>) -> Filesystem {
    Filesystem::open_device(device.snapshot(), ImageOptions::default()).unwrap()
}

#[test]
fn a_commit_costs_one_flush_and_small_ones_one_write() {
    let (device, fs) = opened();
    fs.create_dir("/d").unwrap();
    fs.write("/d/0", "first").unwrap();
    fs.sync().unwrap();
    let costs = |work: &dyn Fn(u32)| {
        let before = fs.statistics().store;
        work(0);
        let after = fs.statistics().store;
        // On a busy machine the log may be idle for so long that it gets a marker.
        let writes = |it: &CountersSnapshot| it.device_writes - it.markers;
        (after.flushes_issued - before.flushes_issued, writes(&after) - writes(&before))
    };
    let small = |number| {
        let mut transaction = fs.transaction();
        transaction
            .write(format!("/d/new{number}"), "a")
            .write("/d/0", "b")
            .set_xattr("/d/0", "user.n", b"c");
        transaction.commit().unwrap();
    };
    // The first takes a log segment.
    small(1);
    assert_eq!(costs(&|_| small(2)), (1, 1));
    let large = vec![1; 1 << 20];
    assert_eq!(
        costs(&|_| {
            let mut transaction = fs.transaction();
            transaction.write("/large", &large).write("/d/0", "d").rename("/d/new1", "/d/new3");
            transaction.commit().unwrap();
        })
        .0,
        1
    );
    let after = crashed(&device);
    assert_eq!(after.read("/large").unwrap(), large);
    assert_eq!(after.read_to_string("/d/0").unwrap(), "d");
    assert!(after.exists("/d/new3") && !after.exists("/d/new1"));
}

#[test]
fn a_refused_commit_names_the_change_and_changes_nothing() {
    let (_, fs) = opened();
    fs.write("/kept", "as it was").unwrap();
    let file = fs.open_file("/kept").unwrap();
    let mut transaction = fs.transaction();
    transaction.write("/kept", "new").create_dir("/dir").rename("/moved-away", "/dir/there");
    // Meanwhile another thread would have moved it.
    let error = transaction.commit().unwrap_err();
    assert_eq!(error.to_string(), "rename /moved-away: no such file or directory");
    assert_eq!((error.errno(), error.is_not_found()), (2, true));
    assert!(!fs.exists("/dir"));
    assert_eq!(fs.read_to_string("/kept").unwrap(), "as it was");
    let mut transaction = fs.transaction();
    transaction.write("/kept", "new");
    transaction.commit().unwrap();
    let mut contents = [0; 10];
    assert_eq!(file.read_at(&mut contents, 0).unwrap(), 3, "an open file shows it");
    assert!(fs.transaction().commit().is_ok(), "nothing to do");
}

#[test]
fn more_than_the_limit_is_refused_and_not_kept_in_memory() {
    let (_, fs) = opened();
    let piece = vec![0; 8 << 20];
    let mut transaction = fs.transaction();
    for number in 0..9 {
        transaction.write_at(format!("/{number}"), &piece, 0);
    }
    assert!(transaction.bytes() > Transaction::BYTES_MAX);
    let error = transaction.commit().unwrap_err();
    assert_eq!(error.errno(), 27, "{error}");
    assert!(error.to_string().contains("64 MiB"), "{error}");
}

/// Two files always have the same contents, and exactly one of two names exists.
#[test]
fn other_threads_see_all_of_a_commit_or_nothing() {
    let (_, fs) = opened();
    fs.create_dir("/d").unwrap();
    fs.write("/d/one", "0").unwrap();
    fs.write("/a", "0").unwrap();
    let (stop, seen) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for reader in 0..3 {
            let (fs, stop, seen) = (&fs, &stop, &seen);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    assert_eq!(fs.metadata("/d").unwrap().len(), 1, "entries");
                    let contents = fs.read("/a").unwrap();
                    assert!(contents.iter().all(|byte| *byte == contents[0]), "a mixture");
                    if reader == 0 {
                        // Its syncs meet commits half-way.
                        let log = fs.open_file("/a").unwrap();
                        log.sync_all().unwrap();
                    }
                    seen.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for round in 1..=200_u32 {
            let (from, to) = if round % 2 == 1 { ("/d/one", "/d/two") } else { ("/d/two", "/d/one") };
            let byte = b'0' + (round % 10) as u8;
            let mut transaction = fs.transaction();
            transaction.create_new("/d/between", 0o600).rename(from, to).remove_file("/d/between");
            transaction.write("/a", vec![byte; 1 + (round as usize * 7919) % 30_000]);
            transaction.commit().unwrap();
        }
        while seen.load(Ordering::Relaxed) < 10 {
            std::thread::yield_now();
        }
        stop.store(true, Ordering::Relaxed);
    });
    fs.close().unwrap();
}

/// Commits of several threads, with other changes beside them on an image that is nearly full: all
/// come to an end, each as a whole.
#[test]
fn commits_on_a_full_image_end_and_change_all_or_nothing() {
    let device = MemoryDevice::new(20 << 20);
    format_device(device.clone(), &FormatOptions::default()).unwrap();
    let fs = Filesystem::open_device(device, ImageOptions::default()).unwrap();
    let (done, full) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let (fs, done, full) = (&fs, &done, &full);
            scope.spawn(move || {
                fs.create_dir(format!("/{thread}")).unwrap();
                for round in 0..60 {
                    let mut transaction = fs.transaction();
                    let (one, two) = (format!("/{thread}/a{round}"), format!("/{thread}/b{round}"));
                    transaction.write(&one, vec![1; 100_000]).write(&two, vec![2; 9_000]);
                    match transaction.commit() {
                        Ok(()) => done.fetch_add(1, Ordering::Relaxed),
                        Err(error) if error.errno() == 28 => full.fetch_add(1, Ordering::Relaxed),
                        Err(error) => panic!("{error}"),
                    };
                    assert_eq!(fs.exists(&one), fs.exists(&two));
                    fs.write(format!("/{thread}/plain"), vec![3; 5000]).ok();
                    if round % 7 == 6 {
                        let mut transaction = fs.transaction();
                        transaction.remove_file(&one).remove_file(&two);
                        let there = fs.exists(&two);
                        let removed = transaction.commit().is_ok();
                        assert!(there || !removed);
                        assert_eq!(
                            (fs.exists(&one), fs.exists(&two)),
                            (there && !removed, there && !removed)
                        );
                    }
                }
            });
        }
    });
    let (done, full) = (done.into_inner(), full.into_inner());
    println!("{done} committed, {full} without room");
    assert!(done > 50 && full > 10, "{done} {full}");
    fs.close().unwrap();
}

/// A device that fails to write: the transaction is there as a whole and not durable; a later sync
/// tries again.
#[test]
fn a_commit_that_can_not_be_made_durable_says_so() {
    use bytes::Bytes;
    use syncline::device::{AlignedBuf, Completion, DeviceError, Operation};

    struct Failing(Arc<MemoryDevice>, AtomicBool);

    impl Device for Failing {
        fn size_bytes(&self) -> u64 {
            self.0.size_bytes()
        }

        fn read(&self, offset: u64, buf: AlignedBuf, done: Completion<AlignedBuf>) {
            self.0.read(offset, buf, done);
        }

        fn write(&self, offset: u64, bufs: Vec<Bytes>, done: Completion<()>) {
            self.0.write(offset, bufs, done);
        }

        fn flush(&self, done: Completion<()>) {
            match self.1.load(Ordering::SeqCst) {
                true => done(Err(DeviceError::Abandoned { operation: Operation::Flush })),
                false => self.0.flush(done),
            }
        }

        fn discard(&self, offset: u64, len_bytes: u64, done: Completion<()>) {
            self.0.discard(offset, len_bytes, done);
        }
    }

    let (device, fs) = opened();
    fs.close().unwrap();
    let failing = Arc::new(Failing(device.clone(), AtomicBool::new(false)));
    let fs = Filesystem::open_device(failing.clone(), ImageOptions::default()).unwrap();
    fs.write("/a", "old").unwrap();
    fs.sync().unwrap();
    failing.1.store(true, Ordering::SeqCst);
    let mut transaction = fs.transaction();
    transaction.write("/a", "new").create_dir("/d");
    let error = transaction.commit().unwrap_err();
    assert!(matches!(error, Error::NotDurable(_)), "{error}");
    assert_eq!(error.errno(), 5);
    assert_eq!(fs.read_to_string("/a").unwrap(), "new");
    failing.1.store(false, Ordering::SeqCst);
    fs.open_file("/a").unwrap().sync_all().unwrap();
    let after = crashed(&device);
    assert!(after.exists("/d"));
    assert_eq!(after.read_to_string("/a").unwrap(), "new");
}
