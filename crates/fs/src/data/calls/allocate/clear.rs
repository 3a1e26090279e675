//! Clearing a range: whole blocks are freed, partly cleared ones are rewritten.
//!
//! The first transaction has the rewritten edge blocks, the times and the removal of the first
//! thousands of extents (so an unaligned punch logs its edge blocks in the same batch); more
//! transactions follow only for a range with more extents. A crash between them leaves each block
//! as it was or as zeros. Dirty data in the range is dropped with the transaction that clears it.

use super::edges::{NewEdges, Parts};
use super::preallocate::enable;
use crate::FsError;
use crate::attributes::flags::require_changeable;
use crate::data::calls::truncate::{self, extents_max};
use crate::data::effects::{FileChange, InlineChange, SizeChange};
use crate::data::extents::place::{self, Naming};
use crate::data::extents::quota;
use crate::data::extents::room::set_aside;
use crate::data::extents::shares;
use crate::data::extents::{lookup, plan};
use crate::data::flush::transact;
use crate::data::memory::BLOCK;
use crate::data::memory::block::Block;
use crate::data::memory::preallocated::with_share;
use crate::data::memory::ranges::{Ranges, count};
use crate::filesystem::Filesystem;
use crate::inode::Inode;
use smallvec::smallvec;
use std::ops::Range;
use std::sync::Arc;
use syncline_format::items::extent::Extent;
use syncline_store::{Admission, Reservation};

/// The state of blocks after they are cleared.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Clearing {
    /// They are holes.
    Punch,
    /// They are preallocated. With `grows`, a file that ends before their end is extended to it.
    Zero { grows: bool },
}

/// Zeroes `bytes` and frees the blocks that lie wholly in them.
pub(super) async fn clear(
    fs: &Filesystem,
    inode: &Arc<Inode>,
    bytes: Range<u64>,
    clearing: Clearing,
    kill_privileges: bool,
) -> Result<(), FsError> {
    if clearing != Clearing::Punch {
        enable(fs).await?;
    }
    let _room = fs.store.admit(Admission::Shrink).await?;
    // While it is held, no blocks are in flight: all contents are dirty or named.
    let writeback = inode.state.lock().data.writeback();
    let _writeback = writeback.lock().await;
    let _lease = inode.lease.write().await;
    fs.require_present(inode)?;
    require_changeable(inode)?;
    let size = inode.state.lock().attr.size;
    let new_size = if clearing == (Clearing::Zero { grows: true }) { size.max(bytes.end) } else { size };
    if new_size > size {
        truncate::forget_stale_extents(fs, inode).await?;
    }
    let parts = Parts::new(&bytes, size);
    let edges = parts.prepare(fs, inode, new_size).await?;
    let mut room = match clearing {
        Clearing::Punch => None,
        Clearing::Zero { .. } => Some(set_aside(fs, parts.blocks()).await?),
    };
    let _held = match clearing {
        Clearing::Punch => None,
        // Held before any block is cleared, until all have their room.
        Clearing::Zero { .. } => {
            quota::hold_holes(fs, inode, bytes.start / BLOCK..bytes.end.div_ceil(BLOCK)).await?
        }
    };
    fs.drop_privileges(inode, kill_privileges).await?;
    let first = clear_first(fs, inode, &parts, edges, new_size, &mut room).await?;
    clear_rest(fs, inode, first..parts.whole.end, &mut room).await
}

/// Commits the first transaction: the edges, and the first blocks of the range. Returns the block
/// at which it ended.
async fn clear_first(
    fs: &Filesystem,
    inode: &Arc<Inode>,
    parts: &Parts,
    mut edges: NewEdges,
    size: u64,
    room: &mut Option<Reservation>,
) -> Result<u64, FsError> {
    let edge_blocks = || edges.blocks.iter().map(|(block, _)| *block).chain(edges.empty.iter().copied());
    let first = edge_blocks().chain([parts.whole.start]).min().unwrap_or(parts.whole.start);
    let found = extents(fs, inode, first..parts.whole.end).await?;
    let end = end_of(&found, parts.whole.end);
    let mut old = found.extents;
    if let Some(tail) = parts.tail() {
        let known_to = old.last().map_or(0, Extent::end);
        old.extend(lookup::all(&fs.store, inode.ino, tail.max(known_to), tail + 1).await?);
    }
    let mut cleared: Vec<Range<u64>> = edge_blocks().map(|block| block..block + 1).collect();
    cleared.extend((parts.whole.start < end).then_some(parts.whole.start..end));
    cleared.sort_unstable_by_key(|range| range.start);
    let shares = shares::hold(fs, &old).await?;
    // From here to the commit nothing waits.
    let near = inode.state.lock().data.layout.near();
    let placements = place::place(fs, &mut edges.reservation, &edges.blocks, near)?;
    let mut naming = Naming::default();
    placements.iter().for_each(|placement| drop(placement.name(&mut naming, |_| true)));
    let in_item = edges.inline.is_some();
    let replaces_inline = naming.extents.first().is_some_and(|extent| extent.file_block == 0);
    let inline = match edges.inline {
        Some(inline) => InlineChange::Set(inline),
        None if replaces_inline => InlineChange::Set(None),
        None => InlineChange::Keep,
    };
    let mut extents = plan::replace(&old, &cleared, naming.extents);
    if room.is_some() {
        let edge_blocks = edges.blocks.iter().map(|(block, _)| *block);
        let mut empty = Ranges::default();
        cleared.iter().for_each(|range| empty.insert(range.clone()));
        // An edge block that is a hole is preallocated, unless it is already.
        let state = inode.state.lock();
        let preallocated = state.data.preallocated.ranges();
        let holes = edges.holes.iter().flat_map(|&block| preallocated.gaps(&(block..block + 1)));
        holes.for_each(|hole| empty.insert(hole));
        edge_blocks.for_each(|block| empty.remove(&(block..block + 1)));
        extents.preallocated = empty.iter().collect();
    }
    let (named, size) = (naming.named, SizeChange::Replaced { size, now: fs.now() });
    let change = FileChange { extents, named, inline, size, ..FileChange::nothing(inode) };
    if in_item {
        // The inode item has what is left of block 0.
        cleared.insert(0, 0..1);
    }
    let result = commit(fs, inode, change, &cleared, shares, room);
    if result.is_err() {
        place::abandon(fs, &placements);
    }
    result.map(|()| end.max(parts.whole.start))
}

/// Clears the other blocks, in bounded transactions.
async fn clear_rest(
    fs: &Filesystem,
    inode: &Arc<Inode>,
    mut blocks: Range<u64>,
    room: &mut Option<Reservation>,
) -> Result<(), FsError> {
    while !blocks.is_empty() {
        let _room = fs.store.admit(Admission::Finish).await?;
        let found = extents(fs, inode, blocks.clone()).await?;
        let end = end_of(&found, blocks.end);
        let cleared_range = blocks.start..end;
        let cleared = std::slice::from_ref(&cleared_range);
        let shares = shares::hold(fs, &found.extents).await?;
        let mut extents = plan::replace(&found.extents, cleared, Vec::new());
        if room.is_some() {
            extents.preallocated = cleared.to_vec();
        }
        let change = FileChange { extents, ..FileChange::nothing(inode) };
        commit(fs, inode, change, cleared, shares, room)?;
        blocks.start = end;
    }
    Ok(())
}

/// The extents of a range, as many as one transaction clears.
async fn extents(
    fs: &Filesystem,
    inode: &Arc<Inode>,
    blocks: Range<u64>,
) -> Result<lookup::Extents, FsError> {
    let extent_end = inode.state.lock().data.layout.extent_end();
    lookup::some(&fs.store, inode.ino, blocks.start, blocks.end.min(extent_end), extents_max(fs)).await
}

fn end_of(found: &lookup::Extents, end: u64) -> u64 {
    let known = found.extents.last().filter(|_| !found.complete).map(Extent::end);
    known.map_or(end, |known| known.min(end))
}

/// Commits a change that clears blocks, and drops their dirty data.
fn commit(
    fs: &Filesystem,
    inode: &Arc<Inode>,
    change: FileChange<'_>,
    cleared: &[Range<u64>],
    shares: shares::Shares<'_>,
    room: &mut Option<Reservation>,
) -> Result<(), FsError> {
    let added = count(&change.extents.preallocated);
    if let Some(room) = room {
        fs.data.room.put_back(added, Some(room.split(with_share(added))));
    }
    let forgotten: Vec<(u64, Block)> = {
        let mut state = inode.state.lock();
        cleared.iter().flat_map(|range| state.data.blocks.take(range.start, range.end, u64::MAX)).collect()
    };
    fs.store.give_way();
    let result = transact::commit(fs, smallvec![change], shares);
    let mut state = inode.state.lock();
    if result.is_err() {
        state.data.blocks.restore(forgotten);
        drop(fs.data.room.take(added));
    }
    state.data.add_reservation(None);
    fs.data.queue.account(&mut state.data);
    fs.uncharge(&mut state, u64::MAX);
    state.attr.blocks = state.data.visible_units(state.attr.size);
    result.map(drop)
}
