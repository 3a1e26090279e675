//! Keeping the dirty data in memory below its limit.

use super::background;
use crate::FsError;
use crate::filesystem::Filesystem;

/// Waits until `len` more dirty bytes fit below the limit. A writer that finds no room writes back
/// the oldest inode itself, so that it makes progress even without background tasks. Called without
/// leases.
pub(crate) async fn wait_for_room(fs: &Filesystem, len: u64) -> Result<(), FsError> {
    if has_room(fs, len) {
        return Ok(());
    }
    fs.counters.writes_throttled.add(1);
    loop {
        // Listens before looking, so that no wake-up is missed.
        let progress = fs.data.queue.progress();
        if has_room(fs, len) {
            return Ok(());
        }
        fs.data.queue.wake();
        match fs.data.queue.take_oldest() {
            // If it fails, so does the write: no more data can be accepted.
            Some(inode) => background::write_back_taken(fs, &inode).await?,
            None => progress.await,
        }
    }
}

/// A single write may be larger than the limit; it must then wait until nothing is dirty.
fn has_room(fs: &Filesystem, len: u64) -> bool {
    let dirty = fs.data.queue.dirty_bytes();
    dirty == 0 || dirty.saturating_add(len) <= fs.options.dirty_bytes_max
}
