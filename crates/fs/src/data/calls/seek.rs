//! SEEK_DATA and SEEK_HOLE.

use crate::FsError;
use crate::data::extents::lookup;
use crate::data::memory::BLOCK;
use crate::filesystem::Filesystem;
use crate::inode::Inode;
use std::sync::Arc;

/// Items looked up to find the next data: one that ends before, and the next.
const NEXT_ITEMS: usize = 2;
/// Items looked up at first to find the end of data, and the most later: mostly the next hole is
/// near, and a program that copies a sparse file asks for each.
const END_ITEMS: usize = 4;
const END_ITEMS_MAX: usize = 256;

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
    let found = lookup::few(&fs.store, inode.ino, first, end, NEXT_ITEMS).await?;
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
    let (mut block, mut items) = (offset / BLOCK, END_ITEMS);
    while block < end {
        // Memory comes first: meanwhile blocks may move from there to the device.
        let (from, in_memory) = past_memory(inode, block, end);
        let (past, is_known) = past_extents(fs, inode, from, end, items).await?;
        block = past;
        if is_known && in_memory.is_none_or(|next| next > past) {
            break;
        }
        items = (items * 4).min(END_ITEMS_MAX);
    }
    Ok(offset.max(block * BLOCK).min(size))
}

/// The first block from `block` on that is not in memory, and the next one that is.
fn past_memory(inode: &Inode, block: u64, end: u64) -> (u64, Option<u64>) {
    let state = inode.state.lock();
    let mut past = block;
    loop {
        match next_in_memory(&state.data, past) {
            Some(next) if next == past && past < end => past += 1,
            next => return (past, next),
        }
    }
}

/// The first block from `block` on that no extent covers, as far as one lookup tells; true if no
/// extent begins there.
async fn past_extents(
    fs: &Filesystem,
    inode: &Inode,
    block: u64,
    end: u64,
    items: usize,
) -> Result<(u64, bool), FsError> {
    let found = lookup::few(&fs.store, inode.ino, block, end, items).await?;
    let mut past = block;
    for extent in &found.extents {
        if extent.file_block > past {
            return Ok((past, true));
        }
        past = extent.end();
    }
    Ok((past, found.complete))
}

/// The first block from `block` on whose newest contents are in memory (dirty, in flight or
/// inline), or that can't be read. Cached blocks do not count: they are on the device too.
fn next_in_memory(data: &crate::data::memory::DataState, block: u64) -> Option<u64> {
    let inline = (block == 0 && data.has_inline()).then_some(0);
    let broken = data.logged.unplaced().broken(block..u64::MAX).next();
    [data.blocks.next(block), inline, broken].into_iter().flatten().min()
}
