//! Keeping the dirty data in memory below its limit.

use super::dirty_queue;
use crate::FsError;
use crate::filesystem::Filesystem;

/// Waits until `len` more dirty bytes fit below the limit. A writer that finds no room writes back the oldest inode itself, so
/// that it gets on even where nobody runs background tasks. Called without leases.
pub(crate) async fn wait_for_room(fs: &Filesystem, len: u64) -> Result<(), FsError> {
    if has_room(fs, len) {
        return Ok(());
    }
    fs.counters.writes_throttled.add(1);
    loop {
        // Before looking, so that nothing is missed.
        let progress = fs.data.progress();
        if has_room(fs, len) {
            return Ok(());
        }
        fs.data.wake();
        match fs.data.take_oldest() {
            // A failure is the writer's too: nothing more can be accepted.
            Some(inode) => dirty_queue::write_back_taken(fs, &inode).await?,
            None => progress.await,
        }
    }
}

/// A single write may be larger than the limit; then it goes alone.
fn has_room(fs: &Filesystem, len: u64) -> bool {
    let dirty = fs.data.dirty_bytes();
    dirty == 0 || dirty.saturating_add(len) <= fs.options.dirty_bytes_max
}
