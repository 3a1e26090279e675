//! Gathers the entries of a node to be written.

use super::{
    ADDR, COUNT, END_BYTES, ENTRY_BYTES, GENERATION, HEADER_BYTES, LEVEL, MAGIC, Node, VALUES_BYTES,
    pointer_from_bytes, pointer_to_bytes,
};
use crate::superblock::Pointer;
use crate::{BlockAddr, Crc, KEY_BYTES, Key, crc};
use std::ops::Range;

/// The entries of one node under construction, in key order. It knows when the node is full.
#[derive(Clone, Debug)]
pub struct NodeBuilder {
    node_bytes: usize,
    level: u8,
    keys: Vec<u8>,
    ends: Vec<u32>,
    values: Vec<u8>,
}

impl NodeBuilder {
    /// An empty node of this size and level.
    pub fn new(node_bytes: u32, level: u8) -> Self {
        Self {
            node_bytes: node_bytes as usize,
            level,
            keys: Vec::new(),
            ends: Vec::new(),
            values: Vec::new(),
        }
    }

    /// Height above the leaves.
    pub fn level(&self) -> u8 {
        self.level
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// True when there is no entry.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Number of bytes that the entries take.
    pub fn used_bytes(&self) -> usize {
        self.ends.len() * ENTRY_BYTES + self.values.len()
    }

    /// Number of bytes that entries may take.
    pub fn capacity_bytes(&self) -> usize {
        self.node_bytes - HEADER_BYTES
    }

    /// Key of the first entry.
    pub fn first_key(&self) -> Option<Key> {
        self.keys.first_chunk().map(Key::from_bytes)
    }

    /// Key of the last entry.
    pub fn last_key(&self) -> Option<Key> {
        self.keys.last_chunk().map(Key::from_bytes)
    }

    /// The first child of an internal node, if it has one.
    pub fn first_child(&self) -> Option<Pointer> {
        let end = *self.ends.first()? as usize;
        (self.level > 0).then(|| pointer_from_bytes(&self.values[..end]))
    }

    /// Adds an entry whose key is greater than all before it; false, and nothing changes, if it
    /// does not fit.
    pub fn push(&mut self, key: Key, value: &[u8]) -> bool {
        debug_assert!(self.last_key().is_none_or(|last| last < key), "entries come in key order");
        if self.used_bytes() + ENTRY_BYTES + value.len() > self.capacity_bytes() {
            return false;
        }
        self.keys.extend_from_slice(&key.to_bytes());
        self.values.extend_from_slice(value);
        self.ends.push(self.values.len() as u32);
        true
    }

    /// Adds a child to an internal node.
    pub fn push_child(&mut self, key: Key, pointer: Pointer) -> bool {
        debug_assert!(self.level > 0, "a leaf has no children");
        let (bytes, len) = pointer_to_bytes(pointer);
        self.push(key, &bytes[..len])
    }

    /// Copies entries of a node of the same level, as many from the start of `range` as fit;
    /// returns how many.
    pub fn push_run(&mut self, node: &Node, range: Range<usize>) -> usize {
        debug_assert_eq!(node.level(), self.level);
        if range.is_empty() {
            return 0;
        }
        debug_assert!(
            self.last_key().is_none_or(|last| last < node.key(range.start)),
            "entries come in key order"
        );
        let values_from = node.start(range.start);
        let room = self.capacity_bytes() - self.used_bytes();
        let fits = |count: usize| count * ENTRY_BYTES + node.start(range.start + count) - values_from <= room;
        let count = if fits(range.len()) { range.len() } else { partition(range.len(), fits) };
        let last = range.start + count;

        let keys = HEADER_BYTES + range.start * KEY_BYTES..HEADER_BYTES + last * KEY_BYTES;
        self.keys.extend_from_slice(&node.bytes[keys]);
        let ends = node.ends_start();
        let ends = &node.bytes[ends + range.start * END_BYTES..ends + last * END_BYTES];
        let base = self.values.len() as u32;
        self.ends.extend(
            ends.as_chunks().0.iter().map(|&end| base + (u32::from_le_bytes(end) - values_from as u32)),
        );
        let values = node.values_start();
        self.values.extend_from_slice(&node.bytes[values + values_from..values + node.start(last)]);
        count
    }

    /// Moves entries from the end of this node to the front of `next`, whose keys are greater, so
    /// that both are about equally full. Together they must fit into two nodes.
    pub fn balance(&mut self, next: &mut Self) {
        let half = (self.used_bytes() + next.used_bytes()) / 2;
        let below_half = |count: usize| count * ENTRY_BYTES + self.values_before(count) < half;
        let keep = (partition(self.len(), below_half) + 1).min(self.len());
        let values_from = self.values_before(keep);
        let moved = (self.values.len() - values_from) as u32;

        next.keys.splice(0..0, self.keys.drain(keep * KEY_BYTES..));
        for end in &mut next.ends {
            *end += moved;
        }
        next.ends.splice(0..0, self.ends.drain(keep..).map(|end| end - values_from as u32));
        next.values.splice(0..0, self.values.drain(values_from..));
        debug_assert!(next.used_bytes() <= next.capacity_bytes(), "half of two nodes fits one");
    }

    /// Removes the entries but keeps the memory.
    pub fn clear(&mut self) {
        self.keys.clear();
        self.ends.clear();
        self.values.clear();
    }

    /// Encodes the node into `out`, which is one node long, for this address and generation;
    /// returns its checksum.
    pub fn encode(&self, out: &mut [u8], addr: BlockAddr, generation: u64) -> Crc {
        assert_eq!(out.len(), self.node_bytes, "the buffer is one node");
        let (header, body) = out.split_at_mut(HEADER_BYTES);
        header.fill(0);
        header[..ADDR].copy_from_slice(&MAGIC);
        header[ADDR..GENERATION].copy_from_slice(&addr.to_le_bytes());
        header[GENERATION..COUNT].copy_from_slice(&generation.to_le_bytes());
        header[COUNT..VALUES_BYTES].copy_from_slice(&(self.ends.len() as u32).to_le_bytes());
        header[VALUES_BYTES..LEVEL].copy_from_slice(&(self.values.len() as u32).to_le_bytes());
        header[LEVEL] = self.level;

        let (keys, body) = body.split_at_mut(self.keys.len());
        keys.copy_from_slice(&self.keys);
        let (ends, body) = body.split_at_mut(self.ends.len() * END_BYTES);
        for (out, end) in ends.as_chunks_mut().0.iter_mut().zip(&self.ends) {
            *out = end.to_le_bytes();
        }
        let (values, unused) = body.split_at_mut(self.values.len());
        values.copy_from_slice(&self.values);
        unused.fill(0);
        crc(out)
    }

    fn values_before(&self, count: usize) -> usize {
        count.checked_sub(1).map_or(0, |last| self.ends[last] as usize)
    }
}

/// The greatest count up to `most` for which `holds` is true; it is true for 0, and once false it
/// stays false.
fn partition(most: usize, holds: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (0, most);
    while low < high {
        let middle = high - (high - low) / 2;
        if holds(middle) { low = middle } else { high = middle - 1 }
    }
    low
}
