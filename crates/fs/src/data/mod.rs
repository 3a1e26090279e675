//! File data: dirty buffers, extents, write-back, fsync.
//!
//! A block of a file has its newest contents in the first of these places that has it: the dirty map (written by a
//! caller, not yet on its way), the map of blocks in flight (background write-back has started writing them and nothing
//! names them yet), the inline data of the inode item (block 0 of a small file), those that are kept
//! because they were written in parts, the extents. What the log has whole (`unplaced`) is in the dirty map, too.
//!
//! Locks, in this order: `writeback` of an inode (one submission of its data at a time), the inode's lease, the counts of shared
//! blocks, its state.
//! Extents of an inode change only under its lease for writing, so what was looked up under the lease stays true.

mod ahead;
mod allocate;
mod along;
mod api;
mod block;
mod charge;
mod defragment;
mod dirty;
mod dirty_queue;
mod ended;
mod failures;
mod gauge;
mod join;
mod kept;
mod lookup;
mod numbers;
mod overwrite;
mod pack;
mod place;
mod plan;
mod preallocated;
mod ranges;
mod read;
mod reflink;
mod relocate;
mod rewrite;
mod seek;
mod submit;
mod sync;
mod throttle;
mod transact;
mod truncate;
mod units;
pub(crate) mod unplaced;
mod why;
mod write;
mod writeback;

#[cfg(test)]
mod tests;

pub use allocate::Allocation;
pub use defragment::{Defragmented, Fragments};
pub(crate) use dirty_queue::{DirtyQueue, age, start, stop};
pub(crate) use read::ends_in_zeros;
pub use read::is_hole;
pub use reflink::{Deduplicated, LoggedBlock, Usage};
pub(crate) use relocate::Relocation;
pub use rewrite::Rewritten;
pub(crate) use submit::submit_dirty;
pub(crate) use sync::{submit_held, submit_leased_of as submit_leased};
pub(crate) use truncate::{remove_all, truncate};
pub(crate) use unplaced::{Unplaced, is_possible as can_log_data, load as load_unplaced, note_loaded};

use crate::inode::DiskView;
use crate::types::{Attributes, Timestamp};
use bytes::Bytes;
use charge::Charge;
use dirty::BlockMap;
use failures::Failures;
use kept::Kept;
use preallocated::Preallocated;
use std::num::NonZeroU64;
use std::sync::Arc;
use syncline_format::BLOCK_BYTES;
use syncline_store::{OpSeq, Reservation};

/// Size of a block as a file offset.
const BLOCK: u64 = BLOCK_BYTES as u64;
/// 512-byte units of a block, for `st_blocks`.
const UNITS: u64 = BLOCK / 512;

/// The data side of an inode in memory.
pub(crate) struct DataState {
    /// Size as logged; never past a dirty range, but after a truncation upward.
    pub disk_size: u64,
    /// The mtime that belongs to the last logged write.
    pub disk_mtime: Timestamp,
    /// Blocks that the logged extents have.
    disk_blocks: u64,
    /// Inline contents as logged: the beginning of block 0, zeros follow.
    pub inline: Option<Bytes>,
    /// Preallocated blocks.
    preallocated: Preallocated,
    /// Blocks that a sync has logged whole.
    pub(crate) unplaced: Unplaced,
    /// What waits and will count in a quota; `None` without one.
    pub(crate) charge: Option<Box<Charge>>,
    /// Written and not yet submitted.
    dirty: BlockMap,
    /// Being written by background write-back and not yet named. Older than what `dirty` has.
    in_flight: BlockMap,
    /// One block for each dirty one; less after a failed write, made up for at the next submission.
    reservation: Option<Box<Reservation>>,
    /// No extent lies at or past this block. Unknown after loading: a crash may have left extents past the end.
    extent_end: Option<u64>,
    /// Where the next block would best be placed.
    near: Option<NonZeroU64>,
    /// Placed blocks that were written in parts.
    kept: Kept,
    /// What the submission under way must log as size at least: the size when it began, since when all that was dirty
    /// below is being submitted. A truncation meanwhile lowers it.
    floor: u64,
    /// What it must have logged when it has ended: the same, but that a truncation lowers it to the new size and no further. The
    /// trap of `ended` looks at it.
    promised: u64,
    /// The first block that a truncation meanwhile ended the file within, while it was in flight: such a block is dirty instead, and the
    /// submission is not complete without it. Rare, so it is boxed.
    recalled: Option<Box<u64>>,
    /// Newest operation that changed size or extents: what fdatasync needs durable.
    data_op: OpSeq,
    failures: Failures,
    /// A sync or a rename has submitted data of it before, since it came into the cache.
    submitted: bool,
    /// Units in a row that compression did not make smaller.
    unshrunk: u32,
    /// A task places what is logged.
    placing: bool,
    /// After such a task has failed, the number of logged blocks from which on there is another.
    place_from: u64,
    /// In the list of dirty inodes.
    queued: bool,
    /// In the list of small files that an fsync may take along, or was there and forgotten.
    small_noted: bool,
    /// Blocks of memory that write-back has on its way: what it took, until the writes have ended, though it may be cut off meanwhile.
    flying_blocks: u32,
    /// Blocks of memory of this inode in the gauge of dirty bytes.
    accounted_blocks: u32,
    /// Held by whoever submits this inode's data.
    pub(crate) writeback: Arc<syncline_sync::asynchronous::Mutex<()>>,
}

impl DataState {
    /// Of an inode that was created just now.
    pub(crate) fn new(attr: &Attributes) -> Self {
        Self { extent_end: Some(0), ..Self::load(attr, None, OpSeq::default()) }
    }

    /// Of an inode item that was read; marks start at `last_op`.
    pub(crate) fn load(attr: &Attributes, inline: Option<Bytes>, last_op: OpSeq) -> Self {
        // Bounded by the item that was read, and kept apart from the node it was read in.
        let inline = inline.filter(|data| !data.is_empty()).map(|data| Bytes::copy_from_slice(&data));
        Self {
            disk_size: attr.size,
            disk_mtime: attr.mtime,
            disk_blocks: attr.blocks.saturating_sub(inline_units(inline.as_deref())) / UNITS,
            inline,
            preallocated: Preallocated::default(),
            unplaced: Unplaced::default(),
            charge: None,
            dirty: BlockMap::default(),
            in_flight: BlockMap::default(),
            reservation: None,
            extent_end: None,
            near: None,
            kept: Kept::default(),
            submitted: false,
            floor: 0,
            promised: 0,
            recalled: None,
            data_op: last_op,
            failures: Failures::default(),
            unshrunk: 0,
            placing: false,
            place_from: 0,
            queued: false,
            small_noted: false,
            flying_blocks: 0,
            accounted_blocks: 0,
            writeback: Arc::default(),
        }
    }

    /// The preallocated blocks of an inode that was loaded; the item's count of blocks has them, too.
    pub(crate) fn with_preallocated(mut self, preallocated: Preallocated) -> Self {
        self.disk_blocks = self.disk_blocks.saturating_sub(preallocated.blocks());
        self.preallocated = preallocated;
        self
    }

    /// What the inode item must carry now.
    pub(crate) fn disk_view(&self, _attr: &Attributes) -> DiskView<'_> {
        DiskView {
            size: self.disk_size,
            mtime: self.disk_mtime,
            blocks: self.disk_units(),
            inline: self.inline.as_deref(),
            unplaced: self.unplaced.is_marked(),
        }
    }

    /// utimes: the new mtime is an attribute change of its own, logged with the next inode item whatever is dirty.
    pub(crate) fn set_disk_mtime(&mut self, mtime: Timestamp) {
        self.disk_mtime = mtime;
    }

    /// True when the cache may forget it: nothing dirty that is not logged, nothing in flight, no error to remember.
    pub(crate) fn is_idle(&self) -> bool {
        !self.has_unlogged() && !self.failures.any()
    }

    /// True when writes were not yet submitted, or not yet named.
    pub(crate) fn has_dirty(&self) -> bool {
        !self.dirty.is_empty() || !self.in_flight.is_empty()
    }

    /// Blocks of memory that what is dirty or not yet named takes: what counts towards the limit of dirty bytes.
    pub(crate) fn memory_blocks(&self) -> u32 {
        self.dirty.memory_blocks() + self.in_flight.memory_blocks().max(self.flying_blocks)
    }

    /// True when something is dirty, or not yet named, that the log does not have either.
    pub(crate) fn has_unlogged(&self) -> bool {
        self.dirty.unlogged() > 0 || !self.in_flight.is_empty()
    }

    /// 512-byte units that the inode item shows.
    fn disk_units(&self) -> u64 {
        let blocks = self.disk_blocks.saturating_add(self.preallocated.blocks());
        (blocks * UNITS).saturating_add(inline_units(self.inline.as_deref()))
    }

    /// 512-byte units that stat shows: what is on disk and what will be. How many of the waiting blocks replace others is
    /// not known before they are placed; a file without holes never shows more than its size needs.
    fn visible_units(&self, size: u64) -> u64 {
        let disk = self.disk_units();
        let waiting = self.dirty.len() + self.in_flight.len();
        // Those that were preallocated count already.
        let waiting = waiting.saturating_sub(self.preallocated.taken_blocks()) * UNITS;
        (disk + waiting).min(disk.max(size.div_ceil(BLOCK) * UNITS))
    }

    /// True when block 0 lies in the inode item.
    fn has_inline(&self) -> bool {
        self.inline.is_some()
    }

    /// First block that is written but neither named nor logged, from the one on that holds the end of the logged size.
    fn first_unnamed(&self) -> Option<u64> {
        let from = self.disk_size / BLOCK;
        match (self.dirty.next_unlogged(from), self.in_flight.next(from)) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// The logged size that the next inode item may carry: never past a dirty range, never less than before.
    fn next_disk_size(&self, size: u64) -> u64 {
        let limit = self.first_unnamed().map_or(size, |block| size.min(block * BLOCK));
        self.disk_size.max(limit)
    }

    /// Newest contents of a block as far as they are in memory.
    fn block_in_memory(&self, block: u64) -> Option<MemoryBlock<'_>> {
        if let Some(contents) = self.dirty.get(block).or_else(|| self.in_flight.get(block)) {
            return Some(MemoryBlock::Whole(contents));
        }
        if block == 0
            && let Some(inline) = &self.inline
        {
            return Some(MemoryBlock::Beginning(inline));
        }
        self.kept.get(block).map(MemoryBlock::Beginning)
    }

    /// Blocks that the reservation lacks.
    fn reservation_deficit(&self) -> u64 {
        self.dirty.len().saturating_sub(self.reservation.as_ref().map_or(0, |mine| mine.blocks()))
    }

    /// Adds to the reservation and gives back what is more than needed.
    fn add_reservation(&mut self, more: Option<Reservation>) {
        match (&mut self.reservation, more) {
            (Some(mine), Some(more)) => mine.merge(more),
            (mine @ None, more) => *mine = more.map(Box::new),
            (Some(_), None) => {}
        }
        let wanted = self.dirty.len();
        if wanted == 0 {
            self.reservation = None;
        } else if let Some(mine) = &mut self.reservation
            && mine.blocks() > wanted
        {
            let excess = mine.blocks() - wanted;
            drop(mine.split(excess));
        }
    }
}

/// A block that is in memory.
enum MemoryBlock<'a> {
    Whole(&'a block::Block),
    /// These bytes, then zeros.
    Beginning(&'a Bytes),
}

impl MemoryBlock<'_> {
    /// As far as it is known; zeros follow.
    fn to_bytes(&self) -> Bytes {
        match self {
            Self::Whole(contents) => contents.to_bytes(),
            Self::Beginning(bytes) => (*bytes).clone(),
        }
    }
}

fn inline_units(inline: Option<&[u8]>) -> u64 {
    inline.map_or(0, |data| data.len().div_ceil(512) as u64)
}
