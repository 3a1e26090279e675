//! Blocks whose contents are in the log: their items come and go with the contents.

use super::{Commit, Effect, FileChange, SizeChange};
use crate::FsError;
use crate::data::memory::BLOCK;
use crate::data::memory::unplaced::UnplacedChange;
use crate::filesystem::Filesystem;
use crate::inode::InodeState;
use smallvec::SmallVec;
use std::ops::Range;
use syncline_store::OpSeq;

/// The change to the blocks of a file that have items.
#[derive(Default)]
pub(super) struct LoggedBlocks(UnplacedChange);

impl Effect for LoggedBlocks {
    fn put(
        &mut self,
        change: &FileChange<'_>,
        file: &mut InodeState,
        commit: &mut Commit<'_>,
    ) -> Result<(), FsError> {
        self.0 = file.data.logged.unplaced_mut().change(&cut(change, file.attr.size), &change.logged);
        self.0.put(change.inode.ino, &change.logged, commit.transaction());
        Ok(())
    }

    fn undo(&mut self, file: &mut InodeState) {
        file.data.logged.unplaced_mut().undo(std::mem::take(&mut self.0));
    }

    fn committed(&mut self, _fs: &Filesystem, _change: &FileChange<'_>, file: &mut InodeState, _op: OpSeq) {
        file.data.logged.unplaced_mut().committed();
    }
}

/// The blocks whose logged contents are no longer valid: those that are cleared and, for a truncation,
/// all behind the new end, even if only later transactions clear the extents.
fn cut(change: &FileChange<'_>, old_size: u64) -> SmallVec<[Range<u64>; 2]> {
    let mut cut: SmallVec<_> = change.extents.cleared.iter().cloned().collect();
    if let SizeChange::Truncated { size, .. } = change.size
        && size < old_size
    {
        cut.push(size.div_ceil(BLOCK)..u64::MAX);
    }
    cut
}
