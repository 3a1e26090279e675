//! Changes of the tree: items, nodes and the pointers between them.

use super::loose::LooseNode;
use super::{Number, Plant, fields};
use crate::image::{DataBlock, Image, write};
use arbitrary::Arbitrary;
use bytes::Bytes;
use std::collections::BTreeMap;
use syncline_device::MemoryDevice;
use syncline_format::superblock::Pointer;
use syncline_format::{BlockRun, Key, crc};

/// A change of one item.
#[derive(Arbitrary, Clone, Debug)]
pub enum ItemEdit {
    /// Change a field of its value.
    Field(u8, Number),
    /// Change a byte of its value.
    Byte(u16, u8),
    /// Change object, kind or offset of its key. The item moves to its correct place within the
    /// leaf.
    Key(u8, Number),
    /// Change the length of its value; added bytes are zeros.
    Resize(u16),
    /// Add a second item with the same value and another key.
    Copy(u8, Number),
    /// Remove it.
    Remove,
    /// Swap its value with that of another.
    Swap(u16),
}

/// A change of one node.
#[derive(Arbitrary, Clone, Debug)]
pub enum NodeEdit {
    /// Change a field of the header, after all other changes.
    Field(u8, Number),
    /// Change any byte, after all other changes.
    Byte(u16, u8),
    /// Make an entry point to another node, with the correct checksum of that.
    Redirect(u8, u8),
    /// Swap two entries, so that keys are out of order.
    Swap(u8, u8),
    /// Remove an entry.
    Remove(u8),
    /// Copy an entry from another node.
    Steal(u8, u8),
}

/// The nodes that have changed so far.
pub struct TreeChanger<'a> {
    image: &'a Image,
    changed: BTreeMap<usize, LooseNode>,
    /// Edits applied to a node's bytes at the end.
    last: BTreeMap<usize, Vec<NodeEdit>>,
}

impl<'a> TreeChanger<'a> {
    /// Starts without changes.
    pub fn new(image: &'a Image) -> Self {
        Self { image, changed: BTreeMap::new(), last: BTreeMap::new() }
    }

    fn node(&mut self, place: usize) -> &mut LooseNode {
        let image = self.image;
        self.changed.entry(place).or_insert_with(|| LooseNode::new(&image.nodes[place].what))
    }

    /// The current place of the image's n-th item; `None` if it was removed.
    fn find(&mut self, item: u16) -> Option<(usize, usize)> {
        let count = self.image.items.len();
        let (place, index) = *self.image.items.get(usize::from(item) % count.max(1))?;
        let (index, len) = (index, self.node(place).entries.len());
        (index < len).then_some((place, index))
    }

    /// Changes the n-th item.
    pub fn item(&mut self, item: u16, edit: &ItemEdit) {
        let Some((place, index)) = self.find(item) else { return };
        let image = self.image;
        let (key, value) = self.node(place).entries[index].clone();
        match edit {
            ItemEdit::Field(field, number) => {
                self.edit(place, index, |bytes| {
                    fields::change(bytes, fields::of_item(key.kind), *field, *number, image);
                });
            }
            ItemEdit::Byte(at, byte) => {
                self.edit(place, index, |bytes| fields::change_byte(bytes, *at, *byte));
            }
            ItemEdit::Resize(len) => self.edit(place, index, |bytes| bytes.resize(usize::from(*len), 0)),
            ItemEdit::Key(part, number) => {
                let node = self.node(place);
                node.entries[index].0 = changed_key(key, *part, *number, image);
                node.sort();
            }
            ItemEdit::Copy(part, number) => {
                let node = self.node(place);
                node.entries.push((changed_key(key, *part, *number, image), value));
                node.sort();
            }
            ItemEdit::Remove => drop(self.node(place).entries.remove(index)),
            ItemEdit::Swap(other) => {
                let Some((other_place, other)) = self.find(*other) else { return };
                let theirs = std::mem::replace(&mut self.node(other_place).entries[other].1, value);
                self.node(place).entries[index].1 = theirs;
            }
        }
    }

    fn edit(&mut self, place: usize, index: usize, edit: impl FnOnce(&mut Vec<u8>)) {
        let value = &mut self.node(place).entries[index].1;
        let mut bytes = value.to_vec();
        edit(&mut bytes);
        *value = bytes.into();
    }

    /// Puts an item into the leaf where it belongs.
    pub fn plant(&mut self, plant: &Plant) {
        let (key, value) = plant.item(self.image);
        let leaves = self.image.nodes.iter().enumerate().filter(|(_, node)| node.what.level() == 0);
        let before = leaves.take_while(|(place, node)| {
            *place == 0 || node.what.first_key().is_some_and(|first| first <= key)
        });
        let place = before.last().map_or(0, |(place, _)| place);
        let node = self.node(place);
        node.entries.push((key, value.into()));
        node.sort();
    }

    /// Sets the checksum of a data block in the item that names it.
    pub fn set_checksum(&mut self, block: DataBlock, checksum: u32) {
        let (place, index) = block.item;
        let at = 12 + 4 * block.number;
        if let Some((_, value)) = self.node(place).entries.get_mut(index) {
            let mut bytes = value.to_vec();
            if let Some(place) = bytes.get_mut(at..at + 4) {
                place.copy_from_slice(&checksum.to_le_bytes());
            }
            *value = bytes.into();
        }
    }

    /// Changes the n-th node.
    pub fn edit_node(&mut self, node: u16, edit: &NodeEdit) {
        let image = self.image;
        let place = usize::from(node) % image.nodes.len();
        let entries = &mut self.node(place).entries;
        let pick = |number: u8| usize::from(number) % entries.len().max(1);
        match *edit {
            NodeEdit::Field(..) | NodeEdit::Byte(..) => {
                self.last.entry(place).or_default().push(edit.clone());
            }
            NodeEdit::Redirect(entry, to) => {
                let target = &image.nodes[usize::from(to) % image.nodes.len()];
                let (entry, checksum) = (pick(entry), crc(target.what.bytes()));
                if let Some((_, value)) = entries.get_mut(entry) {
                    *value = [&target.addr.to_le_bytes()[..], &checksum.to_le_bytes()].concat().into();
                }
            }
            NodeEdit::Swap(one, other) => {
                let (one, other) = (pick(one), pick(other));
                if one.max(other) < entries.len() {
                    entries.swap(one, other);
                }
            }
            NodeEdit::Remove(entry) => {
                let entry = pick(entry);
                if entry < entries.len() {
                    entries.remove(entry);
                }
            }
            NodeEdit::Steal(from, entry) => {
                let from = &image.nodes[usize::from(from) % image.nodes.len()].what;
                if !from.is_empty() {
                    entries.push(from.entry(usize::from(entry) % from.len()));
                    self.node(place).sort();
                }
            }
        }
    }

    /// Writes all changed nodes, and the nodes above them with correct checksums and keys; returns
    /// the root if it has changed.
    pub fn finish(mut self, device: &MemoryDevice) -> Option<Pointer> {
        // Children have lower places than their parents, so this goes from the leaves to the root.
        while let Some((place, loose)) = self.changed.pop_first() {
            let node = &self.image.nodes[place];
            let mut bytes = loose.encode();
            for edit in self.last.remove(&place).unwrap_or_default() {
                match edit {
                    NodeEdit::Field(field, number) => {
                        fields::change(&mut bytes, &fields::NODE, field, number, self.image);
                    }
                    NodeEdit::Byte(at, value) => fields::change_byte(&mut bytes, at, value),
                    _ => {}
                }
            }
            write(device, node.addr, &bytes);
            let checksum = crc(&bytes);
            let Some((parent, _)) = node.parent else {
                return Some(Pointer { checksum, ..self.image.superblock.tree.node });
            };
            let first_key = loose.entries.first().map(|(key, _)| *key);
            self.node(parent).repoint(node.addr, checksum, first_key);
        }
        None
    }
}

fn changed_key(key: Key, part: u8, number: Number, image: &Image) -> Key {
    match part % 3 {
        0 => Key { object: number.resolve(key.object, image), ..key },
        1 => Key { kind: number.resolve(u64::from(key.kind), image) as u8, ..key },
        _ => Key { offset: number.resolve(key.offset, image), ..key },
    }
}

/// Changes a byte of a data block and, if asked, corrects its checksum in the item.
pub fn change_data(
    tree: &mut TreeChanger<'_>,
    image: &Image,
    device: &MemoryDevice,
    (block, at, value): (u16, u16, u8),
    right: bool,
) {
    let Some(&block) = image.data.get(usize::from(block) % image.data.len().max(1)) else { return };
    let mut bytes: Vec<u8> = crate::image::read(device, BlockRun::new(block.addr, 1)).into();
    fields::change_byte(&mut bytes, at, value);
    write(device, block.addr, &bytes);
    if right {
        tree.set_checksum(block, crc(&Bytes::from(bytes)));
    }
}
