//! Preallocation: room for blocks that a file does not have yet.
//!
//! Nothing is allocated: a copy-on-write filesystem places data when it is written. Preallocation
//! promises room, which `data/memory/preallocated.rs` keeps, and records it in items.

use crate::FsError;
use crate::attributes::flags::require_growable;
use crate::data::calls::truncate;
use crate::data::effects::{FileChange, SizeChange};
use crate::data::extents::quota;
use crate::data::extents::room::set_aside;
use crate::data::extents::shares;
use crate::data::extents::{lookup, plan};
use crate::data::flush::start::{self, Submission};
use crate::data::flush::transact;
use crate::data::memory::BLOCK;
use crate::data::memory::preallocated::with_share;
use crate::data::memory::ranges::{Ranges, number_ranges};
use crate::data::memory::submission::Aim;
use crate::filesystem::Filesystem;
use crate::inode::Inode;
use crate::receipt::Submitted;
use smallvec::smallvec;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use syncline_format::items::extent::FILE_BLOCKS_MAX;
use syncline_format::superblock::FEATURE_PREALLOCATION;

/// Extents looked up at a time.
const EXTENTS_EACH: usize = 1024;

/// Makes sure that a durable superblock has the preallocation feature before any item of it is
/// logged. A program that does not know the feature refuses such an image, and can still read one
/// that never preallocated.
pub(super) async fn enable(fs: &Filesystem) -> Result<(), FsError> {
    if !fs.data.room.is_enabled() {
        fs.store.add_features(FEATURE_PREALLOCATION).await?;
        fs.data.room.enabled.store(true, Ordering::Release);
    }
    Ok(())
}

/// Sets room aside for those blocks of a range that have none. With `grows`, a file that ends
/// before the range does is extended to its end.
pub(super) async fn preallocate(
    fs: &Filesystem,
    inode: &Arc<Inode>,
    bytes: Range<u64>,
    grows: bool,
    kill_privileges: bool,
) -> Result<(), FsError> {
    enable(fs).await?;
    let _room = fs.admit_growth().await?;
    // While it is held, no blocks are in flight.
    let writeback = inode.state.lock().data.writeback();
    let _writeback = writeback.lock().await;
    let _lease = inode.lease.write().await;
    fs.require_present(inode)?;
    // Room is not data: an append-only file can have it anywhere.
    require_growable(inode)?;
    let size = inode.state.lock().attr.size;
    let new_size = if grows { size.max(bytes.end) } else { size };
    // A crash may have left extents past the end: blocks under them would get no room, and the
    // extents are removed later.
    truncate::forget_stale_extents(fs, inode).await?;
    submit_small(fs, inode).await?;
    let blocks = bytes.start / BLOCK..bytes.end.div_ceil(BLOCK).min(FILE_BLOCKS_MAX);
    let holes = holes(fs, inode, blocks).await?;
    let _held = quota::hold_blocks(fs, inode, holes.blocks()).await?;
    let mut room = set_aside(fs, holes.blocks()).await?;
    fs.drop_privileges(inode, kill_privileges).await?;
    let holes: Vec<Range<u64>> = holes.iter().collect();
    let mut rest = &holes[..];
    loop {
        let (now, later) = rest.split_at(rest.len().min(truncate::extents_max(fs)));
        // Only the last transaction changes size and times. A crash before it leaves some room
        // preallocated, which only statfs shows.
        let size = match later.is_empty() {
            true => SizeChange::Replaced { size: new_size, now: fs.now() },
            false => SizeChange::Keep,
        };
        let extents = plan::ExtentChanges { preallocated: now.to_vec(), ..Default::default() };
        let change = FileChange { extents, size, ..FileChange::nothing(inode) };
        let added = crate::data::memory::ranges::count(now);
        fs.data.room.put_back(added, Some(room.split(with_share(added))));
        if let Err(error) = transact::commit(fs, smallvec![change], shares::Shares::default()) {
            drop(fs.data.room.take(added));
            return Err(error);
        }
        if later.is_empty() {
            return Ok(());
        }
        rest = later;
    }
}

/// Puts a small file's data into its inode item, so that block 0 is not dirty and gets room for
/// when the file grows.
async fn submit_small(fs: &Filesystem, inode: &Arc<Inode>) -> Result<(), FsError> {
    let small = {
        let state = inode.state.lock();
        let small = state.data.inlines(fs.limits.inline_bytes as u64, state.attr.size);
        small && !state.is_clean(Aim::Place)
    };
    if small {
        inode.state.lock().begin_submission();
        start::submit(fs, &[Submission { inode, blocks: 0..1, aim: Aim::Place }], &mut Submitted::default())
            .await?;
    }
    Ok(())
}

/// The blocks of a range that have no extent, no preallocated room and no dirty data (dirty blocks
/// have room of their own). If the file lies in its inode item, block 0 is one of them wherever the
/// range is: a write there moves it out of the item.
async fn holes(fs: &Filesystem, inode: &Arc<Inode>, blocks: Range<u64>) -> Result<Ranges, FsError> {
    let mut holes = Ranges::default();
    holes.insert(blocks.clone());
    if inode.state.lock().data.has_inline() {
        holes.insert(0..1);
    }
    let mut first = blocks.start;
    loop {
        let found = lookup::some(&fs.store, inode.ino, first, blocks.end, EXTENTS_EACH).await?;
        found.extents.iter().for_each(|extent| holes.remove(&(extent.file_block..extent.end())));
        match found.extents.last() {
            Some(last) if !found.complete => first = last.end(),
            _ => break,
        }
    }
    let state = inode.state.lock();
    state.data.preallocated.ranges().iter().for_each(|range| holes.remove(&range));
    let dirty = number_ranges(state.data.blocks.numbers(blocks));
    dirty.iter().for_each(|range| holes.remove(range));
    Ok(holes)
}
