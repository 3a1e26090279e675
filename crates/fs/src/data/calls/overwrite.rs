//! Room for overwrites on a full filesystem.
//!
//! Data is never written in place, so an overwrite takes blocks too; the blocks that it replaces
//! are free again after the next checkpoint. Until then the write may draw on the reserve. If the
//! reserve is used up, everything that is dirty is written back and a checkpoint is made, which
//! restores it, and the write is tried once more.

use crate::FsError;
use crate::data::extents::lookup;
use crate::data::memory::BLOCK;
use crate::filesystem::Filesystem;
use crate::inode::Inode;
use std::ops::Range;
use std::sync::Arc;
use syncline_format::items::extent::Extent;
use syncline_store::{Reservation, StoreError};

/// True when an operation failed for lack of space.
pub(in crate::data) fn is_full<T>(answer: &Result<T, FsError>) -> bool {
    matches!(answer, Err(FsError::Store(StoreError::NoSpace)))
}

/// Sets aside `blocks` of the reserve for a write of `ranges`, if each of their blocks is dirty
/// already or replaces a block that nothing else refers to. The caller holds the lease.
pub(in crate::data) async fn reserve(
    fs: &Filesystem,
    inode: &Arc<Inode>,
    ranges: &[Range<u64>],
    blocks: u64,
) -> Result<Option<Reservation>, FsError> {
    for range in ranges {
        if !releases_what_it_takes(fs, inode, range.clone()).await? {
            return Err(StoreError::NoSpace.into());
        }
    }
    let reservation = fs.store.try_reserve_to_replace(blocks);
    reservation.map(Some).ok_or(FsError::Store(StoreError::NoSpace))
}

/// After a write found no room: restores the reserve, if the write could then draw on it. Returns
/// whether it was restored. The caller holds no lease.
pub(in crate::data) async fn restore(
    fs: &Filesystem,
    inode: &Arc<Inode>,
    bytes: Range<u64>,
) -> Result<bool, FsError> {
    let blocks = bytes.start / BLOCK..bytes.end.div_ceil(BLOCK);
    // With a snapshot, dirty data has more room for nodes reserved than it will take.
    let has_spare = fs.store.keeps_replaced() && fs.data.queue.dirty_bytes() > 0;
    let helps = has_spare || {
        let _lease = inode.lease.read().await;
        releases_what_it_takes(fs, inode, blocks).await?
    };
    // If other files cannot be synced, that is not this write's error: it just finds no room.
    Ok(helps && fs.syncfs().await.is_ok())
}

/// True if each of these blocks is dirty already, or has an extent of its own that is freed when
/// the block is rewritten.
async fn releases_what_it_takes(
    fs: &Filesystem,
    inode: &Arc<Inode>,
    blocks: Range<u64>,
) -> Result<bool, FsError> {
    let extents = lookup::all(&fs.store, inode.ino, blocks.start, blocks.end).await?;
    let own = |extent: &&Extent| !extent.shared && extent.packed.is_none();
    let extents: Vec<Range<u64>> =
        extents.iter().filter(own).map(|extent| extent.file_block..extent.end()).collect();
    let state = inode.state.lock();
    Ok(blocks.into_iter().all(|block| {
        state.data.blocks.is_dirty(block) || extents.iter().any(|extent| extent.contains(&block))
    }))
}
