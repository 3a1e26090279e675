//! File data: dirty buffers, extents, write-back, fsync.
//!
//! Five layers, of which none uses one above it:
//!
//! - `calls`: reading, writing, syncing, truncating, allocating, sharing;
//! - `flush`: the ways of dirty data to the device and into the log;
//! - `effects`: what a change of data means for size and times, room, shares and quota;
//! - `extents`: where blocks lie on the device;
//! - `memory`: dirty blocks, and everything else that is in memory only.
//!
//! The newest contents of a block are in the first of these places that has it: the dirty map
//! (written by a program, not yet taken for placing), the map of blocks in flight (background
//! write-back is writing them and no transaction names them yet), the inline data of the inode item
//! (block 0 of a small file), the blocks that are cached because they were written in parts,
//! the extents. Blocks whose contents are in the log (`unplaced`) are in the dirty map too.
//!
//! Lock order: `writeback` of an inode (one submission of its data at a time), the inode's lease,
//! the counts of shared blocks, the inode's state. Extents of an inode change only under its lease
//! for writing, so a lookup stays valid while the lease is held.

mod calls;
mod effects;
mod extents;
mod flush;
mod memory;

#[cfg(test)]
mod tests;

pub use calls::allocate::Allocation;
pub use calls::defragment::{Defragmented, Fragments};
pub use calls::read::Contents;
pub(crate) use calls::read::{ends_in_zeros, probe};
pub use calls::reflink::Usage;
pub(crate) use calls::reflink::take_over::Span;
pub(crate) use calls::reflink::whole::WholeFile;
pub(crate) use calls::relocate::Relocation;
pub use calls::rewrite::Rewritten;
pub(crate) use calls::sync::{fsync_as, sync_submitted};
pub(crate) use calls::truncate::{remove_all, truncate};
pub(crate) use calls::write::{Writer, write_in_transaction};
pub(crate) use extents::room::reserve;
pub(crate) use flush::background::{start, stop};
pub(crate) use flush::load::{load_unplaced, note_loaded};
pub(crate) use flush::many::{MANY_BLOCKS_MAX, lease_settled, size_of_names, submit_in_transaction};
pub(crate) use flush::standstill::submit_everything;
pub(crate) use flush::submit::{hold_writebacks, submit_dirty, submit_placing};
pub(crate) use flush::throttle::wait_for_room;
pub(crate) use flush::writeback::write_back;
pub(crate) use memory::DataState;
pub(crate) use memory::unplaced::is_possible as can_log_data;

use extents::units::Units;
use flush::ahead::Ahead;
use flush::promises::Promises;
use flush::queue::DirtyQueue;
use flush::small::SmallDirty;
use memory::cached::CachedFiles;
use memory::preallocated::Room;

/// State that the data of all files shares.
#[derive(Default)]
pub(crate) struct FileData {
    /// Dirty inodes.
    pub(crate) queue: DirtyQueue,
    /// Dirty inodes whose contents lie in their inode items.
    small: SmallDirty,
    /// Files that cache placed blocks.
    cached: CachedFiles,
    /// Tasks that place the blocks that syncs have logged.
    ahead: Ahead,
    /// Flushes that syncs of class `ordered` owe.
    promises: Promises,
    /// Room set aside for preallocated blocks.
    pub(crate) room: Room,
    /// Compressed units that were decoded recently.
    units: Units,
    /// Held while reference counts of shared blocks are read and changed.
    shared_counts: syncline_sync::asynchronous::Mutex<()>,
}
