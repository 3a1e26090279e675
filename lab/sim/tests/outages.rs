//! A nearly full filesystem whose device fails: no operation waits for itself, and accepted data is
//! written when the device is back.

use bytes::Bytes;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;
use syncline_device::{
    AlignedBuf, Background, Completion, Device, DeviceError, MemoryDevice, Operation, Spawn, WorkerOptions,
    block_on,
};
use syncline_fs::types::{Caller, FileType, Ino, ROOT, Timestamp};
use syncline_fs::{Filesystem, Options};
use syncline_store::{FormatOptions, Store, StoreOptions, format};

const CALLER: Caller = Caller { uid: 0, gid: 0 };

/// Once armed, the next write of at least 64 KiB of data creates a bad sector at its place.
struct Trap {
    inner: Arc<MemoryDevice>,
    armed: AtomicBool,
    bad: Mutex<Option<u64>>,
    /// The path to the device is down: every operation fails.
    gone: AtomicBool,
}

impl Device for Trap {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }
    fn read(&self, offset: u64, buf: AlignedBuf, done: Completion<AlignedBuf>) {
        self.inner.read(offset, buf, done);
    }
    fn write(&self, offset: u64, bufs: Vec<Bytes>, done: Completion<()>) {
        let len: u64 = bufs.iter().map(|buf| buf.len() as u64).sum();
        if len >= 64 << 10 && self.armed.swap(false, Ordering::SeqCst) {
            *self.bad.lock().unwrap() = Some(offset);
        }
        let bad = *self.bad.lock().unwrap();
        if self.gone.load(Ordering::SeqCst) {
            return done(Err(DeviceError::Abandoned { operation: Operation::Write }));
        }
        if bad.is_some_and(|bad| offset <= bad && bad < offset + len) {
            return done(Err(DeviceError::Abandoned { operation: Operation::Write }));
        }
        self.inner.write(offset, bufs, done);
    }
    fn flush(&self, done: Completion<()>) {
        if self.gone.load(Ordering::SeqCst) {
            return done(Err(DeviceError::Abandoned { operation: Operation::Flush }));
        }
        self.inner.flush(done);
    }
    fn discard(&self, offset: u64, len: u64, done: Completion<()>) {
        self.inner.discard(offset, len, done);
    }
}

fn rig() -> (Arc<dyn Spawn>, Arc<Trap>, Arc<Filesystem>) {
    let spawn: Arc<dyn Spawn> = Arc::new(Background::start(WorkerOptions::default()).unwrap());
    let memory = MemoryDevice::new(64 << 20);
    let root = Filesystem::initial_transaction(0, 0, 0o755, Timestamp { seconds: 1, nanoseconds: 0 });
    block_on(format(memory.clone(), FormatOptions::default(), root, spawn.clone())).unwrap();
    let trap =
        Arc::new(Trap { inner: memory, armed: false.into(), bad: Mutex::default(), gone: false.into() });
    let options = StoreOptions { checkpoint_interval: Duration::from_secs(3600), ..StoreOptions::default() };
    let (store, _) = block_on(Store::open(trap.clone(), options, spawn.clone())).unwrap();
    let fs = block_on(Filesystem::open(store, spawn.clone(), Options::default())).unwrap();
    (spawn, trap, fs)
}

fn make(fs: &Filesystem, name: &str) -> Ino {
    block_on(fs.mknod(CALLER, ROOT, name.as_bytes(), FileType::Regular, 0o644, 0)).unwrap().ino
}

/// Runs this on a separate thread; returns its result unless it takes too long.
fn within<T: Send + 'static>(seconds: u64, what: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || tell.send(what()));
    told.recv_timeout(Duration::from_secs(seconds)).ok()
}

/// Leaves about this many blocks for writers.
fn fill(fs: &Filesystem, left: u64) {
    let filler = make(fs, "filler");
    let mut at = 0;
    while fs.store().available_data_blocks() > left {
        let len = if fs.store().available_data_blocks() > left + 512 { 1 << 20 } else { 64 << 10 };
        block_on(fs.write(filler, at, Bytes::from(vec![1; len]), false)).unwrap();
        at += len as u64;
    }
    block_on(fs.syncfs()).unwrap();
}

/// A bad sector below a file's new data, and a write to the same file that finds little room: the
/// write makes a checkpoint while it holds the file's lease, the checkpoint leaves the log, and
/// that needs the lease.
#[test]
fn a_write_that_makes_room_does_not_wait_for_itself() {
    let (_spawn, trap, fs) = rig();
    fill(&fs, 1024);
    let file = make(&fs, "file");
    block_on(fs.write(file, 0, Bytes::from(vec![2; 256 << 10]), false)).unwrap();
    trap.armed.store(true, Ordering::SeqCst);
    // Names the data whose write fails (as a rename over another file does), and waits for nothing.
    block_on(fs.barrier(&[file])).unwrap();
    assert!(trap.bad.lock().unwrap().is_some());
    let inner = fs.clone();
    // Writes one MiB after another: sooner or later no room is left.
    let written = within(20, move || {
        for n in 1..64 {
            if let Err(error) = block_on(inner.write(file, n << 20, Bytes::from(vec![3; 1 << 20]), false)) {
                return format!("{error}");
            }
        }
        "all of it".to_owned()
    });
    let inner = fs.clone();
    let other = make(&fs, "other");
    let synced = within(20, move || block_on(inner.fsync(other, false)));
    assert!(written.is_some(), "write(2) never returned; an fsync of another file within 20 s: {synced:?}");
}

/// The path to the device is down for a second, on a nearly full filesystem. Data accepted before
/// must be written afterwards, although the only room left is blocks that are quarantined because
/// of the outage.
#[test]
fn data_that_was_accepted_is_written_after_an_outage() {
    let (_spawn, trap, fs) = rig();
    let file = make(&fs, "file");
    let last = make(&fs, "last");
    fill(&fs, 330);
    // More exactly: with everything in the tree, fill until 300 blocks are left.
    let mut at = 0;
    loop {
        block_on(fs.syncfs()).unwrap();
        let left = fs.store().available_data_blocks();
        if left <= 300 {
            break;
        }
        let len = ((left - 290) << 12).min(256 << 10);
        block_on(fs.write(last, at, Bytes::from(vec![1; len as usize]), false)).unwrap();
        at += len;
    }
    let contents = vec![2; 1 << 20];
    block_on(fs.write(file, 0, Bytes::from(contents.clone()), false)).unwrap();
    trap.gone.store(true, Ordering::SeqCst);
    assert!(block_on(fs.syncfs()).is_err(), "the device is away");
    trap.gone.store(false, Ordering::SeqCst);
    // The first of these may still report the failure.
    let synced: Vec<_> = (0..5)
        .map(|_| {
            std::thread::sleep(Duration::from_millis(300));
            block_on(fs.fsync(file, false)).map_err(|error| error.to_string())
        })
        .collect();
    let closed = block_on(fs.close()).map_err(|error| error.to_string());
    let closed = (closed, block_on(fs.store().close()).map_err(|error| error.to_string()));
    let spawn: Arc<dyn Spawn> = Arc::new(Background::start(WorkerOptions::default()).unwrap());
    let (store, _) =
        block_on(Store::open(trap.inner.snapshot(), StoreOptions::default(), spawn.clone())).unwrap();
    let fs = block_on(Filesystem::open(store, spawn.clone(), Options::default())).unwrap();
    let found = block_on(fs.lookup(ROOT, b"file"));
    let size = found.as_ref().map(|found| found.size).ok();
    assert!(
        synced.last().unwrap().is_ok(),
        "the device is back: {synced:?}, unmounted: {closed:?}, then the file has {size:?} bytes"
    );
    let read = block_on(fs.read(found.unwrap().ino, 0, contents.len() + 1)).unwrap().concat();
    assert!(read == contents, "the file after the unmount");
}
