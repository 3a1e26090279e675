//! Admission to a tree with a quota: each operation reserves its units before its transaction, so
//! that a commit lacks none.
//!
//! Data that waits in memory counts before it has blocks: `data/extents/quota.rs` reserves quota
//! when the data is accepted, so that write-back never lacks quota.

use crate::FsError;
use crate::filesystem::Filesystem;
use crate::inode::quotas::{Delta, Held};
use crate::inode::{Inode, InodeState};
use crate::patience::Patience;
use std::sync::Arc;

impl Filesystem {
    /// Number of the quota that an inode counts in; 0 if none.
    pub(crate) fn quota_of(&self, inode: &Inode) -> u64 {
        let number = inode.state.lock().meta.quota;
        self.quotas.existing(number)
    }

    /// Makes a new inode count in the quota of its directory, whose number it carries already, and
    /// returns the effect of its creation on usage. The inode must be complete.
    pub(crate) fn inherit_quota(&self, state: &mut InodeState) -> Delta {
        let number = self.quotas.existing(state.meta.quota);
        state.count_in(number);
        Delta { number, inodes: 1, units: state.logged_units() as i64, ..Delta::default() }
    }

    /// Reserves the units of a new inode's extended attributes in the quota of its directory.
    pub(crate) async fn hold_new(&self, state: &InodeState) -> Result<Option<Held<'_>>, FsError> {
        match (self.quotas.existing(state.meta.quota), state.meta.xattr_units) {
            (0, _) | (_, 0) => Ok(None),
            // Boxed, so that the future of every creation has no room for this.
            (number, units) => Ok(Some(Box::pin(self.hold_units(number, units.into())).await?)),
        }
    }

    /// Waits until a tree may have one more inode. Another task may take it before the caller does;
    /// the commit decides.
    pub(crate) async fn admit_inode(&self, dir: &Inode) -> Result<(), FsError> {
        let number = self.quota_of(dir);
        let lacks = || self.quotas.get(number).is_some_and(|tree| tree.lacks_inodes(1));
        if number == 0 || !lacks() {
            return Ok(());
        }
        Box::pin(self.wait_for_removals(number, || !lacks())).await
    }

    /// Reserves units in this quota. The caller may hold the lease of the inode.
    pub(crate) async fn hold_units(&self, number: u64, units: u64) -> Result<Held<'_>, FsError> {
        if let Some(held) = self.quotas.try_hold(number, units) {
            return Ok(held);
        }
        let mut held = None;
        let try_again = || {
            held = self.quotas.try_hold(number, units);
            held.is_some()
        };
        self.wait_for_removals(number, try_again).await?;
        held.ok_or(FsError::QuotaExceeded)
    }

    /// Waits, before reporting that a tree is full, for inodes that were removed from it to give
    /// back what they use.
    async fn wait_for_removals(&self, number: u64, mut done: impl FnMut() -> bool) -> Result<(), FsError> {
        let mut patience = Patience::default();
        while !done() {
            if !patience.wait(self, |state| state.meta.quota == number).await {
                return Err(FsError::QuotaExceeded);
            }
        }
        Ok(())
    }

    /// Refuses to let a name cross the border of a tree: usage belongs to the tree in which an
    /// inode was made, and a program that gets EXDEV copies the file instead. A whole tree may move
    /// among directories without a quota. The caller holds the leases.
    pub(crate) fn require_same_tree(
        &self,
        inode: &Arc<Inode>,
        from: &Inode,
        to: &Inode,
    ) -> Result<(), FsError> {
        if from.ino == to.ino {
            return Ok(());
        }
        let [own, source, target] = [&**inode, from, to].map(|inode| self.quota_of(inode));
        let whole_tree = target == 0 && source == 0 && self.quotas.root(own) == Some(inode.ino);
        if (own == target && source == target) || whole_tree { Ok(()) } else { Err(FsError::CrossDevice) }
    }
}
