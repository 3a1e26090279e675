//! The start of every life of the store: an image with a tree of two levels, and some data for each
//! task.

use super::history::Placed;
use crate::search::Search;
use crate::time::{Spawner, Time};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use syncline_device::{AlignedBuf, MemoryDevice};
use syncline_format::{BlockRun, Key};
use syncline_sim::block_of;
use syncline_store::{FormatOptions, Store, StoreOptions, Transaction, format};
use syncline_sync::block_on;

/// Items and their values.
pub(super) type Items = BTreeMap<Key, Bytes>;

/// Most tasks in a life.
pub(super) const TASKS_MAX: u64 = 4;
/// Extents of each task.
pub(super) const EXTENTS: u64 = 2;
/// The kind of plain items.
pub(super) const ITEM: u8 = 2;
/// The kind of items that name data.
pub(super) const EXTENT: u8 = 3;
/// Items that all tasks change.
pub(super) const SHARED: u64 = 4;

/// Number of items that together exceed a segment of the log.
pub(super) const LARGE: u64 = 300;
/// Bytes of each.
pub(super) const LARGE_BYTES: usize = 900;

pub(super) const FIRST_OBJECT: u64 = 100;
/// The smallest legal image.
const IMAGE_BYTES: u64 = 16 << 20;

/// The image, its items, and the number of the newest transaction in it.
pub(super) struct Base {
    pub(super) image: Arc<MemoryDevice>,
    pub(super) items: Items,
    pub(super) op: u64,
}

static BASE: OnceLock<Base> = OnceLock::new();

pub(super) fn extent_key(task: u64, index: u64) -> Key {
    Key { object: FIRST_OBJECT + task, kind: EXTENT, offset: index }
}

pub(super) fn shared_key(index: u64) -> Key {
    Key { object: FIRST_OBJECT + TASKS_MAX, kind: ITEM, offset: index }
}

pub(super) fn large_key(index: u64) -> Key {
    Key { object: FIRST_OBJECT + TASKS_MAX + 2, kind: ITEM, offset: index }
}

/// The image, which must have been made.
pub(super) fn get() -> &'static Base {
    BASE.get().expect("a search prepares what its lives begin with")
}

/// Makes the image in a life of its own, because the store's primitives work nowhere else.
pub(super) fn make() {
    if BASE.get().is_some() {
        return;
    }
    let found = Search::one(0).run(|_| {
        let spawn = Arc::new(Spawner(Time::start()));
        let base = block_on(make_with(&spawn));
        let _ = BASE.set(base);
    });
    assert!(found.violations.is_empty(), "{:?}", found.violations);
}

async fn make_with(spawn: &Arc<Spawner>) -> Base {
    let device = MemoryDevice::new(IMAGE_BYTES);
    let (mut first, mut items) = (Transaction::new(), Items::new());
    for index in 0..60 {
        let key = Key { object: FIRST_OBJECT + TASKS_MAX + 1, kind: ITEM, offset: index };
        let value = Bytes::from(format!("at first {index} ").repeat(6));
        first.put(key, value.clone());
        items.insert(key, value);
    }
    let options = FormatOptions {
        node_bytes: 4096,
        uuid: [1; 16],
        hash_seed: [2; 16],
        epoch: Some([3; 16]),
        first_object: FIRST_OBJECT,
        ..FormatOptions::default()
    };
    format(device.clone(), options, first, spawn.clone()).await.expect("the image is large enough");
    let options = StoreOptions { epoch: Some([4; 16]), ..StoreOptions::default() };
    let (store, _) = Store::open(device.clone(), options, spawn.clone()).await.expect("it is sound");
    for task in 0..TASKS_MAX {
        for index in 0..EXTENTS {
            let mut room = store.reserve(2).await.expect("there is room");
            let run = store.allocate(&mut room, 2, None).expect("it was reserved");
            let tag = (task + 1) << 32 | index;
            let write = store.write_data(run, contents(tag, run));
            let placed = Placed { run, tag, checksums: write.checksums().to_vec() };
            let mut transaction = Transaction::new();
            transaction.name_data(&write, run);
            transaction.put(extent_key(task, index), placed.encode());
            items.insert(extent_key(task, index), placed.encode());
            store.commit(transaction).expect("it is sound");
        }
    }
    let op = store.last_op().0;
    store.close().await.expect("it is sound");
    Base { image: device, items, op }
}

/// The contents of a run with this tag.
pub(super) fn contents(tag: u64, run: BlockRun) -> Vec<Bytes> {
    (0..run.blocks).map(|index| AlignedBuf::copy_from(&block_of(tag, index)).into_bytes()).collect()
}
