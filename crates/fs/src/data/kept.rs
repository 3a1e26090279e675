//! Blocks that stay in memory after they were placed, because they were written in parts.
//!
//! When a program writes part of a block, the kernel's page cache keeps no page of that block: the
//! kernel sends just the part, and a later read of the block comes to us as a request. So the end
//! of nearly every file, and every 2.5th block of what `tar` writes in pieces of 10 KiB, would be
//! read from the device right after it was written. Such blocks are kept. When there are too many,
//! the file that has kept blocks for longest drops its blocks first.
//!
//! The next partial write of a block gains too: it needs the rest of the block, which would have to
//! be read first. SQLite's write-ahead log would need such reads at every transaction once it has
//! wrapped around to its beginning.
//!
//! A kept block has the contents that its extent has. Every transaction that changes extents goes
//! through `transact::commit`, which drops the kept blocks that it clears.

use super::block::Block;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Number of blocks that all files keep.
#[derive(Clone, Default)]
pub(crate) struct Total(Arc<AtomicU64>);

impl Total {
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A file's kept blocks. Most files keep none.
#[derive(Default)]
pub(crate) struct Kept(Option<Box<Counted>>);

/// The kept blocks of a file that is in the list of files that keep blocks.
struct Counted {
    blocks: BTreeMap<u64, Bytes>,
    total: Total,
}

impl Kept {
    /// Drops all blocks. The file no longer counts as listed.
    pub(crate) fn give_up(&mut self) {
        self.0 = None;
    }

    pub(crate) fn get(&self, block: u64) -> Option<&Bytes> {
        self.0.as_ref()?.blocks.get(&block)
    }

    /// Keeps those of these frozen, freshly placed blocks that were written in parts, while all
    /// files keep fewer than `max`. A block that shares its buffer with others is not kept: it
    /// would keep them in memory too. True if the file must be put into the list of files that keep
    /// blocks.
    pub(crate) fn placed(&mut self, blocks: &[(u64, Block)], total: &Total, max: u64) -> bool {
        let listed = self.0.is_some();
        for (number, block) in blocks {
            if block.is_in_parts() && block.is_alone() && total.get() < max {
                let new = || Box::new(Counted { blocks: BTreeMap::new(), total: total.clone() });
                self.0.get_or_insert_with(new).insert(*number, block.to_bytes());
            }
        }
        !listed && self.0.is_some()
    }

    /// Drops the kept contents of `blocks`: they have changed.
    pub(crate) fn remove(&mut self, blocks: &Range<u64>) {
        if let Some(counted) = &mut self.0
            && !blocks.is_empty()
        {
            counted.remove(blocks);
        }
    }

    /// Drops all kept contents: they may have changed.
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
