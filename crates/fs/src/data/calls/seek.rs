//! SEEK_DATA and SEEK_HOLE.

use crate::FsError;
use crate::data::extents::lookup;
use crate::data::memory::BLOCK;
use crate::filesystem::Filesystem;
use crate::inode::Inode;
use std::sync::Arc;

/// Extents looked up at a time.
const SCAN_ITEMS: usize = 256;

/// First offset at or after `offset` that holds data.
pub(crate) async fn data(fs: &Filesystem, inode: &Arc<Inode>, offset: u64) -> Result<u64, FsError> {
    let _lease = inode.lease.read().await;
    let (size, in_memory) = {
        let state = inode.state.lock();
        (state.attr.size, next_in_memory(&state.data, offset / BLOCK))
    };
    if offset >= size {
        return Err(FsError::NoSuchAddress);
    }
    let first = offset / BLOCK;
    // Extents matter only before the first block in memory.
    let end = in_memory.unwrap_or(u64::MAX).min(size.div_ceil(BLOCK));
    let found = lookup::some(&fs.store, inode.ino, first, end, SCAN_ITEMS).await?;
    let on_disk = found.extents.first().map(|extent| extent.file_block.max(first));
    let block = on_disk.or(in_memory).filter(|block| block * BLOCK < size);
    block.map(|block| offset.max(block * BLOCK)).ok_or(FsError::NoSuchAddress)
}

/// First offset at or after `offset` that holds no data; the end of the file counts.
pub(crate) async fn hole(fs: &Filesystem, inode: &Arc<Inode>, offset: u64) -> Result<u64, FsError> {
    let _lease = inode.lease.read().await;
    let size = inode.state.lock().attr.size;
    if offset >= size {
        return Err(FsError::NoSuchAddress);
    }
    let end = size.div_ceil(BLOCK);
    let mut block = offset / BLOCK;
    while block < end {
        let past_memory = {
            let state = inode.state.lock();
            let mut past = block;
            while past < end && next_in_memory(&state.data, past) == Some(past) {
                past += 1;
            }
            past
        };
        let past_disk = past_extents(fs, inode, past_memory, end).await?;
        if past_disk == block {
            break;
        }
        block = past_disk;
    }
    Ok(offset.max(block * BLOCK).min(size))
}

/// The first block from `block` on that no extent covers, as far as one lookup tells.
async fn past_extents(fs: &Filesystem, inode: &Arc<Inode>, block: u64, end: u64) -> Result<u64, FsError> {
    let found = lookup::some(&fs.store, inode.ino, block, end, SCAN_ITEMS).await?;
    let mut past = block;
    for extent in &found.extents {
        if extent.file_block > past {
            break;
        }
        past = extent.end();
    }
    Ok(past)
}

/// The first block from `block` on whose newest contents are in memory (dirty, in flight or
/// inline), or that can't be read. Cached blocks do not count: they are on the device too.
fn next_in_memory(data: &crate::data::memory::DataState, block: u64) -> Option<u64> {
    let inline = (block == 0 && data.has_inline()).then_some(0);
    let broken = data.unplaced.broken(block..u64::MAX).next();
    [data.dirty.next(block), data.in_flight.next(block), inline, broken].into_iter().flatten().min()
}
