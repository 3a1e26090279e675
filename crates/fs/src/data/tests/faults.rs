//! Writes that fail, writes that take long, callers that give up.

use super::*;
use crate::data::flush::writeback::write_back;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use syncline_device::{AlignedBuf, Completion, DeviceError, Operation};
use syncline_format::BLOCK_BYTES;
use syncline_store::{Canary, Lab};

/// A device whose writes can be made to fail or to wait, and whose reads can be made to fail.
pub(super) struct Moody {
    below: Arc<MemoryDevice>,
    pub(super) fail: AtomicBool,
    pub(super) fail_reads: AtomicBool,
    /// Every so many of the writes of at least 16 KiB fail; 0: none.
    pub(super) fail_every: AtomicUsize,
    large_writes: AtomicUsize,
    /// Writes of at least this many bytes wait.
    hold_bytes_min: AtomicUsize,
    held: Mutex<Vec<Held>>,
}

type Held = (u64, Vec<Bytes>, Completion<()>);

impl Moody {
    /// Makes writes wait from now on.
    pub(super) fn hold(&self) {
        self.hold_from(0);
    }

    /// Makes writes of at least this many bytes wait from now on.
    pub(super) fn hold_from(&self, bytes_min: usize) {
        self.hold_bytes_min.store(bytes_min, Ordering::SeqCst);
    }

    /// Carries out the writes that wait; later ones do not wait any more.
    pub(super) fn release(&self) {
        self.hold_from(usize::MAX);
        for (offset, bufs, done) in std::mem::take(&mut *self.held.lock()) {
            self.below.write(offset, bufs, done);
        }
    }

    /// Carries out the writes that wait; later ones wait as before.
    pub(super) fn release_and_hold(&self) {
        let held = std::mem::take(&mut *self.held.lock());
        held.into_iter().for_each(|(offset, bufs, done)| self.below.write(offset, bufs, done));
    }

    /// Carries out the first of the writes that wait and fails the others; later ones wait as before.
    pub(super) fn release_one(&self) {
        let mut held = std::mem::take(&mut *self.held.lock());
        held.sort_by_key(|(offset, _, _)| *offset);
        for (index, (offset, bufs, done)) in held.into_iter().enumerate() {
            match index {
                0 => self.below.write(offset, bufs, done),
                _ => done(Err(DeviceError::Abandoned { operation: Operation::Write })),
            }
        }
    }

    /// Fails the writes that wait; later ones do not wait any more.
    pub(super) fn release_failing(&self) {
        self.hold_from(usize::MAX);
        self.fail_held();
    }

    /// Fails the writes that wait; later ones wait as before.
    pub(super) fn fail_held(&self) {
        for (_, _, done) in std::mem::take(&mut *self.held.lock()) {
            done(Err(DeviceError::Abandoned { operation: Operation::Write }));
        }
    }

    pub(super) fn wait_for_held(&self, count: usize) {
        self.wait_until(|held| held.len() >= count);
    }

    /// Waits for held writes by their blocks: a round may be several writes, one after the other.
    pub(super) fn wait_for_held_blocks(&self, blocks: u64) {
        let bytes = |held: &[Held]| held.iter().flat_map(|(_, bufs, _)| bufs).map(Bytes::len).sum::<usize>();
        self.wait_until(|held| bytes(held) as u64 >= blocks * BLOCK_BYTES as u64);
    }

    fn wait_until(&self, enough: impl Fn(&[Held]) -> bool) {
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(120);
        while !enough(&self.held.lock()) {
            assert!(std::time::Instant::now() < deadline, "the write did not come");
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }
}

impl Device for Moody {
    fn size_bytes(&self) -> u64 {
        self.below.size_bytes()
    }
    fn read(&self, offset: u64, buf: AlignedBuf, done: Completion<AlignedBuf>) {
        if self.fail_reads.load(Ordering::SeqCst) {
            return done(Err(DeviceError::Abandoned { operation: Operation::Read }));
        }
        self.below.read(offset, buf, done);
    }
    fn write(&self, offset: u64, bufs: Vec<Bytes>, done: Completion<()>) {
        if self.fail.load(Ordering::SeqCst) {
            return done(Err(DeviceError::Abandoned { operation: Operation::Write }));
        }
        let bytes: usize = bufs.iter().map(Bytes::len).sum();
        let every = self.fail_every.load(Ordering::SeqCst);
        if every > 0
            && bytes >= 16 << 10
            && self.large_writes.fetch_add(1, Ordering::SeqCst).is_multiple_of(every)
        {
            return done(Err(DeviceError::Abandoned { operation: Operation::Write }));
        }
        if bytes >= self.hold_bytes_min.load(Ordering::SeqCst) {
            self.held.lock().push((offset, bufs, done));
            return;
        }
        self.below.write(offset, bufs, done);
    }
    fn flush(&self, done: Completion<()>) {
        self.below.flush(done);
    }
    fn discard(&self, offset: u64, len_bytes: u64, done: Completion<()>) {
        self.below.discard(offset, len_bytes, done);
    }
}

pub(super) fn moody(options: Options) -> (Arc<Moody>, Mount) {
    moody_breaking(None, options)
}

/// A mount on a `Moody` device, with a rule that is broken on purpose.
pub(super) fn moody_breaking(canary: Option<Canary>, options: Options) -> (Arc<Moody>, Mount) {
    moody_sized(64 << 20, canary, options)
}

/// The same on an image of this size.
pub(super) fn moody_sized(size_bytes: u64, canary: Option<Canary>, options: Options) -> (Arc<Moody>, Mount) {
    let Mount { fs, device, spawn, options } = Mount::sized(size_bytes, options);
    block_on(fs.close()).unwrap();
    block_on(fs.store().close()).unwrap();
    drop(fs);
    let wrapper = Arc::new(Moody {
        below: device.clone(),
        fail: AtomicBool::new(false),
        fail_reads: AtomicBool::new(false),
        fail_every: AtomicUsize::new(0),
        large_writes: AtomicUsize::new(0),
        hold_bytes_min: AtomicUsize::new(usize::MAX),
        held: Mutex::default(),
    });
    let store_options = StoreOptions { lab: Lab::breaking(canary), ..StoreOptions::default() };
    let (store, _) = block_on(Store::open(wrapper.clone(), store_options, spawn.clone())).unwrap();
    let fs = block_on(Filesystem::open(store, spawn.clone(), options.clone())).unwrap();
    (wrapper, Mount { fs, device, spawn, options })
}

/// The file's extents are in leaves that have not been read yet.
#[test]
fn what_could_not_be_removed_while_the_device_failed_is_removed_later() {
    let (device, mount) = moody(options());
    let ino = mount.create("file");
    for block in 0..3000 {
        mount.write(ino, block * 8192, &[7; 4096]);
    }
    mount.fsync_placed(ino);
    let Mount { fs, device: below, spawn, options } = mount;
    block_on(fs.close()).unwrap();
    block_on(fs.store().close()).unwrap();
    drop(fs);
    let mount = Mount::open_through(device.clone(), below, spawn, options);
    let ino = mount.find("file");
    device.fail_reads.store(true, Ordering::SeqCst);
    mount.unlink("file");
    mount.fs.forget(ino, 1);
    block_on(mount.fs.wait_for_orphans());
    assert_eq!(mount.fs.counters().orphans_removed, 0, "its extents can't be read");
    device.fail_reads.store(false, Ordering::SeqCst);
    mount.fs.statfs();
    block_on(mount.fs.wait_for_orphans());
    assert_eq!(mount.fs.counters().orphans_removed, 1);
}

#[test]
fn a_failed_write_back_is_reported_once_and_tried_again() {
    let (device, mount) = moody(options());
    let ino = mount.create("file");
    mount.fsync(ROOT);
    mount.write(ino, 0, &pattern(1, 100_000));
    let inode = block_on(mount.fs.inode(ino)).unwrap();
    let used = mount.fs.store().space().named;
    device.fail.store(true, Ordering::SeqCst);
    block_on(write_back(&mount.fs, &inode)).unwrap_err();
    device.fail.store(false, Ordering::SeqCst);
    assert!(inode.state.lock().data.has_dirty(), "the data stays in memory (P5)");
    assert_eq!(mount.read(ino, 0, 200_000), pattern(1, 100_000));
    assert_eq!(block_on(mount.fs.fsync(ino, false)).unwrap_err().errno(), 5);
    // That fsync really tried to write, and so does the next one.
    mount.fsync(ino);
    mount.check_items(ino);
    assert_eq!(mount.fs.store().space().named, used + 25, "what failed was given back");
    let after = mount.crash();
    assert_eq!(after.read(after.find("file"), 0, 200_000), pattern(1, 100_000));
}

#[test]
fn a_writer_over_the_limit_learns_of_a_broken_device() {
    let limits = Options { dirty_bytes_max: 1 << 20, writeback_start_bytes: 1 << 20, ..options() };
    let (device, mount) = moody(limits);
    let ino = mount.create("file");
    device.fail.store(true, Ordering::SeqCst);
    let written =
        (0..100).take_while(|index| mount.try_write(ino, index * 65536, &[1; 65536]).is_ok()).count();
    assert_eq!(written, 16);
    device.fail.store(false, Ordering::SeqCst);
    mount.write(ino, 16 * 65536, &[1; 65536]);
    assert!(block_on(mount.fs.fsync(ino, false)).is_err());
    mount.fsync(ino);
    assert_eq!(mount.read(ino, 0, 17 * 65536), vec![1; 17 * 65536]);
}

#[test]
fn truncation_and_overwrite_while_blocks_are_in_flight() {
    let (device, mount) = moody(options());
    let ino = mount.create("file");
    let mut expected = pattern(2, 300_000);
    mount.write(ino, 0, &expected);
    let inode = block_on(mount.fs.inode(ino)).unwrap();
    device.hold();
    std::thread::scope(|scope| {
        let job = scope.spawn(|| block_on(write_back(&mount.fs, &inode)));
        device.wait_for_held(1);
        // Everything is in flight now.
        assert_eq!(mount.read(ino, 0, 400_000), expected);
        mount.write(ino, 5_000, b"newer than what is in flight");
        expected[5_000..5_028].copy_from_slice(b"newer than what is in flight");
        mount.truncate(ino, 100_001).unwrap();
        mount.truncate(ino, 200_000).unwrap();
        expected.truncate(100_001);
        expected.resize(200_000, 0);
        mount.write(ino, 150_000, &[3; 10_000]);
        expected[150_000..160_000].fill(3);
        assert_eq!(mount.read(ino, 0, 400_000), expected);
        device.release();
        job.join().unwrap().unwrap();
    });
    assert_eq!(mount.read(ino, 0, 400_000), expected);
    mount.check_items(ino);
    assert!(mount.fs.counters().stale_bytes >= 200_000 - 4096, "the truncated blocks were not named");
    mount.fsync(ino);
    assert_eq!(mount.read(ino, 0, 400_000), expected);
    mount.check_items(ino);
    let mount = mount.crash();
    let ino = mount.find("file");
    assert_eq!(mount.read(ino, 0, 400_000), expected);
}

#[test]
fn a_file_removed_while_its_blocks_are_in_flight() {
    let (device, mount) = moody(options());
    let named = mount.fs.store().space().named;
    let ino = mount.create("file");
    mount.write(ino, 0, &pattern(3, 100_000));
    let inode = block_on(mount.fs.inode(ino)).unwrap();
    device.hold();
    std::thread::scope(|scope| {
        let job = scope.spawn(|| block_on(write_back(&mount.fs, &inode)));
        device.wait_for_held(1);
        mount.unlink("file");
        mount.fs.forget(ino, 1);
        device.release();
        job.join().unwrap().unwrap();
    });
    drop(inode);
    let mount = mount.reopen();
    assert!(block_on(mount.fs.getattr(ino)).is_err(), "late write-back must not bring the inode back");
    assert!(mount.fs.store().space().named <= named + 64);
}

#[test]
fn a_caller_that_gives_up_loses_nothing() {
    let (device, mount) = moody(options());
    let ino = mount.create("file");
    mount.fsync(ROOT);
    mount.write(ino, 0, &pattern(4, 3 << 20));
    device.hold();
    {
        let fsync = std::pin::pin!(mount.fs.fsync(ino, false));
        let polled = block_on(futures_lite::future::poll_once(fsync));
        assert!(polled.is_none(), "it waits for the write");
    }
    device.wait_for_held(1);
    let inode = block_on(mount.fs.inode(ino)).unwrap();
    assert!(inode.state.lock().data.blocks.in_flight() == 0, "given up: dirty again");
    assert_eq!(mount.read(ino, 0, 4 << 20), pattern(4, 3 << 20));
    device.release();
    mount.fsync(ino);
    mount.check_items(ino);
    let after = mount.crash();
    assert_eq!(after.read(after.find("file"), 0, 4 << 20), pattern(4, 3 << 20));
}

#[test]
fn a_truncation_of_very_many_extents() {
    let mount = Mount::sized(256 << 20, options());
    let ino = mount.create("fragments");
    // Every other block, so that each is an extent of its own.
    for block in 0..9000u64 {
        mount.write(ino, block * 8192, &[block as u8; 4096]);
    }
    block_on(mount.fs.syncfs()).unwrap();
    assert_eq!(mount.blocks(ino), 9000 * 8);
    let op = mount.fs.store().last_op().0;
    mount.truncate(ino, 100).unwrap();
    assert_eq!(mount.fs.store().last_op().0 - op, 2, "one transaction for the size, one for the rest");
    mount.check_items(ino);
    assert_eq!(mount.read(ino, 0, 1000), [0; 100]);
    mount.write(ino, 0, &[1; 4096]);
    mount.fsync(ino);
    assert_eq!(mount.blocks(ino), 8);
    let mount = mount.reopen();
    assert_eq!(mount.read(mount.find("fragments"), 0, 10_000), [1; 4096]);
}

/// The messages of a thread.
struct Log(Arc<Mutex<Vec<String>>>);

impl tracing::Subscriber for Log {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        let mut each = |field: &tracing::field::Field, value: &dyn std::fmt::Debug| {
            if field.name() == "message" {
                self.0.lock().push(format!("{value:?}"));
            }
        };
        event.record(&mut each);
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

/// If a filesystem gave up writing, the log must not promise that it tries again.
#[test]
fn what_is_not_written_back_is_told_of_as_what_becomes_of_it() {
    let (device, mount) = moody(options());
    let told = |gives_up: bool| {
        let ino = mount.create(if gives_up { "one" } else { "other" });
        mount.write(ino, 0, &pattern(1, 100_000));
        let inode = block_on(mount.fs.inode(ino)).unwrap();
        if gives_up {
            mount.fs.store().shut_down("of a test");
        } else {
            device.fail.store(true, Ordering::SeqCst);
        }
        let log = Arc::new(Mutex::default());
        let written =
            tracing::subscriber::with_default(Log(log.clone()), || block_on(write_back(&mount.fs, &inode)));
        written.unwrap_err();
        device.fail.store(false, Ordering::SeqCst);
        let told =
            log.lock().iter().filter(|line| line.contains("could not be written back")).cloned().collect();
        let told: Vec<String> = told;
        let [line] = &told[..] else { panic!("{told:?}") };
        line.clone()
    };
    assert!(told(false).contains("is tried again"));
    assert!(told(true).contains("its unsynced data is lost"));
}
