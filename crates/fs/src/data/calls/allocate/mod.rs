//! fallocate: preallocating, clearing, shifting and unsharing ranges of a file.

mod clear;
mod edges;
mod preallocate;
mod shift;
mod unshare;

use crate::FsError;
use crate::filesystem::Filesystem;
use crate::types::Ino;
use clear::Clearing;
#[cfg(test)]
pub(crate) use shift::EXTENTS_MAX as SHIFTED_EXTENTS_MAX;
use shift::Shift;
use syncline_format::items::inode::SIZE_MAX;

/// A change to the allocation of a range of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Allocation {
    /// Room is set aside for blocks that do not exist yet: writing each of them once cannot fail
    /// for lack of space (mode 0).
    Preallocate {
        /// The size stays, even where the range reaches beyond it (FALLOC_FL_KEEP_SIZE).
        keep_size: bool,
    },
    /// The range reads as zeros and its blocks are freed. The size stays (FALLOC_FL_PUNCH_HOLE).
    PunchHole,
    /// The range reads as zeros and is preallocated (FALLOC_FL_ZERO_RANGE).
    ZeroRange {
        /// The size stays, even where the range reaches beyond it (FALLOC_FL_KEEP_SIZE).
        keep_size: bool,
    },
    /// The range is removed and everything behind it moves up, so the file gets shorter
    /// (FALLOC_FL_COLLAPSE_RANGE). The range consists of whole blocks and ends before the file
    /// does.
    CollapseRange,
    /// A hole is inserted: contents from the beginning of the range on move behind it, so the file
    /// gets longer (FALLOC_FL_INSERT_RANGE). The range consists of whole blocks and begins before
    /// the file ends.
    InsertRange,
    /// Blocks that other files use too are replaced by copies of its own, and the range is
    /// preallocated (FALLOC_FL_UNSHARE_RANGE).
    UnshareRange {
        /// The size stays, even where the range reaches beyond it (FALLOC_FL_KEEP_SIZE).
        keep_size: bool,
    },
}

impl Filesystem {
    /// Changes the allocation of `len` bytes of a regular file from `offset` on. `kill_privileges`
    /// clears setuid and setgid.
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
        let bytes = offset..end;
        match what {
            Allocation::Preallocate { keep_size } => {
                preallocate::preallocate(self, &inode, bytes, !keep_size, kill_privileges).await
            }
            Allocation::PunchHole => {
                clear::clear(self, &inode, bytes, Clearing::Punch, kill_privileges).await
            }
            Allocation::ZeroRange { keep_size } => {
                let clearing = Clearing::Zero { grows: !keep_size };
                clear::clear(self, &inode, bytes, clearing, kill_privileges).await
            }
            Allocation::CollapseRange => {
                shift::shift(self, &inode, bytes, Shift::Collapse, kill_privileges).await
            }
            Allocation::InsertRange => {
                shift::shift(self, &inode, bytes, Shift::Insert, kill_privileges).await
            }
            Allocation::UnshareRange { keep_size } => {
                unshare::unshare(self, &inode, bytes, !keep_size, kill_privileges).await
            }
        }
    }
}
