//! Quota reservations for dirty data of files in a tree with a quota.
//!
//! A block counts when it becomes dirty at a place with no extent and no preallocated room, because
//! it will add to the file's blocks. A block that replaces another adds nothing, although for a
//! moment both exist. The transaction that names the block turns the reserved units into used ones.
//! Files without a quota have none of this.

use super::ranges::Ranges;
use super::{DataState, UNITS, inline_units, lookup};
use crate::FsError;
use crate::filesystem::Filesystem;
use crate::inode::{Inode, InodeState};
use crate::quota::Held;
use std::ops::Range;
use syncline_format::items::extent::Extent;

/// The pending blocks of a file that counts in a quota, and what is reserved for them.
#[derive(Default)]
pub(crate) struct Charge {
    /// Number of the quota.
    pub(crate) number: u64,
    /// Blocks, dirty or in flight, at places where the file has nothing yet.
    holes: Ranges,
    /// Units that are reserved for them.
    pub(crate) units: u64,
}

/// The values to restore if a change of a charge is not committed.
#[derive(Default)]
pub(crate) struct ChargeBefore {
    holes: Vec<Range<u64>>,
    units: u64,
}

/// Units reserved for a write that is about to be applied, and the blocks they are for.
pub(crate) struct Accepted<'a> {
    held: Option<Held<'a>>,
    holes: Vec<Range<u64>>,
}

fn has_first(holes: &Ranges) -> bool {
    !holes.within(&(0..1)).is_empty()
}

impl Charge {
    pub(crate) fn new(number: u64) -> Option<Box<Self>> {
        (number != 0).then(|| Box::new(Self { number, ..Self::default() }))
    }

    /// Units that block 0 adds. A small file lies in the inode item; in other files, block 0
    /// replaces what lies there.
    fn first_units(&self, data: &DataState, size: u64, inline_max: u64, more: &Ranges) -> u64 {
        let inline = inline_units(data.inline.as_deref());
        if size <= inline_max && data.disk_blocks == 0 && !data.preallocated.has_first() {
            size.div_ceil(512).saturating_sub(inline)
        } else if has_first(&self.holes) || has_first(more) {
            UNITS.saturating_sub(inline)
        } else {
            0
        }
    }

    /// Units that the pending blocks and the blocks `more` will add when the file has `size` bytes.
    fn needs(&self, data: &DataState, size: u64, inline_max: u64, more: &Ranges, with_first: bool) -> u64 {
        let count = |holes: &Ranges| holes.blocks() - u64::from(has_first(holes));
        let first = with_first || data.dirty.contains(0) || data.in_flight.contains(0);
        let first = if first { self.first_units(data, size, inline_max, more) } else { 0 };
        (count(&self.holes) + count(more)) * UNITS + first
    }
}

impl DataState {
    /// Makes data that is written from now on count in this quota. It never waits.
    pub(crate) fn charge_to(&mut self, number: u64) {
        self.charge = Charge::new(number);
    }

    /// Adjusts the reservation to the pending blocks, after the blocks `cleared` have been named or
    /// are gone. Returns the values before.
    pub(crate) fn recharge(&mut self, size: u64, inline_max: u64, cleared: &[Range<u64>]) -> ChargeBefore {
        let Some(mut charge) = self.charge.take() else { return ChargeBefore::default() };
        let mut before = ChargeBefore { holes: Vec::new(), units: charge.units };
        // If block 0 is not pending, it went into the inode item.
        let first = if self.dirty.contains(0) || self.in_flight.contains(0) { 0..0 } else { 0..1 };
        for range in cleared.iter().chain([&first]) {
            before.holes.extend(charge.holes.within(range));
            charge.holes.remove(range);
        }
        charge.units = charge.needs(self, size, inline_max, &Ranges::default(), false);
        self.charge = Some(charge);
        before
    }

    /// The difference that a change of the charge has made to the reserved units.
    pub(crate) fn charged_since(&self, before: &ChargeBefore) -> i64 {
        self.charge.as_ref().map_or(0, |charge| charge.units as i64 - before.units as i64)
    }

    /// Undoes a change of the charge.
    pub(crate) fn restore_charge(&mut self, before: ChargeBefore) {
        if let Some(charge) = &mut self.charge {
            before.holes.into_iter().for_each(|range| charge.holes.insert(range));
            charge.units = before.units;
        }
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
    let holes = holes(fs, inode, ranges).await?;
    let (number, units) = {
        let state = inode.state.lock();
        let data = &state.data;
        let Some(charge) = &data.charge else { return Ok(Accepted { held: None, holes: Vec::new() }) };
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
        state.data.dirty.contains(0)
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
            let waiting = data.dirty.numbers(range.clone()).chain(data.in_flight.numbers(range.clone()));
            waiting.for_each(|block| holes.remove(&(block..block + 1)));
            data.preallocated.ranges().within(range).iter().for_each(|room| holes.remove(room));
        }
        data.extent_end.unwrap_or(u64::MAX)
    };
    let known: Vec<Range<u64>> = holes.iter().map(|range| range.start..range.end.min(extent_end)).collect();
    for range in known.iter().filter(|range| !range.is_empty()) {
        let extents = lookup::all(&fs.store, inode.ino, range.start, range.end).await?;
        // A block that replaces a part of a compressed unit comes on top of what is left of the
        // unit.
        let plain = extents.iter().filter(|extent| extent.packed.is_none());
        plain.for_each(|extent: &Extent| holes.remove(&(extent.file_block..extent.end())));
    }
    Ok(holes)
}
