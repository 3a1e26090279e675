//! Rewriting a file's contents as its attributes ask now: to compress old contents, or to undo
//! that.

use super::read;
use crate::FsError;
use crate::attributes::flags::require_changeable;
use crate::data::extents::lookup;
use crate::data::extents::room::{make_up_reservation, reserve};
use crate::data::flush::{throttle, writeback};
use crate::data::memory::BLOCK;
use crate::data::memory::block::Block;
use crate::filesystem::Filesystem;
use crate::inode::Inode;
use crate::types::Ino;
use std::sync::Arc;
use syncline_device::AlignedBuf;
use syncline_format::items::extent::{Algorithm, EXTENT_BLOCKS_MAX, Extent};

/// Most blocks of one call: 1 MiB.
const CALL_BLOCKS: u64 = 8 * EXTENT_BLOCKS_MAX;

/// The progress of a rewrite.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rewritten {
    /// Bytes that were read and rewritten.
    pub bytes: u64,
    /// The offset for the next call; `None` at the end of the file.
    pub next: Option<u64>,
}

impl Filesystem {
    /// Rewrites a part of a regular file, from byte `offset` on, if it is not stored as the file's
    /// attribute asks. Contents and times do not change. Blocks that the file shares with others
    /// stay shared, and as they are.
    pub async fn rewrite(&self, ino: Ino, offset: u64) -> Result<Rewritten, FsError> {
        let inode = self.regular(ino).await?;
        self.store.writable()?;
        throttle::wait_for_room(self, CALL_BLOCKS * BLOCK).await?;
        let first = offset / BLOCK / EXTENT_BLOCKS_MAX * EXTENT_BLOCKS_MAX;
        let (blocks, next) = {
            let _lease = inode.lease.write().await;
            self.require_present(&inode)?;
            require_changeable(&inode)?;
            let end = inode.state.lock().attr.size.div_ceil(BLOCK);
            let end_here = end.min(first + CALL_BLOCKS);
            if first >= end {
                return Ok(Rewritten { bytes: 0, next: None });
            }
            let blocks = take_up(self, &inode, first, end_here).await?;
            (blocks, (end_here < end).then_some(end_here * BLOCK))
        };
        if blocks > 0 {
            writeback::write_back(self, &inode).await?;
        }
        Ok(Rewritten { bytes: blocks * BLOCK, next })
    }
}

/// Makes those blocks dirty, with their contents, that are not stored as they should be. The lease
/// is held for writing.
async fn take_up(fs: &Filesystem, inode: &Arc<Inode>, first: u64, end: u64) -> Result<u64, FsError> {
    let wanted = crate::data::extents::pack::algorithm(inode);
    let extents = lookup::all(&fs.store, inode.ino, first, end).await?;
    let mut taken = 0;
    for piece in extents
        .chunk_by(|one, other| one.file_block / EXTENT_BLOCKS_MAX == other.file_block / EXTENT_BLOCKS_MAX)
    {
        if !lies_otherwise(piece, wanted) {
            continue;
        }
        for extent in piece.iter().filter_map(|extent| extent.slice(first, end)) {
            taken += take_up_extent(fs, inode, &extent).await?;
        }
    }
    Ok(taken)
}

/// True when a piece of the file, of at most one unit, should be rewritten. Nothing tells whether
/// plain blocks were tried before and saved too little; trying again costs only time.
fn lies_otherwise(piece: &[Extent], wanted: Option<Algorithm>) -> bool {
    // With the mark, others may lie on the same blocks: rewriting them would take more room, not
    // less.
    let shared = piece.iter().any(|extent| extent.shared);
    !shared && piece.iter().any(|extent| extent.packed.map(|packed| packed.algorithm) != wanted)
}

/// Reads an extent's blocks and makes dirty those that have nothing newer in memory. The lease is
/// held for writing.
pub(in crate::data) async fn take_up_extent(
    fs: &Filesystem,
    inode: &Arc<Inode>,
    extent: &Extent,
) -> Result<u64, FsError> {
    let mut read = Vec::new();
    for block in extent.file_block..extent.end() {
        let newer = {
            let data = &inode.state.lock().data;
            data.blocks.is_pending(block)
        };
        if !newer {
            read.extend(read::read_block(fs, inode, block).await?.map(|contents| (block, contents)));
        }
    }
    let room = reserve(fs, read.len() as u64).await?;
    make_up_reservation(fs, inode).await?;
    let taken = read.len() as u64;
    let mut state = inode.state.lock();
    // Nothing newer came meanwhile: the lease prevents it.
    let copies =
        read.into_iter().map(|(block, contents)| (block, Block::whole(AlignedBuf::copy_from(&contents))));
    state.data.blocks.restore(copies);
    state.data.add_reservation(room);
    fs.data.queue.note_dirty(fs, inode, &mut state.data);
    Ok(taken)
}
