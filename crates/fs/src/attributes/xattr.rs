//! Extended attributes, as callers see them. The kernel handles namespaces and permissions.

use crate::FsError;
use crate::attributes::acl::is_acl;
use crate::attributes::flags::require_changeable;
use crate::attributes::privileges::CAPABILITY;
use crate::attributes::xattr_place::{Place, XattrSearch, decode_xattr};
use crate::filesystem::Filesystem;
use crate::inode::Inode;
use crate::inode::change::{InodeChange, InodeChanges};
use crate::inode::quotas::Held;
use crate::types::{Ino, XattrMode};
use bytes::Bytes;
use std::sync::Arc;
use syncline_format::items::inode::FLAG_CAPABILITY;
use syncline_format::items::xattr::{VALUE_BYTES_MAX, is_xattr_name};
use syncline_format::{Key, Kind};
use syncline_store::{Admission, ChangeSize, Transaction};

/// Items read at a time for a listing.
const ITEMS_EACH: usize = 256;

/// The most memory that setting an attribute to this value may take: its chunks, and as many of the
/// value that it replaces.
pub(crate) fn size_of(value: &[u8]) -> ChangeSize {
    let bytes = value.len() as u64;
    ChangeSize::with(2 + bytes / 512, bytes)
}

impl Filesystem {
    /// The value of an extended attribute.
    pub async fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Bytes, FsError> {
        check_name(name)?;
        let inode = self.inode(ino).await?;
        {
            // The common answers come from the inode alone.
            let state = inode.state.lock();
            if let Some((_, value)) = state.meta.xattrs.iter().find(|(small, _)| small == name) {
                return Ok(value.clone());
            }
            if state.meta.xattr_items == 0 {
                return Err(FsError::NoAttribute);
            }
        }
        let _lease = inode.lease.read().await;
        match self.search_xattr(&inode, name).await?.place.ok_or(FsError::NoAttribute)? {
            Place::Inode(index) => Ok(inode.state.lock().meta.xattrs[index].1.clone()),
            Place::Item(_, value) => Ok(value),
            Place::Chunks(_, chunks) => self.read_chunks(ino, chunks).await,
        }
    }

    /// Names of all extended attributes, each followed by a NUL.
    pub async fn listxattr(&self, ino: Ino) -> Result<Vec<u8>, FsError> {
        let inode = self.inode(ino).await?;
        let _lease = inode.lease.read().await;
        let (small, items) = {
            let state = inode.state.lock();
            (state.meta.xattrs.clone(), state.meta.xattr_items)
        };
        let mut names = Vec::new();
        let mut add = |name: &[u8]| {
            names.extend_from_slice(name);
            names.push(0);
        };
        small.iter().for_each(|(name, _)| add(name));
        if items > 0 {
            let (from, to) = (Key::new(ino, Kind::Xattr, 0), Key::new(ino, Kind::Xattr, u64::MAX));
            let each = |key: Key, value: &Bytes| decode_xattr(key, value).map(|xattr| add(xattr.name));
            self.each_item(from, to, ITEMS_EACH, each).await?;
        }
        Ok(names)
    }

    /// Sets an extended attribute.
    pub async fn setxattr(
        &self,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<(), FsError> {
        check_name(name)?;
        if is_acl(name) {
            return self.set_acl(ino, name, value, false).await;
        }
        if value.len() > VALUE_BYTES_MAX {
            return Err(FsError::ListTooLong);
        }
        let _room = self.admit_growth_of(size_of(value)).await?;
        let inode = self.inode(ino).await?;
        let _lease = inode.lease.write().await;
        self.require_present(&inode)?;
        require_changeable(&inode)?;
        let search = self.search_xattr(&inode, name).await?;
        match (mode, search.place.is_some()) {
            (XattrMode::Create, true) => return Err(FsError::Exists),
            (XattrMode::Replace, false) => return Err(FsError::NoAttribute),
            _ => {}
        }
        if is_value(&inode, search.place.as_ref(), value) {
            return Ok(());
        }
        self.set_xattr_held(&inode, name, &Bytes::copy_from_slice(value), search).await
    }

    async fn set_xattr_held(
        &self,
        inode: &Arc<Inode>,
        name: &[u8],
        value: &Bytes,
        search: XattrSearch,
    ) -> Result<(), FsError> {
        let held = self.hold_xattr(inode, (name, value), &search).await?;
        let mut changes = InodeChanges::new();
        changes.spend(held);
        let mut transaction = Transaction::new();
        let change = changes.of(inode);
        self.replace_xattr(change, &mut transaction, (name, value), &search)?;
        if name == CAPABILITY {
            change.meta.flags |= FLAG_CAPABILITY;
        }
        change.touch(self.now());
        changes.commit(self, transaction)?;
        self.counters.xattrs_logged.add(1);
        Ok(())
    }

    /// Reserves, in the quota of an inode, the additional units of its extended attributes once
    /// this one is set. The caller holds the lease.
    pub(crate) async fn hold_xattr(
        &self,
        inode: &Arc<Inode>,
        (name, value): (&[u8], &Bytes),
        search: &XattrSearch,
    ) -> Result<Option<Held<'_>>, FsError> {
        let number = self.quota_of(inode);
        if number == 0 || !self.limits.counts_xattrs {
            return Ok(None);
        }
        // Tried on a copy: no state of the inode may be read before a wait and used after it.
        let more = {
            let mut change = InodeChange::of(inode);
            let before = change.meta.xattr_units;
            self.replace_xattr(&mut change, &mut Transaction::new(), (name, value), search)?;
            change.meta.xattr_units.saturating_sub(before)
        };
        Ok(Some(self.hold_units(number, more.into()).await?))
    }

    /// For a measurement: logs all extended attributes again, as if each fsync had to log them.
    pub(crate) async fn log_xattrs_again(&self, inode: &Arc<Inode>) -> Result<(), FsError> {
        let _room = self.store.admit(Admission::Shrink).await?;
        let _lease = inode.lease.write().await;
        let (small, items) = {
            let state = inode.state.lock();
            (state.meta.xattrs.len(), state.meta.xattr_items)
        };
        if (small == 0 && items == 0) || self.require_present(inode).is_err() {
            return Ok(());
        }
        let mut transaction = Transaction::new();
        let mut count = small as u64;
        if items > 0 {
            for kind in [Kind::Xattr, Kind::Chunk] {
                let (from, to) = (Key::new(inode.ino, kind, 0), Key::new(inode.ino, kind, u64::MAX));
                let each = |key: Key, value: &Bytes| {
                    count += u64::from(kind == Kind::Xattr);
                    transaction.put(key, value.clone());
                    Ok(())
                };
                self.each_item(from, to, ITEMS_EACH, each).await?;
            }
        }
        // The small ones are part of the inode item.
        let mut changes = InodeChanges::new();
        changes.of(inode);
        changes.commit(self, transaction)?;
        self.counters.xattrs_logged.add(count);
        Ok(())
    }

    /// Removes an extended attribute.
    pub async fn removexattr(&self, ino: Ino, name: &[u8]) -> Result<(), FsError> {
        check_name(name)?;
        let _room = self.store.admit(Admission::Shrink).await?;
        let inode = self.inode(ino).await?;
        let _lease = inode.lease.write().await;
        self.require_present(&inode)?;
        require_changeable(&inode)?;
        let place = match self.search_xattr(&inode, name).await?.place {
            Some(place) => place,
            // A missing access control list says the same as the mode, so its removal succeeds.
            None if is_acl(name) => return Ok(()),
            None => return Err(FsError::NoAttribute),
        };
        let mut changes = InodeChanges::new();
        let mut transaction = Transaction::new();
        let change = changes.of(&inode);
        self.delete_xattr(&mut change.meta, (&mut transaction, ino), name, &place);
        if name == CAPABILITY {
            change.meta.flags &= !FLAG_CAPABILITY;
        }
        change.touch(self.now());
        changes.commit(self, transaction)?;
        self.counters.xattrs_logged.add(1);
        Ok(())
    }
}

/// True if the attribute has this value already. (Values in chunks are not compared: they would
/// have to be read.)
fn is_value(inode: &Inode, place: Option<&Place>, value: &[u8]) -> bool {
    match place {
        Some(Place::Inode(index)) => inode.state.lock().meta.xattrs[*index].1 == value,
        Some(Place::Item(_, old)) => old == value,
        _ => false,
    }
}

/// Refuses an invalid name of an extended attribute, with the error of setxattr(2).
fn check_name(name: &[u8]) -> Result<(), FsError> {
    if is_xattr_name(name) { Ok(()) } else { Err(FsError::Range) }
}
