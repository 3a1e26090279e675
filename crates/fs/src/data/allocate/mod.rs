//! fallocate: giving up ranges of a file's blocks.

mod clear;
mod edges;

use crate::FsError;
use crate::filesystem::Filesystem;
use crate::types::Ino;
use syncline_format::items::inode::SIZE_MAX;

/// What is to become of a range of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Allocation {
    /// It reads as zeros and its blocks are given up. The size stays (FALLOC_FL_PUNCH_HOLE).
    PunchHole,
    /// It reads as zeros (FALLOC_FL_ZERO_RANGE).
    ZeroRange {
        /// The size stays, even where the range reaches beyond it (FALLOC_FL_KEEP_SIZE).
        keep_size: bool,
    },
}

impl Filesystem {
    /// Changes how `len` bytes from `offset` on of a regular file are allocated. `kill_privileges` clears setuid and setgid.
    pub async fn allocate(
        &self,
        ino: Ino,
        what: Allocation,
        offset: u64,
        len: u64,
        kill_privileges: bool,
    ) -> Result<(), FsError> {
        let inode = self.regular(ino).await?;
        if len == 0 {
            return Err(FsError::Invalid("an empty range"));
        }
        let end = offset.checked_add(len).filter(|&end| end <= SIZE_MAX).ok_or(FsError::TooLarge)?;
        self.store.writable()?;
        let grows = match what {
            Allocation::PunchHole => false,
            Allocation::ZeroRange { keep_size } => !keep_size,
        };
        clear::clear(self, &inode, offset..end, grows, kill_privileges).await
    }
}
