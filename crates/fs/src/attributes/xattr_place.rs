//! The places of extended attributes: in the inode item while they are small and few, then in items
//! of their own, with the longest values in chunks.

use crate::FsError;
use crate::filesystem::Filesystem;
use crate::inode::change::InodeChange;
use crate::inode::{Inode, Meta};
use crate::types::Ino;
use bytes::{Bytes, BytesMut};
use std::sync::Arc;
use syncline_format::items::inode::xattr_section_bytes;
use syncline_format::items::xattr::{ChunkRef, LIST_BYTES_MAX, Xattr, XattrValue};
use syncline_format::items::{SLOTS, hash_offsets};
use syncline_format::{Key, Kind};
use syncline_store::{StoreError, Transaction};

/// The place of one extended attribute.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    /// In the inode item, at this index of its list.
    Inode(usize),
    /// In an item at this offset, with its value.
    Item(u64, Bytes),
    /// In an item at this offset, with its value in chunks.
    Chunks(u64, ChunkRef),
}

/// Answer to a search for an extended attribute.
pub(crate) struct XattrSearch {
    pub place: Option<Place>,
    /// First offset where an item of this name could go.
    pub free: Option<u64>,
}

/// Reads an xattr's item.
pub(crate) fn decode_xattr(key: Key, value: &Bytes) -> Result<Xattr<'_>, FsError> {
    Xattr::decode(value).map_err(|detail| FsError::Corrupt { ino: key.object, detail })
}

impl Filesystem {
    /// Looks for an extended attribute. The caller holds the inode's lease.
    pub(crate) async fn search_xattr(&self, inode: &Arc<Inode>, name: &[u8]) -> Result<XattrSearch, FsError> {
        let (first, last) = hash_offsets(self.hasher.hash(name));
        let mut search = XattrSearch { place: None, free: Some(first) };
        {
            let state = inode.state.lock();
            let small = state.meta.xattrs.iter().position(|(small, _)| small == name);
            search.place = small.map(Place::Inode);
            if state.meta.xattr_items == 0 {
                return Ok(search);
            }
        }
        let (from, to) = (Key::new(inode.ino, Kind::Xattr, first), Key::new(inode.ino, Kind::Xattr, last));
        let each = |key: Key, value: &Bytes| {
            if search.free == Some(key.offset) {
                search.free = Some(key.offset + 1).filter(|&offset| offset <= last);
            }
            let xattr = decode_xattr(key, value)?;
            if xattr.name == name {
                search.place = Some(match xattr.value {
                    XattrValue::Here(bytes) => Place::Item(key.offset, value.slice_ref(bytes)),
                    XattrValue::Chunks(chunks) => Place::Chunks(key.offset, chunks),
                });
            }
            Ok(())
        };
        self.each_item(from, to, SLOTS as usize, each).await?;
        Ok(search)
    }

    /// Removes an extended attribute.
    pub(crate) fn delete_xattr(
        &self,
        meta: &mut Meta,
        (transaction, ino): (&mut Transaction, Ino),
        name: &[u8],
        place: &Place,
    ) {
        meta.xattr_list_bytes = meta.xattr_list_bytes.saturating_sub(name.len() as u32 + 1);
        match place {
            Place::Inode(_) => {
                // By name: another change of the same transaction may have moved it.
                let mut xattrs = meta.xattrs.to_vec();
                xattrs.retain(|(small, _)| small != name);
                meta.xattrs = xattrs.into();
            }
            Place::Item(offset, value) => {
                self.delete_item(
                    meta,
                    transaction,
                    (ino, *offset),
                    Xattr { name, value: XattrValue::Here(value) },
                );
            }
            Place::Chunks(offset, chunks) => {
                let value = XattrValue::Chunks(*chunks);
                self.delete_item(meta, transaction, (ino, *offset), Xattr { name, value });
                for piece in 0..self.pieces(*chunks) {
                    transaction.delete(Key::new(ino, Kind::Chunk, chunks.offset(piece)));
                }
            }
        }
    }

    fn delete_item(
        &self,
        meta: &mut Meta,
        transaction: &mut Transaction,
        (ino, offset): (Ino, u64),
        xattr: Xattr<'_>,
    ) {
        transaction.delete(Key::new(ino, Kind::Xattr, offset));
        meta.xattr_items = meta.xattr_items.saturating_sub(1);
        meta.xattr_units = meta.xattr_units.saturating_sub(self.units_of(xattr));
    }

    /// The units that an attribute with an item of its own counts for.
    fn units_of(&self, xattr: Xattr<'_>) -> u32 {
        if self.limits.counts_xattrs { xattr.units() } else { 0 }
    }

    /// Adds a new extended attribute where it fits best; `free` is an offset for an item.
    pub(crate) fn insert_xattr(
        &self,
        meta: &mut Meta,
        (transaction, ino): (&mut Transaction, Ino),
        name: &[u8],
        value: &Bytes,
        free: u64,
    ) {
        meta.xattr_list_bytes = meta.xattr_list_bytes.saturating_add(name.len() as u32 + 1);
        let taken: usize = meta.xattrs.iter().map(|(name, value)| xattr_section_bytes(name, value)).sum();
        if taken + xattr_section_bytes(name, value) <= self.limits.xattr_bytes {
            let mut xattrs = meta.xattrs.to_vec();
            xattrs.push((Bytes::copy_from_slice(name), value.clone()));
            meta.xattrs = xattrs.into();
            return;
        }
        let room = self.limits.value_bytes - Xattr::OVERHEAD_BYTES - name.len();
        let place = if value.len() <= room {
            XattrValue::Here(value)
        } else {
            let chunks = meta.new_chunks(value.len());
            self.put_chunks(transaction, ino, chunks, value);
            XattrValue::Chunks(chunks)
        };
        let xattr = Xattr { name, value: place };
        transaction.put(Key::new(ino, Kind::Xattr, free), xattr.encode());
        meta.xattr_items = meta.xattr_items.saturating_add(1);
        meta.xattr_units = meta.xattr_units.saturating_add(self.units_of(xattr));
    }

    /// Puts an extended attribute in place of its old value, or at `free`.
    pub(crate) fn replace_xattr(
        &self,
        change: &mut InodeChange<'_>,
        transaction: &mut Transaction,
        (name, value): (&[u8], &Bytes),
        search: &XattrSearch,
    ) -> Result<(), FsError> {
        let ino = change.attr.ino;
        if let Some(place) = &search.place {
            self.delete_xattr(&mut change.meta, (transaction, ino), name, place);
        }
        // The offset of a replaced item is free again.
        let free = match search.place {
            Some(Place::Item(offset, _) | Place::Chunks(offset, _)) => Some(offset),
            _ => search.free,
        };
        let free = free.ok_or(FsError::Store(StoreError::NoSpace))?;
        self.insert_xattr(&mut change.meta, (transaction, ino), name, value, free);
        // Every attribute that can be set must fit the list.
        if change.meta.xattr_list_bytes > LIST_BYTES_MAX {
            return Err(FsError::Store(StoreError::NoSpace));
        }
        Ok(())
    }

    /// Number of pieces of a value in chunks.
    fn pieces(&self, chunks: ChunkRef) -> u16 {
        // At most 65536 bytes in pieces of several hundred.
        (chunks.len_bytes as usize).div_ceil(self.limits.value_bytes) as u16
    }

    /// Stores a long value.
    pub(crate) fn put_chunks(
        &self,
        transaction: &mut Transaction,
        ino: Ino,
        chunks: ChunkRef,
        value: &Bytes,
    ) {
        for (piece, bytes) in value.chunks(self.limits.value_bytes).enumerate() {
            transaction.put(Key::new(ino, Kind::Chunk, chunks.offset(piece as u16)), value.slice_ref(bytes));
        }
    }

    /// Reads a long value. The caller holds the inode's lease.
    pub(crate) async fn read_chunks(&self, ino: Ino, chunks: ChunkRef) -> Result<Bytes, FsError> {
        let missing = || FsError::corrupt(ino, "chunk", "length");
        let mut value = BytesMut::with_capacity(chunks.len_bytes as usize);
        let pieces = self.pieces(chunks);
        let to = Key::new(ino, Kind::Chunk, chunks.offset(pieces.saturating_sub(1)));
        let mut piece = 0;
        while piece < pieces {
            let from = Key::new(ino, Kind::Chunk, chunks.offset(piece));
            let found = self.store.scan(from, to, usize::from(pieces - piece)).await?.items;
            if found.is_empty() {
                return Err(missing());
            }
            for (key, bytes) in found {
                if key.offset != chunks.offset(piece) || value.len() + bytes.len() > chunks.len_bytes as usize
                {
                    return Err(missing());
                }
                value.extend_from_slice(&bytes);
                piece += 1;
            }
        }
        if value.len() == chunks.len_bytes as usize { Ok(value.freeze()) } else { Err(missing()) }
    }
}
