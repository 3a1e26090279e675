//! What these tests share: stores in memory, and devices that fail or take their time.

use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use syncline_device::{
    AlignedBuf, Background, Completion, Device, DeviceError, MemoryDevice, Operation, Spawn, WorkerOptions,
    block_on,
};
use syncline_format::Key;
use syncline_store::{FormatOptions, Store, StoreOptions, Transaction, format};

pub fn background() -> Arc<dyn Spawn> {
    Arc::new(Background::start(WorkerOptions::default()).unwrap())
}

/// An empty image of so many MiB.
pub fn image(mib: u64, spawn: &Arc<dyn Spawn>) -> Arc<MemoryDevice> {
    let device = MemoryDevice::new(mib << 20);
    block_on(format(device.clone(), FormatOptions::default(), Transaction::new(), spawn.clone())).unwrap();
    device
}

pub fn open(device: Arc<dyn Device>, options: StoreOptions, spawn: &Arc<dyn Spawn>) -> Arc<Store> {
    block_on(Store::open(device, options, spawn.clone())).unwrap().0
}

pub fn key(object: u64) -> Key {
    Key { object, kind: 1, offset: 0 }
}

pub fn block(fill: u8) -> Bytes {
    AlignedBuf::copy_from(&[fill; 4096]).into_bytes()
}

/// Memory that does as it is told.
pub struct Unruly {
    pub inner: Arc<MemoryDevice>,
    /// Flushes begin after so many milliseconds.
    pub flush_delay_ms: AtomicU64,
    /// The next write to this byte fails and does nothing. Zero for none.
    pub fail_once_at: AtomicU64,
    /// Writes below this byte take place and are said to have failed.
    pub doubtful_below: AtomicU64,
    /// Writes to these bytes fail and do nothing.
    pub bad: parking_lot::Mutex<Option<std::ops::Range<u64>>>,
    /// Nothing works.
    pub gone: AtomicBool,
}

impl Unruly {
    pub fn new(inner: Arc<MemoryDevice>) -> Arc<Self> {
        Arc::new(Self {
            inner,
            flush_delay_ms: 0.into(),
            fail_once_at: 0.into(),
            doubtful_below: 0.into(),
            bad: Default::default(),
            gone: false.into(),
        })
    }

    fn is_bad(&self, offset: u64, len: u64) -> bool {
        let hit = |bad: &std::ops::Range<u64>| bad.start < offset + len && offset < bad.end;
        self.gone.load(Ordering::SeqCst) || self.bad.lock().as_ref().is_some_and(hit)
    }
}

fn failed(operation: Operation) -> DeviceError {
    DeviceError::Abandoned { operation }
}

impl Device for Unruly {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }
    fn read(&self, offset: u64, buf: AlignedBuf, done: Completion<AlignedBuf>) {
        self.inner.read(offset, buf, done);
    }
    fn write(&self, offset: u64, bufs: Vec<Bytes>, done: Completion<()>) {
        let len = bufs.iter().map(|buf| buf.len() as u64).sum();
        let once = self.fail_once_at.compare_exchange(offset, 0, Ordering::SeqCst, Ordering::SeqCst);
        if (offset != 0 && once.is_ok()) || self.is_bad(offset, len) {
            return done(Err(failed(Operation::Write)));
        }
        if offset < self.doubtful_below.load(Ordering::SeqCst) {
            return self.inner.write(offset, bufs, Box::new(|_| done(Err(failed(Operation::Write)))));
        }
        self.inner.write(offset, bufs, done);
    }
    fn flush(&self, done: Completion<()>) {
        if self.gone.load(Ordering::SeqCst) {
            return done(Err(failed(Operation::Flush)));
        }
        let (inner, delay) = (self.inner.clone(), self.flush_delay_ms.load(Ordering::SeqCst));
        if delay == 0 {
            return inner.flush(done);
        }
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(delay));
            inner.flush(done);
        });
    }
    fn discard(&self, offset: u64, len: u64, done: Completion<()>) {
        self.inner.discard(offset, len, done);
    }
}
