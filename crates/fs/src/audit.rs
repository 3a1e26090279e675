//! Is what is dirty in memory what is counted? For tests that look at a filesystem at rest.

use crate::filesystem::Filesystem;
use crate::inode::Inode;
use std::sync::Arc;
use syncline_format::BLOCK_BYTES;

impl Filesystem {
    /// Dirty bytes in memory, if they are what the limit is compared with.
    #[doc(hidden)]
    pub fn dirty_held(&self) -> Result<u64, String> {
        let mut inodes = self.inodes.matching(|_| true);
        inodes.extend(self.data.removed_in_flight());
        let blocks = |inode: &Arc<Inode>| u64::from(inode.state.lock().data.memory_blocks());
        let held = inodes.iter().map(blocks).sum::<u64>() * BLOCK_BYTES as u64;
        let counted = self.data.dirty_bytes();
        if held == counted { Ok(held) } else { Err(format!("{held} bytes are dirty, {counted} are counted")) }
    }
}
