//! The quotas of directory trees: their limits, and what they use.
//!
//! A quota has a number that is never used twice, and each inode that counts in it carries that
//! number. The usage of those inodes is in the quota's item. The transaction that changes an
//! inode's blocks, or makes or removes an inode, also changes that item. The new figures are
//! absolute and committed under one lock, so after any crash they match a count.
//!
//! A number whose quota is gone means nothing, so deleting a quota's item removes the quota.

use crate::FsError;
use crate::filesystem::Filesystem;
use crate::types::Ino;
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
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
fn key(number: u64) -> Key {
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

/// A tree with a quota.
#[derive(Clone, Copy)]
pub(crate) struct Tree {
    /// The quota as committed.
    pub quota: Quota,
    /// Units that data waiting in memory will take.
    pub reserved_units: u64,
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

    pub(crate) fn lacks_inodes(&self, more: i64) -> bool {
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

    /// The tree of a quota.
    pub(crate) fn get(&self, number: u64) -> Option<Tree> {
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

    /// Reserves units, unless the tree lacks them.
    pub(crate) fn try_hold(&self, number: u64, units: u64) -> Option<Held<'_>> {
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

    /// All trees, in the order in which their quotas were made.
    pub(crate) fn all(&self) -> Vec<Tree> {
        self.trees.lock().values().copied().collect()
    }

    /// Makes a quota known that has no item yet.
    pub(crate) fn insert(&self, number: u64, quota: Quota) {
        self.trees.lock().insert(number, Tree { quota, reserved_units: 0 });
    }

    /// Forgets a quota that got no item.
    pub(crate) fn forget(&self, number: u64) {
        self.trees.lock().remove(&number);
    }

    /// Changes a quota's item.
    pub(crate) fn change(
        &self,
        store: &Store,
        number: u64,
        change: impl FnOnce(Quota) -> Quota,
    ) -> Result<(), FsError> {
        let mut trees = self.trees.lock();
        let tree = trees.get_mut(&number).ok_or(FsError::NoQuota)?;
        let quota = change(tree.quota);
        let mut transaction = Transaction::new();
        transaction.put(key(number), quota.encode());
        store.commit(transaction)?;
        tree.quota = quota;
        Ok(())
    }

    /// Removes a quota. Its number is never reused: from now on it means nothing on inodes.
    pub(crate) fn remove(&self, store: &Store, number: u64) -> Result<(), FsError> {
        let mut trees = self.trees.lock();
        let mut transaction = Transaction::new();
        transaction.delete(key(number));
        store.commit(transaction)?;
        trees.remove(&number);
        Ok(())
    }
}
