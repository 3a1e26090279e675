//! Looking up a file's extents.

use crate::FsError;
use crate::types::Ino;
use std::ops::Range;
use syncline_format::items::extent::{Extent, piece_start};
use syncline_format::{FormatError, Key, Kind};
use syncline_store::Store;

/// Most items taken from the store at once.
const SCAN_ITEMS: usize = 1024;
/// Ranges closer to each other than this many blocks are looked up together.
const SCAN_GAP_BLOCKS: u64 = 1024;

/// Extents of a part of a file.
pub(crate) struct Extents {
    /// In order. The first and the last may reach out of the range that was asked for.
    pub extents: Vec<Extent>,
    /// True when the range has no more.
    pub complete: bool,
}

/// At most `max_items` extents that overlap the file blocks `first..end`.
pub(crate) async fn some(
    store: &Store,
    ino: Ino,
    first: u64,
    end: u64,
    max_items: usize,
) -> Result<Extents, FsError> {
    if first >= end {
        return Ok(Extents { extents: Vec::new(), complete: true });
    }
    let from = Key::new(ino, Kind::Extent, piece_start(first));
    let to = Key::new(ino, Kind::Extent, end - 1);
    let chunk = store.scan(from, to, max_items).await?;
    let geometry = store.geometry();
    let mut extents: Vec<Extent> = Vec::with_capacity(chunk.items.len());
    for (key, value) in chunk.items {
        let extent = Extent::decode(key.offset, &value).map_err(|detail| FsError::Corrupt { ino, detail })?;
        if !geometry.contains(extent.run()) {
            return Err(impossible(ino, "address"));
        }
        if extents.last().is_some_and(|before| before.end() > extent.file_block) {
            return Err(impossible(ino, "overlap"));
        }
        extents.push(extent);
    }
    // Only now, so that the last item seen is the last one of the chunk.
    let skip = extents.partition_point(|extent| extent.end() <= first);
    extents.drain(..skip);
    if extents.is_empty() && !chunk.complete {
        // All of the chunk lay before the range; at most one piece's items do.
        return Box::pin(some(store, ino, first, end, max_items.max(SCAN_ITEMS) * 2)).await;
    }
    Ok(Extents { extents, complete: chunk.complete })
}

/// All extents that overlap the file blocks `first..end`.
pub(crate) async fn all(store: &Store, ino: Ino, first: u64, end: u64) -> Result<Vec<Extent>, FsError> {
    let mut found = some(store, ino, first, end, SCAN_ITEMS).await?;
    while !found.complete {
        let Some(next) = found.extents.last().map(Extent::end) else { break };
        let more = some(store, ino, next, end, SCAN_ITEMS).await?;
        found.extents.extend(more.extents);
        found.complete = more.complete;
    }
    Ok(found.extents)
}

/// All extents that overlap the ranges (in order, disjoint), and perhaps some between them.
pub(crate) async fn overlapping(
    store: &Store,
    ino: Ino,
    ranges: &[Range<u64>],
) -> Result<Vec<Extent>, FsError> {
    let mut found: Vec<Extent> = Vec::new();
    let mut rest = ranges;
    while let Some(first) = rest.first() {
        let close = rest.windows(2).take_while(|pair| pair[1].start - pair[0].end <= SCAN_GAP_BLOCKS).count();
        let end = rest[close].end;
        // An extent may reach into two groups only if they are closer than an extent is long, which they are not.
        found.extend(all(store, ino, first.start, end).await?);
        rest = &rest[close + 1..];
    }
    Ok(found)
}

fn impossible(ino: Ino, field: &'static str) -> FsError {
    FsError::Corrupt { ino, detail: FormatError::Field { structure: "extent", field } }
}
