//! Inodes in memory, which everything else stands on: their state (here), their items (`item`), the
//! cache that has each once (`cache`), and the changes that a transaction makes to them (`change`),
//! which count in the quotas of their trees (`quotas`).

pub(crate) mod cache;
pub(crate) mod change;
pub(crate) mod item;
pub(crate) mod quotas;

use crate::data::DataState;
use crate::types::{Attributes, FileType, Ino, Timestamp};
use bytes::Bytes;
use smallvec::SmallVec;
use std::sync::Arc;
use syncline_format::items::parent::{Parent, section_bytes};
use syncline_format::items::xattr::{CHUNK_ID_MAX, ChunkRef};
use syncline_format::{Key, Kind};
use syncline_store::OpSeq;
use syncline_sync::atomic::AtomicBool;

/// An inode in memory. It can't leave the cache while somebody holds an `Arc` of it.
pub(crate) struct Inode {
    pub ino: Ino,
    /// Never changes.
    pub file_type: FileType,
    /// The inode's lease. Directory changes, attribute changes and data changes (write, truncate,
    /// write-back commit, fsync's own submission) hold it for writing, reads for reading. It may be
    /// held across awaits. Several leases are taken in the order of inode numbers, after the rename
    /// lease.
    pub lease: syncline_sync::asynchronous::RwLock<()>,
    /// Never held across an await. Only holders of the lease for writing change the state, except
    /// for `opens`, `data`'s bookkeeping of writes in flight, and the access time.
    pub state: syncline_sync::Mutex<InodeState>,
    /// The second-chance bit of the cache.
    pub(crate) referenced: AtomicBool,
}

pub(crate) struct InodeState {
    /// The attributes that callers see, except that the blocks of extended attributes are missing.
    /// Size, mtime and blocks may be ahead of the disk.
    pub attr: Attributes,
    pub meta: Meta,
    /// Dirty data, and the disk's view of size, mtime and inline data.
    pub data: DataState,
    /// Open handles.
    pub opens: u32,
    /// Newest operation that made the inode or changed its names. An fdatasync waits until it is durable.
    pub name_op: OpSeq,
    /// Newest operation that changed attributes (with the access time), extended attributes or entries. An
    /// fsync waits until it is durable.
    pub changed_op: OpSeq,
    /// The value that `name_op` and the mark of `data.logged` had when the inode was read into memory; zero
    /// if it was created. A mark that still has this value does not tell which change it stands
    /// for.
    pub loaded_op: OpSeq,
    /// The removal of an inode without names has begun (or is over): it can't be opened any more.
    pub removing: bool,
    /// The inode was created without a name and may be given one.
    pub linkable: bool,
    /// Reads have moved the access time since the item was logged; the inode is in the list of
    /// those to be logged.
    pub access_unlogged: bool,
    /// A sync of class `ordered` was answered and the flush that it owes has not begun. The inode
    /// is in the list of `data/flush/promises.rs`.
    pub owes_flush: bool,
}

/// The inode item without attributes and data. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Meta {
    pub flags: u32,
    pub generation: u64,
    /// Parent of a directory, else 0.
    pub parent: Ino,
    pub next_chunk: u64,
    pub xattr_items: u32,
    pub xattr_list_bytes: u32,
    /// Units of 512 bytes that extended attributes with items of their own count for; 0 where they
    /// do not count.
    pub xattr_units: u32,
    pub target: Option<Box<LinkTarget>>,
    /// Small xattrs: names and values.
    pub xattrs: Arc<[(Bytes, Bytes)]>,
    /// The inode's names, if the image keeps parent pointers.
    pub parents: Parents,
    /// Number of the quota that the inode counts in; 0 if it counts in none or the quota no longer
    /// exists.
    pub quota: u64,
}

#[derive(Clone)]
pub(crate) enum LinkTarget {
    Here(Bytes),
    Chunks(ChunkRef),
}

/// One name of an inode, as the inode knows it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct ParentName {
    pub parent: Ino,
    /// A copy: a slice would keep the node that it was read from in memory.
    pub name: Arc<[u8]>,
}

/// The names in an inode item. Most inodes have one.
#[derive(Clone, Default)]
pub(crate) struct Parents {
    /// Names in the inode item.
    pub short: SmallVec<[ParentName; 1]>,
    /// Number of names that have an item of their own.
    pub items: u32,
}

impl Inode {
    pub(crate) fn new(state: InodeState) -> Arc<Self> {
        Arc::new(Self {
            ino: state.attr.ino,
            file_type: state.attr.file_type,
            lease: syncline_sync::asynchronous::RwLock::new(()),
            state: syncline_sync::Mutex::new(state),
            referenced: AtomicBool::new(false),
        })
    }

    /// True when the cache may forget this inode: memory has nothing about it that its items don't
    /// say.
    pub(crate) fn is_idle(&self) -> bool {
        let state = self.state.lock();
        // An inode without names stays until its removal.
        let is_held = state.opens > 0 || state.owes_flush;
        !is_held && state.attr.nlink > 0 && state.data.is_idle() && state.is_logged()
    }

    /// Key of the inode item.
    pub(crate) fn key(ino: Ino) -> Key {
        Key::new(ino, Kind::Inode, 0)
    }
}

impl Meta {
    /// The attributes that callers see: blocks include those of extended attributes.
    pub(crate) fn shown(&self, attr: Attributes) -> Attributes {
        Attributes { blocks: attr.blocks.saturating_add(self.xattr_units.into()), ..attr }
    }

    /// Allocates a chunk id for a long value, at most 64 KiB.
    pub(crate) fn new_chunks(&mut self, len_bytes: usize) -> ChunkRef {
        let chunks = ChunkRef { id: self.next_chunk, len_bytes: len_bytes as u32 };
        // No inode ever gets to store 2^48 values.
        self.next_chunk = (self.next_chunk + 1).min(CHUNK_ID_MAX);
        chunks
    }
}

impl ParentName {
    pub(crate) fn new((parent, name): (Ino, &[u8])) -> Self {
        Self { parent, name: name.into() }
    }

    /// True for this name in this directory.
    pub(crate) fn is(&self, (parent, name): (Ino, &[u8])) -> bool {
        self.parent == parent && *self.name == *name
    }

    /// The name as the format has it.
    pub(crate) fn pointer(&self) -> Parent<'_> {
        Parent { parent: self.parent, name: &self.name }
    }
}

impl From<&Parent<'_>> for ParentName {
    fn from(pointer: &Parent<'_>) -> Self {
        Self::new((pointer.parent, pointer.name))
    }
}

impl Parents {
    /// Bytes that the names in the inode item take.
    pub(crate) fn short_bytes(&self) -> usize {
        self.short.iter().map(|name| section_bytes(&name.name)).sum()
    }
}

impl InodeState {
    /// True when a transaction already carries the current size and mtime of a file.
    pub(crate) fn is_logged(&self) -> bool {
        self.attr.file_type != FileType::Regular
            || (self.data.logged.size() == self.attr.size && self.data.logged.mtime() == self.attr.mtime)
    }

    /// Newest operation that a sync of the inode makes durable (P1).
    pub(crate) fn newest_op(&self, data_only: bool) -> OpSeq {
        let newest = self.data.logged.op().max(self.name_op);
        if data_only { newest } else { newest.max(self.changed_op) }
    }

    /// An item with this access time was committed. The time counts as logged only from now on, so
    /// that a sync which finds nothing to log knows the operation that it has to wait for. A read may
    /// have moved it meanwhile.
    pub(crate) fn note_access_logged(&mut self, op: OpSeq, atime: Timestamp) {
        if self.access_unlogged && self.attr.atime == atime {
            self.access_unlogged = false;
            self.changed_op = op;
        }
    }

    /// A new inode's state.
    pub(crate) fn new(attr: Attributes, meta: Meta) -> Self {
        let data = DataState::new(&attr);
        let none = OpSeq::default();
        let (removing, linkable) = (false, false);
        Self {
            attr,
            meta,
            data,
            opens: 0,
            name_op: none,
            changed_op: none,
            loaded_op: none,
            removing,
            linkable,
            access_unlogged: false,
            owes_flush: false,
        }
    }

    /// Makes the inode count in this quota, or in none if 0. Nothing of the inode is dirty.
    pub(crate) fn count_in(&mut self, number: u64) {
        self.meta.quota = number;
        if self.attr.file_type == FileType::Regular {
            self.data.charge_to(number);
        }
    }

    /// The 512-byte units that the inode item claims.
    pub(crate) fn logged_units(&self) -> u64 {
        let units = match self.attr.file_type {
            FileType::Regular => self.data.disk_view().blocks,
            _ => self.attr.blocks,
        };
        units.saturating_add(self.meta.xattr_units.into())
    }

    /// The attributes that callers see.
    pub(crate) fn attributes(&self) -> Attributes {
        self.meta.shown(self.attr)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tree walk brings every inode into memory, and each file that a program creates adds one,
    /// so data that few files have is boxed.
    #[test]
    fn an_inode_takes_little_memory() {
        // With the two counts of the `Arc` this is a size class of the allocator.
        assert!(size_of::<Inode>() <= 640 - 16, "{} bytes", size_of::<Inode>());
    }
}
