//! An image parsed once, so that a change of any structure finds everything that must be corrected
//! afterwards.

use bytes::Bytes;
use std::sync::Arc;
use syncline_device::{AlignedBuf, Device, DeviceExt, MemoryDevice, block_on};
use syncline_format::batch::{BatchHeader, HEADER_BYTES};
use syncline_format::node::Node;
use syncline_format::space::{PageId, decode_bitmap, decode_index};
use syncline_format::superblock::{Pointer, Superblock};
use syncline_format::{BLOCK_BYTES, BlockAddr, BlockRun, Geometry, Key, Kind};
use syncline_store::read_superblocks;

/// A structure that something points to.
#[derive(Clone, Debug)]
pub struct Pointed<T> {
    /// The structure.
    pub what: T,
    /// Its address.
    pub addr: BlockAddr,
    /// Index of the structure in the same list that points to it, and of the entry in that; `None`
    /// for the root.
    pub parent: Option<(usize, usize)>,
}

/// A batch of the log.
#[derive(Clone, Debug)]
pub struct Batch {
    /// Its header.
    pub header: BatchHeader,
    /// Its records.
    pub payload: Bytes,
}

/// A block of file data.
#[derive(Clone, Copy, Debug)]
pub struct DataBlock {
    /// Its address.
    pub addr: BlockAddr,
    /// The item that names it: node and index.
    pub item: (usize, usize),
    /// Its index among the item's blocks.
    pub number: usize,
}

/// A base image and its structures.
pub struct Image {
    /// The image itself.
    pub device: Arc<MemoryDevice>,
    /// The newest superblock.
    pub superblock: Superblock,
    /// The superblock's slot.
    pub slot: usize,
    /// Tree nodes, children before their parents.
    pub nodes: Vec<Pointed<Node>>,
    /// Positions of the items: node and index, in key order.
    pub items: Vec<(usize, usize)>,
    /// Pages of the space map with their ids, children before their parents.
    pub pages: Vec<Pointed<(PageId, Bytes)>>,
    /// The batches of the log, in order.
    pub batches: Vec<Batch>,
    /// Blocks of file data that items of the tree name.
    pub data: Vec<DataBlock>,
    /// Objects that have an inode item in the tree.
    pub objects: Vec<u64>,
}

impl Image {
    /// Parses an undamaged image made by this program.
    pub fn new(device: Arc<MemoryDevice>) -> Self {
        let any: Arc<dyn Device> = device.clone();
        let slots = block_on(read_superblocks(&any)).expect("a base image has a superblock");
        let mut image = Self {
            device,
            superblock: slots.superblock,
            slot: slots.slot,
            nodes: Vec::new(),
            items: Vec::new(),
            pages: Vec::new(),
            batches: Vec::new(),
            data: Vec::new(),
            objects: Vec::new(),
        };
        let (tree, space) = (image.superblock.tree, image.superblock.space);
        image.add_node(tree.node, tree.level);
        image.add_page(space.page, PageId { level: space.level, index: 0 });
        image.add_batches();
        image.add_items();
        image
    }

    /// Sizes of the image.
    pub fn geometry(&self) -> Geometry {
        self.superblock.geometry
    }

    /// Adds a node after everything below it; returns its index.
    fn add_node(&mut self, pointer: Pointer, level: u8) -> usize {
        let run = BlockRun::new(pointer.addr, self.geometry().node_blocks());
        let bytes = read(&self.device, run);
        let node = Node::decode(bytes, self.geometry(), pointer.addr, level).expect("a sound node");
        let children = if level == 0 { 0 } else { node.len() };
        let children: Vec<_> =
            (0..children).map(|slot| self.add_node(node.child(slot).1, level - 1)).collect();
        let place = self.nodes.len();
        for (slot, child) in children.into_iter().enumerate() {
            self.nodes[child].parent = Some((place, slot));
        }
        self.nodes.push(Pointed { what: node, addr: pointer.addr, parent: None });
        place
    }

    fn add_page(&mut self, pointer: Pointer, id: PageId) -> usize {
        let bytes = read(&self.device, BlockRun::new(pointer.addr, 1));
        let mut children = Vec::new();
        if id.level == 0 {
            decode_bitmap(&bytes, self.geometry(), id.index, pointer).expect("a sound page");
        } else {
            let (entries, _) = decode_index(&bytes, self.geometry(), id, pointer).expect("a sound page");
            for (slot, entry) in entries.iter().enumerate().filter(|(_, entry)| !entry.is_null()) {
                children.push((slot, self.add_page(entry.page, id.child(slot, self.geometry().metadata))));
            }
        }
        let place = self.pages.len();
        for (slot, child) in children {
            self.pages[child].parent = Some((place, slot));
        }
        self.pages.push(Pointed { what: (id, bytes), addr: pointer.addr, parent: None });
        place
    }

    fn add_batches(&mut self) {
        let any: Arc<dyn Device> = self.device.clone();
        let superblock = &self.superblock;
        let scan =
            syncline_log::scan(&any, superblock.geometry, superblock.epoch, superblock.log, superblock.clean);
        let found = block_on(scan).expect("a log that can be read");
        for header in found.batches {
            let bytes = read(&self.device, header.run());
            let payload = bytes.slice(HEADER_BYTES..HEADER_BYTES + header.payload_bytes as usize);
            self.batches.push(Batch { header, payload });
        }
    }

    fn add_items(&mut self) {
        for (place, node) in self.nodes.iter().enumerate().filter(|(_, node)| node.what.level() == 0) {
            for index in 0..node.what.len() {
                let Key { object, kind, offset } = node.what.key(index);
                self.items.push((place, index));
                match Kind::from_u8(kind) {
                    Some(Kind::Inode) => self.objects.push(object),
                    Some(Kind::Extent) => {
                        let value = node.what.value(index);
                        let extent = syncline_format::items::extent::Extent::decode(offset, value);
                        let run = extent.expect("a sound extent").run();
                        let block = |(number, addr)| DataBlock { addr, item: (place, index), number };
                        self.data.extend((run.start..run.end()).enumerate().map(block));
                    }
                    _ => {}
                }
            }
        }
    }
}

/// Reads blocks of a memory device.
pub fn read(device: &MemoryDevice, run: BlockRun) -> Bytes {
    let bytes = block_on(device.read_at(run.offset_bytes(), run.len_bytes() as usize));
    bytes.expect("the run lies on the device").into_bytes()
}

/// Writes whole blocks to a memory device; a write outside it is dropped.
pub fn write(device: &MemoryDevice, addr: BlockAddr, bytes: &[u8]) {
    assert!(bytes.len().is_multiple_of(BLOCK_BYTES), "whole blocks");
    let Some(offset) = addr.checked_mul(BLOCK_BYTES as u64) else { return };
    // A change may have led outside the device; then there is nothing to damage.
    let _ = block_on(device.write_at(offset, vec![AlignedBuf::copy_from(bytes).into_bytes()]));
}
