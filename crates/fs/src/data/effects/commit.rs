//! A transaction in the making, with the parts to which the effects of several files contribute.

use crate::FsError;
use crate::data::extents::shares::Shares;
use crate::filesystem::Filesystem;
use crate::inode::quotas::Delta;
use smallvec::SmallVec;
use syncline_store::{OpSeq, Transaction};

/// A transaction that is being put together.
pub(in crate::data) struct Commit<'a> {
    pub(super) fs: &'a Filesystem,
    transaction: Transaction,
    /// The counts of the blocks that the changes release.
    pub(super) shares: Shares<'a>,
    /// The effects on the usage of trees with quotas.
    pub(super) usage: SmallVec<[Delta; 1]>,
    /// Nothing that a sync waits for has changed.
    pub(super) only_places: bool,
}

impl<'a> Commit<'a> {
    /// Begins a transaction that releases blocks with these counts.
    pub(in crate::data) fn begin(fs: &'a Filesystem, shares: Shares<'a>) -> Self {
        let mut transaction = Transaction::new();
        shares.put_marks(&mut transaction);
        Self { fs, transaction, shares, usage: SmallVec::new(), only_places: true }
    }

    pub(super) fn transaction(&mut self) -> &mut Transaction {
        &mut self.transaction
    }

    /// Commits the transaction. Returns its number and its bytes in the log.
    pub(in crate::data) fn end(&mut self) -> Result<(OpSeq, u64), FsError> {
        let mut transaction = std::mem::take(&mut self.transaction);
        self.shares.put_counts(&mut transaction);
        if self.only_places {
            transaction.only_places();
        }
        self.fs.quotas.commit(&self.fs.store, transaction, &self.usage)
    }
}
