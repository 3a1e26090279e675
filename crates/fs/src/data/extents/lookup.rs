//! Looking up a file's extents.

use crate::FsError;
use crate::types::Ino;
use std::ops::Range;
use syncline_format::items::extent::{EXTENT_BLOCKS_MAX, Extent, piece_start};
use syncline_format::{FormatError, Key, Kind};
use syncline_store::Store;

/// Most items taken from the store at once.
const SCAN_ITEMS: usize = 1024;

/// Extents of a part of a file.
pub(crate) struct Extents {
    /// In order. The first and the last may reach out of the requested range.
    pub extents: Vec<Extent>,
    /// True when the range has no more.
    pub complete: bool,
}

/// The item at which a lookup begins.
#[derive(Clone, Copy)]
enum Begin {
    /// The first of the piece, so that an extent that reaches over others is found as damage.
    Piece,
    /// The last one at or before the block: the only one that can cover it in a sound image. Writes
    /// of single blocks, after which a piece has up to 32 items, take this way, and so do
    /// SEEK_DATA and SEEK_HOLE. `check` finds what it can't see.
    Nearest,
}

/// At most `max_items` extents that overlap the file blocks `first..end`.
pub(crate) async fn some(
    store: &Store,
    ino: Ino,
    first: u64,
    end: u64,
    max_items: usize,
) -> Result<Extents, FsError> {
    at_most(store, ino, first..end, Begin::Piece, max_items).await
}

/// As `some`, for a question about few extents that is asked again and again: the scan begins at
/// the block, and not at the beginning of its piece.
pub(crate) async fn few(
    store: &Store,
    ino: Ino,
    first: u64,
    end: u64,
    max_items: usize,
) -> Result<Extents, FsError> {
    at_most(store, ino, first..end, Begin::Nearest, max_items).await
}

async fn at_most(
    store: &Store,
    ino: Ino,
    blocks: Range<u64>,
    begin: Begin,
    max_items: usize,
) -> Result<Extents, FsError> {
    let step = step(store, ino, std::slice::from_ref(&blocks), blocks.start, begin, max_items).await?;
    Ok(Extents { extents: step.extents, complete: step.next.is_none() })
}

/// All extents that overlap the file blocks `first..end`.
pub(crate) async fn all(store: &Store, ino: Ino, first: u64, end: u64) -> Result<Vec<Extent>, FsError> {
    let mut found = Vec::new();
    let range = first..end;
    add_all(store, ino, std::slice::from_ref(&range), Begin::Piece, &mut found).await?;
    Ok(found)
}

/// All extents that overlap the ranges (in order, disjoint), for blocks that are written again.
pub(crate) async fn overlapping(
    store: &Store,
    ino: Ino,
    ranges: &[Range<u64>],
) -> Result<Vec<Extent>, FsError> {
    let mut found = Vec::new();
    // An extent lies in one piece of the file, and so do the items that are scanned to find it.
    for near in ranges.chunk_by(|range, next| piece_start(next.start) < range.end) {
        add_all(store, ino, near, Begin::Nearest, &mut found).await?;
    }
    Ok(found)
}

async fn add_all(
    store: &Store,
    ino: Ino,
    ranges: &[Range<u64>],
    begin: Begin,
    found: &mut Vec<Extent>,
) -> Result<(), FsError> {
    let mut from = ranges.first().map(|range| range.start);
    while let Some(first) = from {
        let step = step(store, ino, ranges, first, begin, SCAN_ITEMS).await?;
        match found.is_empty() {
            true => *found = step.extents,
            false => found.extend(step.extents),
        }
        from = step.next;
    }
    Ok(())
}

/// Extents that one scan found.
struct Step {
    extents: Vec<Extent>,
    /// The block from which on there may be more.
    next: Option<u64>,
}

/// The extents that overlap the ranges from block `from` on, among the first `max_items` items that
/// the scan finds. Only these extents are decoded.
async fn step(
    store: &Store,
    ino: Ino,
    ranges: &[Range<u64>],
    from: u64,
    begin: Begin,
    mut max_items: usize,
) -> Result<Step, FsError> {
    let mut found = Step { extents: Vec::new(), next: None };
    let end = ranges.last().map_or(0, |range| range.end);
    if from >= end {
        return Ok(found);
    }
    let (first, last) = (piece_start(from), end - 1);
    let at = match begin {
        Begin::Piece => first,
        Begin::Nearest => from,
    };
    let chunk = loop {
        let key = |block| Key::new(ino, Kind::Extent, block);
        let chunk = store.scan_near(key(first), key(at), key(last), max_items).await?;
        found.next = chunk.items.last().filter(|_| !chunk.complete).map(|(key, value)| end_of(*key, value));
        if found.next.is_none_or(|next| next > from) {
            break chunk;
        }
        // The whole chunk lay before the range, as at most one piece's items can.
        max_items = max_items.max(SCAN_ITEMS) * 2;
    };
    let (mut rest, mut before) = (ranges, first);
    for (key, value) in &chunk.items {
        let reaches = end_of(*key, value);
        if before > key.offset {
            return Err(impossible(ino, "overlap"));
        }
        before = reaches;
        while rest.first().is_some_and(|range| range.end <= key.offset) {
            rest = &rest[1..];
        }
        if rest.first().is_none_or(|range| reaches <= range.start.max(from)) {
            continue;
        }
        let extent = Extent::decode(key.offset, value).map_err(|detail| FsError::Corrupt { ino, detail })?;
        if !store.geometry().contains(extent.run()) {
            return Err(impossible(ino, "address"));
        }
        found.extents.push(extent);
    }
    Ok(found)
}

/// The end of an item's extent. If its length is wrong, it may have the rest of its piece, so that
/// a lookup there decodes it and finds the error.
fn end_of(key: Key, value: &[u8]) -> u64 {
    let piece_end = piece_start(key.offset).saturating_add(EXTENT_BLOCKS_MAX);
    Extent::end_of(key.offset, value).unwrap_or(piece_end)
}

fn impossible(ino: Ino, field: &'static str) -> FsError {
    FsError::Corrupt { ino, detail: FormatError::Field { structure: "extent", field } }
}
