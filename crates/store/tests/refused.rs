//! A refused image stays as it was: opening reads everything it needs before it writes anything.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use syncline_device::{
    AlignedBuf, Background, Completion, Device, DeviceError, MemoryDevice, Operation, Spawn, WorkerOptions,
    block_on,
};
use syncline_format::{BLOCK_BYTES, Geometry, Key};
use syncline_store::{FormatOptions, Store, StoreOptions, Transaction, format};

const SIZE: u64 = 16 << 20;
const BLOCK: u64 = BLOCK_BYTES as u64;

/// A disk with one block that can't be read until it is written. It counts writes, and does not say
/// whether reads come from a cache.
struct Disk {
    memory: Arc<MemoryDevice>,
    unreadable: u64,
    written: AtomicU64,
}

impl Disk {
    fn new(memory: Arc<MemoryDevice>, unreadable: u64) -> Arc<Self> {
        Arc::new(Self { memory, unreadable, written: AtomicU64::new(0) })
    }

    fn written(&self) -> u64 {
        self.written.load(Ordering::SeqCst)
    }
}

impl Device for Disk {
    fn size_bytes(&self) -> u64 {
        self.memory.size_bytes()
    }

    fn reads_bypass_caches(&self) -> bool {
        false
    }

    fn read(&self, offset: u64, buf: AlignedBuf, done: Completion<AlignedBuf>) {
        let bad = self.unreadable * BLOCK;
        let len_bytes = buf.len() as u64;
        if self.written() == 0 && (offset..offset + len_bytes).contains(&bad) {
            let source = io::Error::other("a bad sector");
            return done(Err(DeviceError::io(Operation::Read, offset, len_bytes, source)));
        }
        self.memory.read(offset, buf, done);
    }

    fn write(&self, offset: u64, bufs: Vec<bytes::Bytes>, done: Completion<()>) {
        self.written.fetch_add(1, Ordering::SeqCst);
        self.memory.write(offset, bufs, done);
    }

    fn flush(&self, done: Completion<()>) {
        self.memory.flush(done);
    }

    fn discard(&self, offset: u64, len_bytes: u64, done: Completion<()>) {
        self.written.fetch_add(1, Ordering::SeqCst);
        self.memory.discard(offset, len_bytes, done);
    }
}

/// An image after a crash, with a log to replay.
fn crashed(spawn: &Arc<dyn Spawn>) -> Arc<MemoryDevice> {
    let device = MemoryDevice::new(SIZE);
    block_on(format(device.clone(), FormatOptions::default(), Transaction::new(), spawn.clone())).unwrap();
    let (store, _) = block_on(Store::open(device.clone(), StoreOptions::default(), spawn.clone())).unwrap();
    let put = |object: u64| {
        let mut transaction = Transaction::new();
        transaction.put(Key { object, kind: 1, offset: 0 }, vec![object as u8; 2000]);
        store.commit(transaction).unwrap()
    };
    (100..140).for_each(|object| {
        put(object);
    });
    block_on(store.checkpoint()).unwrap();
    for object in 200..220 {
        block_on(store.sync(put(object))).unwrap();
    }
    device.snapshot()
}

#[test]
fn whatever_is_wrong_with_it_a_refused_image_is_not_written_to() {
    let spawn: Arc<dyn Spawn> = Arc::new(Background::start(WorkerOptions::default()).unwrap());
    let image = crashed(&spawn);
    let bytes = image.image();
    let used: Vec<u64> = (0..SIZE / BLOCK)
        .filter(|block| bytes[(block * BLOCK) as usize..][..BLOCK_BYTES].iter().any(|byte| *byte != 0))
        .collect();
    let geometry = Geometry::superblock_copies_for(SIZE / BLOCK, 0);
    let (mut refused, mut opened) = (0, 0);
    for bad in [geometry[0], geometry[1], used[used.len() / 2]] {
        for &block in &used {
            for flips in [false, true] {
                let damaged = image.snapshot();
                let mut contents = bytes[(block * BLOCK) as usize..][..BLOCK_BYTES].to_vec();
                if flips {
                    contents[100] ^= 0x10;
                } else {
                    contents.fill(0);
                }
                let buf = AlignedBuf::copy_from(&contents).into_bytes();
                damaged.write(block * BLOCK, vec![buf], Box::new(|result| result.unwrap()));
                let disk = Disk::new(damaged, bad);
                match block_on(Store::open(disk.clone(), StoreOptions::default(), spawn.clone())) {
                    Ok((store, _)) => {
                        opened += 1;
                        block_on(store.close()).unwrap();
                    }
                    Err(error) => {
                        refused += 1;
                        assert_eq!(disk.written(), 0, "bad {bad}, damaged {block}: {error}");
                    }
                }
            }
        }
    }
    // Both must happen, or the test would show nothing.
    assert!(refused > 5 && opened > 20, "{refused} refused, {opened} opened of {} blocks", used.len());
}

/// An image that is read and closed before it has begun stays as it was, and is not marked as
/// unmounted.
#[test]
fn what_is_closed_before_it_has_begun_is_as_it_was() {
    let spawn: Arc<dyn Spawn> = Arc::new(Background::start(WorkerOptions::default()).unwrap());
    let device = crashed(&spawn);
    let before = device.image();
    let recover =
        || block_on(Store::recover(device.clone(), StoreOptions::default(), spawn.clone())).unwrap();
    let (recovered, report) = recover();
    assert!(!report.clean && report.batches > 0);
    let read = block_on(recovered.store().get(Key { object: 219, kind: 1, offset: 0 })).unwrap();
    assert_eq!(read.unwrap().len(), 2000);
    let store = recovered.store().clone();
    drop(recovered);
    block_on(store.close()).unwrap();
    assert!(device.image() == before);
    // After closing, it can't begin any more.
    let (recovered, _) = recover();
    block_on(recovered.store().close()).unwrap();
    assert!(block_on(recovered.begin()).is_err());
    assert!(device.image() == before);
    let (recovered, _) = recover();
    block_on(block_on(recovered.begin()).unwrap().close()).unwrap();
    let (recovered, report) = recover();
    assert!(report.clean && report.batches == 0);
    assert!(block_on(recovered.store().get(Key { object: 219, kind: 1, offset: 0 })).unwrap().is_some());
}
