//! The contents of one block in memory, and the buffers that blocks share.
//!
//! A large write comes in one buffer, and its blocks are parts of that: nothing is copied on the
//! way to the device. But each part keeps the whole buffer in memory.
//! The map (`blocks`) therefore counts, for each buffer, how many of its blocks
//! it has, and copies the last few out of it.

use bytes::Bytes;
use smallvec::SmallVec;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use syncline_device::{AlignedBuf, BLOCK_BYTES};

/// A buffer of several consecutive blocks of a file.
pub(crate) struct Buffer {
    /// Its length is a multiple of a block.
    bytes: Bytes,
    /// The file block that it begins with.
    first: u64,
    /// How many of its blocks are in the one map that may have any. Only that map changes this, and
    /// its lock orders the changes.
    here: AtomicU64,
}

impl Buffer {
    pub(in crate::data) fn new(first: u64, bytes: Bytes) -> Arc<Self> {
        Arc::new(Self { bytes, first, here: AtomicU64::new(0) })
    }

    /// Another buffer on the same memory, with its own count.
    pub(in crate::data) fn apart(&self) -> Arc<Self> {
        Self::new(self.first, self.bytes.clone())
    }

    pub(in crate::data) fn blocks(&self) -> u64 {
        (self.bytes.len() / BLOCK_BYTES) as u64
    }

    pub(in crate::data) fn memory_blocks(&self) -> u32 {
        self.blocks() as u32
    }

    /// The file blocks that it has, or had.
    pub(in crate::data) fn numbers(&self) -> std::ops::Range<u64> {
        self.first..self.first + self.blocks()
    }

    pub(in crate::data) fn here(&self) -> u64 {
        self.here.load(Ordering::Relaxed)
    }

    pub(in crate::data) fn set_here(&self, blocks: u64) {
        self.here.store(blocks, Ordering::Relaxed);
    }

    /// True if this many of its blocks keep more unneeded memory alive than needed memory.
    pub(in crate::data) fn is_wasted_on(&self, blocks: u64) -> bool {
        blocks * 2 < self.blocks()
    }

    fn part(&self, index: usize, blocks: usize) -> Bytes {
        self.bytes.slice(index * BLOCK_BYTES..(index + blocks) * BLOCK_BYTES)
    }
}

/// The contents of one block.
pub(crate) enum Block {
    /// A buffer of its own, still changeable: it is not shared and its checksum has not been taken.
    Owned { buf: AlignedBuf, in_parts: bool },
    /// A buffer of its own that others see. Never changed (rule R7): writers copy it.
    Alone { bytes: Bytes, in_parts: bool },
    /// Block number `index` of a buffer with several blocks. Never changed either.
    Part { buffer: Arc<Buffer>, index: usize },
}

impl Block {
    /// A block that was written as a whole.
    pub(crate) fn whole(buf: AlignedBuf) -> Self {
        Block::Owned { buf, in_parts: false }
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        match self {
            Block::Owned { buf, .. } => buf,
            Block::Alone { bytes, .. } => bytes,
            Block::Part { buffer, index } => &buffer.bytes[index * BLOCK_BYTES..][..BLOCK_BYTES],
        }
    }

    /// The contents as shared bytes; a copy when the buffer may still change.
    pub(crate) fn to_bytes(&self) -> Bytes {
        match self {
            Block::Owned { buf, .. } => AlignedBuf::copy_from(buf).into_bytes(),
            Block::Alone { bytes, .. } => bytes.clone(),
            Block::Part { buffer, index } => buffer.part(*index, 1),
        }
    }

    /// The same contents, frozen: they never change again.
    pub(crate) fn freeze(self) -> Block {
        match self {
            Block::Owned { buf, in_parts } => Block::Alone { bytes: buf.into_bytes(), in_parts },
            frozen => frozen,
        }
    }

    /// Another handle on frozen contents, or a copy of changeable ones.
    pub(crate) fn share(&self) -> Block {
        match self {
            Block::Part { buffer, index } => Block::Part { buffer: buffer.clone(), index: *index },
            alone => Block::Alone { bytes: alone.to_bytes(), in_parts: alone.is_in_parts() },
        }
    }

    /// A frozen copy of the contents, in a buffer of its own.
    pub(in crate::data) fn copy_out(&self) -> Block {
        let bytes = AlignedBuf::copy_from(self.as_slice()).into_bytes();
        Block::Alone { bytes, in_parts: self.is_in_parts() }
    }

    /// True when dropping the block would free all the memory that it keeps alive.
    pub(crate) fn is_alone(&self) -> bool {
        !matches!(self, Block::Part { .. })
    }

    /// The buffer that it shares with other blocks, if any.
    pub(in crate::data) fn buffer(&self) -> Option<&Arc<Buffer>> {
        match self {
            Block::Part { buffer, .. } => Some(buffer),
            _ => None,
        }
    }

    /// True when it began with a partial write: the kernel's page cache does not have it whole.
    pub(crate) fn is_in_parts(&self) -> bool {
        match self {
            Block::Owned { in_parts, .. } | Block::Alone { in_parts, .. } => *in_parts,
            Block::Part { .. } => false,
        }
    }

    /// The contents for changing, if they are not shared.
    pub(in crate::data) fn get_mut(&mut self) -> Option<&mut [u8]> {
        match self {
            Block::Owned { buf, .. } => Some(buf),
            _ => None,
        }
    }
}

/// The fewest buffers that hold these frozen blocks in sequence.
pub(crate) fn gather(blocks: &[(u64, Block)]) -> SmallVec<[Bytes; 2]> {
    let mut bufs = SmallVec::new();
    let mut start = 0;
    while start < blocks.len() {
        let mut end = start + 1;
        while end < blocks.len() && follows(&blocks[end - 1].1, &blocks[end].1) {
            end += 1;
        }
        bufs.push(match &blocks[start].1 {
            Block::Part { buffer, index } => buffer.part(*index, end - start),
            alone => alone.to_bytes(),
        });
        start = end;
    }
    bufs
}

/// True when `next` lies right after `block` in the same buffer.
fn follows(block: &Block, next: &Block) -> bool {
    match (block, next) {
        (Block::Part { buffer: a, index: i }, Block::Part { buffer: b, index: j }) => {
            Arc::ptr_eq(a, b) && *j == *i + 1
        }
        _ => false,
    }
}
