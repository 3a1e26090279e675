//! Blocks kept in memory although they have their place: those that were written in parts.
//!
//! Of a block that a program writes in parts the kernel's page cache has no page: it sends each part, and asks for the block when somebody reads
//! it or a part of it again. So the end of nearly every file, and every 2.5th block of what `tar` writes in pieces of 10 KiB, would be read from the
//! device right after they were written. They are kept, the oldest files' first to go when there are too many.
//!
//! It is the same with the next part that is written: who has a part has to read the rest first. SQLite's write-ahead log would do so at
//! every transaction once it has come round to its beginning.
//!
//! A block here has the contents that its extent has. Every transaction that changes extents goes through `transact::commit`, which takes away
//! what it clears.

use super::block::Block;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// How many blocks all files keep.
#[derive(Clone, Default)]
pub(crate) struct Total(Arc<AtomicU64>);

impl Total {
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The blocks of a file that are kept. Most files keep none.
#[derive(Default)]
pub(crate) struct Kept(Option<Box<Counted>>);

/// In the list of those that keep blocks.
struct Counted {
    blocks: BTreeMap<u64, Bytes>,
    total: Total,
}

impl Kept {
    /// Forgets all, and is in no list any more.
    pub(crate) fn give_up(&mut self) {
        self.0 = None;
    }

    pub(crate) fn get(&self, block: u64) -> Option<&Bytes> {
        self.0.as_ref()?.blocks.get(&block)
    }

    /// Frozen blocks have been placed, and are kept if they are to be, up to `max` of all files. One that shares its memory with others is not: it would
    /// keep them, too. True if the file is to be put into the list of those that keep blocks.
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

    /// These are not as they were.
    pub(crate) fn remove(&mut self, blocks: &Range<u64>) {
        if let Some(counted) = &mut self.0
            && !blocks.is_empty()
        {
            counted.remove(blocks);
        }
    }

    /// None is as it was.
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
