//! Changes of inodes: how a transaction will leave them. They are applied in memory only once it is
//! committed.

use super::item::encode;
use super::quotas::{Delta, Held};
use super::{Inode, Meta};
use crate::types::{Attributes, Ino, Timestamp};
use crate::{FsError, filesystem::Filesystem};
use smallvec::SmallVec;
use std::sync::Arc;
use syncline_format::items::inode::SIZE_MAX;
use syncline_store::{OpSeq, Transaction};
use syncline_sync::asynchronous::RwLockWriteGuard;

/// One inode as a transaction will leave it. Its lease is held for writing.
pub(crate) struct InodeChange<'a> {
    inode: &'a Arc<Inode>,
    pub attr: Attributes,
    pub meta: Meta,
    /// The access time was set, not just carried along.
    pub atime_set: bool,
    /// The modification time was set: it is logged even if data is dirty.
    pub mtime_set: bool,
    /// A name of the inode came or went.
    pub name_changed: bool,
}

impl<'a> InodeChange<'a> {
    /// The inode as it is.
    pub(crate) fn of(inode: &'a Arc<Inode>) -> Self {
        let state = inode.state.lock();
        Self {
            inode,
            attr: state.attr,
            meta: state.meta.clone(),
            atime_set: false,
            mtime_set: false,
            name_changed: false,
        }
    }

    /// The attributes that callers will see once the change is made.
    pub(crate) fn attributes(&self) -> Attributes {
        self.meta.shown(self.attr)
    }

    /// The effect of the change on the usage of the inode's tree. Only extended attributes are
    /// counted here: data is counted in transactions of its own, and an operation that moves the
    /// inode to another tree counts it there.
    fn counted(&self) -> Delta {
        let before = &self.inode.state.lock().meta;
        let number = if before.quota == self.meta.quota { before.quota } else { 0 };
        Delta {
            number,
            units: i64::from(self.meta.xattr_units) - i64::from(before.xattr_units),
            ..Delta::default()
        }
    }

    /// The inode itself changed.
    pub(crate) fn touch(&mut self, now: Timestamp) {
        self.attr.ctime = now;
    }

    /// An entry of this directory changed.
    pub(crate) fn touch_entries(&mut self, now: Timestamp) {
        self.attr.mtime = now;
        self.attr.ctime = now;
    }

    /// An entry was added to this directory. The size is capped, so that an exaggerated size in a
    /// damaged image stays one that can be stored.
    pub(crate) fn add_entry(&mut self, now: Timestamp) {
        self.touch_entries(now);
        self.attr.size = self.attr.size.saturating_add(1).min(SIZE_MAX);
    }

    /// An entry of this directory was removed.
    pub(crate) fn remove_entry(&mut self, now: Timestamp) {
        self.touch_entries(now);
        self.attr.size = self.attr.size.saturating_sub(1);
    }

    fn put(&mut self, transaction: &mut Transaction) {
        let mut state = self.inode.state.lock();
        if !self.atime_set {
            // Reads move the access time without a lease.
            self.attr.atime = state.attr.atime;
        }
        if self.mtime_set {
            // Set before the commit, which can fail only in a way that ends all commits.
            state.data.set_disk_mtime(self.attr.mtime);
        }
        transaction.put(Inode::key(self.inode.ino), encode(&self.attr, &self.meta, &state.data));
    }

    fn apply(self, op: OpSeq) {
        let mut state = self.inode.state.lock();
        let atime = state.attr.atime;
        if self.atime_set {
            state.access_unlogged = false;
        } else {
            state.note_access_logged(op, self.attr.atime);
        }
        state.attr = self.attr;
        if !self.atime_set {
            // Reads move the access time without a lease.
            state.attr.atime = atime;
        }
        state.meta = self.meta;
        if self.name_changed {
            state.name_op = op;
        } else {
            state.changed_op = op;
        }
    }
}

/// The inodes that one transaction changes, each once.
pub(crate) struct InodeChanges<'a> {
    changes: SmallVec<[InodeChange<'a>; 4]>,
    /// The effects of the changes on the usage of trees with quotas.
    quotas: SmallVec<[Delta; 1]>,
    /// The quota reservation that the transaction uses.
    held: Option<Held<'a>>,
}

impl<'a> InodeChanges<'a> {
    pub(crate) fn new() -> Self {
        Self { changes: SmallVec::new(), quotas: SmallVec::new(), held: None }
    }

    /// The change of this inode.
    pub(crate) fn of(&mut self, inode: &'a Arc<Inode>) -> &mut InodeChange<'a> {
        let index = self.changes.iter().position(|change| change.inode.ino == inode.ino);
        let index = index.unwrap_or_else(|| {
            self.changes.push(InodeChange::of(inode));
            self.changes.len() - 1
        });
        &mut self.changes[index]
    }

    /// Notes the effect of the transaction on the usage of a tree.
    pub(crate) fn count(&mut self, delta: Delta) {
        self.quotas.push(delta);
    }

    /// Has the transaction use this reservation.
    pub(crate) fn spend(&mut self, held: Option<Held<'a>>) {
        self.held = held;
    }

    /// Commits `transaction` with the changed inodes in it. Nothing has changed if it fails.
    pub(crate) fn commit(mut self, fs: &Filesystem, mut transaction: Transaction) -> Result<OpSeq, FsError> {
        for change in &mut self.changes {
            self.quotas.push(change.counted());
            change.put(&mut transaction);
        }
        self.quotas.extend(self.held.as_ref().map(Held::used));
        let (op, _) = fs.quotas.commit(&fs.store, transaction, &self.quotas)?;
        if let Some(held) = &mut self.held {
            held.take();
        }
        for change in self.changes {
            change.apply(op);
        }
        Ok(op)
    }
}

/// Leases of several inodes, held for writing.
pub(crate) type Leases<'a> = SmallVec<[RwLockWriteGuard<'a, ()>; 4]>;

/// Takes the leases of several inodes for writing, in the order of their numbers, each once.
pub(crate) async fn lease_all<'a>(inodes: &[&'a Arc<Inode>]) -> Leases<'a> {
    let mut ordered: SmallVec<[&'a Arc<Inode>; 4]> = inodes.iter().copied().collect();
    ordered.sort_by_key(|inode| inode.ino);
    ordered.dedup_by_key(|inode| inode.ino);
    let mut leases = Leases::new();
    for inode in ordered {
        leases.push(inode.lease.write().await);
    }
    leases
}

/// Prints the inode's number.
impl std::fmt::Debug for Inode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ino: Ino = self.ino;
        write!(f, "inode {ino}")
    }
}
