//! File data: dirty buffers, extents, write-back, fsync.
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

mod ahead;
mod allocate;
mod along;
mod api;
mod block;
mod cached;
mod charge;
mod defragment;
mod dirty;
mod dirty_queue;
mod ended;
mod failures;
mod gauge;
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
mod room;
mod seek;
mod state;
mod submission;
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
pub(crate) use dirty_queue::{DirtyQueue, start, stop};
pub(crate) use read::ends_in_zeros;
pub use read::is_hole;
pub use reflink::{Deduplicated, LoggedBlock, Usage};
pub(crate) use relocate::Relocation;
pub use rewrite::Rewritten;
pub(crate) use submit::submit_dirty;
pub(crate) use sync::{submit_held, submit_leased_of as submit_leased};
pub(crate) use truncate::{remove_all, truncate};
pub(crate) use unplaced::{Unplaced, is_possible as can_log_data, load as load_unplaced, note_loaded};

pub(crate) use state::DataState;
use state::{MemoryBlock, inline_units};
use syncline_format::BLOCK_BYTES;

/// Size of a block as a file offset.
const BLOCK: u64 = BLOCK_BYTES as u64;
/// 512-byte units of a block, for `st_blocks`.
const UNITS: u64 = BLOCK / 512;
