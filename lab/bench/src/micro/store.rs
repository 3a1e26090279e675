//! The store and the log.

use super::{Numbers, Routine};
use crate::BenchError;
use bytes::Bytes;
use std::hint::black_box;
use std::sync::Arc;
use syncline_device::{Background, MemoryDevice, Spawn, WorkerOptions, block_on};
use syncline_format::superblock::LogStart;
use syncline_format::{BlockRun, Key};
use syncline_log::{Chain, Pending, Stamp};
use syncline_store::{Admission, FormatOptions, OpSeq, Store, StoreError, StoreOptions, Transaction, format};

/// Size of the device, in memory.
const DEVICE_BYTES: u64 = 256 << 20;
/// Number of objects that change.
const OBJECTS: u64 = 10_000;
/// Items of an object, and the length of each: an inode with a name and an attribute.
const ITEMS: u64 = 3;
const VALUE_BYTES: usize = 120;
/// Number of items in the batch that is sealed.
const SEALED: u64 = 1000;

/// A store, and the thread that its background work runs on.
struct Opened {
    store: Arc<Store>,
    numbers: Numbers,
    value: Bytes,
    _spawn: Arc<dyn Spawn>,
}

fn failed(error: StoreError) -> BenchError {
    BenchError::Engine { what: "the store", said: error.to_string() }
}

fn key(object: u64, item: u64) -> Key {
    Key { object, kind: item as u8, offset: item }
}

impl Opened {
    fn new() -> Result<Self, BenchError> {
        let spawn: Arc<dyn Spawn> = Arc::new(Background::start(WorkerOptions::default())?);
        let device = MemoryDevice::new(DEVICE_BYTES);
        block_on(format(device.clone(), FormatOptions::default(), Transaction::new(), spawn.clone()))
            .map_err(failed)?;
        let opened = block_on(Store::open(device, StoreOptions::default(), spawn.clone()));
        let (store, _) = opened.map_err(failed)?;
        Ok(Self { store, numbers: Numbers::new(), value: vec![7; VALUE_BYTES].into(), _spawn: spawn })
    }

    fn commit(&mut self) -> Result<OpSeq, StoreError> {
        let _room = block_on(self.store.admit(Admission::Grow))?;
        let object = self.numbers.below(OBJECTS);
        let mut transaction = Transaction::new();
        for item in 0..ITEMS {
            transaction.put(key(object, item), self.value.clone());
        }
        self.store.commit(transaction)
    }
}

/// A commit, with any waiting for memory or log.
pub(super) fn transaction() -> Result<Routine, BenchError> {
    let mut opened = Opened::new()?;
    Ok(Box::new(move || {
        black_box(opened.commit().expect("memory does not fail, and the same objects need no more room"));
    }))
}

/// The whole path of an fsync without data, except the device.
pub(super) fn synced() -> Result<Routine, BenchError> {
    let mut opened = Opened::new()?;
    Ok(Box::new(move || {
        let op = opened.commit().expect("memory does not fail, and the same objects need no more room");
        block_on(opened.store.sync(op)).expect("memory does not fail");
    }))
}

/// Looking up an item that is in the memtable or in a cached node.
pub(super) fn lookup() -> Result<Routine, BenchError> {
    let mut opened = Opened::new()?;
    for object in 0..OBJECTS {
        let mut transaction = Transaction::new();
        transaction.put(key(object, 0), opened.value.clone());
        opened.store.commit(transaction).map_err(failed)?;
        if object == OBJECTS / 2 {
            // Half of them in the tree, half in memory.
            block_on(opened.store.checkpoint()).map_err(failed)?;
        }
    }
    Ok(Box::new(move || {
        let object = opened.numbers.below(OBJECTS);
        let found = block_on(opened.store.get(key(object, 0))).expect("memory does not fail");
        black_box(found.expect("it was put there"));
    }))
}

/// Sealing one batch of items that are already in log form.
pub(super) fn seal() -> Result<Routine, BenchError> {
    let mut pending = Pending::default();
    for object in 0..SEALED {
        pending.put(key(object, 0), &[7; VALUE_BYTES]);
    }
    let segment = BlockRun::new(1024, 1024);
    let end = LogStart::first_in(segment, 1, 0);
    let stamp = Stamp { generation: 1, durable_seq: 0, op_seq: SEALED };
    Ok(Box::new(move || {
        let mut chain = Chain::new([1; 16], segment.blocks, end, 0);
        black_box(chain.seal(black_box(&pending), stamp, None));
    }))
}
