//! Directories as items: finding names, and free slots for new ones.

use crate::filesystem::Filesystem;
use crate::inode::Inode;
use crate::types::{Attributes, FileType, Ino};
use crate::{FsError, types};
use bytes::Bytes;
use std::sync::Arc;
use syncline_format::items::dirent::{Dirent, NAME_BYTES_MAX, is_name};
use syncline_format::items::{SLOTS, hash_offsets};
use syncline_format::{Key, Kind};
use syncline_store::Transaction;

/// A directory entry without its name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Entry {
    /// Offset of the entry's item.
    pub offset: u64,
    pub ino: Ino,
    pub file_type: FileType,
}

/// Answer to a search for a name.
pub(crate) struct Search {
    pub entry: Option<Entry>,
    /// First offset where an entry of this name could go; `None` when every slot of its hash is
    /// taken.
    pub free: Option<u64>,
}

impl Search {
    /// The offset of a new entry of this name.
    pub(crate) fn free(&self) -> Result<u64, FsError> {
        // 128 names have the same hash: with a secret seed this does not happen by chance.
        self.free.ok_or(FsError::Store(syncline_store::StoreError::NoSpace))
    }
}

/// Refuses a name that an entry can't have. The kernel resolves "." and ".." itself.
pub(crate) fn check_name(name: &[u8]) -> Result<(), FsError> {
    if name.len() > NAME_BYTES_MAX {
        return Err(FsError::NameTooLong);
    }
    if is_name(name) { Ok(()) } else { Err(FsError::Invalid("name")) }
}

/// Puts an entry.
pub(crate) fn put_entry(transaction: &mut Transaction, dir: Ino, entry: Entry, name: &[u8]) {
    let value = Dirent { ino: entry.ino, file_type: entry.file_type.number(), name }.encode();
    transaction.put(Key::new(dir, Kind::Dirent, entry.offset), value);
}

/// Removes an entry.
pub(crate) fn delete_entry(transaction: &mut Transaction, dir: Ino, entry: Entry) {
    transaction.delete(Key::new(dir, Kind::Dirent, entry.offset));
}

/// Reads an entry's item.
pub(crate) fn decode_entry(key: Key, value: &Bytes) -> Result<(Entry, &[u8]), FsError> {
    let dirent = Dirent::decode(value).map_err(|detail| FsError::Corrupt { ino: key.object, detail })?;
    let file_type = FileType::from_number(dirent.file_type).ok_or(FsError::corrupt(
        key.object,
        "directory entry",
        "file type",
    ))?;
    Ok((Entry { offset: key.offset, ino: dirent.ino, file_type }, dirent.name))
}

/// Refuses anything but a directory.
pub(crate) fn require_directory(inode: &Inode) -> Result<(), FsError> {
    if inode.file_type == FileType::Directory { Ok(()) } else { Err(FsError::NotDirectory) }
}

/// Refuses a directory that was removed while somebody still has it open or as working directory.
/// The caller holds its lease.
pub(crate) fn require_alive(inode: &Inode) -> Result<(), FsError> {
    if inode.state.lock().attr.nlink > 0 { Ok(()) } else { Err(FsError::NotFound) }
}

impl Filesystem {
    /// A directory's inode.
    pub(crate) async fn directory(&self, ino: Ino) -> Result<Arc<Inode>, FsError> {
        let inode = self.inode(ino).await?;
        require_directory(&inode)?;
        Ok(inode)
    }

    /// Looks for a name among the entries of its hash, as of one point in history.
    pub(crate) async fn search(&self, dir: Ino, name: &[u8]) -> Result<Search, FsError> {
        let (first, last) = hash_offsets(self.hasher.hash(name));
        let (from, to) = (Key::new(dir, Kind::Dirent, first), Key::new(dir, Kind::Dirent, last));
        let mut search = Search { entry: None, free: Some(first) };
        let each = |key: Key, value: &Bytes| {
            if search.free == Some(key.offset) {
                search.free = Some(key.offset + 1).filter(|&offset| offset <= last);
            }
            let (entry, entry_name) = decode_entry(key, value)?;
            if entry_name == name {
                search.entry = Some(entry);
            }
            Ok(())
        };
        self.each_item(from, to, SLOTS as usize, each).await?;
        Ok(search)
    }

    /// The entry of a name, if it exists.
    pub(crate) async fn find(&self, dir: Ino, name: &[u8]) -> Result<Option<Entry>, FsError> {
        // Nearly every name has its hash to itself and lies in the first slot, where no scan is
        // needed.
        let key = Key::new(dir, Kind::Dirent, hash_offsets(self.hasher.hash(name)).0);
        if let Some(Ok(Some(value))) = self.store.try_get(key) {
            let (entry, entry_name) = decode_entry(key, &value)?;
            if entry_name == name {
                return Ok(Some(entry));
            }
        }
        Ok(self.search(dir, name).await?.entry)
    }

    /// The inode that an entry of `dir` names.
    pub(crate) async fn named(&self, dir: Ino, entry: Entry) -> Result<Arc<Inode>, FsError> {
        let inode = match self.inode(entry.ino).await {
            Err(FsError::Stale) => Err(FsError::corrupt(dir, "directory entry", "inode number")),
            other => other,
        }?;
        if inode.file_type == entry.file_type {
            Ok(inode)
        } else {
            Err(FsError::corrupt(dir, "directory entry", "file type"))
        }
    }

    /// Attributes of the inode that `name` refers to in `parent`. Counts a kernel reference.
    pub async fn lookup(&self, parent: Ino, name: &[u8]) -> Result<types::Attributes, FsError> {
        self.counters.lookups.add(1);
        if name == b"." {
            // This works for files as well: it is how an inode is found again by its number.
            return self.reference(parent).await;
        }
        let dir = self.directory(parent).await?;
        if name == b".." {
            let above = dir.state.lock().meta.parent;
            return self.reference(above).await;
        }
        check_name(name)?;
        // Under the directory's lease the name can't go away, so the inode is referenced before it
        // could be removed.
        let _lease = dir.lease.read().await;
        let Some(entry) = self.find(parent, name).await? else {
            self.counters.lookups_negative.add(1);
            return Err(FsError::NotFound);
        };
        let inode = self.named(parent, entry).await?;
        let attributes = inode.state.lock().attributes();
        self.references.add(attributes.ino);
        Ok(attributes)
    }

    async fn reference(&self, ino: Ino) -> Result<Attributes, FsError> {
        let inode = self.inode(ino).await?;
        let state = inode.state.lock();
        if state.removing {
            return Err(FsError::Stale);
        }
        self.references.add(ino);
        Ok(state.attributes())
    }
}
