//! Tree nodes: sorted items in a leaf, pointers to children in an internal node, in one layout.
//!
//! ```text
//! 0        40                 40 + 17 n          40 + 21 n
//! +--------+------------------+------------------+----------------------+---------+
//! | header | n keys, 17 bytes | n ends, u32 each | values, back to back | zeros   |
//! +--------+------------------+------------------+----------------------+---------+
//! ```
//!
//! Keys and values are each contiguous, so a run of items moves to another node with one copy of
//! each, and a search touches only keys. Value `i` extends from end `i - 1` (0 for the first) to
//! end `i`, counted from the start of the values: values can neither overlap nor leave gaps,
//! whatever the bytes are.

mod builder;

use crate::superblock::Pointer;
use crate::{BlockAddr, FormatError, Geometry, KEY_BYTES, Key, Metadata};
use bytes::Bytes;
use std::cmp::Ordering;

pub use builder::NodeBuilder;

/// Magic number at the start of a tree node.
pub const MAGIC: [u8; 8] = *b"SYNCNODE";
/// Greatest level of a root.
pub const MAX_LEVEL: u8 = 16;
/// Bytes before the first key.
pub const HEADER_BYTES: usize = 40;
/// Bytes that an item takes besides its value: its key and its end.
pub const ENTRY_BYTES: usize = KEY_BYTES + END_BYTES;

const POINTER_BYTES: usize = 12;
const DUP_POINTER_BYTES: usize = POINTER_BYTES + 8;

const END_BYTES: usize = 4;

// Field offsets. The checksum is not here but in the pointer to the node.
const ADDR: usize = 8;
const GENERATION: usize = 16;
const COUNT: usize = 24;
const VALUES_BYTES: usize = 28;
const LEVEL: usize = 32;
const PADDING: usize = 33;

const _: () = {
    assert!(MAGIC.len() == ADDR && ADDR + 8 == GENERATION && GENERATION + 8 == COUNT);
    assert!(COUNT + 4 == VALUES_BYTES && VALUES_BYTES + 4 == LEVEL && LEVEL + 1 == PADDING);
    assert!(PADDING < HEADER_BYTES && HEADER_BYTES.is_multiple_of(8));
    assert!(KEY_BYTES == 17 && ENTRY_BYTES == 21 && POINTER_BYTES == 12);
    // Geometry::max_value_bytes: four of the largest items fit the smallest node.
    assert!(HEADER_BYTES + 4 * (ENTRY_BYTES + 4096 / 4 - 64) <= 4096);
};

const STRUCTURE: &str = "tree node";

fn field(field: &'static str) -> FormatError {
    FormatError::Field { structure: STRUCTURE, field }
}

/// Bytes of a child pointer, the value of an entry in an internal node.
pub fn pointer_bytes(metadata: Metadata) -> usize {
    match metadata {
        Metadata::Single => POINTER_BYTES,
        Metadata::Dup => DUP_POINTER_BYTES,
    }
}

/// The address and level that a block claims, if it begins like a tree node. Nothing else in it is
/// checked.
pub fn header(block: &[u8]) -> Option<(BlockAddr, u8)> {
    let begins = block.len() >= HEADER_BYTES && block[..ADDR] == MAGIC;
    begins.then(|| (u64_at(block, ADDR), block[LEVEL]))
}

/// A node whose whole structure was checked, so reading from it can't fail.
///
/// It shares the bytes it was decoded from; clones and values cost no copy. Methods that take an
/// index panic if it is not below [`Node::len`], as slices do.
#[derive(Clone, Debug)]
pub struct Node {
    bytes: Bytes,
    addr: BlockAddr,
    generation: u64,
    count: usize,
    level: u8,
}

impl Node {
    /// Reads the node that should lie at `addr` and have this level. The checksum of the bytes was
    /// verified, but they are not trusted otherwise.
    pub fn decode(bytes: Bytes, geometry: Geometry, addr: BlockAddr, level: u8) -> Result<Self, FormatError> {
        if bytes.len() != geometry.node_bytes as usize {
            return Err(FormatError::Truncated { structure: STRUCTURE });
        }
        if bytes[..ADDR] != MAGIC {
            return Err(FormatError::Magic { structure: STRUCTURE });
        }
        if u64_at(&bytes, ADDR) != addr {
            return Err(field("own address"));
        }
        if bytes[LEVEL] != level || level > MAX_LEVEL {
            return Err(field("level"));
        }
        let count = u32_at(&bytes, COUNT) as usize;
        let values_bytes = u32_at(&bytes, VALUES_BYTES) as usize;
        if count > (bytes.len() - HEADER_BYTES) / ENTRY_BYTES {
            return Err(field("count"));
        }
        let node = Self { addr, generation: u64_at(&bytes, GENERATION), count, level, bytes };
        let values_start = node.values_start();
        if values_bytes > node.bytes.len() - values_start {
            return Err(field("length of values"));
        }
        let unused = &node.bytes[values_start + values_bytes..];
        if !is_zero(unused) || !is_zero(&node.bytes[PADDING..HEADER_BYTES]) {
            return Err(field("unused bytes"));
        }
        node.check_keys()?;
        node.check_ends(values_bytes, geometry.metadata)?;
        if level > 0 {
            node.check_children(geometry)?;
        }
        Ok(node)
    }

    fn check_keys(&self) -> Result<(), FormatError> {
        let keys = &self.bytes[HEADER_BYTES..self.ends_start()];
        let pairs = keys.chunks_exact(KEY_BYTES).zip(keys.chunks_exact(KEY_BYTES).skip(1));
        for (key, next) in pairs {
            if compare(key, next) != Ordering::Less {
                return Err(field("order of keys"));
            }
        }
        Ok(())
    }

    fn check_ends(&self, values_bytes: usize, metadata: Metadata) -> Result<(), FormatError> {
        let mut start = 0;
        for index in 0..self.count {
            let end = self.end(index);
            if end < start {
                return Err(field("order of ends"));
            }
            if self.level > 0 && end - start != pointer_bytes(metadata) {
                return Err(field("length of a pointer"));
            }
            start = end;
        }
        if start == values_bytes { Ok(()) } else { Err(field("length of values")) }
    }

    fn check_children(&self, geometry: Geometry) -> Result<(), FormatError> {
        if self.count == 0 {
            return Err(field("count"));
        }
        for index in 0..self.count {
            if !geometry.has(self.child(index).1, geometry.node_blocks()) {
                return Err(field("child address"));
            }
        }
        Ok(())
    }

    /// The node's address.
    pub fn addr(&self) -> BlockAddr {
        self.addr
    }

    /// The generation whose checkpoint wrote the node.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Height above the leaves; 0 for a leaf.
    pub fn level(&self) -> u8 {
        self.level
    }

    /// Number of items or children.
    pub fn len(&self) -> usize {
        self.count
    }

    /// True only for the one leaf of an empty tree.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Number of bytes in use.
    pub fn used_bytes(&self) -> usize {
        self.values_start() + if self.count == 0 { 0 } else { self.end(self.count - 1) }
    }

    /// The whole node as it is on the device.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Key of an entry.
    pub fn key(&self, index: usize) -> Key {
        Key::from_bytes(self.key_bytes(index))
    }

    /// Key of the first entry.
    pub fn first_key(&self) -> Option<Key> {
        (self.count > 0).then(|| self.key(0))
    }

    /// Key of the last entry.
    pub fn last_key(&self) -> Option<Key> {
        self.count.checked_sub(1).map(|last| self.key(last))
    }

    /// Value of an entry.
    pub fn value(&self, index: usize) -> &[u8] {
        let (start, end) = self.value_range(index);
        &self.bytes[start..end]
    }

    /// Key and value of an entry; the value shares the node's memory.
    pub fn entry(&self, index: usize) -> (Key, Bytes) {
        let (start, end) = self.value_range(index);
        (self.key(index), self.bytes.slice(start..end))
    }

    /// First key and pointer of a child. Panics on a leaf.
    pub fn child(&self, index: usize) -> (Key, Pointer) {
        assert!(self.level > 0, "a leaf has no children");
        (self.key(index), pointer_from_bytes(self.value(index)))
    }

    /// Position of a key, or the position where it would be inserted.
    pub fn find(&self, key: Key) -> Result<usize, usize> {
        self.search(&key.to_bytes(), 0, self.count)
    }

    /// First position at or after `from` whose key is not less than `key`. Cheap when it is near
    /// `from`.
    pub fn lower_bound(&self, from: usize, key: Key) -> usize {
        let key = key.to_bytes();
        let mut low = from;
        let mut step = 1;
        loop {
            let probe = low + step - 1;
            if probe >= self.count || compare(self.key_bytes(probe), &key) != Ordering::Less {
                let high = probe.min(self.count).max(low);
                return self.search(&key, low, high).unwrap_or_else(|at| at);
            }
            low = probe + 1;
            step *= 2;
        }
    }

    /// The child whose range holds `key`: the last one whose first key is not greater, or the first
    /// of all.
    pub fn child_for(&self, key: Key) -> usize {
        match self.find(key) {
            Ok(index) => index,
            Err(index) => index.saturating_sub(1),
        }
    }

    fn search(&self, key: &[u8; KEY_BYTES], mut low: usize, mut high: usize) -> Result<usize, usize> {
        while low < high {
            let middle = low + (high - low) / 2;
            match compare(self.key_bytes(middle), key) {
                Ordering::Less => low = middle + 1,
                Ordering::Equal => return Ok(middle),
                Ordering::Greater => high = middle,
            }
        }
        // `high` itself was not compared if the caller already knew that it is not less.
        if low < self.count && self.key_bytes(low) == key { Ok(low) } else { Err(low) }
    }

    fn key_bytes(&self, index: usize) -> &[u8; KEY_BYTES] {
        assert!(index < self.count, "entry {index} of {}", self.count);
        let start = HEADER_BYTES + index * KEY_BYTES;
        self.bytes[start..start + KEY_BYTES].try_into().expect("the slice has the length of a key")
    }

    fn ends_start(&self) -> usize {
        HEADER_BYTES + self.count * KEY_BYTES
    }

    fn values_start(&self) -> usize {
        HEADER_BYTES + self.count * ENTRY_BYTES
    }

    /// End of a value, from the start of the values.
    fn end(&self, index: usize) -> usize {
        assert!(index < self.count, "entry {index} of {}", self.count);
        u32_at(&self.bytes, self.ends_start() + index * END_BYTES) as usize
    }

    /// Start of a value, from the start of the values; `count` gives the end of the last.
    fn start(&self, index: usize) -> usize {
        if index == 0 { 0 } else { self.end(index - 1) }
    }

    fn value_range(&self, index: usize) -> (usize, usize) {
        let values = self.values_start();
        (values + self.start(index), values + self.end(index))
    }
}

/// The value of an internal entry, and its length.
fn pointer_to_bytes(pointer: Pointer) -> ([u8; DUP_POINTER_BYTES], usize) {
    let mut bytes = [0; DUP_POINTER_BYTES];
    bytes[..8].copy_from_slice(&pointer.addr.to_le_bytes());
    bytes[8..POINTER_BYTES].copy_from_slice(&pointer.checksum.to_le_bytes());
    bytes[POINTER_BYTES..].copy_from_slice(&pointer.copy.to_le_bytes());
    (bytes, if pointer.copy == 0 { POINTER_BYTES } else { DUP_POINTER_BYTES })
}

/// The inverse of `pointer_to_bytes`; `bytes` must have the length of a pointer.
fn pointer_from_bytes(bytes: &[u8]) -> Pointer {
    let copy = if bytes.len() == DUP_POINTER_BYTES { u64_at(bytes, POINTER_BYTES) } else { 0 };
    Pointer { addr: u64_at(bytes, 0), copy, checksum: u32_at(bytes, 8) }
}

/// Orders encoded keys: sixteen bytes at once, then the last.
fn compare(left: &[u8], right: &[u8]) -> Ordering {
    let parts = |key: &[u8]| {
        let (head, last) = key.split_at(KEY_BYTES - 1);
        (u128::from_be_bytes(head.try_into().expect("a key has 17 bytes")), last[0])
    };
    parts(left).cmp(&parts(right))
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|&byte| byte == 0)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

#[cfg(test)]
mod tests;
