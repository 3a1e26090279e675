//! The part of a file's state that its submissions go by: what waits for one, where one begins,
//! what it takes, and whether it has done all that it had to.

use super::block::Block;
use super::{BLOCK, DataState};
use crate::filesystem::Filesystem;
use crate::inode::InodeState;
use std::ops::Range;
use syncline_store::{Canary, Reservation};

/// The purpose of a submission.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Aim {
    /// A transaction that names the data or contains it: a small amount may be logged whole.
    Log,
    /// Every block gets a place on the device.
    Place,
}

impl InodeState {
    /// Begins a submission and returns the end of the blocks that are dirty now. Blocks that become
    /// dirty later are not part of it, so a busy writer can't keep it going forever. Its size is
    /// the current one, so an append can't hold it back. The inode's `writeback` is held.
    pub(crate) fn begin_submission(&mut self) -> u64 {
        self.data.floor = self.attr.size;
        self.data.promised = self.attr.size;
        self.data.recalled = None;
        self.data.dirty.last().map_or(0, |last| last + 1)
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
        self.is_clean(aim) && self.data.writeback.try_lock().is_some()
    }

    /// True when a truncation has left work for a submission that has just ended well. Either a
    /// block was in flight when the file was cut within it, and is dirty again; or the logged size,
    /// which the truncation put back to that block's beginning, has not advanced far enough since.
    pub(crate) fn has_missed(&mut self, fs: &Filesystem) -> bool {
        let Self { data, attr, removing, .. } = self;
        let waiting = data.recalled.take().and_then(|first| data.dirty.next(*first));
        let waits = waiting.is_some_and(|block| block * BLOCK < data.promised);
        waits || data.is_short(attr.size) && !*removing && !may_be_short(fs)
    }
}

impl DataState {
    /// Takes dirty blocks of a file of `size` bytes out together with their part of the
    /// reservation.
    pub(in crate::data) fn take_dirty(
        &mut self,
        size: u64,
        blocks: &Range<u64>,
        max: u64,
    ) -> (Vec<(u64, Block)>, Reservation) {
        let taken = self.dirty.take(blocks.start, blocks.end, max);
        // If an append has written into the block in which the file ended when the submission began,
        // the block is named with the appended bytes. The floor rises, so that the logged size covers
        // them.
        let last = self.floor / BLOCK;
        if !self.floor.is_multiple_of(BLOCK)
            && taken.binary_search_by_key(&last, |(number, _)| *number).is_ok()
        {
            self.floor = self.floor.max(named_end(last, size));
        }
        let reservation = self.reservation.as_mut().map(|mine| mine.split(taken.len() as u64));
        (taken, reservation.unwrap_or_default())
    }

    /// True when a submission that has just ended has logged less than it had to.
    pub(in crate::data) fn is_short(&self, size: u64) -> bool {
        self.disk_size < self.promised.min(size)
    }
}

/// True when a submission may end short, because that rule is broken on purpose.
pub(crate) fn may_be_short(fs: &Filesystem) -> bool {
    [Canary::SizeBehind, Canary::TruncateBehind].into_iter().any(|rule| fs.store.breaks(rule))
}

/// The end of the contents of a block that was taken when the file had `size` bytes.
pub(crate) fn named_end(block: u64, size: u64) -> u64 {
    size.min((block + 1) * BLOCK)
}
