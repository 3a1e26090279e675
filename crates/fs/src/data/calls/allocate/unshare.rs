//! Giving a file blocks of its own in place of those that it shares with others.

use super::preallocate::preallocate;
use crate::FsError;
use crate::attributes::flags::require_changeable;
use crate::data::calls::rewrite;
use crate::data::extents::lookup;
use crate::data::flush::{throttle, writeback};
use crate::data::memory::BLOCK;
use crate::filesystem::Filesystem;
use crate::inode::Inode;
use std::ops::Range;
use std::sync::Arc;
use syncline_format::items::extent::FILE_BLOCKS_MAX;

/// Blocks that are rewritten at a time: 1 MiB.
const STEP_BLOCKS: u64 = 256;
/// Extents looked up at a time.
const EXTENTS_EACH: usize = 1024;

/// Rewrites the shared blocks of a range, with contents and times unchanged, and sets room aside
/// for its holes. If it fails, the part that was done stays.
pub(super) async fn unshare(
    fs: &Filesystem,
    inode: &Arc<Inode>,
    bytes: Range<u64>,
    grows: bool,
    kill_privileges: bool,
) -> Result<(), FsError> {
    let mut blocks = bytes.start / BLOCK..bytes.end.div_ceil(BLOCK).min(FILE_BLOCKS_MAX);
    while let Some(next) = next_shared(fs, inode, blocks.clone()).await? {
        let step = next..blocks.end.min(next + STEP_BLOCKS);
        throttle::wait_for_room(fs, STEP_BLOCKS * BLOCK).await?;
        {
            let _lease = inode.lease.write().await;
            fs.require_present(inode)?;
            require_changeable(inode)?;
            // A crash may have left extents past the end. If they were made dirty, they would
            // become part of the file when it grows.
            let end = inode.state.lock().attr.size.div_ceil(BLOCK).min(step.end);
            if end <= step.start {
                break;
            }
            let extents = lookup::all(&fs.store, inode.ino, step.start, end).await?;
            for extent in extents.iter().filter(|extent| extent.shared) {
                if let Some(part) = extent.slice(step.start, end) {
                    rewrite::take_up_extent(fs, inode, &part).await?;
                }
            }
        }
        writeback::write_back(fs, inode).await?;
        blocks.start = step.end;
    }
    preallocate(fs, inode, bytes, grows, kill_privileges).await
}

/// The first block of the range that others may use too.
async fn next_shared(
    fs: &Filesystem,
    inode: &Arc<Inode>,
    mut blocks: Range<u64>,
) -> Result<Option<u64>, FsError> {
    loop {
        let found = lookup::some(&fs.store, inode.ino, blocks.start, blocks.end, EXTENTS_EACH).await?;
        if let Some(shared) = found.extents.iter().find(|extent| extent.shared) {
            return Ok(Some(shared.file_block.max(blocks.start)));
        }
        match found.extents.last() {
            Some(last) if !found.complete => blocks.start = last.end(),
            _ => return Ok(None),
        }
    }
}
