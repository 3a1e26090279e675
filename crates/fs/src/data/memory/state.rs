//! The state of a file's data in memory: what is dirty, in flight, logged and reserved.

use super::blocks::Blocks;
use super::charge::Charge;
use super::failures::Failures;
use super::layout::Layout;
use super::logged::Logged;
use super::preallocated::Preallocated;
use super::progress::Progress;
use super::{BLOCK, UNITS, block};
use crate::inode::item::DiskView;
use crate::types::{Attributes, Timestamp};
use bytes::Bytes;
use std::sync::Arc;
use syncline_store::{OpSeq, Reservation};

/// The in-memory state of an inode's file data.
pub(crate) struct DataState {
    /// The values that were logged.
    pub(crate) logged: Logged,
    /// The contents that are in memory.
    pub(in crate::data) blocks: Blocks,
    /// How far submissions have come.
    pub(in crate::data) progress: Progress,
    /// Where the blocks lie, as far as memory knows.
    pub(in crate::data) layout: Layout,
    /// Preallocated blocks.
    pub(in crate::data) preallocated: Preallocated,
    /// One reserved block for each dirty block. A failed write leaves a deficit, which the next
    /// submission makes up.
    pub(in crate::data) reservation: Option<Box<Reservation>>,
    /// Pending blocks and what they reserve in the quota; `None` for a file that counts in no
    /// quota.
    pub(crate) charge: Option<Box<Charge>>,
    pub(in crate::data) failures: Failures,
}

impl DataState {
    /// The state of a newly created inode.
    pub(crate) fn new(attr: &Attributes) -> Self {
        Self { layout: Layout::new(), ..Self::load(attr, None, false, OpSeq::default()) }
    }

    /// The state of an inode whose item was read; `unplaced` if it says that there may be logged blocks
    /// without a place. The mark of the newest operation starts at `last_op`.
    pub(crate) fn load(attr: &Attributes, inline: Option<Bytes>, unplaced: bool, last_op: OpSeq) -> Self {
        Self {
            logged: Logged::load(attr, inline, unplaced, last_op),
            blocks: Blocks::default(),
            progress: Progress::default(),
            layout: Layout::unknown(),
            preallocated: Preallocated::default(),
            reservation: None,
            charge: None,
            failures: Failures::default(),
        }
    }

    /// Sets the preallocated blocks of a loaded inode and takes them out of the count of logged blocks:
    /// the item's count includes them.
    pub(crate) fn with_preallocated(mut self, preallocated: Preallocated) -> Self {
        self.logged.set_blocks(self.logged.blocks().saturating_sub(preallocated.blocks()));
        self.preallocated = preallocated;
        self
    }

    /// The values that the inode item must carry now.
    pub(crate) fn disk_view(&self) -> DiskView<'_> {
        DiskView {
            size: self.logged.size(),
            mtime: self.logged.mtime(),
            blocks: self.disk_units(),
            inline: self.logged.inline().map(|inline| &inline[..]),
            unplaced: self.logged.unplaced().is_marked(),
        }
    }

    /// For utimes: the new mtime is an attribute change of its own and is logged with the next
    /// inode item, whatever data is dirty.
    pub(crate) fn set_disk_mtime(&mut self, mtime: Timestamp) {
        self.logged.set_mtime(mtime);
    }

    /// True when the cache may evict the inode: no dirty block is missing in the log, nothing is in
    /// flight, and no error waits to be reported.
    pub(crate) fn is_idle(&self) -> bool {
        !self.has_unlogged() && !self.failures.any()
    }

    /// True when blocks are dirty or in flight.
    pub(crate) fn has_dirty(&self) -> bool {
        !self.blocks.is_empty()
    }

    /// Blocks of memory that dirty and in-flight data takes; they count towards the limit of dirty
    /// bytes.
    pub(crate) fn memory_blocks(&self) -> u32 {
        let flying = self.blocks.flying_memory_blocks().max(self.progress.flying_blocks());
        self.blocks.memory_blocks() + flying
    }

    /// True when a dirty block is not in the log, or blocks are in flight.
    pub(crate) fn has_unlogged(&self) -> bool {
        self.blocks.unlogged() > 0 || self.blocks.in_flight() > 0
    }

    /// 512-byte units that the inode item shows.
    pub(in crate::data) fn disk_units(&self) -> u64 {
        let blocks = self.logged.blocks().saturating_add(self.preallocated.blocks());
        (blocks * UNITS).saturating_add(self.logged.inline_units())
    }

    /// 512-byte units that stat shows: those on disk and those to come. How many of the waiting
    /// blocks replace others is known only when they are placed, so the sum is capped: a file
    /// without holes never shows more than its size needs.
    pub(in crate::data) fn visible_units(&self, size: u64) -> u64 {
        let disk = self.disk_units();
        let waiting = self.blocks.dirty() + self.blocks.in_flight();
        // Waiting blocks that have taken preallocated room are counted already.
        let waiting = waiting.saturating_sub(self.preallocated.taken_blocks()) * UNITS;
        (disk + waiting).min(disk.max(size.div_ceil(BLOCK) * UNITS))
    }

    /// True when block 0 lies in the inode item.
    pub(in crate::data) fn has_inline(&self) -> bool {
        self.logged.inline().is_some()
    }

    /// The lock of the one submission at a time.
    pub(crate) fn writeback(&self) -> Arc<syncline_sync::asynchronous::Mutex<()>> {
        self.progress.writeback().clone()
    }

    /// True while a submission is under way.
    pub(in crate::data) fn is_submitting(&self) -> bool {
        self.progress.writeback().try_lock().is_none()
    }

    /// The logged size that the next inode item may carry: not past a block that is neither named
    /// nor logged, nor into its page, and never less than before.
    pub(in crate::data) fn next_disk_size(&self, size: u64) -> u64 {
        let logged = self.logged.size();
        let unnamed = self.blocks.next_unnamed(logged / BLOCK);
        let limit = unnamed.map_or(size, |block| size.min(Self::size_limit(logged, block)));
        logged.max(limit)
    }

    /// The newest contents of a block, if they are in memory.
    pub(in crate::data) fn block_in_memory(&self, block: u64) -> Option<MemoryBlock<'_>> {
        if let Some(contents) = self.blocks.get(block) {
            return Some(MemoryBlock::Whole(contents));
        }
        if block == 0
            && let Some(inline) = self.logged.inline()
        {
            return Some(MemoryBlock::Beginning(inline));
        }
        self.blocks.placed.get(block).map(MemoryBlock::Beginning)
    }

    /// Number of dirty blocks that the reservation does not cover.
    pub(in crate::data) fn reservation_deficit(&self) -> u64 {
        self.blocks.dirty().saturating_sub(self.reservation.as_ref().map_or(0, |mine| mine.blocks()))
    }

    /// Adds `more` to the reservation and gives back what exceeds the number of dirty blocks.
    pub(in crate::data) fn add_reservation(&mut self, more: Option<Reservation>) {
        match (&mut self.reservation, more) {
            (Some(mine), Some(more)) => mine.merge(more),
            (mine @ None, more) => *mine = more.map(Box::new),
            (Some(_), None) => {}
        }
        let wanted = self.blocks.dirty();
        if wanted == 0 {
            self.reservation = None;
        } else if let Some(mine) = &mut self.reservation
            && mine.blocks() > wanted
        {
            let excess = mine.blocks() - wanted;
            drop(mine.split(excess));
        }
    }

    /// True when a file of this size keeps its contents in the inode item. A file whose first block
    /// is preallocated does not: a write there uses that room and needs no other.
    pub(in crate::data) fn inlines(&self, limit: u64, size: u64) -> bool {
        let no_extents = self.logged.blocks() == 0;
        size <= limit && no_extents && self.blocks.in_flight() == 0 && !self.preallocated.has_first()
    }

    /// The contents for a small file's inode item; `None` for an empty file, or if block 0 is not
    /// in memory.
    pub(in crate::data) fn inline_contents(&self, size: u64) -> Option<Bytes> {
        let size = size as usize;
        let mut contents = vec![0; size];
        let known = match self.block_in_memory(0)? {
            MemoryBlock::Whole(block) => block.as_slice(),
            MemoryBlock::Beginning(bytes) => bytes,
        };
        let len = known.len().min(size);
        contents[..len].copy_from_slice(&known[..len]);
        (!contents.is_empty()).then(|| contents.into())
    }

    /// Changes part of a block; a block that is not dirty yet starts from its newest contents.
    pub(in crate::data) fn patch(&mut self, block: u64, at: usize, bytes: &[u8], base: Option<&[u8]>) {
        if !self.blocks.is_dirty(block) {
            let start = self.block_in_memory(block).map(|known| known.to_bytes());
            self.blocks.patch(block, at, bytes, start.as_deref().or(base));
        } else {
            self.blocks.patch(block, at, bytes, None);
        }
    }

    /// True when the reservation has room for names already.
    pub(in crate::data) fn has_room_for_names(&self) -> bool {
        self.reservation.as_ref().is_some_and(|mine| mine.has_names())
    }

    /// True when the whole file lies, or will lie, in its inode item, provided that it is small
    /// enough. To submit it needs no look at extents, no room, and no waiting.
    pub(in crate::data) fn lies_in_item(&self) -> bool {
        let only_first = self.blocks.dirty() == 1 && self.blocks.is_dirty(0);
        let no_extents = self.layout.is_empty() && self.logged.blocks() == 0;
        let no_room = !self.preallocated.has_first();
        only_first && no_extents && no_room && self.blocks.in_flight() == 0 && self.reservation_deficit() == 0
    }
}

/// A block that is in memory.
pub(in crate::data) enum MemoryBlock<'a> {
    Whole(&'a block::Block),
    /// These bytes, then zeros.
    Beginning(&'a Bytes),
}

impl MemoryBlock<'_> {
    /// The known bytes; zeros follow.
    pub(in crate::data) fn to_bytes(&self) -> Bytes {
        match self {
            Self::Whole(contents) => contents.to_bytes(),
            Self::Beginning(bytes) => (*bytes).clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each inode in the cache has one.
    #[test]
    fn the_state_of_a_file_takes_little_memory() {
        assert!(size_of::<DataState>() <= 264, "{} bytes", size_of::<DataState>());
    }
}
