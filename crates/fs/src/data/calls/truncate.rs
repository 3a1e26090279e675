//! Truncation in both directions, and the removal of a file's data.
//!
//! The first transaction of a truncation sets the new size, with the rewritten edge block and the
//! first thousands of freed extents; more transactions follow only for a file with more extents. A
//! crash between them leaves extents past the end, which are not part of the file: they are deleted
//! before the file next grows ([`forget_stale_extents`]) and when it is removed.

use super::read;
use crate::FsError;
use crate::attributes::flags::require_changeable;
use crate::data::effects::{FileChange, InlineChange, SizeChange};
use crate::data::extents::lookup;
use crate::data::extents::place::{self, Naming, Placement};
use crate::data::extents::plan::{self, ExtentChanges};
use crate::data::extents::quota;
use crate::data::extents::room::{make_up_reservation, reserve};
use crate::data::extents::shares;
use crate::data::extents::shares::Shares;
use crate::data::flush::transact;
use crate::data::memory::block::Block;
use crate::data::memory::blocks::BlockState;
use crate::data::memory::{BLOCK, DataState};
use crate::filesystem::Filesystem;
use crate::inode::Inode;
use crate::types::Timestamp;
use bytes::Bytes;
use smallvec::smallvec;
use std::sync::Arc;
use syncline_format::items::extent::{Extent, FILE_BLOCKS_MAX};
use syncline_format::items::inode::SIZE_MAX;
use syncline_store::{Admission, Canary, Reservation};

/// Most extents that one transaction deletes.
pub(in crate::data) fn extents_max(fs: &Filesystem) -> usize {
    fs.options.extents_at_once.max(1)
}

/// Sets the size, mtime and ctime of a regular file. Admits and takes the inode's lease itself; the
/// caller holds none. Under the lease it calls `Filesystem::drop_privileges`.
pub(crate) async fn truncate(
    fs: &Filesystem,
    inode: &Arc<Inode>,
    new_size: u64,
    now: Timestamp,
    kill_privileges: bool,
) -> Result<(), FsError> {
    if new_size > SIZE_MAX {
        return Err(FsError::TooLarge);
    }
    let _room = fs.store.admit(Admission::Shrink).await?;
    let _lease = inode.lease.write().await;
    fs.require_present(inode)?;
    require_changeable(inode)?;
    let size = inode.state.lock().attr.size;
    if new_size >= size {
        return grow(fs, inode, new_size, now, kill_privileges).await;
    }
    let edge = prepare_edge(fs, inode, new_size).await?;
    fs.store.give_way();
    fs.drop_privileges(inode, kill_privileges).await?;
    shrink(fs, inode, new_size, now, edge).await
}

/// Sets a larger size, or the same: ordered metadata. The part between old and new end reads as
/// zeros.
async fn grow(
    fs: &Filesystem,
    inode: &Arc<Inode>,
    size: u64,
    now: Timestamp,
    kill_privileges: bool,
) -> Result<(), FsError> {
    let old = inode.state.lock().attr.size;
    if size > old {
        forget_stale_extents(fs, inode).await?;
    }
    fs.drop_privileges(inode, kill_privileges).await?;
    // Pending contents that the inode item would have taken need a block if they outgrow it.
    let _held = quota::accept(fs, inode, &[], size).await?;
    let logged = if size > old { size } else { inode.state.lock().data.logged.size() };
    let mut extents = ExtentChanges::default();
    if size == old {
        // Preallocated blocks past the end are given up, as on other filesystems.
        extents.cleared.push(size.div_ceil(BLOCK)..FILE_BLOCKS_MAX);
    }
    let size = SizeChange::Truncated { size, logged, now };
    transact::commit(fs, smallvec![change(inode, extents, size)], Shares::default())?;
    Ok(())
}

fn change<'a>(inode: &'a Arc<Inode>, extents: ExtentChanges, size: SizeChange) -> FileChange<'a> {
    FileChange { extents, size, ..FileChange::nothing(inode) }
}

/// The treatment of the block in which the new end lies.
enum Edge {
    /// The end lies between blocks, in a hole, or in a block that is only in memory.
    InMemory,
    /// The rest of the file goes into the inode item, and every extent is removed.
    Inline(Option<Bytes>),
    /// The block is on the device: it is rewritten, with zeros past the end, in the transaction
    /// that sets the size.
    Rewrite { contents: Block, reservation: Reservation },
}

/// Reads and reserves what the edge block needs, before anything changes.
async fn prepare_edge(fs: &Filesystem, inode: &Arc<Inode>, size: u64) -> Result<Edge, FsError> {
    let block = size / BLOCK;
    let at = (size % BLOCK) as usize;
    if at == 0 {
        return Ok(Edge::InMemory);
    }
    let (in_memory, in_log, may_be_on_disk) = {
        let state = inode.state.lock();
        let data = &state.data;
        let in_memory = data.block_in_memory(block).map(|known| known.to_bytes());
        (in_memory, data.logged.unplaced().contains(block), !data.layout.is_past(block))
    };
    let has_extent = may_be_on_disk && !lookup::all(&fs.store, inode.ino, block, block + 1).await?.is_empty();
    // Contents in the log would come back after a crash, as an extent would.
    let on_disk = in_log || has_extent;
    let contents = match in_memory {
        Some(contents) => Some(contents),
        None if on_disk => read::read_block(fs, inode, block).await?,
        None => None,
    };
    if size <= fs.limits.inline_bytes as u64 {
        let kept = contents.filter(|bytes| bytes.iter().take(at).any(|&byte| byte != 0));
        return Ok(Edge::Inline(kept.map(|bytes| beginning(&bytes, at))));
    }
    match contents {
        Some(contents) if on_disk => rewrite(fs, inode, block, &beginning(&contents, at)).await,
        // If the block is only in flight, it becomes dirty, with zeros past the end.
        Some(_) => {
            make_up_for(fs, inode, block).await?;
            Ok(Edge::InMemory)
        }
        None => Ok(Edge::InMemory),
    }
}

/// A copy of the first `len` bytes, padded with zeros if there are fewer.
fn beginning(bytes: &[u8], len: usize) -> Bytes {
    let mut copy = vec![0; len];
    let known = bytes.len().min(len);
    copy[..known].copy_from_slice(&bytes[..known]);
    copy.into()
}

async fn rewrite(fs: &Filesystem, inode: &Arc<Inode>, block: u64, bytes: &[u8]) -> Result<Edge, FsError> {
    let reservation = room_for_edge(fs, inode, block).await?;
    let contents = Block::whole(syncline_device::AlignedBuf::copy_from(bytes)).freeze();
    Ok(Edge::Rewrite { contents, reservation })
}

/// Room for an edge block that is rewritten: its own, if it is dirty.
pub(in crate::data) async fn room_for_edge(
    fs: &Filesystem,
    inode: &Arc<Inode>,
    block: u64,
) -> Result<Reservation, FsError> {
    let dirty = inode.state.lock().data.blocks.is_dirty(block);
    if dirty {
        make_up_reservation(fs, inode).await?;
    }
    let own = if dirty { take_reserved(&mut inode.state.lock().data) } else { None };
    let reservation = match own {
        Some(reservation) => Some(reservation),
        None => reserve_edge(fs).await?,
    };
    Ok(reservation.unwrap_or_default())
}

/// A block for the edge. A truncation makes room, so on a full image it may draw on the reserve.
async fn reserve_edge(fs: &Filesystem) -> Result<Option<Reservation>, FsError> {
    match fs.store.try_reserve(1).or_else(|| fs.store.try_reserve_to_shrink(1)) {
        Some(reservation) => Ok(Some(reservation)),
        None => reserve(fs, 1).await,
    }
}

/// One block of the inode's own reservation. (If the truncation fails, the deficit is made up
/// later.)
fn take_reserved(data: &mut DataState) -> Option<Reservation> {
    data.reservation.as_mut().map(|mine| mine.split(1)).filter(|one| one.blocks() == 1)
}

/// If `block` is in flight and not dirty, makes it dirty and reserves a block for it.
async fn make_up_for(fs: &Filesystem, inode: &Arc<Inode>, block: u64) -> Result<(), FsError> {
    let in_flight = inode.state.lock().data.blocks.state_of(block) == Some(BlockState::InFlight);
    if in_flight {
        let reservation = reserve_edge(fs).await?;
        let mut state = inode.state.lock();
        state.data.patch(block, 0, &[], None);
        state.data.add_reservation(reservation);
    }
    Ok(())
}

/// Shrinks the file to `size`: commits the first transaction, drops from memory what it removed,
/// and deletes the remaining extents.
async fn shrink(
    fs: &Filesystem,
    inode: &Arc<Inode>,
    size: u64,
    now: Timestamp,
    mut edge: Edge,
) -> Result<(), FsError> {
    let keep_end = if matches!(edge, Edge::Inline(_)) { 0 } else { size.div_ceil(BLOCK) };
    let clear_from = if matches!(edge, Edge::Rewrite { .. }) { size / BLOCK } else { keep_end };
    let is_past = inode.state.lock().data.layout.is_past(clear_from);
    let first = match is_past {
        true => lookup::Extents { extents: Vec::new(), complete: true },
        false => lookup::some(&fs.store, inode.ino, clear_from, FILE_BLOCKS_MAX, extents_max(fs)).await?,
    };
    let shares = shares::hold(fs, &first.extents).await?;
    // From here to the commit nothing waits.
    let placements = place_edge(fs, inode, &mut edge, size / BLOCK)?;
    let mut naming = Naming::default();
    placements.iter().for_each(|placement| drop(placement.name(&mut naming, |_| true)));
    let extents = plan::replace(&first.extents, &[cleared(clear_from, &first)], naming.extents);
    let logged = logged_size(&inode.state.lock().data, size, clear_from);
    let mut change = change(inode, extents, SizeChange::Truncated { size, logged, now });
    change.named = naming.named;
    change.inline = shrunk_inline(inode, &edge, size);
    if let Err(error) = transact::commit(fs, smallvec![change], shares) {
        place::abandon(fs, &placements);
        return Err(error);
    }
    fs.store.give_way();
    forget_from(fs, inode, size, &edge, first.complete);
    if !first.complete {
        delete_from(fs, inode, keep_end, false).await?;
    }
    Ok(())
}

/// The size that a truncation to `size` can log, if no block from `clear_from` on stays dirty.
fn logged_size(data: &DataState, size: u64, clear_from: u64) -> u64 {
    let before = data.logged.size().min(size);
    let from = before / BLOCK;
    let waiting = data.blocks.next_unnamed(from);
    let limit = waiting
        .filter(|&block| block < clear_from)
        .map_or(size, |block| size.min(DataState::size_limit(before, block)));
    before.max(limit)
}

/// The range that a transaction can clear when it knows these extents.
fn cleared(from: u64, found: &lookup::Extents) -> std::ops::Range<u64> {
    let end = if found.complete { FILE_BLOCKS_MAX } else { found.extents.last().map_or(from, Extent::end) };
    from..end.max(from)
}

/// Starts writing the edge block, if it is to be rewritten.
fn place_edge(
    fs: &Filesystem,
    inode: &Inode,
    edge: &mut Edge,
    block: u64,
) -> Result<Vec<Placement>, FsError> {
    let Edge::Rewrite { contents, reservation } = edge else { return Ok(Vec::new()) };
    let near = inode.state.lock().data.layout.near();
    place::place(fs, reservation, &[(block, contents.share())], near)
}

/// The change to the inline data.
fn shrunk_inline(inode: &Inode, edge: &Edge, size: u64) -> InlineChange {
    if let Edge::Inline(contents) = edge {
        return InlineChange::Set(contents.clone());
    }
    match inode.state.lock().data.logged.inline() {
        Some(inline) if inline.len() as u64 > size => {
            let rest = inline.slice(..size as usize);
            InlineChange::Set((!rest.is_empty()).then_some(rest))
        }
        _ => InlineChange::Keep,
    }
}

/// Drops from memory what the committed truncation removed.
fn forget_from(fs: &Filesystem, inode: &Arc<Inode>, size: u64, edge: &Edge, extents_gone: bool) {
    let mut state = inode.state.lock();
    let data = &mut state.data;
    let keep_end = if matches!(edge, Edge::Inline(_)) { 0 } else { size.div_ceil(BLOCK) };
    data.blocks.truncate(keep_end);
    let (block, at) = (size / BLOCK, (size % BLOCK) as usize);
    match edge {
        Edge::Rewrite { .. } => data.blocks.remove(block),
        Edge::InMemory if at > 0 => {
            // `make_up_for` has made a dirty copy of the block in flight, which must not be named
            // any more.
            data.blocks.zero_from(block, at);
            if data.blocks.recall(block) {
                data.progress.recall(block, fs.store.breaks(Canary::ForgetRecalled));
            }
        }
        _ => {}
    }
    match extents_gone {
        true => data.layout.end_at(keep_end),
        false => data.layout.forget_end(),
    }
    data.add_reservation(None);
    fs.data.queue.account(data);
    fs.uncharge(&mut state, keep_end);
    state.attr.blocks = state.data.visible_units(size);
}

/// Deletes the extents that a crash left past the end of the file, before it grows over them. Costs
/// one lookup for each inode that comes into the cache and grows. The lease is held for writing.
pub(crate) async fn forget_stale_extents(fs: &Filesystem, inode: &Arc<Inode>) -> Result<(), FsError> {
    let first = {
        let state = inode.state.lock();
        if state.data.layout.is_known() {
            return Ok(());
        }
        state.attr.size.div_ceil(BLOCK)
    };
    Box::pin(delete_from(fs, inode, first, true)).await
}

/// Deletes all extents from block `first` on, in bounded transactions, and preallocated blocks too
/// unless `keep_preallocated`. The lease is held for writing.
async fn delete_from(
    fs: &Filesystem,
    inode: &Arc<Inode>,
    first: u64,
    keep_preallocated: bool,
) -> Result<(), FsError> {
    for round in 0_u64.. {
        // In the first round the caller has room.
        let _room = if round > 0 { Some(fs.store.admit(Admission::Finish).await?) } else { None };
        let found = lookup::some(&fs.store, inode.ino, first, FILE_BLOCKS_MAX, extents_max(fs)).await?;
        let mut extents = plan::replace(&found.extents, &[cleared(first, &found)], Vec::new());
        if keep_preallocated {
            extents.cleared.clear();
        }
        let preallocated = !extents.cleared.is_empty() && inode.state.lock().data.preallocated.blocks() > 0;
        if preallocated || !extents.items.is_empty() {
            let shares = shares::hold(fs, &found.extents).await?;
            transact::commit(fs, smallvec![change(inode, extents, SizeChange::Keep)], shares)?;
        }
        if found.complete {
            inode.state.lock().data.layout.end_at(first);
            break;
        }
    }
    Ok(())
}

/// Deletes all extents of an inode without names, in bounded transactions, and drops its dirty
/// data. Takes the lease itself. The inode item stays, and need not have size 0.
pub(crate) async fn remove_all(fs: &Filesystem, inode: &Arc<Inode>) -> Result<(), FsError> {
    {
        // Before the admission, which may need the room that this gives back.
        let _lease = fs.lease_of_orphan(inode).await;
        drop_dirty(fs, inode);
    }
    let _room = fs.store.admit(Admission::Remove).await?;
    let _lease = fs.lease_of_orphan(inode).await;
    // Data that a failed write-back has made dirty again meanwhile.
    drop_dirty(fs, inode);
    let nothing = {
        let state = inode.state.lock();
        state.data.layout.is_empty() && state.data.preallocated.blocks() == 0
    };
    if nothing {
        return Ok(());
    }
    delete_from(fs, inode, 0, false).await
}

/// Drops dirty data that can never be read: the inode has no name, no handle and no reference left.
/// The lease is held for writing, because a submission that is under way puts the size and contents
/// that it saw into its transaction.
fn drop_dirty(fs: &Filesystem, inode: &Arc<Inode>) {
    let mut state = inode.state.lock();
    let data = &mut state.data;
    data.blocks.truncate(0);
    data.blocks.forget_all_placed();
    data.failures.forget();
    data.add_reservation(None);
    fs.data.queue.account(data);
    // Nothing is left to submit: a late submission finds the file as it was logged.
    state.attr.size = state.data.logged.size();
    state.attr.mtime = state.data.logged.mtime();
    fs.uncharge(&mut state, 0);
}
