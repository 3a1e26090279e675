//! Extended attributes and long values of one object.

use crate::finding::{FindingKind, Report};
use crate::items::Shared;
use crate::object::printable;
use bytes::Bytes;
use std::collections::{BTreeMap, HashSet};
use syncline_format::Key;
use syncline_format::items::hash_offsets;
use syncline_format::items::xattr::{ChunkRef, Xattr, XattrValue};

/// Bits of a piece's number in the offset of a chunk (docs/FORMAT.md).
const PIECE_BITS: u32 = 16;

/// The xattrs and long values seen so far.
#[derive(Default)]
pub(crate) struct Xattrs {
    names: HashSet<Vec<u8>>,
    /// Bytes that listxattr would return.
    list_bytes: u64,
    /// Attributes with an item of their own.
    items: u32,
    /// Units that these attributes count for, if they count.
    units: u32,
    /// Long values that something refers to.
    values: BTreeMap<u64, LongValue>,
    /// Lowest id of a long value never used.
    next_chunk: u64,
}

/// A long value.
struct LongValue {
    expected_bytes: u64,
    found_bytes: u64,
    next_piece: u64,
    /// A piece is missing and was reported; further faults are not.
    broken: bool,
}

impl Xattrs {
    /// Sets the `next_chunk` of the inode item: ids below it have been used.
    pub(crate) fn expect(&mut self, next_chunk: u64) {
        self.next_chunk = next_chunk;
    }

    /// An attribute in the inode item.
    pub(crate) fn small(&mut self, object: u64, name: &[u8], report: &mut Report) {
        self.list_bytes += name.len() as u64 + 1;
        if !self.names.insert(name.to_vec()) {
            let text = format!("the extended attribute {:?} is there twice", printable(name));
            report.object(FindingKind::DuplicateName, object, text);
        }
    }

    /// An attribute with an item of its own.
    pub(crate) fn item(&mut self, key: Key, value: &Bytes, shared: &mut Shared<'_>) {
        let xattr = match Xattr::decode(value) {
            Ok(xattr) => xattr,
            Err(error) => {
                let text = format!("extended attribute at offset {}: {error}", key.offset);
                return shared.report.object(FindingKind::ItemMalformed, key.object, text);
            }
        };
        self.items += 1;
        self.units = self.units.saturating_add(if shared.counts_xattrs { xattr.units() } else { 0 });
        self.small(key.object, xattr.name, shared.report);
        let (first, last) = hash_offsets(shared.hash(xattr.name));
        if !(first..=last).contains(&key.offset) {
            let text = format!(
                "the extended attribute {:?} lies at offset {}, not in {first}..={last}",
                printable(xattr.name),
                key.offset
            );
            shared.report.object(FindingKind::NameHash, key.object, text);
        }
        if let XattrValue::Chunks(chunks) = xattr.value {
            self.refer(key.object, chunks, shared.report);
        }
    }

    /// Notes that something refers to a long value.
    pub(crate) fn refer(&mut self, object: u64, chunks: ChunkRef, report: &mut Report) {
        let value = LongValue {
            expected_bytes: u64::from(chunks.len_bytes),
            found_bytes: 0,
            next_piece: 0,
            broken: false,
        };
        if self.values.insert(chunks.id, value).is_some() {
            let text = format!("two references to the long value {}", chunks.id);
            report.object(FindingKind::InodeContradiction, object, text);
        }
        if chunks.id >= self.next_chunk {
            let text = format!("the long value {} has a number that was not handed out yet", chunks.id);
            report.object(FindingKind::InodeContradiction, object, text);
        }
    }

    /// A piece of a long value.
    pub(crate) fn chunk(&mut self, key: Key, bytes: &Bytes, report: &mut Report) {
        let (id, piece) = (key.offset >> PIECE_BITS, key.offset & ((1 << PIECE_BITS) - 1));
        let Some(value) = self.values.get_mut(&id) else {
            let text = format!("piece {piece} of the long value {id}");
            return report.object(FindingKind::ChunkUnowned, key.object, text);
        };
        if piece != value.next_piece && !value.broken {
            value.broken = true;
            let text = format!("piece {} of the long value {id}", value.next_piece);
            report.object(FindingKind::ChunkMissing, key.object, text);
        }
        value.next_piece = piece + 1;
        value.found_bytes += bytes.len() as u64;
    }

    /// Units that the attributes seen so far count for.
    pub(crate) fn units(&self) -> u32 {
        self.units
    }

    /// Completes the checks once all items were read; compares with the counts of the inode item.
    pub(crate) fn end(self, object: u64, items: u32, list_bytes: u32, report: &mut Report) {
        if self.items != items {
            let text =
                format!("{items} extended attributes with items of their own, {} were found", self.items);
            report.object(FindingKind::XattrCount, object, text);
        }
        if self.list_bytes != u64::from(list_bytes) {
            let text = format!("a listing of {list_bytes} bytes, {} were found", self.list_bytes);
            report.object(FindingKind::XattrCount, object, text);
        }
        for (id, value) in self.values {
            if value.found_bytes != value.expected_bytes && !value.broken {
                let text = format!(
                    "the long value {id} has {} bytes instead of {}",
                    value.found_bytes, value.expected_bytes
                );
                report.object(FindingKind::ChunkMissing, object, text);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_of_chunks_are_taken_apart_as_the_format_puts_them_together() {
        let chunks = ChunkRef { id: 5, len_bytes: 0 };
        assert_eq!(chunks.offset(3), (5 << PIECE_BITS) | 3);
    }
}
