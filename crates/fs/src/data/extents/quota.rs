//! Reserving in the quota what a write or an allocation is about to add to a file.

use super::lookup;
use crate::FsError;
use crate::data::memory::UNITS;
use crate::data::memory::ranges::Ranges;
use crate::filesystem::Filesystem;
use crate::inode::quotas::Held;
use crate::inode::{Inode, InodeState};
use std::ops::Range;
use syncline_format::items::extent::Extent;

/// Units reserved for a write that is about to be applied, and the blocks they are for.
pub(crate) struct Accepted<'a> {
    held: Option<Held<'a>>,
    holes: Vec<Range<u64>>,
}

/// Reserves what the file's blocks `ranges` will add when they become dirty and the file has at
/// least `size` bytes. The inode's lease is held for writing.
pub(crate) async fn accept<'a>(
    fs: &'a Filesystem,
    inode: &Inode,
    ranges: &[Range<u64>],
    size: u64,
) -> Result<Accepted<'a>, FsError> {
    if inode.state.lock().data.charge.is_none() {
        return Ok(Accepted { held: None, holes: Vec::new() });
    }
    Box::pin(accept_charged(fs, inode, ranges, size)).await
}

/// The same for a file with a quota.
async fn accept_charged<'a>(
    fs: &'a Filesystem,
    inode: &Inode,
    ranges: &[Range<u64>],
    size: u64,
) -> Result<Accepted<'a>, FsError> {
    let holes = holes(fs, inode, ranges).await?;
    let (number, units) = {
        let state = inode.state.lock();
        let data = &state.data;
        let Some(charge) = &data.charge else {
            return Ok(Accepted { held: None, holes: Vec::new() });
        };
        let (size, inline_max) = (state.attr.size.max(size), fs.limits.inline_bytes as u64);
        let with_first = ranges.iter().any(|range| range.contains(&0));
        let after = charge.needs(data, size, inline_max, &holes, with_first);
        (charge.number, after.saturating_sub(charge.units))
    };
    let held = fs.hold_units(number, units).await?;
    Ok(Accepted { held: Some(held), holes: holes.iter().collect() })
}

impl Accepted<'_> {
    /// Adds the reservation to the file's charge, when the blocks are dirty and the size is as
    /// announced.
    pub(crate) fn apply(mut self, fs: &Filesystem, state: &mut InodeState) {
        let Some(charge) = &mut state.data.charge else { return };
        self.holes.iter().for_each(|range| charge.holes.insert(range.clone()));
        charge.units += self.held.as_mut().map_or(0, Held::take);
        fs.uncharge(state, u64::MAX);
    }
}

impl Filesystem {
    /// Gives back what is reserved for blocks from `from` on, which are no longer pending, and any
    /// other excess. The inode's lease is held for writing.
    pub(crate) fn uncharge(&self, state: &mut InodeState, from: u64) {
        if state.data.charge.is_some() {
            let (gone, inline_max) = (from..u64::MAX, self.limits.inline_bytes as u64);
            let before = state.data.recharge(state.attr.size, inline_max, std::slice::from_ref(&gone));
            if let Some(charge) = &state.data.charge {
                self.quotas.move_reserved(charge.number, before.units, charge.units);
            }
        }
    }
}

/// Reserves `blocks` blocks that a transaction is about to add to a file. The reservation ends when
/// the caller drops it.
pub(crate) async fn hold_blocks<'a>(
    fs: &'a Filesystem,
    inode: &Inode,
    blocks: u64,
) -> Result<Option<Held<'a>>, FsError> {
    let number = inode.state.lock().data.charge.as_ref().map(|charge| charge.number);
    match number {
        Some(number) if blocks > 0 => Ok(Some(fs.hold_units(number, blocks.saturating_mul(UNITS)).await?)),
        _ => Ok(None),
    }
}

/// Reserves what allocating all of `blocks` adds to a file, if the file counts in a quota.
pub(crate) async fn hold_holes<'a>(
    fs: &'a Filesystem,
    inode: &Inode,
    blocks: Range<u64>,
) -> Result<Option<Held<'a>>, FsError> {
    let waits = {
        let state = inode.state.lock();
        if state.data.charge.is_none() {
            return Ok(None);
        }
        state.data.blocks.is_dirty(0)
    };
    // A small file that grows moves its block 0 out of the inode item.
    let new = holes(fs, inode, std::slice::from_ref(&blocks)).await?.blocks() + u64::from(waits);
    hold_blocks(fs, inode, new).await
}

/// The blocks of these ranges that are neither dirty nor in flight, and have no preallocated room
/// and no uncompressed extent.
async fn holes(fs: &Filesystem, inode: &Inode, ranges: &[Range<u64>]) -> Result<Ranges, FsError> {
    let mut holes = Ranges::default();
    let extent_end = {
        let state = inode.state.lock();
        let data = &state.data;
        for range in ranges.iter().filter(|range| !range.is_empty()) {
            holes.insert(range.clone());
            let waiting = data.blocks.pending(range.clone());
            waiting.for_each(|block| holes.remove(&(block..block + 1)));
            data.preallocated.ranges().within(range).iter().for_each(|room| holes.remove(room));
        }
        data.layout.extent_end()
    };
    let known: Vec<Range<u64>> = holes.iter().map(|range| range.start..range.end.min(extent_end)).collect();
    for range in known.iter().filter(|range| !range.is_empty()) {
        let extents = lookup::all(&fs.store, inode.ino, range.start, range.end).await?;
        // A block that replaces a part of a compressed unit counts beside the remaining blocks of
        // the unit.
        let plain = extents.iter().filter(|extent| extent.packed.is_none());
        plain.for_each(|extent: &Extent| holes.remove(&(extent.file_block..extent.end())));
    }
    Ok(holes)
}
