//! Blocks, addresses and the places of the fixed structures.

use crate::FormatError;
use crate::superblock::Pointer;
use std::sync::atomic::{AtomicU64, Ordering};

/// Size of a block, the unit of allocation and of data checksums.
pub const BLOCK_BYTES: usize = 4096;
/// The format version written by this program.
pub const FORMAT_VERSION: u32 = 1;
/// Default size of a tree node.
pub const NODE_BYTES_DEFAULT: u32 = 16 * 1024;

/// Number of a block on the device.
pub type BlockAddr = u64;

/// A run of blocks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BlockRun {
    /// First block.
    pub start: BlockAddr,
    /// Number of blocks; at least one in anything stored.
    pub blocks: u64,
}

impl BlockRun {
    /// A run of `blocks` from `start`.
    pub fn new(start: BlockAddr, blocks: u64) -> Self {
        Self { start, blocks }
    }
    /// First block after the run.
    pub fn end(self) -> BlockAddr {
        self.start + self.blocks
    }
    /// The run, divided into pieces of at most `blocks` blocks.
    pub fn pieces(self, blocks: u64) -> impl Iterator<Item = BlockRun> {
        let starts = (self.start..self.end()).step_by(blocks.max(1) as usize);
        starts.map(move |start| BlockRun::new(start, blocks.min(self.end() - start)))
    }
    /// Byte offset of the first block.
    pub fn offset_bytes(self) -> u64 {
        self.start * BLOCK_BYTES as u64
    }
    /// Length in bytes.
    pub fn len_bytes(self) -> u64 {
        self.blocks * BLOCK_BYTES as u64
    }
}

/// How many times an image holds its metadata: tree nodes, pages of the space map and the table of snapshots.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Metadata {
    /// Once.
    Single,
    /// Twice, in two places far apart: a pointer has two addresses.
    #[default]
    Dup,
}

impl Metadata {
    /// The number of copies.
    pub fn copies(self) -> u64 {
        match self {
            Self::Single => 1,
            Self::Dup => 2,
        }
    }
}

/// Sizes of one image: the node size and the copies of the metadata are fixed at mkfs, the total until the
/// image is resized.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    /// Blocks of the device that belong to the filesystem.
    pub total_blocks: u64,
    /// Size of a tree node in bytes: a power of two from 4 KiB to 64 KiB.
    pub node_bytes: u32,
    /// How many times the image holds its metadata.
    pub metadata: Metadata,
}

/// Sizes of an image in use, for code that must see the image grow.
#[derive(Debug)]
pub struct SharedGeometry {
    total_blocks: AtomicU64,
    /// The sizes that stay.
    fixed: Geometry,
}

impl SharedGeometry {
    /// Shared sizes with these initial values.
    pub fn new(geometry: Geometry) -> Self {
        Self { total_blocks: AtomicU64::new(geometry.total_blocks), fixed: geometry }
    }

    /// The current sizes.
    pub fn get(&self) -> Geometry {
        Geometry { total_blocks: self.total_blocks.load(Ordering::Acquire), ..self.fixed }
    }

    /// Sets the number of blocks of the filesystem.
    pub fn set_total(&self, total_blocks: u64) {
        self.total_blocks.store(total_blocks, Ordering::Release);
    }
}

impl Geometry {
    /// Blocks at the start that hold no data: boot area, superblock slots, device lease.
    pub const HEAD_BLOCKS: u64 = 64;
    /// Blocks at the end that hold the second copies of the superblock slots.
    pub const TAIL_BLOCKS: u64 = 16;
    /// Smallest filesystem, in blocks (16 MiB).
    pub const MIN_BLOCKS: u64 = 4096;

    /// Checks sizes from untrusted input.
    pub fn check(self) -> Result<Self, FormatError> {
        let structure = "superblock";
        if !self.node_bytes.is_power_of_two() || !(4096..=65536).contains(&self.node_bytes) {
            return Err(FormatError::Field { structure, field: "node size" });
        }
        if self.total_blocks < Self::MIN_BLOCKS || self.total_blocks > u64::MAX / BLOCK_BYTES as u64 / 2 {
            return Err(FormatError::Field { structure, field: "size" });
        }
        Ok(self)
    }

    /// True when `pointer` leads to a structure of this many blocks: in each of its copies, which do not
    /// overlap.
    pub fn has(self, pointer: Pointer, blocks: u64) -> bool {
        let (first, copy) = (BlockRun::new(pointer.addr, blocks), BlockRun::new(pointer.copy, blocks));
        self.contains(first)
            && match self.metadata {
                Metadata::Single => pointer.copy == 0,
                Metadata::Dup => {
                    self.contains(copy) && (copy.end() <= first.start || first.end() <= copy.start)
                }
            }
    }

    /// Blocks per tree node.
    pub fn node_blocks(self) -> u64 {
        u64::from(self.node_bytes) / BLOCK_BYTES as u64
    }

    /// The blocks that may be allocated.
    pub fn usable(self) -> BlockRun {
        BlockRun::new(Self::HEAD_BLOCKS, self.total_blocks - Self::HEAD_BLOCKS - Self::TAIL_BLOCKS)
    }

    /// True when the whole run may be allocated; for addresses read from the device.
    pub fn contains(self, run: BlockRun) -> bool {
        let usable = self.usable();
        run.blocks > 0
            && run.start >= usable.start
            && run.start.checked_add(run.blocks).is_some_and(|end| end <= usable.end())
    }

    /// The blocks of the two copies of superblock slot 0 or 1.
    pub fn superblock_copies(self, slot: usize) -> [BlockAddr; 2] {
        Self::superblock_copies_for(self.total_blocks, slot)
    }

    /// The blocks of the two copies of a slot, computed from the number of blocks alone, for a
    /// device whose superblocks are not read yet.
    pub fn superblock_copies_for(total_blocks: u64, slot: usize) -> [BlockAddr; 2] {
        let slot = slot as u64 & 1;
        [16 + 16 * slot, total_blocks - 16 + 8 * slot]
    }

    /// Maximum size of an item's value, so that four fit into a node of any size.
    pub fn max_value_bytes(self) -> usize {
        self.node_bytes as usize / 4 - 64
    }
}
