//! A tree node that may break any rule.

use bytes::Bytes;
use syncline_format::node::{ENTRY_BYTES, HEADER_BYTES, Node, pointer_bytes};
use syncline_format::{BlockAddr, Crc, Key, Metadata};

/// A node as a list of entries that need not follow any rule.
#[derive(Clone, Debug)]
pub struct LooseNode {
    /// Keys and values, in the order in which they will be written.
    pub entries: Vec<(Key, Bytes)>,
    header: Vec<u8>,
    node_bytes: usize,
}

impl LooseNode {
    /// The entries of a sound node.
    pub fn new(node: &Node) -> Self {
        Self {
            entries: (0..node.len()).map(|index| node.entry(index)).collect(),
            header: node.bytes()[..HEADER_BYTES].to_vec(),
            node_bytes: node.bytes().len(),
        }
    }

    /// Sorts the entries; among entries with the same key the last one stays.
    pub fn sort(&mut self) {
        self.entries.reverse();
        self.entries.sort_by_key(|(key, _)| *key);
        self.entries.dedup_by_key(|(key, _)| *key);
    }

    /// Sets the checksum in every entry that points to `addr`. The first of them also gets the key,
    /// if one is given.
    pub fn repoint(&mut self, addr: BlockAddr, checksum: Crc, first_key: Option<Key>) {
        let bytes = [Metadata::Single, Metadata::Dup].map(pointer_bytes);
        let points_there = |value: &Bytes| bytes.contains(&value.len()) && value[..8] == addr.to_le_bytes();
        let pointing = self.entries.iter_mut().filter(|(_, value)| points_there(value));
        for (index, (key, value)) in pointing.enumerate() {
            *value = [&addr.to_le_bytes()[..], &checksum.to_le_bytes(), &value[12..]].concat().into();
            if let Some(first_key) = first_key
                && index == 0
            {
                *key = first_key;
            }
        }
    }

    /// The node's bytes; entries that do not fit are left out.
    pub fn encode(&self) -> Vec<u8> {
        let mut room = self.node_bytes - HEADER_BYTES;
        let fitting = self.entries.iter().take_while(|(_, value)| {
            let fits = ENTRY_BYTES + value.len() <= room;
            room = room.saturating_sub(ENTRY_BYTES + value.len());
            fits
        });
        let entries: Vec<_> = fitting.collect();
        let mut out = self.header.clone();
        entries.iter().for_each(|(key, _)| out.extend_from_slice(&key.to_bytes()));
        let mut end = 0;
        for (_, value) in &entries {
            end += value.len() as u32;
            out.extend_from_slice(&end.to_le_bytes());
        }
        entries.iter().for_each(|(_, value)| out.extend_from_slice(value));
        out[24..28].copy_from_slice(&(entries.len() as u32).to_le_bytes());
        out[28..32].copy_from_slice(&end.to_le_bytes());
        out.resize(self.node_bytes, 0);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sound_node_encodes_to_itself() {
        for image in crate::bases::IMAGES.iter() {
            for node in &image.nodes {
                assert_eq!(LooseNode::new(&node.what).encode()[..], node.what.bytes()[..]);
            }
        }
    }
}
