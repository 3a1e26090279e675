//! References to shared blocks: a block that the file no longer uses is free once no extent refers to it.

use super::{Commit, FileChange};
use crate::FsError;

/// Gives up the references of a file, or adds those by the division of a compressed unit. The counts are
/// part of the transaction only, so there is nothing to undo. The file's state is not locked: there may
/// be thousands of runs.
pub(super) fn put(change: &FileChange<'_>, commit: &mut Commit<'_>) -> Result<(), FsError> {
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
