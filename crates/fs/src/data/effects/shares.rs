//! References to shared blocks: a block that the file no longer uses is free once no extent refers to it.

use super::{Commit, Effect, FileChange};
use crate::FsError;
use crate::inode::InodeState;

/// The references that a file gives up, or gains by the division of a compressed unit.
#[derive(Default)]
pub(super) struct References;

impl Effect for References {
    fn put(
        &mut self,
        change: &FileChange<'_>,
        _file: &mut InodeState,
        commit: &mut Commit<'_>,
    ) -> Result<(), FsError> {
        // Before anything is released, so that no count drops to zero on the way.
        for &(run, more) in &change.extents.divided {
            let divided = (0..more).try_for_each(|_| commit.shares.divide(run));
            divided.map_err(|_| FsError::TooManyShares)?;
        }
        for run in &change.extents.released {
            for unused in commit.shares.release(*run) {
                commit.transaction().free(unused);
            }
        }
        Ok(())
    }

    /// The counts are part of the transaction only.
    fn undo(&mut self, _file: &mut InodeState) {}
}
