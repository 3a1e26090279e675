//! The blocks of the device that a stream has sent already, and the file whose contents they were:
//! other contents on the same blocks are sent as a clone.

use std::collections::BTreeMap;
use syncline_format::items::extent::{EXTENT_BLOCKS_MAX, Extent};
use syncline_fs::types::Ino;

/// Contents of a file that the receiver has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Span {
    blocks: u64,
    ino: Ino,
    file_block: u64,
}

/// A part of an extent: file blocks that are new to the receiver, or whose blocks it has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Part {
    pub first: u64,
    pub end: u64,
    /// The file and the block in it that has the same.
    pub same: Option<(Ino, u64)>,
}

/// The shared blocks sent so far. An uncompressed block stands for itself. A block of a compressed
/// unit is known by the unit's first block and its place in the unit.
#[derive(Default)]
pub(super) struct Places {
    plain: BTreeMap<u64, Span>,
    packed: BTreeMap<u64, Span>,
}

/// Where the blocks of an extent are in one of the maps.
fn key_of(extent: &Extent) -> u64 {
    match extent.packed {
        None => extent.addr,
        Some(packed) => extent.addr.saturating_mul(EXTENT_BLOCKS_MAX) + packed.skip,
    }
}

impl Places {
    /// Divides an extent of a file into parts that the receiver has and parts that it gets now.
    pub(super) fn take(&mut self, ino: Ino, extent: &Extent) -> Vec<Part> {
        if !extent.shared {
            return vec![Part { first: extent.file_block, end: extent.end(), same: None }];
        }
        let is_packed = extent.packed.is_some();
        let map = if is_packed { &mut self.packed } else { &mut self.plain };
        let begin = key_of(extent);
        let (mut at, end) = (begin, begin + extent.blocks());
        let mut parts = Vec::new();
        while at < end {
            let known = map.range(..=at).next_back().filter(|(start, span)| *start + span.blocks > at);
            let (until, same) = match known {
                Some((start, span)) => {
                    ((start + span.blocks).min(end), Some((span.ino, span.file_block + (at - start))))
                }
                None => (map.range(at..end).next().map_or(end, |(start, _)| *start), None),
            };
            let (first, last) = (extent.file_block + (at - begin), extent.file_block + (until - begin));
            parts.push(Part { first, end: last, same });
            at = until;
        }
        for part in parts.iter().filter(|part| part.same.is_none()) {
            let span = Span { blocks: part.end - part.first, ino, file_block: part.first };
            insert(map, begin + (part.first - extent.file_block), span, !is_packed);
        }
        parts
    }

    /// Notes that the receiver has these contents of a file already.
    pub(super) fn note(&mut self, ino: Ino, extent: &Extent) {
        self.take(ino, extent);
    }
}

/// Adds a span, joined to the one before if it continues that: files are long runs.
fn insert(map: &mut BTreeMap<u64, Span>, at: u64, span: Span, may_join: bool) {
    let before = map.range_mut(..at).next_back().filter(|(start, before)| {
        may_join
            && **start + before.blocks == at
            && before.ino == span.ino
            && before.file_block + before.blocks == span.file_block
    });
    match before {
        Some((_, before)) => before.blocks += span.blocks,
        None => {
            map.insert(at, span);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shared(file_block: u64, addr: u64, blocks: usize) -> Extent {
        Extent { shared: true, ..Extent::plain(file_block, addr, vec![0; blocks]) }
    }

    #[test]
    fn what_lies_on_the_same_blocks_is_the_same() {
        let mut places = Places::default();
        let new = |first, end| Part { first, end, same: None };
        assert_eq!(places.take(2, &shared(0, 100, 8)), [new(0, 8)]);
        assert_eq!(places.take(2, &shared(8, 108, 8)), [new(8, 16)]);
        let same = |first, end, ino, block| Part { first, end, same: Some((ino, block)) };
        assert_eq!(places.take(3, &shared(0, 104, 8)), [same(0, 8, 2, 4)], "spans are joined");
        let parts = places.take(4, &shared(32, 96, 24));
        assert_eq!(parts, [new(32, 36), same(36, 52, 2, 0), new(52, 56)]);
        assert_eq!(places.take(5, &Extent::plain(0, 100, vec![0; 4])), [new(0, 4)], "it is not shared");
    }
}
