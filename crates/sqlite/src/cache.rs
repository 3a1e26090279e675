//! Blocks of an image's files that were read or written, for the connections of this process. The
//! library reads each block from the device, as no kernel's cache lies between.

use quick_cache::sync::Cache as Entries;
use std::sync::Arc;

/// Bytes of a block.
pub(crate) const BLOCK_BYTES: usize = 4096;

/// The contents of a block. They don't change: a write puts another one in its place.
pub(crate) type Block = Arc<[u8]>;

/// A block by its file and number. A file has a number of its own for each time it is opened or replaced.
type Key = (u64, u64);

/// The cache of an image.
pub(crate) struct Cache {
    entries: Entries<Key, Block>,
}

impl Cache {
    pub(crate) fn new(bytes: u64) -> Self {
        let blocks = usize::try_from(bytes / BLOCK_BYTES as u64).unwrap_or(usize::MAX).max(64);
        Self { entries: Entries::new(blocks) }
    }

    pub(crate) fn get(&self, file: u64, block: u64) -> Option<Block> {
        self.entries.get(&(file, block))
    }

    pub(crate) fn put(&self, file: u64, block: u64, contents: Block) {
        self.entries.insert((file, block), contents);
    }

    pub(crate) fn remove(&self, file: u64, block: u64) {
        self.entries.remove(&(file, block));
    }
}
