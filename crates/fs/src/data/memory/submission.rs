//! The part of a file's state that its submissions go by: what waits for one, where one begins,
//! what it takes, and whether it has done all that it had to.

use super::block::Block;
use super::{BLOCK, DataState, page_end, page_start};
use crate::inode::InodeState;
use std::ops::Range;
use syncline_store::Reservation;

/// The purpose of a submission.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Aim {
    /// A transaction that names the data or contains it: a small amount may be logged whole.
    Log,
    /// Every block gets a place on the device.
    Place,
}

impl InodeState {
    /// Begins a submission and returns the end of the pages that have dirty blocks now. A block that
    /// becomes dirty behind it is not part of it, so a busy writer can't keep it going forever. Its size is
    /// the current one, so an append can't hold it back. The inode's `writeback` is held.
    pub(crate) fn begin_submission(&mut self) -> u64 {
        self.data.progress.begin(self.attr.size);
        self.data.blocks.last_dirty().map_or(0, page_end)
    }

    /// True when the inode item would say nothing new, and no data waits for a submission with this
    /// aim.
    pub(crate) fn is_clean(&self, aim: Aim) -> bool {
        let waits = match aim {
            Aim::Log => self.data.has_unlogged(),
            Aim::Place => self.data.has_dirty(),
        };
        // The item of an inode that is being removed must not be put again.
        self.removing || (!waits && self.is_logged())
    }

    /// True when the inode is clean and no submission is under way. For callers that do not hold
    /// its `writeback`: the holder may have taken blocks out of the dirty map that no transaction
    /// names yet, and an fsync must wait for that transaction (P1).
    pub(crate) fn is_settled(&self, aim: Aim) -> bool {
        self.is_clean(aim) && !self.data.is_submitting()
    }

    /// True when a truncation has left work for a submission that has just ended well. Either a
    /// block was in flight when the file was cut within it, and is dirty again; or the logged size,
    /// which the truncation put back to that block's beginning, has not advanced far enough since, unless
    /// it `may_be_short`.
    pub(crate) fn has_missed(&mut self, may_be_short: bool) -> bool {
        let Self { data, attr, removing, .. } = self;
        let waiting = data.progress.take_recalled().and_then(|first| data.blocks.next_dirty(first));
        let waits = waiting.is_some_and(|block| block * BLOCK < data.progress.promised());
        waits || data.is_short(attr.size) && !*removing && !may_be_short
    }
}

impl DataState {
    /// Takes the dirty blocks of a range, which ends between pages, of a file of `size` bytes, together
    /// with their part of the reservation.
    pub(in crate::data) fn take_dirty(
        &mut self,
        size: u64,
        blocks: Range<u64>,
    ) -> (Vec<(u64, Block)>, Reservation) {
        let taken = self.blocks.take(blocks.start, blocks.end, u64::MAX);
        // Writes may have gone on in the page in which the file ended when the submission began. If so,
        // it is named with them, and the floor rises, so that the logged size covers them: otherwise
        // contents would lie behind the logged size, or a page would be torn.
        let floor = self.progress.floor();
        let page = page_start(floor / BLOCK)..page_end(floor / BLOCK);
        let at = taken.partition_point(|(number, _)| *number < page.start);
        if floor > page.start * BLOCK && taken.get(at).is_some_and(|(number, _)| *number < page.end) {
            self.progress.raise_floor(size.min(page.end * BLOCK));
        }
        let reservation = self.reservation.as_mut().map(|mine| mine.split(taken.len() as u64));
        (taken, reservation.unwrap_or_default())
    }

    /// Moves blocks that were taken from a file of `size` bytes into flight.
    pub(in crate::data) fn take_off(&mut self, blocks: impl IntoIterator<Item = (u64, Block)>, size: u64) {
        self.blocks.take_off(blocks);
        self.progress.take_off(size, self.blocks.flying_memory_blocks());
    }

    /// True when a submission that has just ended has logged less than it had to.
    pub(in crate::data) fn is_short(&self, size: u64) -> bool {
        self.logged.size() < self.progress.promised().min(size)
    }
}
