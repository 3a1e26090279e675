//! Keeping the dirty data in memory below its limit.
//!
//! Data of files that can't be written back, because their items are damaged, stays in memory (P5) and
//! is *stuck*. It takes at most half of the limit away from other files: what is stuck beyond that does
//! not count. So one damaged file stops no writer of a sound one. Only where more than the whole limit is
//! stuck, which takes many damaged files or a device that fails, and still can't be written back, writes
//! are refused.

use super::background;
use crate::FsError;
use crate::filesystem::Filesystem;
use crate::inode::Inode;

/// Waits until `len` more dirty bytes fit below the limit. A writer that finds no room writes back
/// the oldest inode itself, so that it makes progress even without background tasks. Called without
/// leases.
pub(crate) async fn wait_for_room(fs: &Filesystem, len: u64) -> Result<(), FsError> {
    if has_room(fs, len) {
        return Ok(());
    }
    fs.counters.writes_throttled.add(1);
    // In a box, like the other long ways of a write that it seldom goes: a future is moved several times
    // before it is polled.
    Box::pin(make_room(fs, len)).await
}

async fn make_room(fs: &Filesystem, len: u64) -> Result<(), FsError> {
    loop {
        // Listens before looking, so that no wake-up is missed.
        let progress = fs.data.queue.progress();
        fs.store.writable()?;
        let stuck = fs.data.queue.stuck_bytes();
        if has_room(fs, len) || has_room_beside(fs, stuck, len) {
            return Ok(());
        }
        fs.data.queue.wake();
        if let Some(inode) = fs.data.queue.take_oldest() {
            // Its failure is for its own fsync to report, and it rests now.
            drop(background::write_back_taken(fs, &inode).await);
        } else if stuck > fs.options.dirty_bytes_max
            && let Some(inode) = fs.data.queue.take_resting(None)
        {
            background::write_back_taken(fs, &inode).await?;
        } else {
            progress.await;
        }
    }
}

/// Refuses a write to a file that is stuck if more than half of the limit would be stuck then, and the
/// file still can't be written back. Called without leases.
pub(crate) async fn require_unstuck(fs: &Filesystem, inode: &Inode, len: u64) -> Result<(), FsError> {
    if fs.data.queue.stuck_bytes() + len > stuck_max(fs)
        && let Some(inode) = fs.data.queue.take_resting(Some(inode.ino))
    {
        Box::pin(background::write_back_taken(fs, &inode)).await?;
    }
    Ok(())
}

/// The part of the limit that stuck data may take away from other files.
fn stuck_max(fs: &Filesystem) -> u64 {
    fs.options.dirty_bytes_max / 2
}

/// A single write may be larger than the limit; it must then wait until nothing is dirty.
fn has_room(fs: &Filesystem, len: u64) -> bool {
    let dirty = fs.data.queue.dirty_bytes();
    dirty == 0 || dirty.saturating_add(len) <= fs.options.dirty_bytes_max
}

/// The same where some data is stuck, but not more than the limit.
fn has_room_beside(fs: &Filesystem, stuck: u64, len: u64) -> bool {
    let limit = fs.options.dirty_bytes_max;
    let others = fs.data.queue.dirty_bytes().saturating_sub(stuck);
    let may_be = limit - stuck.min(stuck_max(fs));
    (1..=limit).contains(&stuck) && (others == 0 || others.saturating_add(len) <= may_be)
}
