//! Committing changes of file data: one transaction has the changes and all their effects.

use crate::FsError;
use crate::data::effects::{Commit, Effects, FileChanges};
use crate::data::extents::shares::Shares;
use crate::filesystem::Filesystem;
use crate::receipt::Submitted;
use smallvec::SmallVec;
use syncline_store::OpSeq;

/// Commits one transaction with these changes, each of a different file. `shares` has the counts of
/// the blocks that they release. If it fails, nothing has changed.
pub(in crate::data) fn commit(
    fs: &Filesystem,
    changes: FileChanges<'_>,
    shares: Shares<'_>,
) -> Result<OpSeq, FsError> {
    commit_noting(fs, changes, shares, &mut Submitted::default())
}

/// Commits as `commit` does, and notes what was logged.
pub(in crate::data) fn commit_noting(
    fs: &Filesystem,
    changes: FileChanges<'_>,
    shares: Shares<'_>,
    note: &mut Submitted,
) -> Result<OpSeq, FsError> {
    let mut commit = Commit::begin(fs, shares);
    let mut effects: SmallVec<[Effects; 1]> = changes.iter().map(|_| Effects::default()).collect();
    let mut files = changes.iter().zip(&mut effects);
    let put = files.try_for_each(|(change, effects)| effects.put(change, &mut commit));
    let result = put.and_then(|()| commit.end());
    for (change, effects) in changes.iter().zip(&mut effects) {
        match &result {
            Ok((op, _)) => {
                change.note(note);
                effects.committed(fs, change, *op);
            }
            Err(_) => effects.undo(change),
        }
    }
    let (op, log_bytes) = result?;
    note.log_bytes += log_bytes;
    Ok(op)
}
