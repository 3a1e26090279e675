//! POSIX access control lists: extended attributes that are tied to the mode.
//!
//! The kernel decides access by these lists. The filesystem keeps a list and the mode consistent:
//! setting a list sets the mode, a chmod changes the list, and a new inode begins with its
//! directory's default list. Each of these is one transaction with the change it belongs to.

use crate::FsError;
use crate::attributes::flags::require_changeable;
use crate::attributes::xattr::size_of;
use crate::attributes::xattr_place::{Place, XattrSearch};
use crate::filesystem::Filesystem;
use crate::inode::change::{InodeChange, InodeChanges};
use crate::inode::{Inode, Meta};
use crate::types::{FileType, Ino, NewMode};
use bytes::Bytes;
use std::sync::Arc;
use syncline_format::items::hash_offsets;
use syncline_store::Transaction;

/// The list that decides access.
pub(crate) const ACCESS: &[u8] = b"system.posix_acl_access";
/// The default list of a directory, for new inodes in it.
pub(crate) const DEFAULT: &[u8] = b"system.posix_acl_default";

const VERSION: u32 = 2;
const HEADER_BYTES: usize = 4;
const ENTRY_BYTES: usize = 8;
const SETGID: u16 = 0o2000;
/// Permissions of owner, group and others.
const RWX: u16 = 0o777;

const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

/// True for the names of the two lists.
pub(crate) fn is_acl(name: &[u8]) -> bool {
    name == ACCESS || name == DEFAULT
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Entry {
    tag: u16,
    permissions: u16,
    id: u32,
}

/// A list, in its canonical order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Acl(Vec<Entry>);

impl Acl {
    /// Reads the value of one of the attributes.
    pub(crate) fn decode(value: &[u8]) -> Result<Self, FsError> {
        let invalid = || FsError::Invalid("access control list");
        let (header, entries) = value.split_at_checked(HEADER_BYTES).ok_or_else(invalid)?;
        if header != VERSION.to_le_bytes() || !entries.len().is_multiple_of(ENTRY_BYTES) {
            return Err(invalid());
        }
        let entry = |bytes: &[u8]| Entry {
            tag: u16::from_le_bytes([bytes[0], bytes[1]]),
            permissions: u16::from_le_bytes([bytes[2], bytes[3]]),
            id: u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]),
        };
        let list = Self(entries.chunks(ENTRY_BYTES).map(entry).collect());
        if list.is_valid() { Ok(list) } else { Err(invalid()) }
    }

    fn encode(&self) -> Bytes {
        let mut value = VERSION.to_le_bytes().to_vec();
        for entry in &self.0 {
            value.extend_from_slice(&entry.tag.to_le_bytes());
            value.extend_from_slice(&entry.permissions.to_le_bytes());
            value.extend_from_slice(&entry.id.to_le_bytes());
        }
        value.into()
    }

    /// Exactly one entry each for owner, group and others, in order, and a mask if there are
    /// entries for other users or groups.
    fn is_valid(&self) -> bool {
        let count = |tag: u16| self.0.iter().filter(|entry| entry.tag == tag).count();
        let known = |entry: &Entry| {
            matches!(entry.tag, USER_OBJ | USER | GROUP_OBJ | GROUP | MASK | OTHER) && entry.permissions <= 7
        };
        let named = count(USER) + count(GROUP);
        self.0.iter().all(known)
            && self.0.is_sorted_by_key(|entry| entry.tag)
            && [USER_OBJ, GROUP_OBJ, OTHER].iter().all(|&tag| count(tag) == 1)
            && count(MASK) <= 1
            && (named == 0 || count(MASK) == 1)
    }

    /// True if the list says no more than the mode.
    fn is_minimal(&self) -> bool {
        self.0.len() == 3
    }

    /// The entry that the group bits of the mode stand for.
    fn class_of_group(&self) -> u16 {
        if self.0.iter().any(|entry| entry.tag == MASK) { MASK } else { GROUP_OBJ }
    }

    /// The entries that the mode stands for, each with the bit offset of its permissions in the
    /// mode.
    fn each_of_mode(&mut self) -> impl Iterator<Item = (&mut Entry, u16)> {
        let group = self.class_of_group();
        self.0.iter_mut().filter_map(move |entry| match entry.tag {
            USER_OBJ => Some((entry, 6)),
            OTHER => Some((entry, 0)),
            tag if tag == group => Some((entry, 3)),
            _ => None,
        })
    }

    /// The permission bits that belong to the list.
    fn mode(&self) -> u16 {
        self.clone().each_of_mode().fold(0, |mode, (entry, shift)| mode | entry.permissions << shift)
    }

    /// The list after a chmod.
    pub(crate) fn with_mode(mut self, mode: u16) -> Self {
        self.each_of_mode().for_each(|(entry, shift)| entry.permissions = mode >> shift & 7);
        self
    }

    /// The list of an inode made with this mode in a directory that has `self` as its default.
    fn for_new(mut self, mode: u16) -> Self {
        self.each_of_mode().for_each(|(entry, shift)| entry.permissions &= mode >> shift & 7);
        self
    }
}

/// Lists that a new inode begins with: names and values.
pub(crate) type Lists = Vec<(&'static [u8], Bytes)>;

/// A change of the access list that goes with a change of the mode.
pub(crate) struct AclChange {
    old: XattrSearch,
    list: Acl,
}

impl Filesystem {
    /// Bytes of the list that new inodes get from a directory, if it has one.
    pub(crate) async fn default_acl_bytes(&self, dir: &Arc<Inode>) -> Result<usize, FsError> {
        let _lease = dir.lease.read().await;
        Ok(self.find_acl(dir, DEFAULT).await?.map_or(0, |(_, list)| list.encode().len()))
    }

    /// One of an inode's lists, with its location. The caller holds the lease.
    async fn find_acl(&self, inode: &Arc<Inode>, name: &[u8]) -> Result<Option<(XattrSearch, Acl)>, FsError> {
        {
            let state = inode.state.lock();
            if state.meta.xattrs.is_empty() && state.meta.xattr_items == 0 {
                return Ok(None);
            }
        }
        let search = self.search_xattr(inode, name).await?;
        let value = match &search.place {
            None => return Ok(None),
            Some(Place::Inode(index)) => inode.state.lock().meta.xattrs[*index].1.clone(),
            Some(Place::Item(_, value)) => value.clone(),
            Some(Place::Chunks(_, chunks)) => self.read_chunks(inode.ino, *chunks).await?,
        };
        let list =
            Acl::decode(&value).map_err(|_| FsError::corrupt(inode.ino, "access control list", "entries"))?;
        Ok(Some((search, list)))
    }

    /// Sets the permissions of a new inode, by the directory's default list if there is one, else
    /// by the umask, and returns the inode's own lists. The caller holds the directory's lease.
    pub(crate) async fn inherit_acls(
        &self,
        (file_type, mode): (FileType, &mut NewMode),
        dir: &Arc<Inode>,
    ) -> Result<Lists, FsError> {
        let NewMode { permissions, umask } = *mode;
        if file_type == FileType::Symlink {
            return Ok(Lists::new());
        }
        let Some((_, default)) = self.find_acl(dir, DEFAULT).await? else {
            *mode = (permissions & !(umask & RWX)).into();
            return Ok(Lists::new());
        };
        let mut lists = Lists::new();
        if file_type == FileType::Directory {
            lists.push((DEFAULT, default.encode()));
        }
        let access = default.for_new(permissions);
        *mode = (permissions & !RWX | access.mode()).into();
        if !access.is_minimal() {
            lists.push((ACCESS, access.encode()));
        }
        Ok(lists)
    }

    /// Puts the lists of a new inode into its first transaction.
    pub(crate) fn put_lists(
        &self,
        meta: &mut Meta,
        (transaction, ino): (&mut Transaction, Ino),
        lists: &Lists,
    ) {
        let mut taken = None;
        for (name, value) in lists {
            let first = hash_offsets(self.hasher.hash(name)).0;
            // The two names may have the same hash.
            let free = if taken == Some(first) { first + 1 } else { first };
            self.insert_xattr(meta, (transaction, ino), name, value, free);
            taken = Some(first);
        }
        self.counters.xattrs_logged.add(lists.len() as u64);
    }

    /// The change of the access list that a chmod requires, if there is a list. The caller holds
    /// the lease.
    pub(crate) async fn acl_for_mode(
        &self,
        inode: &Arc<Inode>,
        mode: u16,
    ) -> Result<Option<AclChange>, FsError> {
        let found = self.find_acl(inode, ACCESS).await?;
        Ok(found.map(|(old, list)| AclChange { old, list: list.with_mode(mode) }))
    }

    /// Puts the change of an access list into a transaction.
    pub(crate) fn change_acl(
        &self,
        change: &mut InodeChange<'_>,
        transaction: &mut Transaction,
        acl: Option<AclChange>,
    ) -> Result<(), FsError> {
        let Some(AclChange { old, list }) = acl else { return Ok(()) };
        self.replace_xattr(change, transaction, (ACCESS, &list.encode()), &old)?;
        self.counters.xattrs_logged.add(1);
        Ok(())
    }

    /// Sets one of the lists. An access list also sets the permissions; one that says no more than
    /// the mode is not stored. With `kill_setgid`, setgid is cleared: the caller is not in the
    /// group.
    pub async fn set_acl(
        &self,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        kill_setgid: bool,
    ) -> Result<(), FsError> {
        let list = Acl::decode(value)?;
        let _room = self.admit_growth_of(size_of(value)).await?;
        let inode = self.inode(ino).await?;
        match (inode.file_type, name == DEFAULT) {
            (FileType::Symlink, _) => return Err(FsError::NotSupported),
            (FileType::Directory, _) | (_, false) => {}
            (_, true) => return Err(FsError::AccessDenied),
        }
        let _lease = inode.lease.write().await;
        self.require_present(&inode)?;
        require_changeable(&inode)?;
        let search = self.search_xattr(&inode, name).await?;
        let (kept, encoded) = (name == DEFAULT || !list.is_minimal(), list.encode());
        let held = if kept { self.hold_xattr(&inode, (name, &encoded), &search).await? } else { None };

        let mut changes = InodeChanges::new();
        let mut transaction = Transaction::new();
        let change = changes.of(&inode);
        if name == ACCESS {
            change.attr.permissions = change.attr.permissions & !RWX | list.mode();
            if kill_setgid {
                change.attr.permissions &= !SETGID;
            }
        }
        if kept {
            self.replace_xattr(change, &mut transaction, (name, &encoded), &search)?;
        } else if let Some(place) = &search.place {
            self.delete_xattr(&mut change.meta, (&mut transaction, ino), name, place);
        }
        change.touch(self.now());
        changes.spend(held);
        changes.commit(self, transaction)?;
        self.counters.xattrs_logged.add(1);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(entries: &[(u16, u16, u32)]) -> Acl {
        Acl(entries.iter().map(|&(tag, permissions, id)| Entry { tag, permissions, id }).collect())
    }

    fn extended() -> Acl {
        let none = u32::MAX;
        list(&[
            (USER_OBJ, 7, none),
            (USER, 6, 1000),
            (GROUP_OBJ, 5, none),
            (GROUP, 7, 100),
            (MASK, 7, none),
            (OTHER, 4, none),
        ])
    }

    #[test]
    fn lists_are_read_back_and_bad_ones_refused() {
        let good = extended();
        assert_eq!(Acl::decode(&good.encode()).unwrap(), good);
        let bad = |change: fn(&mut Vec<Entry>)| {
            let mut list = good.clone();
            change(&mut list.0);
            assert!(Acl::decode(&list.encode()).is_err(), "{list:?}");
        };
        bad(|entries| {
            entries.remove(0);
        });
        bad(|entries| {
            entries.remove(4);
        });
        bad(|entries| entries.swap(0, 1));
        bad(|entries| entries.push(entries[5]));
        bad(|entries| entries[1].permissions = 8);
        bad(|entries| entries[1].tag = 3);
        bad(Vec::clear);
        let value = good.encode();
        for len in 0..value.len() {
            assert!(Acl::decode(&value[..len]).is_err());
        }
        assert!(Acl::decode(&[&[1], &value[1..]].concat()).is_err());
    }

    #[test]
    fn the_mode_stands_for_owner_mask_and_others() {
        assert_eq!(extended().mode(), 0o774);
        let changed = extended().with_mode(0o640);
        assert_eq!(changed.mode(), 0o640);
        let permissions: Vec<u16> = changed.0.iter().map(|entry| entry.permissions).collect();
        assert_eq!(permissions, [6, 6, 5, 7, 4, 0]);
        let minimal = list(&[(USER_OBJ, 7, 0), (GROUP_OBJ, 5, 0), (OTHER, 1, 0)]);
        assert!(minimal.is_minimal() && !extended().is_minimal());
        assert_eq!((minimal.mode(), minimal.with_mode(0o624).mode()), (0o751, 0o624));
    }

    #[test]
    fn what_is_new_has_no_more_than_it_was_made_with() {
        assert_eq!(extended().for_new(0o640).mode(), 0o640);
        assert_eq!(extended().for_new(0o777).mode(), 0o774);
        assert_eq!(extended().for_new(0o066).mode(), 0o064);
    }
}
