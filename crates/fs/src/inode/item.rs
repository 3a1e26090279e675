//! The item of an inode: its encoding and decoding, and what fits in it.

use super::{Inode, InodeState, LinkTarget, Meta, ParentName, Parents};
use crate::data::DataState;
use crate::types::{Attributes, FileType, Ino, Timestamp};
use bytes::Bytes;
use syncline_format::FormatError;
use syncline_format::items::inode::{
    FLAG_UNPLACED, InodeItem, MODE_PERMISSIONS, Target, Time, inline_bytes_max, xattr_bytes_max,
    xattr_section_bytes,
};
use syncline_format::items::parent::{Parent, parent_bytes_max};
use syncline_format::superblock::FEATURE_COUNTED_XATTRS;
use syncline_store::{OpSeq, Store, Transaction};

/// Limits that follow from the geometry of the image.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Largest value of an item.
    pub value_bytes: usize,
    /// Most bytes of file data (or symlink target) kept in the inode item.
    pub inline_bytes: usize,
    /// Most bytes that all small xattrs take in the inode item.
    pub xattr_bytes: usize,
    /// Most bytes that all parent pointers take in the inode item.
    pub parent_bytes: usize,
    /// Extended attributes with items of their own count towards usage.
    pub counts_xattrs: bool,
}

impl Limits {
    /// The limits of a store's image.
    pub(crate) fn of(store: &Store) -> Self {
        let geometry = store.geometry();
        Self {
            value_bytes: geometry.max_value_bytes(),
            // With two copies of the item, the contents take no more room than a block would.
            inline_bytes: inline_bytes_max(geometry.node_bytes) / geometry.metadata.copies() as usize,
            xattr_bytes: xattr_bytes_max(geometry.node_bytes),
            parent_bytes: parent_bytes_max(geometry.node_bytes),
            counts_xattrs: store.has_features(FEATURE_COUNTED_XATTRS),
        }
    }
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

impl InodeState {
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
        let inline = item.data.map(|data| value.slice_ref(data));
        let data = DataState::load(&attr, inline, item.flags & FLAG_UNPLACED != 0, last_op);
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
