//! Blocks kept in memory although they have their place, of files that are written in parts of blocks.
//!
//! Who writes a part of a block that is only on the device has to read it first: the kernel's page cache has it, but sends what is
//! written and no more. SQLite's write-ahead log does so at every transaction once it has come round to its beginning. So a file of which one
//! block had to be read for that keeps what is placed from then on.
//!
//! A block here has the contents that its extent has. Every transaction that changes extents goes through `transact::commit`, which takes away
//! what it clears.

use super::dirty::Block;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::ops::Range;

/// Most blocks of a file: 4 MiB, what SQLite lets its log grow to.
const BLOCKS_MAX: usize = 1024;

/// The blocks of a file that are kept.
#[derive(Default)]
pub(crate) struct Kept {
    blocks: BTreeMap<u64, Bytes>,
    /// Placed blocks are to be kept.
    wanted: bool,
}

impl Kept {
    /// Keeps what is placed from now on; true if that is new.
    pub(crate) fn want(&mut self) -> bool {
        !std::mem::replace(&mut self.wanted, true)
    }

    /// Forgets all, and keeps no more.
    pub(crate) fn give_up(&mut self) {
        *self = Self::default();
    }

    pub(crate) fn get(&self, block: u64) -> Option<&Bytes> {
        self.blocks.get(&block)
    }

    /// A frozen block has been placed. One that shares its memory with others is not kept: it would keep them, too.
    pub(crate) fn placed(&mut self, block: u64, contents: &Block) {
        if self.wanted && contents.is_alone() && self.blocks.len() < BLOCKS_MAX {
            self.blocks.insert(block, contents.to_bytes());
        }
    }

    /// These are not as they were.
    pub(crate) fn remove(&mut self, blocks: &Range<u64>) {
        if !self.blocks.is_empty() && !blocks.is_empty() {
            let gone: Vec<u64> = self.blocks.range(blocks.clone()).map(|(&block, _)| block).collect();
            gone.iter().for_each(|block| drop(self.blocks.remove(block)));
        }
    }

    /// None is as it was.
    pub(crate) fn clear(&mut self) {
        self.blocks.clear();
    }
}
