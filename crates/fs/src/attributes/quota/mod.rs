//! Quotas of directory trees: their limits, and what they use.
//!
//! A quota has a number that is never used twice, and each inode that counts in it carries that
//! number. The usage of those inodes is in the quota's item. The transaction that changes an
//! inode's blocks, or makes or removes an inode, also changes that item. The new figures are
//! absolute and committed under one lock, so after any crash they match a count.
//!
//! A number whose quota is gone means nothing, so deleting a quota's item removes the quota.
//!
//! Data that waits in memory counts before it has blocks: `data/extents/quota.rs` reserves quota
//! when the data is accepted, so that write-back never lacks quota.

mod members;
mod set;

pub use set::{QuotaLimits, QuotaUsage};

use crate::FsError;
use crate::filesystem::Filesystem;
use crate::inode::{Inode, InodeState};
use crate::patience::Patience;
use crate::types::Ino;
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use syncline_format::items::quota::Quota;
use syncline_format::superblock::FEATURE_QUOTAS;
use syncline_format::{Key, Kind};
use syncline_store::{Canary, OpSeq, Store, Transaction};
use syncline_sync::Mutex;

/// Bytes of the unit in which blocks are counted.
pub(crate) const UNIT_BYTES: u64 = 512;
/// Quotas read at a time at mount.
const ITEMS_EACH: usize = 1024;

/// Key of a quota's item.
pub(crate) fn key(number: u64) -> Key {
    Key::new(0, Kind::Quota, number)
}

/// All quotas.
#[derive(Default)]
pub(crate) struct Quotas {
    /// Held while a transaction that changes usage is committed. The last lock in the order: its
    /// holder takes no others but the store's.
    trees: Mutex<BTreeMap<u64, Tree>>,
    /// Held while a quota is set or removed.
    pub(crate) changing: syncline_sync::asynchronous::Mutex<()>,
}

#[derive(Clone, Copy)]
struct Tree {
    /// The quota as committed.
    quota: Quota,
    /// Units that data waiting in memory will take.
    reserved_units: u64,
}

/// The effect of a transaction on the usage of a tree.
#[derive(Clone, Copy, Default)]
pub(crate) struct Delta {
    pub number: u64,
    pub units: i64,
    /// Units reserved for data waiting in memory.
    pub reserved: i64,
    pub inodes: i64,
    /// The inode that this transaction removes; if it is the root, the quota goes with it.
    pub gone: Ino,
}

impl Delta {
    fn is_nothing(&self) -> bool {
        self.number == 0 || (self.units, self.reserved, self.inodes) == (0, 0, 0)
    }
}

/// Units reserved in a quota. Dropping it gives them back.
#[must_use]
pub(crate) struct Held<'a> {
    quotas: &'a Quotas,
    number: u64,
    units: u64,
}

impl Held<'_> {
    /// The effect of a transaction that uses these units; [take](Self::take) them once it is
    /// committed.
    pub(crate) fn used(&self) -> Delta {
        Delta { number: self.number, reserved: -(self.units as i64), ..Delta::default() }
    }

    /// Hands the units to the caller, who must account for them from now on.
    pub(crate) fn take(&mut self) -> u64 {
        std::mem::take(&mut self.units)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.quotas.release(self.number, self.units);
    }
}

impl Tree {
    fn lacks_units(&self, more: u64) -> bool {
        let limit = self.quota.limit_bytes;
        let wanted = self.quota.used_units.saturating_add(self.reserved_units).saturating_add(more);
        limit > 0 && more > 0 && !self.quota.is_being_set() && wanted.saturating_mul(UNIT_BYTES) > limit
    }

    fn lacks_inodes(&self, more: i64) -> bool {
        let limit = self.quota.limit_inodes;
        let wanted = self.quota.used_inodes.saturating_add_signed(more);
        limit > 0 && more > 0 && !self.quota.is_being_set() && wanted > limit
    }

    fn change(&mut self, delta: &Delta) {
        // The saturation is for damaged images, whose figures may be too small.
        self.quota.used_units = self.quota.used_units.saturating_add_signed(delta.units);
        self.quota.used_inodes = self.quota.used_inodes.saturating_add_signed(delta.inodes);
        self.reserved_units = self.reserved_units.saturating_add_signed(delta.reserved);
    }
}

impl Quotas {
    /// Reads the quotas of an image, at mount.
    pub(crate) async fn load(&self, fs: &Filesystem) -> Result<(), FsError> {
        if !fs.store.has_features(FEATURE_QUOTAS) {
            return Ok(());
        }
        let mut trees = BTreeMap::new();
        let each = |key: Key, value: &bytes::Bytes| {
            let quota =
                Quota::decode(value).map_err(|detail| FsError::Corrupt { ino: key.offset, detail })?;
            trees.insert(key.offset, Tree { quota, reserved_units: 0 });
            Ok(())
        };
        fs.each_item(key(0), key(u64::MAX), ITEMS_EACH, each).await?;
        *self.trees.lock() = trees;
        Ok(())
    }

    /// The number itself, or 0 if there is no such quota (any more).
    pub(crate) fn existing(&self, number: u64) -> u64 {
        if number != 0 && self.trees.lock().contains_key(&number) { number } else { 0 }
    }

    fn get(&self, number: u64) -> Option<Tree> {
        if number == 0 { None } else { self.trees.lock().get(&number).copied() }
    }

    /// The directory at the top of a quota's tree.
    pub(crate) fn root(&self, number: u64) -> Option<Ino> {
        self.get(number).map(|tree| tree.quota.root)
    }

    /// True if a tree may take so many units and inodes more.
    pub(crate) fn holds(&self, number: u64, units: u64, inodes: u64) -> bool {
        let inodes = i64::try_from(inodes).unwrap_or(i64::MAX);
        self.get(number).is_none_or(|tree| !tree.lacks_units(units) && !tree.lacks_inodes(inodes))
    }

    fn try_hold(&self, number: u64, units: u64) -> Option<Held<'_>> {
        let mut trees = self.trees.lock();
        if let Some(tree) = trees.get_mut(&number) {
            if tree.lacks_units(units) {
                return None;
            }
            tree.reserved_units += units;
        }
        Some(Held { quotas: self, number, units })
    }

    fn release(&self, number: u64, units: u64) {
        if units > 0
            && let Some(tree) = self.trees.lock().get_mut(&number)
        {
            tree.reserved_units = tree.reserved_units.saturating_sub(units);
        }
    }

    /// Changes a reservation from `from` to `to` without a transaction.
    pub(crate) fn move_reserved(&self, number: u64, from: u64, to: u64) {
        if from != to
            && let Some(tree) = self.trees.lock().get_mut(&number)
        {
            tree.reserved_units = (tree.reserved_units + to).saturating_sub(from);
        }
    }

    /// Commits a transaction together with its effect on the usage of trees. If it would exceed an
    /// inode limit, it is refused and nothing has changed. Bytes were reserved before, and are not
    /// refused here.
    pub(crate) fn commit(
        &self,
        store: &Store,
        mut transaction: Transaction,
        deltas: &[Delta],
    ) -> Result<(OpSeq, u64), FsError> {
        if deltas.iter().all(Delta::is_nothing) {
            return Ok(store.commit_measured(transaction)?);
        }
        let mut trees = self.trees.lock();
        let mut after: SmallVec<[(u64, Option<Tree>); 2]> = SmallVec::new();
        for delta in deltas.iter().filter(|delta| !delta.is_nothing()) {
            let index = after.iter().position(|(number, _)| *number == delta.number);
            let index = index.unwrap_or_else(|| {
                after.push((delta.number, trees.get(&delta.number).copied()));
                after.len() - 1
            });
            let Some(tree) = &mut after[index].1 else { continue };
            if tree.lacks_inodes(delta.inodes) {
                return Err(FsError::QuotaExceeded);
            }
            tree.change(delta);
            if delta.gone == tree.quota.root {
                after[index].1 = None;
            }
        }
        for (number, tree) in &after {
            match (trees.get(number), tree) {
                (Some(_), Some(_)) if store.breaks(Canary::OverlookUsage) => {}
                (Some(before), Some(tree)) if before.quota != tree.quota => {
                    transaction.put(key(*number), tree.quota.encode());
                }
                (Some(_), None) => transaction.delete(key(*number)),
                _ => {}
            }
        }
        let committed = store.commit_measured(transaction)?;
        for (number, tree) in after {
            match (trees.entry(number), tree) {
                (Entry::Occupied(mut entry), Some(tree)) => drop(entry.insert(tree)),
                (Entry::Occupied(entry), None) => drop(entry.remove()),
                // The quota was removed before.
                (Entry::Vacant(_), _) => {}
            }
        }
        Ok(committed)
    }
}

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
