//! Loading the blocks of a file that are in the log and have no place yet.

use crate::FsError;
use crate::data::memory::BLOCK;
use crate::data::memory::block::Block;
use crate::filesystem::Filesystem;
use crate::inode::{Inode, InodeState};
use crate::types::Ino;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::Arc;
use syncline_device::AlignedBuf;
use syncline_format::items::unplaced::{PIECES, Piece};
use syncline_format::{BLOCK_BYTES, Key, Kind};

/// Items read at a time.
const ITEMS_EACH: usize = 1024;

/// Reads the unplaced blocks of a file from their items: by block, the contents and the number of
/// items found.
async fn read(fs: &Filesystem, ino: Ino) -> Result<BTreeMap<u64, (AlignedBuf, u64)>, FsError> {
    let corrupt = |detail| FsError::Corrupt { ino, detail };
    let mut blocks: BTreeMap<u64, (AlignedBuf, u64)> = BTreeMap::new();
    let each = |key: Key, value: &Bytes| {
        let piece = Piece::decode(key.offset, value).map_err(corrupt)?;
        let fresh = || (AlignedBuf::zeroed(BLOCK_BYTES), 0);
        let (block, pieces) = blocks.entry(piece.file_block).or_insert_with(fresh);
        *pieces += 1;
        block[piece.at..piece.at + value.len()].copy_from_slice(value);
        Ok(())
    };
    let (from, to) = (Key::new(ino, Kind::Unplaced, 0), Key::new(ino, Kind::Unplaced, u64::MAX));
    fs.each_item(from, to, ITEMS_EACH, each).await?;
    Ok(blocks)
}

/// Loads the unplaced blocks of an inode: they become dirty, and logged.
pub(crate) async fn load_unplaced(fs: &Filesystem, state: &mut InodeState) -> Result<(), FsError> {
    if !state.data.logged.unplaced().is_marked() {
        return Ok(());
    }
    let blocks = read(fs, state.attr.ino).await?;
    let end = state.attr.size.div_ceil(BLOCK);
    let data = &mut state.data;
    for (block, (contents, pieces)) in blocks {
        data.logged.unplaced_mut().found(block, pieces == PIECES);
        if pieces < PIECES {
            tracing::error!(ino = state.attr.ino, block, "half of the logged contents of a block is missing");
            continue;
        }
        // Only a damaged image has any past the end.
        if block < end {
            data.preallocated.take(&(block..block + 1));
            data.blocks.restore_logged([(block, Block::whole(contents).freeze())]);
        }
    }
    state.attr.blocks = state.data.visible_units(state.attr.size);
    Ok(())
}

/// Makes write-back place the unplaced blocks of an inode that came into the cache.
pub(crate) fn note_loaded(fs: &Filesystem, inode: &Arc<Inode>) {
    let mut state = inode.state.lock();
    if state.data.has_dirty() && fs.store.writable().is_ok() {
        fs.data.queue.note_dirty(fs, inode, &mut state.data);
    }
}
