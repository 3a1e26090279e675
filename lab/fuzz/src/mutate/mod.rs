//! Structure-aware changes of an image: checksums are corrected from the changed structure up to
//! the superblock, so that the changes reach the code behind the checksums.

pub(crate) mod fields;
mod log;
mod loose;
mod number;
mod plant;
mod space;
mod tree;

pub use log::{BatchEdit, LogRecord};
pub use number::Number;
pub use plant::{Name, Plant, PlantInode};
pub use space::PageEdit;
pub use tree::{ItemEdit, NodeEdit};

use crate::bases;
use crate::image::{Image, read, write};
use arbitrary::Arbitrary;
use log::LogChanger;
use std::sync::Arc;
use syncline_device::MemoryDevice;
use syncline_format::{BLOCK_BYTES, BlockAddr, BlockRun, crc};
use tree::TreeChanger;

/// Most changes in one case.
const CHANGES_MAX: usize = 24;

/// An image to test: a base image and the changes to it.
#[derive(Arbitrary, Clone, Debug)]
pub struct Case {
    /// Number of the base image.
    pub base: u8,
    /// Changes, applied by structure in this order: tree, space map, log, superblock, then bytes
    /// whose checksums stay wrong.
    pub changes: Vec<Change>,
}

/// One change.
#[derive(Arbitrary, Clone, Debug)]
pub enum Change {
    /// Change an item of the tree.
    Item(u16, ItemEdit),
    /// Add an item to the tree.
    Plant(Plant),
    /// Change a tree node.
    Node(u16, NodeEdit),
    /// Change a page of the space map.
    Page(u8, PageEdit),
    /// Change a batch.
    Batch(u8, BatchEdit),
    /// Add a batch: its records, whether it claims to be durable, and its change of the number of
    /// objects.
    Append(Vec<LogRecord>, bool, i8),
    /// Change a field of the superblock, in the copies selected by the first number.
    Superblock(u8, u8, Number),
    /// Change a byte of file data (block, byte, value); the flag says whether the checksum is
    /// corrected.
    Data(u16, u16, u8, bool),
    /// Change a byte anywhere, without correcting the checksum.
    Raw(Place, u16, u8),
    /// Copy a whole block over another.
    Misplaced(Place, Place),
}

/// A block.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub enum Place {
    /// A copy of a superblock: slot and copy.
    Superblock(bool, bool),
    /// A tree node.
    Node(u16),
    /// A page of the space map.
    Page(u8),
    /// A batch, or the place of the next one.
    Batch(u8),
    /// File data.
    Data(u16),
    /// Any block.
    Block(u16),
}

impl Place {
    fn addr(self, image: &Image) -> BlockAddr {
        let number = match self {
            Self::Superblock(slot, copy) => {
                return image.geometry().superblock_copies(slot.into())[usize::from(copy)];
            }
            Self::Batch(number) => {
                let batches = &image.batches;
                let at = batches.get(usize::from(number) % (batches.len() + 1));
                return at.map_or_else(|| end_of_log(image), |batch| batch.header.addr);
            }
            Self::Node(number) => return image.nodes[usize::from(number) % image.nodes.len()].addr,
            Self::Page(number) => Number::Page(number),
            Self::Data(number) => Number::Data(number as u8),
            Self::Block(number) => Number::Block(number),
        };
        number.resolve(0, image)
    }
}

fn end_of_log(image: &Image) -> BlockAddr {
    image.batches.last().map_or(image.superblock.log.addr, |batch| batch.header.next)
}

impl Case {
    /// The base image.
    pub fn image(&self) -> &'static Image {
        bases::image(self.base)
    }

    /// The changed image, which shares unchanged blocks with the base.
    pub fn device(&self) -> Arc<MemoryDevice> {
        self.on(self.image())
    }

    /// Another image with these changes applied.
    pub fn on(&self, image: &Image) -> Arc<MemoryDevice> {
        let device = image.device.snapshot();
        let changes = &self.changes[..self.changes.len().min(CHANGES_MAX)];
        let mut tree = TreeChanger::new(image);
        let mut log = LogChanger::new(image);
        let mut pages = Vec::new();
        for change in changes {
            match change {
                Change::Item(item, edit) => tree.item(*item, edit),
                Change::Plant(plant) => tree.plant(plant),
                Change::Node(node, edit) => tree.edit_node(*node, edit),
                Change::Page(page, edit) => pages.push((*page, edit)),
                Change::Batch(batch, edit) => log.edit(*batch, edit),
                Change::Append(records, durable, delta) => log.append(records, *durable, *delta),
                Change::Data(block, at, value, right) => {
                    tree::change_data(&mut tree, image, &device, (*block, *at, *value), *right);
                }
                Change::Superblock(..) | Change::Raw(..) | Change::Misplaced(..) => {}
            }
        }
        let root = tree.finish(&device);
        let map = space::change(&pages, image, &device);
        log.finish(&device);
        let mut superblock = image.superblock.clone();
        superblock.tree.node = root.unwrap_or(superblock.tree.node);
        if let Some(map) = map {
            superblock.space.page = map.root;
            superblock.used_blocks = superblock.used_blocks.wrapping_add_signed(map.used);
        }
        if superblock != image.superblock {
            let copies = image.geometry().superblock_copies(image.slot);
            copies.iter().for_each(|addr| write(&device, *addr, &superblock.encode()));
        }
        superblock_fields(image, &device, changes);
        raw(image, &device, changes);
        device
    }
}

/// Changes fields of superblocks: in one copy, in both, or in the other slot.
fn superblock_fields(image: &Image, device: &MemoryDevice, changes: &[Change]) {
    for change in changes {
        let Change::Superblock(copies, field, number) = change else { continue };
        let slot = if copies & 4 == 0 { image.slot } else { 1 - image.slot };
        for (copy, addr) in image.geometry().superblock_copies(slot).into_iter().enumerate() {
            // Mostly both: a damaged copy alone has little effect.
            if copies & 3 == 1 + copy as u8 {
                continue;
            }
            let mut bytes: Vec<u8> = read(device, BlockRun::new(addr, 1)).into();
            fields::change(&mut bytes, &fields::SUPERBLOCK, *field, *number, image);
            let checksum = crc(&bytes[12..BLOCK_BYTES]);
            bytes[8..12].copy_from_slice(&checksum.to_le_bytes());
            write(device, addr, &bytes);
        }
    }
}

/// Changes a field of an item's value.
pub fn change_item(kind: u8, bytes: &mut [u8], field: u8, number: Number, image: &Image) {
    fields::change(bytes, fields::of_item(kind), field, number, image);
}

/// Makes changes that leave the checksums wrong.
fn raw(image: &Image, device: &MemoryDevice, changes: &[Change]) {
    for change in changes {
        match change {
            Change::Raw(place, at, value) => {
                let addr = place.addr(image);
                let mut bytes: Vec<u8> = read(device, BlockRun::new(addr, 1)).into();
                fields::change_byte(&mut bytes, *at, *value);
                write(device, addr, &bytes);
            }
            Change::Misplaced(from, to) => {
                let bytes = read(device, BlockRun::new(from.addr(image), 1));
                write(device, to.addr(image), &bytes);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_without_changes_is_the_base() {
        for base in 0..bases::IMAGES.len() as u8 {
            let case = Case { base, changes: Vec::new() };
            assert!(case.device().image() == case.image().device.image());
        }
    }
}
