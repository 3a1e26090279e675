//! Setting, showing and removing quotas.
//!
//! Setting a quota for a directory that has contents takes three steps. The first transaction makes
//! the quota, marked as being set, and makes the directory itself count; an inode that is made
//! below a counting directory counts from its first moment. Then every inode below gets the number,
//! each in a transaction that counts it. The last transaction clears the mark. The usage in the
//! quota's item equals, at every moment, the usage of the inodes with its number. While the mark is
//! set, these are not all inodes of the tree, and limits do not apply. If setting is interrupted,
//! it must be repeated.

mod members;

use crate::FsError;
use crate::filesystem::Filesystem;
use crate::inode::Inode;
use crate::inode::change::InodeChanges;
use crate::inode::quotas::{Delta, Tree, UNIT_BYTES};
use crate::names::directory::require_alive;
use crate::types::{Ino, Statfs};
use std::sync::Arc;
use syncline_format::items::inode::has_room_for_quota;
use syncline_format::items::quota::{QUOTA_BEING_SET, Quota};
use syncline_format::superblock::FEATURE_QUOTAS;
use syncline_store::Transaction;

/// Limits of a directory tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize)]
pub struct QuotaLimits {
    /// Most bytes that may be allocated; 0 for any number.
    pub bytes: u64,
    /// Most inodes, the root of the tree among them; 0 for any number.
    pub inodes: u64,
}

/// A quota, and what its tree uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize)]
pub struct QuotaUsage {
    /// The directory at the top of the tree.
    pub root: Ino,
    /// The quota is being set, or that was interrupted: not everything in the tree is counted yet,
    /// and the limits do not apply.
    pub being_set: bool,
    /// The limits.
    pub limits: QuotaLimits,
    /// Bytes allocated.
    pub used_bytes: u64,
    /// Bytes that data not yet written back will take.
    pub reserved_bytes: u64,
    /// Inodes.
    pub used_inodes: u64,
}

impl Tree {
    fn usage(&self) -> QuotaUsage {
        let Quota { root, limit_bytes, limit_inodes, used_units, used_inodes, .. } = self.quota;
        QuotaUsage {
            root,
            being_set: self.quota.is_being_set(),
            limits: QuotaLimits { bytes: limit_bytes, inodes: limit_inodes },
            used_bytes: used_units.saturating_mul(UNIT_BYTES),
            reserved_bytes: self.reserved_units.saturating_mul(UNIT_BYTES),
            used_inodes,
        }
    }
}

impl Filesystem {
    /// Limits the tree below a directory, and returns when everything in it is counted. If the
    /// directory has a quota already, its limits are replaced. Usage may exceed the new limits.
    pub async fn set_quota(&self, ino: Ino, limits: QuotaLimits) -> Result<QuotaUsage, FsError> {
        self.store.writable()?;
        let dir = self.directory(ino).await?;
        let _changing = self.quotas.changing.lock().await;
        let number = match self.quota_of(&dir) {
            0 => self.make_quota(&dir, limits).await?,
            number if self.quotas.root(number) == Some(ino) => number,
            _ => return Err(FsError::QuotaNested),
        };
        if self.quotas.get(number).is_some_and(|tree| tree.quota.is_being_set()) {
            self.count_tree(&dir, number).await?;
        }
        let _room = self.admit_growth().await?;
        self.quotas.change(&self.store, number, |quota| Quota {
            flags: quota.flags & !QUOTA_BEING_SET,
            limit_bytes: limits.bytes,
            limit_inodes: limits.inodes,
            ..quota
        })?;
        self.quotas.get(number).map(|tree| tree.usage()).ok_or(FsError::NoQuota)
    }

    /// Removes a directory's quota. The contents of the tree stay as they are.
    pub async fn remove_quota(&self, ino: Ino) -> Result<(), FsError> {
        self.store.writable()?;
        let dir = self.directory(ino).await?;
        let _changing = self.quotas.changing.lock().await;
        let number = self.own_quota(&dir)?;
        let _room = self.store.admit(syncline_store::Admission::Change).await?;
        self.quotas.remove(&self.store, number)
    }

    /// The quota of a directory that has one of its own.
    pub async fn quota(&self, ino: Ino) -> Result<QuotaUsage, FsError> {
        let dir = self.directory(ino).await?;
        let number = self.own_quota(&dir)?;
        self.quotas.get(number).map(|tree| tree.usage()).ok_or(FsError::NoQuota)
    }

    /// All quotas, in the order in which they were made.
    pub fn quotas(&self) -> Vec<QuotaUsage> {
        self.quotas.all().iter().map(Tree::usage).collect()
    }

    /// Figures of the whole filesystem; inside a tree with limits, the limits and what is left of
    /// them.
    pub async fn statfs_at(&self, ino: Ino) -> Statfs {
        let all = self.statfs();
        // Figures of the whole filesystem are better than none if the inode can't be read.
        let Ok(inode) = self.inode(ino).await else { return all };
        match self.quotas.get(self.quota_of(&inode)) {
            Some(tree) => within(all, &tree.usage()),
            None => all,
        }
    }

    fn own_quota(&self, dir: &Arc<Inode>) -> Result<u64, FsError> {
        let number = self.quota_of(dir);
        if self.quotas.root(number) == Some(dir.ino) { Ok(number) } else { Err(FsError::NoQuota) }
    }

    /// The first transaction: makes the quota and counts its root.
    pub(crate) async fn make_quota(&self, dir: &Arc<Inode>, limits: QuotaLimits) -> Result<u64, FsError> {
        if !has_room_for_quota(self.store.geometry().node_bytes, self.has_parent_pointers()) {
            return Err(FsError::QuotaUnsupported);
        }
        // No directory moves while this is held, so what lies above and below stays there.
        let _rename = self.rename_lease.lock().await;
        for usage in self.quotas() {
            let root = match self.directory(usage.root).await {
                // Removed meanwhile, and its quota with it.
                Err(FsError::Stale) => continue,
                root => root?,
            };
            let within = self.is_within(&root, dir.ino).await;
            // A removed directory that is still in use lies nowhere, and its former parents may be
            // gone.
            if require_alive(&root).is_ok() && within? {
                return Err(FsError::QuotaNested);
            }
            // Everything below a root counts in its quota, unless setting that quota was
            // interrupted.
            if usage.being_set && self.is_within(dir, usage.root).await? {
                return Err(FsError::QuotaNested);
            }
        }
        let number = self.store.new_object()?;
        // Both come before any item has the number: older programs refuse the image, and no crash
        // lets the number be drawn again.
        self.store.add_features(FEATURE_QUOTAS).await?;
        self.store.keep_number(number).await?;
        let _room = self.admit_growth().await?;
        let _lease = dir.lease.write().await;
        require_alive(dir)?;
        let quota = Quota {
            root: dir.ino,
            flags: QUOTA_BEING_SET,
            limit_bytes: limits.bytes,
            limit_inodes: limits.inodes,
            ..Quota::default()
        };
        // The quota gets its item from the transaction that counts its root.
        self.quotas.insert(number, quota);
        let mut changes = InodeChanges::new();
        changes.of(dir).meta.quota = number;
        let units = dir.state.lock().logged_units() as i64;
        changes.count(Delta { number, units, inodes: 1, ..Delta::default() });
        if let Err(error) = changes.commit(self, Transaction::new()) {
            self.quotas.forget(number);
            return Err(error);
        }
        Ok(number)
    }
}

/// The figures within the limits of a tree.
fn within(all: Statfs, usage: &QuotaUsage) -> Statfs {
    let mut figures = all;
    let limits = if usage.being_set { QuotaLimits::default() } else { usage.limits };
    if limits.bytes > 0 {
        let block = syncline_format::BLOCK_BYTES as u64;
        let taken = usage.used_bytes.saturating_add(usage.reserved_bytes);
        let left = limits.bytes.saturating_sub(taken) / block;
        figures.blocks = (limits.bytes / block).min(all.blocks);
        figures.free = left.min(all.free).min(figures.blocks);
        figures.available = left.min(all.available).min(figures.blocks);
    }
    if limits.inodes > 0 {
        figures.objects = usage.used_inodes;
        figures.objects_free = limits.inodes.saturating_sub(usage.used_inodes).min(all.objects_free);
    }
    figures
}
