//! Preallocated blocks: the room of blocks that are named or cut off is no longer set aside.

use super::{Commit, Effect, FileChange};
use crate::FsError;
use crate::data::memory::preallocated::PreallocatedChange;
use crate::filesystem::Filesystem;
use crate::inode::InodeState;
use syncline_store::OpSeq;

/// The change to a file's preallocated blocks.
#[derive(Default)]
pub(super) struct Preallocation(PreallocatedChange);

impl Effect for Preallocation {
    fn put(
        &mut self,
        change: &FileChange<'_>,
        file: &mut InodeState,
        commit: &mut Commit<'_>,
    ) -> Result<(), FsError> {
        let preallocated = &mut file.data.preallocated;
        self.0 = preallocated.change(&change.extents.cleared, &change.extents.preallocated);
        preallocated.put(change.inode.ino, &self.0, commit.transaction());
        Ok(())
    }

    fn undo(&mut self, file: &mut InodeState) {
        file.data.preallocated.undo(std::mem::take(&mut self.0));
    }

    fn committed(&mut self, fs: &Filesystem, change: &FileChange<'_>, file: &mut InodeState, _op: OpSeq) {
        if !self.0.is_empty() {
            fs.data.room.committed(change.inode.ino, &file.data.preallocated, &self.0);
        }
    }
}
