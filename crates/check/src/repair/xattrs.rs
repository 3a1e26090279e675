//! Extended attributes and long values of one object.

use crate::finding::FindingKind;
use crate::object::printable;
use crate::repair::planner::Planner;
use bytes::Bytes;
use std::collections::{BTreeMap, HashSet};
use syncline_format::items::hash_offsets;
use syncline_format::items::xattr::{CHUNK_ID_MAX, ChunkRef, Xattr, XattrValue};
use syncline_format::{Key, Kind};

const PIECE_BITS: u32 = 16;

/// The xattrs and long values seen so far.
#[derive(Default)]
pub(crate) struct Xattrs {
    names: HashSet<Vec<u8>>,
    values: BTreeMap<u64, LongValue>,
    /// Bytes that listxattr would return.
    pub(crate) list_bytes: u64,
    /// Attributes with an item of their own.
    pub(crate) items: u32,
    /// Units that they count for, if xattrs count.
    pub(crate) units: u32,
    /// Lowest id of a long value not in use.
    pub(crate) next_chunk: u64,
    /// The target of the symbolic link is lost.
    pub(crate) target_lost: bool,
}

struct LongValue {
    owner: Owner,
    expected_bytes: u64,
    found_bytes: u64,
    next_piece: u64,
    broken: bool,
}

enum Owner {
    Target,
    Xattr { key: Key, name: Vec<u8> },
}

impl Xattrs {
    /// Takes an attribute's name; returns false if it was seen already.
    pub(crate) fn name(&mut self, name: &[u8]) -> bool {
        let fresh = self.names.insert(name.to_vec());
        self.list_bytes += if fresh { name.len() as u64 + 1 } else { 0 };
        fresh
    }

    /// Notes that the symlink's target lies in chunks.
    pub(crate) fn target(&mut self, chunks: ChunkRef) {
        self.refer(Owner::Target, chunks);
    }

    fn refer(&mut self, owner: Owner, chunks: ChunkRef) {
        let expected_bytes = u64::from(chunks.len_bytes);
        let value = LongValue { owner, expected_bytes, found_bytes: 0, next_piece: 0, broken: false };
        self.values.insert(chunks.id, value);
        self.next_chunk = self.next_chunk.max(chunks.id + 1);
    }

    /// An attribute with an item of its own.
    pub(crate) async fn item(&mut self, planner: &mut Planner, key: Key, value: &Bytes) {
        let xattr = match Xattr::decode(value) {
            Ok(xattr) => xattr,
            Err(error) => {
                let why = format!("extended attribute at offset {}: {error}", key.offset);
                return planner.remove(FindingKind::ItemMalformed, key, why);
            }
        };
        let shown = format!("extended attribute {:?}", printable(xattr.name));
        if let XattrValue::Chunks(chunks) = xattr.value
            && (self.values.contains_key(&chunks.id) || chunks.id >= CHUNK_ID_MAX)
        {
            let why = format!("{shown}: its long value {} belongs to another", chunks.id);
            return planner.remove(FindingKind::InodeContradiction, key, why);
        }
        if self.names.contains(xattr.name) {
            return planner.remove(FindingKind::DuplicateName, key, format!("{shown} is there twice"));
        }
        let mut place = key;
        let (first, last) = hash_offsets(planner.view.hash(xattr.name));
        if !(first..=last).contains(&key.offset) {
            let taken = planner.view.named(key.object, Kind::Xattr, xattr.name).await;
            let same = |value: &Bytes| Xattr::decode(value).is_ok_and(|other| other.name == xattr.name);
            let free = planner.view.place(key.object, Kind::Xattr, xattr.name, &taken);
            let (Some(free), false) = (free, taken.values().any(same)) else {
                return planner.remove(FindingKind::DuplicateName, key, format!("{shown} is there twice"));
            };
            place = free;
            planner.view.delete(key);
            planner.view.put(place, value.clone());
            let text = format!("{shown}: offset {} → {}", key.offset, place.offset);
            planner.object(FindingKind::NameHash, key.object, text);
        }
        self.name(xattr.name);
        self.add(planner, &xattr);
        if let XattrValue::Chunks(chunks) = xattr.value {
            self.refer(Owner::Xattr { key: place, name: xattr.name.to_vec() }, chunks);
        }
    }

    /// Counts an attribute with an item of its own.
    pub(crate) fn add(&mut self, planner: &Planner, xattr: &Xattr<'_>) {
        self.items += 1;
        self.units = self.units.saturating_add(planner.units_of(xattr));
    }

    /// A piece of a long value.
    pub(crate) fn chunk(&mut self, planner: &mut Planner, key: Key, bytes: &Bytes) {
        let (id, piece) = (key.offset >> PIECE_BITS, key.offset & ((1 << PIECE_BITS) - 1));
        let Some(value) = self.values.get_mut(&id) else {
            let why = format!("piece {piece} of the long value {id}, which nothing refers to");
            return planner.remove(FindingKind::ChunkUnowned, key, why);
        };
        value.broken |= piece != value.next_piece;
        value.next_piece = piece + 1;
        value.found_bytes += bytes.len() as u64;
    }

    /// Removes incomplete values, with what they belong to, once all items were read.
    pub(crate) async fn end(&mut self, planner: &mut Planner, object: u64) {
        for (id, value) in std::mem::take(&mut self.values) {
            if !value.broken && value.found_bytes == value.expected_bytes {
                continue;
            }
            let (from, to) = (ChunkRef { id, len_bytes: 0 }.offset(0), (id << PIECE_BITS) | 0xffff);
            let pieces =
                planner.view.range(Key::new(object, Kind::Chunk, from), Key::new(object, Kind::Chunk, to));
            pieces.await.into_keys().for_each(|key| planner.view.delete(key));
            match value.owner {
                Owner::Target => self.target_lost = true,
                Owner::Xattr { key, name } => {
                    self.items -= 1;
                    let value = ChunkRef { id, len_bytes: value.expected_bytes as u32 };
                    let gone = Xattr { name: &name, value: XattrValue::Chunks(value) };
                    self.units = self.units.saturating_sub(planner.units_of(&gone));
                    self.list_bytes -= name.len() as u64 + 1;
                    let why = format!("extended attribute {:?}: its value is not whole", printable(&name));
                    let what = format!("lost the extended attribute {:?}", printable(&name));
                    planner.lose_by(FindingKind::ChunkMissing, object, what);
                    planner.remove(FindingKind::ChunkMissing, key, why);
                }
            }
        }
    }
}
