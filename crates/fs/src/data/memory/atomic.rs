//! An atomic write of a file: what was written since it began, held apart from everything else.
//!
//! Its blocks are not dirty blocks. So nothing that writes dirty data, syncs, truncates or shares
//! knows of them, and the inode item keeps the size and times of before. A commit moves them among
//! the dirty blocks and names them in one transaction; an abort drops them.

use super::dirty::BlockMap;
use super::ranges::Ranges;
use super::{BLOCK, DataState};
use crate::types::{Attributes, Timestamp};
use bytes::Bytes;
use std::ops::Range;
use syncline_store::Reservation;
use syncline_sync::atomic::{AtomicU64, Ordering};

/// An open atomic write.
pub(crate) struct Atomic {
    /// The handle that began it.
    pub(in crate::data) handle: u64,
    pub(in crate::data) blocks: BlockMap,
    /// Size of the file with these blocks.
    pub(in crate::data) size: u64,
    /// Time of the last write, unless the time was set since.
    pub(in crate::data) mtime: Option<Timestamp>,
    pub(in crate::data) ctime: Option<Timestamp>,
    /// Preallocated blocks whose room its blocks have taken.
    pub(in crate::data) taken: Ranges,
    /// One reserved block for each block, and one for a file that outgrows its inode item.
    pub(in crate::data) reservation: Reservation,
    /// Units reserved in a quota, and its number.
    pub(in crate::data) units: u64,
    pub(in crate::data) quota: u64,
    /// Stores through a mapping are among the blocks. Whoever made them may sync them.
    pub(in crate::data) mapped: bool,
    /// Blocks of memory that [`AtomicWrites`] counts.
    accounted: u32,
}

impl Atomic {
    pub(in crate::data) fn new(handle: u64, size: u64) -> Self {
        Self {
            handle,
            blocks: BlockMap::default(),
            size,
            mtime: None,
            ctime: None,
            taken: Ranges::NONE,
            reservation: Reservation::default(),
            units: 0,
            quota: 0,
            mapped: false,
            accounted: 0,
        }
    }

    /// The parts of `blocks` that it does not have yet.
    pub(in crate::data) fn missing(&self, blocks: &Range<u64>) -> Vec<Range<u64>> {
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

    /// The contents of a part of a block that it has.
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
        blocks.iter().for_each(|(number, _)| drop(self.dirty.remove(*number)));
        self.dirty.restore(blocks);
        self.add_reservation(Some(reservation));
    }
}

/// The open atomic writes of all files.
#[derive(Default)]
pub(crate) struct AtomicWrites {
    /// Blocks of memory that they take.
    blocks: AtomicU64,
}

impl AtomicWrites {
    /// True when `more` blocks fit beside what there is.
    pub(in crate::data) fn has_room(&self, more: u64, bytes_max: u64) -> bool {
        self.blocks.load(Ordering::Relaxed).saturating_add(more).saturating_mul(BLOCK) <= bytes_max
    }

    /// Counts the memory of a changed atomic write.
    pub(in crate::data) fn account(&self, atomic: &mut Atomic) {
        let (before, now) = (atomic.accounted, atomic.blocks.memory_blocks());
        self.blocks.fetch_add(now.into(), Ordering::Relaxed);
        self.blocks.fetch_sub(before.into(), Ordering::Relaxed);
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
