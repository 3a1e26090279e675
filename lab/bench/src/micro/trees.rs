//! The tree: merging changes into it, and lookups.

use super::{Numbers, Routine};
use crate::BenchError;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use syncline_device::{FlushTracker, MemoryDevice, block_on};
use syncline_format::superblock::TreeRoot;
use syncline_format::{BLOCK_BYTES, BlockRun, Geometry, Key, Metadata, NODE_BYTES_DEFAULT};
use syncline_tree::{MergeFailed, Merged, Tree};

/// Size of the device, in memory, and of the cache that holds all nodes.
const DEVICE_BYTES: u64 = 256 << 20;
const CACHE_BYTES: usize = 128 << 20;
/// Items of the tree.
const ITEMS: u64 = 200_000;
const VALUE_BYTES: usize = 100;
/// Number of items that a merge changes.
const CHANGES: u64 = 1000;

/// A tree, and free blocks behind it that are handed out in order.
struct Grown {
    tree: Arc<Tree>,
    root: TreeRoot,
    next: AtomicU64,
    end: u64,
    numbers: Numbers,
}

fn failed(failed: &MergeFailed) -> BenchError {
    BenchError::Engine { what: "the tree", said: failed.error.to_string() }
}

fn key(number: u64) -> Key {
    Key { object: number, kind: 1, offset: 0 }
}

fn changes(numbers: impl Iterator<Item = u64>) -> BTreeMap<Key, Option<Bytes>> {
    let value = Bytes::from(vec![7; VALUE_BYTES]);
    numbers.map(|number| (key(number), Some(value.clone()))).collect()
}

impl Grown {
    fn new() -> Result<Self, BenchError> {
        let geometry = Geometry {
            total_blocks: DEVICE_BYTES / BLOCK_BYTES as u64,
            node_bytes: NODE_BYTES_DEFAULT,
            metadata: Metadata::Single,
        };
        let usable = geometry.usable();
        let tree = Tree::new(FlushTracker::new(MemoryDevice::new(DEVICE_BYTES)), geometry, CACHE_BYTES);
        let first = usable.start.next_multiple_of(geometry.node_blocks());
        let mut grown = Self {
            tree,
            root: TreeRoot::default(),
            next: AtomicU64::new(first),
            end: usable.end(),
            numbers: Numbers::new(),
        };
        let empty = block_on(grown.tree.create(1, &|_, blocks| grown.allocate(blocks)));
        grown.root = empty.map_err(|error| failed(&error))?.root;
        grown.root = grown.merge(&changes(0..ITEMS)).map_err(|error| failed(&error))?.root;
        Ok(grown)
    }

    fn allocate(&self, blocks: u64) -> Option<BlockRun> {
        let start = self.next.fetch_add(blocks, Ordering::Relaxed);
        (start + blocks <= self.end).then(|| BlockRun::new(start, blocks))
    }

    /// Merges, and waits for the writes.
    fn merge(&self, changes: &BTreeMap<Key, Option<Bytes>>) -> Result<Merged, MergeFailed> {
        let merged = block_on(self.tree.merge(self.root, 2, changes, &|_, blocks| self.allocate(blocks)))?;
        for written in &merged.written {
            block_on(written.handle.wait()).expect("memory does not fail");
        }
        Ok(merged)
    }

    /// Merges and discards the result: the next merge starts from the same tree.
    fn try_merge(&self, changes: &BTreeMap<Key, Option<Bytes>>) {
        let before = self.next.load(Ordering::Relaxed);
        let merged = self.merge(changes).expect("there is room for a merge, and memory does not fail");
        for run in merged.written.iter().map(|written| written.run).chain(merged.unused.iter().copied()) {
            self.tree.forget(run);
        }
        black_box(merged.root);
        self.next.store(before, Ordering::Relaxed);
    }
}

/// Merging adjacent changes, as in one directory.
pub(super) fn merge_near() -> Result<Routine, BenchError> {
    let grown = Grown::new()?;
    let near = changes(ITEMS / 2..ITEMS / 2 + CHANGES);
    Ok(Box::new(move || grown.try_merge(&near)))
}

/// Merging changes in as many leaves as possible.
pub(super) fn merge_far() -> Result<Routine, BenchError> {
    let grown = Grown::new()?;
    let far = changes((0..ITEMS).step_by((ITEMS / CHANGES) as usize));
    Ok(Box::new(move || grown.try_merge(&far)))
}

/// Looking up an item in a cached node.
pub(super) fn lookup() -> Result<Routine, BenchError> {
    let mut grown = Grown::new()?;
    Ok(Box::new(move || {
        let number = grown.numbers.below(ITEMS);
        let found = block_on(grown.tree.get(grown.root, key(number))).expect("memory does not fail");
        black_box(found.expect("it was put there"));
    }))
}
