//! Figures of the whole filesystem.

use crate::filesystem::Filesystem;
use crate::types::Statfs;

/// Objects with a short name that fit in a block: several inode items and directory entries share
/// one.
const OBJECTS_PER_BLOCK: u64 = 8;

impl Filesystem {
    /// Blocks and objects, used and free. Dirty data in memory counts as free, but not as
    /// available. Preallocated blocks count as used.
    pub fn statfs(&self) -> Statfs {
        self.retry_failed_orphans();
        let geometry = self.store.geometry();
        let space = self.store.space();
        // Blocks that were freed can be used after the next checkpoint.
        let free = space.free.saturating_add(space.pending_free).min(geometry.total_blocks);
        let free = free.saturating_sub(self.data.room.blocks());
        // A single fallocate or write can get all of these.
        let available = self.store.available_data_blocks().min(free);
        Statfs {
            blocks: geometry.total_blocks,
            free,
            available,
            objects: self.store.objects(),
            objects_free: available.saturating_mul(OBJECTS_PER_BLOCK),
        }
    }
}
