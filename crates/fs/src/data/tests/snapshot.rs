//! A snapshot is one moment, for data and names alike (promise P10).

use super::faults::{Moody, moody};
use super::*;
use crate::{Action, NotCommitted, Step};
use parking_lot::Mutex;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

impl Mount {
    /// The snapshot "now", opened while the image is in use.
    fn snapshot(&self) -> Arc<Filesystem> {
        self.snapshot_named("now")
    }

    fn snapshot_named(&self, name: &str) -> Arc<Filesystem> {
        let opened =
            Store::open_snapshot(self.device.clone(), StoreOptions::default(), self.spawn.clone(), name);
        let (store, _) = block_on(opened).unwrap();
        block_on(Filesystem::open(store, self.spawn.clone(), self.options.clone())).unwrap()
    }
}

fn contents(fs: &Arc<Filesystem>, name: &str) -> Vec<u8> {
    let ino = block_on(fs.lookup(ROOT, name.as_bytes())).unwrap().ino;
    crate::data::calls::read::concat(&block_on(fs.read(ino, 0, 1 << 20)).unwrap())
}

fn has(fs: &Arc<Filesystem>, name: &str) -> bool {
    block_on(fs.lookup(ROOT, name.as_bytes())).is_ok()
}

fn mkdir(mount: &Mount, name: &str) -> Result<(), FsError> {
    block_on(mount.fs.mkdir(CALLER, ROOT, name.as_bytes(), 0o755)).map(drop)
}

/// Files "large" and "small", of which "large" is dirty.
fn two_files() -> (Arc<Moody>, Mount, Ino) {
    let (device, mount) = moody(options());
    let (large, small) = (mount.create("large"), mount.create("small"));
    mount.write(small, 0, &pattern(1, 5000));
    mount.fsync_placed(small);
    mount.write(large, 0, &pattern(2, 200_000));
    device.hold_from(64 << 10);
    (device, mount, small)
}

/// The name was there before the cut, so the data that was written before it is, too.
#[test]
fn names_are_not_ahead_of_data_written_before_them() {
    let (device, mount, small) = two_files();
    std::thread::scope(|scope| {
        let made = scope.spawn(|| block_on(mount.fs.create_snapshot("now")).map(drop));
        // Everything that is dirty now is on its way to the device.
        device.wait_for_held(1);
        mount.write(small, 0, &pattern(3, 5000));
        mkdir(&mount, "after").unwrap();
        device.release();
        made.join().unwrap().unwrap();
    });
    let then = mount.snapshot();
    assert!(has(&then, "after"));
    assert!(contents(&then, "small") == pattern(3, 5000), "the name is ahead of the data");
    assert!(contents(&then, "large") == pattern(2, 200_000));
}

/// Polls a future once.
fn polled<T>(future: Pin<&mut (impl Future<Output = T> + ?Sized)>) -> Poll<T> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

#[test]
fn what_begins_after_the_moment_waits_and_is_not_in_it() {
    let (device, mount, small) = two_files();
    let inode = block_on(mount.fs.inode(small)).unwrap();
    std::thread::scope(|scope| {
        let made = scope.spawn(|| block_on(mount.fs.create_snapshot("now")).map(drop));
        device.wait_for_held(1);
        mount.write(small, 0, &pattern(3, 5000));
        // Someone who began to read the file before keeps the standstill going.
        let reading = block_on(inode.lease.read());
        device.release();
        let end = Instant::now() + Duration::from_secs(120);
        let mut later = 0;
        let waits = loop {
            let name = format!("name {later}").into_bytes();
            let fs = mount.fs.clone();
            let mut making = Box::pin(async move { fs.mkdir(CALLER, ROOT, &name, 0o755).await });
            if polled(making.as_mut()).is_pending() {
                break making;
            }
            later += 1;
            assert!(Instant::now() < end, "nobody stands still");
        };
        let large = mount.find("large");
        let mut writing = Box::pin(mount.fs.write(large, 0, Bytes::from_static(&[9; 5000]), false));
        assert!(polled(writing.as_mut()).is_pending(), "a write begins meanwhile");
        // Reading goes on, and so does a sync.
        assert!(mount.read(large, 0, 200_000) == pattern(2, 200_000));
        mount.fsync(ROOT);
        drop(reading);
        made.join().unwrap().unwrap();
        block_on(waits).unwrap();
        block_on(writing).unwrap();
        let then = mount.snapshot();
        assert!(!has(&then, &format!("name {later}")));
        assert!((0..later).all(|earlier| has(&then, &format!("name {earlier}"))));
        assert!(contents(&then, "small") == pattern(3, 5000));
        assert!(contents(&then, "large") == pattern(2, 200_000));
    });
}

/// One writes to a file, then to another, then makes a name, and so on; another fills memory.
#[test]
fn snapshots_under_load_are_of_one_moment_each() {
    let mount = Mount::sized(512 << 20, Options { dirty_bytes_max: 64 << 20, ..options() });
    let [one, other, bulk] = ["one", "other", "bulk"].map(|name| mount.create(name));
    for ino in [one, other] {
        mount.write(ino, 0, &0_u64.to_le_bytes());
    }
    mkdir(&mount, "0").unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1_u64.. {
                if over.load(Ordering::Relaxed) {
                    break;
                }
                mount.write(one, 0, &round.to_le_bytes());
                mount.write(other, 0, &round.to_le_bytes());
                let flags = crate::types::RenameFlags::default();
                let [from, to] = [round - 1, round].map(|round| round.to_string().into_bytes());
                block_on(mount.fs.rename(ROOT, &from, ROOT, &to, flags)).unwrap();
            }
        });
        scope.spawn(|| {
            let piece = pattern(5, 1 << 20);
            for round in 0_u64.. {
                if over.load(Ordering::Relaxed) {
                    break;
                }
                mount.write(bulk, (round * 7 % 40) << 20, &piece);
            }
        });
        let made = (0..6).map(|index| block_on(mount.fs.create_snapshot(&index.to_string())).map(drop));
        let made: Result<Vec<()>, FsError> = made.collect();
        over.store(true, Ordering::Relaxed);
        made.unwrap();
    });
    for index in 0..6 {
        let then = mount.snapshot_named(&index.to_string());
        let number = |name: &str| u64::from_le_bytes(contents(&then, name)[..8].try_into().unwrap());
        let (one, other) = (number("one"), number("other"));
        let named = (one.saturating_sub(2)..one + 3).find(|round| has(&then, &round.to_string()));
        let order = named.map(|name| (one - other, other - name));
        assert!(
            matches!(order, Some((0, 0 | 1) | (1, 0))),
            "snapshot {index} has {one} in one file, {other} in the next, and the name {named:?}"
        );
    }
}

/// Makes the snapshot "now", and runs `during` while everybody stands still.
fn standing_still<'a>(mount: &Mount, during: impl Fn() -> Job<'a, ()> + Sync) {
    let during = &during;
    let submit = || -> Job<'_, Result<(), StoreError>> {
        Box::pin(async move {
            during().await;
            Ok(())
        })
    };
    block_on(mount.fs.store().create_snapshot_with("now", 1, &submit)).unwrap();
}

type Job<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A transaction is a change like any other. A write that had passed the gate may have ended before the
/// transaction began, and not be in the snapshot.
#[test]
fn a_transaction_that_begins_after_the_moment_is_not_in_it() {
    let mount = Mount::new();
    let ino = mount.create("file");
    mount.write(ino, 0, &pattern(1, 20_000));
    mount.fsync_placed(ino);
    let data = Bytes::from(pattern(2, 20_000));
    let steps = [Step { path: b"file".to_vec(), action: Action::Write { offset: 0, data } }];
    let late: Mutex<Job<'_, Result<(), NotCommitted>>> =
        Mutex::new(Box::pin(mount.fs.transact(CALLER, &steps)));
    standing_still(&mount, || Box::pin(async { assert!(polled(late.lock().as_mut()).is_pending()) }));
    block_on(late.into_inner()).unwrap();
    assert!(mount.read(ino, 0, 30_000) == pattern(2, 20_000));
    assert!(contents(&mount.snapshot(), "file") == pattern(1, 20_000));
}

/// Blocks that were freed before are promised to nobody until a checkpoint, and nobody can wait for one
/// during a standstill.
#[test]
fn nobody_is_refused_room_that_was_freed_before_the_moment() {
    let mount = Mount::sized(64 << 20, options());
    let [old, ino] = ["old", "file"].map(|name| mount.create(name));
    mount.allocate(ino, Allocation::Preallocate { keep_size: true }, 0, 4096).unwrap();
    (0..40).for_each(|at| mount.write(old, at << 20, &[7; 1 << 20]));
    block_on(mount.fs.syncfs()).unwrap();
    mount.unlink("old");
    mount.fs.forget(old, u64::MAX);
    block_on(mount.fs.wait_for_orphans());
    let inode = block_on(mount.fs.inode(ino)).unwrap();
    let writeback = inode.state.lock().data.writeback();
    let busy = Mutex::new(Some(block_on(writeback.lock_arc())));
    let preallocate = Allocation::Preallocate { keep_size: true };
    let mut begun: Job<'_, Result<(), FsError>> =
        Box::pin(mount.fs.allocate(ino, preallocate, 0, 30 << 20, false));
    assert!(polled(begun.as_mut()).is_pending(), "it waits for the write-back, and has passed the gate");
    let (begun, answer) = (Mutex::new(Some(begun)), Mutex::new(None));
    standing_still(&mount, || {
        Box::pin(async {
            drop(busy.lock().take());
            let begun = begun.lock().take().unwrap();
            let answered = begun.await;
            *answer.lock() = Some(answered);
        })
    });
    answer.into_inner().unwrap().unwrap();
    mount.check_items(ino);
}
