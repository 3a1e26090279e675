//! An atomic write of a file: what was written since it began, held apart from everything else.
//!
//! Its blocks are not dirty blocks. So nothing that writes dirty data, syncs, truncates or shares
//! knows of them, and the inode item keeps the size and times of before. A commit moves them among
//! the dirty blocks and names them in one transaction, with those that lie on the device already
//! (`spilled`); an abort drops them.

use super::blocks::Blocks;
use super::ranges::Ranges;
use super::spilled::Spilled;
use super::{BLOCK, DataState};
use crate::types::{Attributes, Ino, Timestamp};
use bytes::Bytes;
use std::ops::Range;
use std::sync::Arc;
use syncline_store::{Reservation, Store};
use syncline_sync::atomic::{AtomicU64, Ordering};

/// Tells an atomic write from all others. A write that waits for its turn carries it: by then its atomic
/// write may have ended, and another one of the same file may be half done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AtomicWrite {
    ino: Ino,
    number: u64,
}

impl AtomicWrite {
    pub(in crate::data) fn ino(self) -> Ino {
        self.ino
    }
}

/// An open atomic write.
pub(crate) struct Atomic {
    pub(in crate::data) is: AtomicWrite,
    /// The blocks in memory. None of them is in `spilled` too.
    pub(in crate::data) blocks: Blocks,
    /// The blocks that are on the device.
    pub(in crate::data) spilled: Spilled,
    /// The block from which on memory is looked through for blocks to put there.
    pub(in crate::data) spill_from: u64,
    /// Size of the file with these blocks.
    pub(in crate::data) size: u64,
    /// Time of the last write, unless the time was set since.
    pub(in crate::data) mtime: Option<Timestamp>,
    pub(in crate::data) ctime: Option<Timestamp>,
    /// Preallocated blocks whose room its blocks have taken.
    pub(in crate::data) taken: Ranges,
    /// One reserved block for each block in memory, and one for a file that outgrows its inode item.
    pub(in crate::data) reservation: Reservation,
    /// Units reserved in a quota, and its number.
    pub(in crate::data) units: u64,
    pub(in crate::data) quota: u64,
    /// Blocks of memory that [`AtomicWrites`] counts.
    accounted: u32,
}

impl Atomic {
    pub(in crate::data) fn new(is: AtomicWrite, size: u64, store: &Arc<Store>) -> Self {
        Self {
            is,
            blocks: Blocks::default(),
            spilled: Spilled::new(store.clone()),
            spill_from: 0,
            size,
            mtime: None,
            ctime: None,
            taken: Ranges::NONE,
            reservation: Reservation::default(),
            units: 0,
            quota: 0,
            accounted: 0,
        }
    }

    /// True if nothing was written yet.
    pub(in crate::data) fn is_empty(&self) -> bool {
        self.blocks.dirty() == 0 && self.spilled.is_empty()
    }

    /// The first block at or after `block` that it has.
    pub(in crate::data) fn next(&self, block: u64) -> Option<u64> {
        let found = [self.blocks.next(block), self.spilled.next(block)];
        found.into_iter().flatten().min()
    }

    /// The parts of `blocks` that it does not have in memory.
    pub(in crate::data) fn absent(&self, blocks: &Range<u64>) -> Vec<Range<u64>> {
        let mut missing = Vec::new();
        let mut at = blocks.start;
        for here in self.blocks.numbers(blocks.clone()) {
            if at < here {
                missing.push(at..here);
            }
            at = here + 1;
        }
        if at < blocks.end {
            missing.push(at..blocks.end);
        }
        missing
    }

    /// The contents of a part of a block that it has in memory.
    pub(in crate::data) fn part(&self, block: u64, within: Range<usize>) -> Option<Bytes> {
        self.blocks.get(block).map(|contents| contents.to_bytes().slice(within))
    }

    /// The attributes that programs see while it is open.
    fn show(&self, attr: &mut Attributes) {
        attr.size = self.size.max(attr.size);
        attr.mtime = self.mtime.unwrap_or(attr.mtime);
        attr.ctime = self.ctime.map_or(attr.ctime, |ctime| ctime.max(attr.ctime));
    }
}

impl DataState {
    /// Makes attributes those that programs see: with an open atomic write, its size and times.
    pub(crate) fn show(&self, mut attr: Attributes) -> Attributes {
        if let Some(atomic) = &self.atomic {
            atomic.show(&mut attr);
        }
        attr
    }

    /// Makes the blocks of an open atomic write dirty, as no rule permits.
    pub(in crate::data) fn leak_atomic(&mut self) {
        let Some(atomic) = &mut self.atomic else { return };
        let blocks = atomic.blocks.take(0, u64::MAX, u64::MAX);
        let reservation = std::mem::take(&mut atomic.reservation);
        blocks.iter().for_each(|(number, _)| self.blocks.remove(*number));
        self.blocks.restore(blocks);
        self.add_reservation(Some(reservation));
    }
}

/// The open atomic writes of all files.
#[derive(Default)]
pub(crate) struct AtomicWrites {
    /// The number that have begun.
    begun: AtomicU64,
    /// Blocks of memory that they take.
    blocks: AtomicU64,
    /// Held by a commit that names what lies on the device: one at a time takes the memory for that.
    pub(in crate::data) naming: syncline_sync::asynchronous::Mutex<()>,
}

impl AtomicWrites {
    /// Tells a new atomic write from all before it.
    pub(in crate::data) fn begin(&self, ino: Ino) -> AtomicWrite {
        AtomicWrite { ino, number: self.begun.fetch_add(1, Ordering::Relaxed) }
    }

    /// Blocks that one of them is to put onto the device before `new` more come into its memory:
    /// none, or a good part of its memory at once. It may have `blocks_max` there, and no more than
    /// it leaves to others of the `bytes_max` of all, so that each that comes later finds some.
    pub(in crate::data) fn excess(&self, atomic: &Atomic, new: u64, blocks_max: u64, bytes_max: u64) -> u64 {
        let mine = atomic.blocks.dirty();
        let limit = blocks_max.min(self.left_for(atomic, bytes_max) / 2);
        match (mine + new).saturating_sub(limit) {
            0 => 0,
            excess => excess.max(limit / 4).min(mine),
        }
    }

    /// True if `new` more blocks fit into memory. (A write that is too large fits if it is alone.)
    pub(in crate::data) fn has_room(&self, atomic: &Atomic, new: u64, bytes_max: u64) -> bool {
        let is_alone = self.blocks.load(Ordering::Relaxed) <= u64::from(atomic.accounted);
        is_alone || u64::from(atomic.blocks.memory_blocks()) + new <= self.left_for(atomic, bytes_max)
    }

    /// The blocks of memory that others leave to the contents of one of them.
    fn left_for(&self, atomic: &Atomic, bytes_max: u64) -> u64 {
        let all = self.blocks.load(Ordering::Relaxed);
        let others = all.saturating_sub(u64::from(atomic.blocks.memory_blocks()));
        (bytes_max / BLOCK).saturating_sub(others)
    }

    /// Counts the memory of a changed atomic write.
    pub(in crate::data) fn account(&self, atomic: &mut Atomic) {
        let now = atomic.blocks.memory_blocks() + atomic.spilled.memory_blocks();
        self.blocks.fetch_add(now.into(), Ordering::Relaxed);
        self.blocks.fetch_sub(atomic.accounted.into(), Ordering::Relaxed);
        atomic.accounted = now;
    }

    /// Counts an atomic write no more, which has ended.
    pub(in crate::data) fn ended(&self, atomic: &Atomic) {
        self.blocks.fetch_sub(atomic.accounted.into(), Ordering::Relaxed);
    }

    /// Memory that open atomic writes take.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> u64 {
        self.blocks.load(Ordering::Relaxed) * BLOCK
    }
}
