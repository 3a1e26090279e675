//! For tests that look at a filesystem at rest: whether the dirty data in memory matches its
//! counter, whether anything still waits for the background, and whether files end in zeros.

use crate::FsError;
use crate::data;
use crate::filesystem::Filesystem;
use crate::inode::Inode;
use crate::types::Ino;
use std::sync::Arc;
use syncline_format::BLOCK_BYTES;

impl Filesystem {
    /// Dirty bytes in memory; an error if the counter that the limit is compared with differs.
    #[doc(hidden)]
    pub fn dirty_held(&self) -> Result<u64, String> {
        let mut inodes = self.inodes.matching(|_| true);
        inodes.extend(self.data.queue.removed_in_flight());
        let blocks = |inode: &Arc<Inode>| u64::from(inode.state.lock().data.memory_blocks());
        let held = inodes.iter().map(blocks).sum::<u64>() * BLOCK_BYTES as u64;
        let counted = self.data.queue.dirty_bytes();
        if held == counted { Ok(held) } else { Err(format!("{held} bytes are dirty, {counted} are counted")) }
    }

    /// How many removals and access times the background has left undone, although there is room. Zeros if
    /// there is none.
    #[doc(hidden)]
    pub fn postponed(&self) -> (usize, usize) {
        match self.store.writable().is_ok() && self.store.has_room_to_spare() {
            true => (self.orphans.len(), self.accessed.len()),
            false => (0, 0),
        }
    }

    /// True if the last block of a file is zero behind the file's end, in memory, in the log and on
    /// the device: a file that grows would expose anything else.
    #[doc(hidden)]
    pub async fn ends_in_zeros(&self, ino: Ino) -> Result<bool, FsError> {
        let inode = self.inode(ino).await?;
        data::ends_in_zeros(self, &inode).await
    }
}
