//! An inode in memory, and its encoding as an item.

use crate::data::{DataState, Unplaced};
use crate::filesystem::Limits;
use crate::names::parents::{ParentName, Parents};
use crate::types::{Attributes, FileType, Ino, Timestamp};
use bytes::Bytes;
use std::sync::Arc;
use syncline_format::items::inode::{
    FLAG_UNPLACED, InodeItem, MODE_PERMISSIONS, Target, Time, xattr_section_bytes,
};
use syncline_format::items::parent::Parent;
use syncline_format::items::xattr::{CHUNK_ID_MAX, ChunkRef};
use syncline_format::{FormatError, Key, Kind};
use syncline_store::{OpSeq, Transaction};
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
    /// Newest operation that touched this inode's existence or names; fdatasync needs it durable.
    pub name_op: OpSeq,
    /// Newest operation that changed attributes, extended attributes or entries; fsync needs it
    /// durable, which may have found that it has logged the access time.
    pub changed_op: OpSeq,
    /// The value that `name_op` and `data.data_op` had when the inode was read into memory; zero
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

/// The file as it is on disk: the values that the inode item must carry.
pub(crate) struct DiskView<'a> {
    pub size: u64,
    pub mtime: Timestamp,
    pub blocks: u64,
    pub inline: Option<&'a [u8]>,
    /// Some contents may be in items of their own.
    pub unplaced: bool,
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

impl InodeState {
    /// True when a transaction already carries the current size and mtime of a file.
    pub(crate) fn is_logged(&self) -> bool {
        self.attr.file_type != FileType::Regular
            || (self.data.disk_size == self.attr.size && self.data.disk_mtime == self.attr.mtime)
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

    /// Decodes an inode item. `last_op` is the store's newest operation; the last change of this
    /// inode was no later. The marks of an inode that comes (back) into the cache start there; at
    /// worst that costs one flush too many.
    pub(crate) fn decode(
        ino: Ino,
        value: &Bytes,
        limits: Limits,
        last_op: OpSeq,
    ) -> Result<Self, FormatError> {
        let item = InodeItem::decode(value)?;
        check_limits(&item, limits)?;
        let file_type = FileType::from_number((item.mode >> 12) as u8)
            .ok_or(FormatError::Field { structure: "inode", field: "file type" })?;
        let attr = Attributes {
            ino,
            file_type,
            permissions: item.mode & MODE_PERMISSIONS,
            nlink: item.nlink,
            uid: item.uid,
            gid: item.gid,
            rdev: item.rdev,
            size: item.size,
            blocks: item.blocks.saturating_sub(item.xattr_units.into()),
            atime: item.atime.into(),
            mtime: item.mtime.into(),
            ctime: item.ctime.into(),
            btime: item.btime.into(),
        };
        // Copies: a slice would keep its node or batch in memory for as long as the inode is in
        // memory.
        let own = Bytes::copy_from_slice;
        let meta = Meta {
            flags: item.flags & !FLAG_UNPLACED,
            generation: item.generation,
            parent: item.parent,
            next_chunk: item.next_chunk,
            xattr_items: item.xattr_items,
            xattr_list_bytes: item.xattr_list_bytes,
            xattr_units: item.xattr_units,
            target: item.target.map(|target| {
                Box::new(match target {
                    Target::Here(bytes) => LinkTarget::Here(own(bytes)),
                    Target::Chunks(chunks) => LinkTarget::Chunks(chunks),
                })
            }),
            xattrs: item.xattrs.iter().map(|(name, value)| (own(name), own(value))).collect(),
            parents: Parents {
                short: item.parents.iter().map(Into::into).collect(),
                items: item.parent_items,
            },
            quota: item.quota,
        };
        let mut data = DataState::load(&attr, item.data.map(|data| value.slice_ref(data)), last_op);
        data.unplaced = Unplaced::marked(item.flags & FLAG_UNPLACED != 0);
        let (name_op, changed_op, loaded_op) = (last_op, OpSeq::default(), last_op);
        let (removing, linkable, access_unlogged) = (false, false, false);
        Ok(Self {
            attr,
            meta,
            data,
            opens: 0,
            name_op,
            changed_op,
            loaded_op,
            removing,
            linkable,
            access_unlogged,
            owes_flush: false,
        })
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
        self.meta.shown(self.data.show(self.attr))
    }

    /// The inode item's value.
    pub(crate) fn encode(&self) -> Bytes {
        encode(&self.attr, &self.meta, &self.data)
    }

    /// Puts the inode item into a transaction.
    pub(crate) fn put(&self, transaction: &mut Transaction) {
        transaction.put(Inode::key(self.attr.ino), self.encode());
    }
}

/// Refuses an item that has more in a section than this program would put there: it might not fit
/// any more once something is added.
fn check_limits(item: &InodeItem<'_>, limits: Limits) -> Result<(), FormatError> {
    let xattrs: usize = item.xattrs.iter().map(|(name, value)| xattr_section_bytes(name, value)).sum();
    let target = match item.target {
        Some(Target::Here(target)) => target.len(),
        _ => 0,
    };
    let contents = item.data.map_or(target, <[u8]>::len);
    let parents: usize = item.parents.iter().map(Parent::section_bytes).sum();
    if xattrs > limits.xattr_bytes || contents > limits.inline_bytes || parents > limits.parent_bytes {
        return Err(FormatError::Field { structure: "inode", field: "section length" });
    }
    if item.xattr_units > 0 && !limits.counts_xattrs {
        return Err(FormatError::Field { structure: "inode", field: "units of extended attributes" });
    }
    Ok(())
}

/// The inode item for these attributes, with the size, mtime, blocks and inline data that are on
/// disk: a chmod of a file with dirty data must not let the logged size run ahead of the logged
/// data.
pub(crate) fn encode(attr: &Attributes, meta: &Meta, data: &DataState) -> Bytes {
    let disk = match attr.file_type {
        FileType::Regular => data.disk_view(),
        _ => DiskView {
            size: attr.size,
            mtime: attr.mtime,
            blocks: attr.blocks,
            inline: None,
            unplaced: false,
        },
    };
    let item = InodeItem {
        mode: (u16::from(attr.file_type.number()) << 12) | (attr.permissions & MODE_PERMISSIONS),
        flags: meta.flags | if disk.unplaced { FLAG_UNPLACED } else { 0 },
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        size: disk.size,
        blocks: disk.blocks.saturating_add(meta.xattr_units.into()),
        generation: meta.generation,
        parent: meta.parent,
        atime: attr.atime.into(),
        mtime: disk.mtime.into(),
        ctime: attr.ctime.into(),
        btime: attr.btime.into(),
        next_chunk: meta.next_chunk,
        xattr_items: meta.xattr_items,
        xattr_list_bytes: meta.xattr_list_bytes,
        data: disk.inline,
        target: meta.target.as_deref().map(|target| match target {
            LinkTarget::Here(bytes) => Target::Here(bytes),
            LinkTarget::Chunks(chunks) => Target::Chunks(*chunks),
        }),
        xattrs: meta.xattrs.iter().map(|(name, value)| (&name[..], &value[..])).collect(),
        parents: meta.parents.short.iter().map(ParentName::pointer).collect(),
        parent_items: meta.parents.items,
        quota: meta.quota,
        xattr_units: meta.xattr_units,
    };
    item.encode().into()
}

impl From<Time> for Timestamp {
    fn from(time: Time) -> Self {
        Self { seconds: time.seconds, nanoseconds: time.nanoseconds }
    }
}

impl From<Timestamp> for Time {
    fn from(time: Timestamp) -> Self {
        // Nanoseconds from a caller come from a system call and may be anything.
        Self { seconds: time.seconds, nanoseconds: time.nanoseconds.min(999_999_999) }
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
