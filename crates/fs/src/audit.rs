//! Is what is dirty in memory what is counted, and do files end where they say? For tests that look at a filesystem at rest.

use crate::FsError;
use crate::data;
use crate::filesystem::Filesystem;
use crate::inode::Inode;
use crate::types::Ino;
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

    /// True if a file's last block is zeros behind the file's end, in memory, in the log and on the device: a file that grows would show
    /// anything else.
    #[doc(hidden)]
    pub async fn ends_in_zeros(&self, ino: Ino) -> Result<bool, FsError> {
        let inode = self.inode(ino).await?;
        data::ends_in_zeros(self, &inode).await
    }
}
