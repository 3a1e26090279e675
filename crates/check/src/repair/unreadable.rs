//! File blocks whose extents were lost with a tree node: they could not be read before, and must
//! not read as zeros afterwards.
//!
//! Nothing tells which of them had data and which were holes, so all of them get extents that point
//! to a few blocks whose checksums never match. Reading them fails, overwriting them or deleting
//! the file works, and a check reports them like other damaged data. If there are too many (in a
//! sparse file), the file goes to `lost+found` instead.

use crate::references::{References, to_items};
use crate::repair::flaw::Flaw;
use crate::repair::planner::Planner;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::ops::Range;
use syncline_format::items::extent::{EXTENT_BLOCKS_MAX, Extent, piece_start};
use syncline_format::items::preallocation::Preallocation;
use syncline_format::{Key, Kind};
use syncline_store::{Rebuild, StoreError};

/// Limit for such blocks over all files together (512 MiB).
pub(crate) const BLOCKS_MAX: u64 = 1 << 17;

/// The parts of an object's items of one kind that were lost with nodes, as ranges of offsets.
pub(crate) fn lost_offsets(planner: &Planner, object: u64, kind: Kind) -> Vec<Range<u64>> {
    let (least, most) = (Key::new(object, kind, 0), Key::new(object, kind, u64::MAX));
    let ranges = planner.view.lost_within(least, most);
    let mut lost: Vec<Range<u64>> = ranges
        .map(|(first, bound)| {
            let end = bound.filter(|bound| *bound <= most).map_or(u64::MAX, |bound| bound.offset);
            first.max(least).offset..end
        })
        .collect();
    lost.reverse();
    lost
}

/// The lost blocks of a file before `end`. Blocks covered by a remaining item are not lost.
pub(crate) async fn blocks(planner: &mut Planner, object: u64, end: u64) -> Vec<Range<u64>> {
    let mut left = Vec::new();
    for lost in lost_offsets(planner, object, Kind::Extent) {
        let mut at = lost.start;
        let lost_end = lost.end.min(end);
        if at >= lost_end {
            continue;
        }
        for known in known(planner, object, at..lost_end).await {
            if at < known.start {
                left.push(at..known.start.min(lost_end));
            }
            at = at.max(known.end);
        }
        if at < lost_end {
            left.push(at..lost_end);
        }
    }
    left
}

/// The parts of these blocks that remaining items cover, ascending.
async fn known(planner: &mut Planner, object: u64, blocks: Range<u64>) -> Vec<Range<u64>> {
    let mut known: Vec<Range<u64>> = Vec::new();
    let from = Key::new(object, Kind::Extent, piece_start(blocks.start));
    for (key, value) in planner.view.range(from, Key::new(object, Kind::Extent, blocks.end)).await {
        known.extend(Extent::decode(key.offset, &value).map(|extent| extent.file_block..extent.end()));
    }
    let from = Key::new(object, Kind::Preallocation, 0);
    for (key, value) in planner.view.range(from, Key::new(object, Kind::Preallocation, blocks.end)).await {
        known.extend(Preallocation::decode(key.offset, &value).map(|item| item.file_block..item.end()));
    }
    known.retain(|known| known.end > blocks.start && known.start < blocks.end);
    known.sort_unstable_by_key(|known| known.start);
    known
}

pub(crate) fn count(ranges: &[Range<u64>]) -> u64 {
    ranges.iter().map(|range| range.end - range.start).fold(0, u64::saturating_add)
}

/// Makes these blocks of a file fail to read. Returns false if there are too many.
pub(crate) fn keep_lost(planner: &mut Planner, object: u64, ranges: &[Range<u64>]) -> bool {
    let all = planner.unreadable.iter().map(|(_, range)| range.end - range.start).sum::<u64>();
    if all.saturating_add(count(ranges)) > BLOCKS_MAX {
        return false;
    }
    if planner.flaw != Some(Flaw::LostBecomesZeros) {
        planner.unreadable.extend(ranges.iter().map(|range| (object, range.clone())));
    }
    true
}

/// Creates the extents.
pub(crate) async fn place(
    rebuild: &mut Rebuild,
    planner: &Planner,
    edits: &mut BTreeMap<Key, Option<Bytes>>,
) -> Result<(), StoreError> {
    let Some(longest) = planner.unreadable.iter().map(|(_, range)| range.end - range.start).max() else {
        return Ok(());
    };
    let (run, checksums) = rebuild.unreadable(longest.min(EXTENT_BLOCKS_MAX)).await?;
    let mut references = References::default();
    for (object, range) in &planner.unreadable {
        let mut at = range.start;
        while at < range.end {
            let end = range.end.min(piece_start(at) + EXTENT_BLOCKS_MAX).min(at + run.blocks);
            let checksums = checksums[..(end - at) as usize].to_vec();
            let extent = Extent { shared: true, ..Extent::plain(at, run.start, checksums) };
            references.extent(extent.run());
            edits.insert(Key::new(*object, Kind::Extent, at), Some(extent.encode().into()));
            at = end;
        }
    }
    for item in to_items(&references.found()) {
        edits.insert(Key::new(0, Kind::Shared, item.run.start), Some(item.encode().into()));
    }
    Ok(())
}
