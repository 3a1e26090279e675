//! Shared by these tests: stores in memory, and devices that fail or are slow.

use bytes::Bytes;
use std::io;
use std::ops::Range;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak, mpsc};
use std::time::Duration;
use syncline_device::{
    AlignedBuf, Background, Completion, Device, DeviceError, MemoryDevice, Operation, Spawn, WorkerOptions,
    block_on,
};
use syncline_format::{BlockRun, Key};
use syncline_store::{
    DataWrite, FormatOptions, OpSeq, Relocate, Store, StoreError, StoreOptions, Transaction, format,
};

pub fn background() -> Arc<dyn Spawn> {
    Arc::new(Background::start(WorkerOptions::default()).unwrap())
}

/// An empty image of `mib` MiB.
pub fn image(mib: u64, spawn: &Arc<dyn Spawn>) -> Arc<MemoryDevice> {
    let device = MemoryDevice::new(mib << 20);
    block_on(format(device.clone(), FormatOptions::default(), Transaction::new(), spawn.clone())).unwrap();
    device
}

pub fn open(device: Arc<dyn Device>, options: StoreOptions, spawn: &Arc<dyn Spawn>) -> Arc<Store> {
    block_on(Store::open(device, options, spawn.clone())).unwrap().0
}

/// An open store of 64 MiB, with its device.
pub fn bench(options: StoreOptions) -> (Arc<dyn Spawn>, Arc<Unruly>, Arc<Store>) {
    let spawn = background();
    let device = Unruly::new(image(64, &spawn));
    let store = open(device.clone(), options, &spawn);
    (spawn, device, store)
}

/// Options under which no checkpoint starts by itself.
pub fn quiet() -> StoreOptions {
    StoreOptions { checkpoint_interval: Duration::from_secs(3600), ..StoreOptions::default() }
}

pub fn key(object: u64) -> Key {
    Key { object, kind: 1, offset: 0 }
}

pub fn block(fill: u8) -> Bytes {
    AlignedBuf::copy_from(&[fill; 4096]).into_bytes()
}

/// Commits one item.
pub fn put(store: &Store, object: u64, value: impl Into<Bytes>) -> OpSeq {
    let mut transaction = Transaction::new();
    transaction.put(key(object), value);
    store.commit(transaction).unwrap()
}

/// Allocates free contiguous blocks for data.
pub fn allocate(store: &Arc<Store>, blocks: u64) -> BlockRun {
    let mut room = block_on(store.reserve(blocks)).unwrap();
    let run = store.allocate(&mut room, blocks, None).unwrap();
    assert_eq!(run.blocks, blocks);
    run
}

/// Writes data there that consists of the byte `fill`.
pub fn write(store: &Store, run: BlockRun, fill: u8) -> DataWrite {
    store.write_data(run, vec![block(fill); run.blocks as usize])
}

/// Commits an item that names data.
pub fn name(store: &Store, object: u64, run: BlockRun, data: &DataWrite) -> OpSeq {
    let mut names = Transaction::new();
    names.name_data(data, run);
    names.put(key(object), "names the data");
    store.commit(names).unwrap()
}

/// Commits that an item does not have its data any more.
pub fn give_up(store: &Store, object: u64, run: BlockRun) -> OpSeq {
    let mut frees = Transaction::new();
    frees.free(run);
    frees.put(key(object), "has it no more");
    store.commit(frees).unwrap()
}

/// Installs a relocation for data that can't be written: it reports when it begins, and continues
/// when told to, or when nobody is left to tell it. The data is that of object 100.
pub fn place_elsewhere(store: &Arc<Store>) -> (mpsc::Receiver<()>, mpsc::Sender<()>) {
    let ((begin, begun), (go, go_on)) = (mpsc::channel(), mpsc::channel());
    let (begun_by, store_of) = (Mutex::new(begin), Arc::downgrade(store));
    store.set_relocation(Arc::new(Elsewhere { store: store_of, begun: begun_by, go_on: Mutex::new(go_on) }));
    (begun, go)
}

struct Elsewhere {
    store: Weak<Store>,
    begun: Mutex<mpsc::Sender<()>>,
    go_on: Mutex<mpsc::Receiver<()>>,
}

impl Relocate for Elsewhere {
    fn relocate(&self, run: BlockRun) -> Pin<Box<dyn Future<Output = Result<(), StoreError>> + Send + '_>> {
        Box::pin(async move {
            let _ = self.begun.lock().unwrap().send(());
            let _ = self.go_on.lock().unwrap().recv();
            give_up(&self.store.upgrade().unwrap(), 100, run);
            Ok(())
        })
    }
}

/// A memory device that misbehaves as told.
pub struct Unruly {
    pub inner: Arc<MemoryDevice>,
    /// Flushes begin after this many milliseconds.
    pub flush_delay_ms: AtomicU64,
    /// Flushes fail.
    pub flush_fails: AtomicBool,
    /// A write and the flush behind it are one request, as on a disk without FUA.
    pub writes_through: AtomicBool,
    /// The next write to this byte fails and does nothing. Zero means none.
    pub fail_once_at: AtomicU64,
    /// The next write fails and does nothing.
    pub fail_next: AtomicBool,
    /// Writes below this byte take place but are reported as failed.
    pub doubtful_below: AtomicU64,
    /// Writes to these bytes fail and do nothing.
    pub bad: parking_lot::Mutex<Range<u64>>,
    /// Reads of these bytes fail.
    pub unreadable: parking_lot::Mutex<Range<u64>>,
    /// Nothing works.
    pub gone: AtomicBool,
    /// Another host has it: no write and no flush works any more.
    pub lost: AtomicBool,
}

impl Unruly {
    pub fn new(inner: Arc<MemoryDevice>) -> Arc<Self> {
        Arc::new(Self {
            inner,
            flush_delay_ms: 0.into(),
            flush_fails: false.into(),
            writes_through: false.into(),
            fail_once_at: 0.into(),
            fail_next: false.into(),
            doubtful_below: 0.into(),
            bad: Default::default(),
            unreadable: Default::default(),
            gone: false.into(),
            lost: false.into(),
        })
    }

    /// Writes to these blocks fail from now on.
    pub fn spoil(&self, blocks: Range<u64>) {
        *self.bad.lock() = bytes_of(blocks);
    }

    /// From now on, this block can be neither read nor written.
    pub fn lose(&self, block: u64) {
        self.spoil(block..block + 1);
        *self.unreadable.lock() = bytes_of(block..block + 1);
    }
}

fn bytes_of(blocks: Range<u64>) -> Range<u64> {
    blocks.start * 4096..blocks.end * 4096
}

fn hits(bytes: &parking_lot::Mutex<Range<u64>>, offset: u64, len: u64) -> bool {
    let bytes = bytes.lock();
    bytes.start < offset + len && offset < bytes.end
}

fn failed(operation: Operation) -> DeviceError {
    DeviceError::Abandoned { operation }
}

fn taken(operation: Operation) -> DeviceError {
    let source = io::Error::new(io::ErrorKind::StaleNetworkFileHandle, "another host has it");
    DeviceError::io(operation, 0, 0, source)
}

impl Device for Unruly {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }
    fn read(&self, offset: u64, buf: AlignedBuf, done: Completion<AlignedBuf>) {
        if hits(&self.unreadable, offset, buf.len() as u64) {
            return done(Err(failed(Operation::Read)));
        }
        self.inner.read(offset, buf, done);
    }
    fn write(&self, offset: u64, bufs: Vec<Bytes>, done: Completion<()>) {
        if self.lost.load(Ordering::SeqCst) {
            return done(Err(taken(Operation::Write)));
        }
        let len = bufs.iter().map(|buf| buf.len() as u64).sum();
        let once = self.fail_once_at.compare_exchange(offset, 0, Ordering::SeqCst, Ordering::SeqCst);
        let gone = self.gone.load(Ordering::SeqCst);
        let next = self.fail_next.swap(false, Ordering::SeqCst);
        if (offset != 0 && once.is_ok()) || next || gone || hits(&self.bad, offset, len) {
            return done(Err(failed(Operation::Write)));
        }
        if offset < self.doubtful_below.load(Ordering::SeqCst) {
            return self.inner.write(offset, bufs, Box::new(|_| done(Err(failed(Operation::Write)))));
        }
        self.inner.write(offset, bufs, done);
    }
    fn writes_through(&self) -> bool {
        self.writes_through.load(Ordering::SeqCst)
    }
    fn write_through(&self, offset: u64, bufs: Vec<Bytes>, done: Completion<()>) {
        let inner = self.inner.clone();
        self.write(
            offset,
            bufs,
            Box::new(move |written| match written {
                Ok(()) => inner.flush(done),
                Err(error) => done(Err(error)),
            }),
        );
    }
    fn flush(&self, done: Completion<()>) {
        if self.lost.load(Ordering::SeqCst) {
            return done(Err(taken(Operation::Flush)));
        }
        if self.gone.load(Ordering::SeqCst) || self.flush_fails.load(Ordering::SeqCst) {
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
