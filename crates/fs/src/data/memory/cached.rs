//! Blocks that stay in memory after they were placed, because they were written in parts.
//!
//! When a program writes part of a block, the kernel's page cache keeps no page of that block: the
//! kernel sends just the part, and a later read of the block comes to us as a request. So the end
//! of nearly every file, and every 2.5th block that `tar` writes in pieces of 10 KiB, would be
//! read from the device right after it was written. The cache keeps them. When there are too
//! many, the file that has cached blocks for longest drops its blocks first.
//!
//! The next partial write of a block gains too: it needs the rest of the block, which would have to
//! be read first. SQLite's write-ahead log would need such reads at every transaction once it has
//! wrapped around to its beginning.
//!
//! A cached block has the contents that its extent has. Every transaction that changes extents drops
//! the cached blocks that it clears (`effects/blocks.rs`).

use super::BLOCK;
use super::block::Block;
use crate::inode::Inode;
use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use syncline_sync::Mutex;

/// When too many blocks are cached, they are reduced to this many eighths of the limit.
const CACHED_EIGHTHS: u64 = 7;

/// Number of blocks that all files cache.
#[derive(Clone, Default)]
struct Total(Arc<AtomicU64>);

impl Total {
    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The files that cache blocks.
#[derive(Default)]
pub(crate) struct CachedFiles {
    /// Inodes that cache blocks, or did, oldest first.
    files: Mutex<VecDeque<Weak<Inode>>>,
    total: Total,
}

impl CachedFiles {
    /// Number of blocks that all files cache.
    #[cfg(test)]
    pub(crate) fn blocks(&self) -> u64 {
        self.total.get()
    }

    /// Caches those of a file's freshly placed blocks that were written in parts. If too many
    /// blocks are cached then, the oldest files' are dropped: `bytes_max` is the limit.
    pub(crate) fn add<'a>(
        &self,
        inode: &Arc<Inode>,
        blocks: impl Iterator<Item = (u64, &'a Block)> + Clone,
        bytes_max: u64,
    ) {
        if !blocks.clone().any(|(_, block)| block.is_in_parts()) {
            return;
        }
        let max = bytes_max / BLOCK;
        if inode.state.lock().data.blocks.placed.placed(blocks, &self.total, max) {
            self.files.lock().push_back(Arc::downgrade(inode));
        }
        // Files that no longer exist stay in the list until it is trimmed here.
        let listed = self.files.lock().len() as u64;
        if self.total.get() < max && listed <= max {
            return;
        }
        for _ in 0..listed {
            if self.total.get() <= max / 8 * CACHED_EIGHTHS && self.files.lock().len() as u64 <= max {
                break;
            }
            self.forget_oldest();
        }
    }

    /// Makes the file that has cached blocks for longest drop them.
    fn forget_oldest(&self) {
        let oldest = self.files.lock().pop_front();
        if let Some(oldest) = oldest.and_then(|oldest| oldest.upgrade()) {
            // An operation that holds the lease may count on a cached block and not have read it
            // from the device: without it, the block would lose its beginning.
            match oldest.lease.try_write() {
                Some(_lease) => oldest.state.lock().data.blocks.placed.give_up(),
                None => self.files.lock().push_back(Arc::downgrade(&oldest)),
            }
        }
    }
}

/// A file's cached blocks. Most files have none.
#[derive(Default)]
pub(crate) struct CachedBlocks(Option<Box<Counted>>);

/// The cached blocks of a file that is in the list of such files.
struct Counted {
    blocks: BTreeMap<u64, Bytes>,
    total: Total,
}

impl CachedBlocks {
    /// Drops all blocks. The file no longer counts as listed.
    fn give_up(&mut self) {
        self.0 = None;
    }

    pub(crate) fn get(&self, block: u64) -> Option<&Bytes> {
        self.0.as_ref()?.blocks.get(&block)
    }

    /// Caches those of these frozen, freshly placed blocks that were written in parts, while all
    /// files have fewer than `max`. A block that shares its buffer with others is not cached: it
    /// would keep them in memory too. True if the file must be put into the list of files that
    /// cache blocks.
    fn placed<'a>(
        &mut self,
        blocks: impl Iterator<Item = (u64, &'a Block)>,
        total: &Total,
        max: u64,
    ) -> bool {
        let listed = self.0.is_some();
        for (number, block) in blocks {
            if block.is_in_parts() && block.is_alone() && total.get() < max {
                let new = || Box::new(Counted { blocks: BTreeMap::new(), total: total.clone() });
                self.0.get_or_insert_with(new).insert(number, block.to_bytes());
            }
        }
        !listed && self.0.is_some()
    }

    /// Drops the cached contents of `blocks`: they have changed.
    pub(crate) fn remove(&mut self, blocks: &Range<u64>) {
        if let Some(counted) = &mut self.0
            && !blocks.is_empty()
        {
            counted.remove(blocks);
        }
    }

    /// Drops all cached contents: they may have changed.
    pub(crate) fn clear(&mut self) {
        if let Some(counted) = &mut self.0 {
            counted.clear();
        }
    }
}

impl Counted {
    fn insert(&mut self, number: u64, contents: Bytes) {
        if self.blocks.insert(number, contents).is_none() {
            self.total.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn remove(&mut self, blocks: &Range<u64>) {
        let gone: Vec<u64> = self.blocks.range(blocks.clone()).map(|(&block, _)| block).collect();
        gone.iter().for_each(|block| drop(self.blocks.remove(block)));
        self.uncount(gone.len());
    }

    fn clear(&mut self) {
        let before = self.blocks.len();
        self.blocks.clear();
        self.uncount(before);
    }

    fn uncount(&self, blocks: usize) {
        self.total.0.fetch_sub(blocks as u64, Ordering::Relaxed);
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.clear();
    }
}
