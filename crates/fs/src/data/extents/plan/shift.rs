//! Works out what becomes of a file's extent items when its blocks move within it.

use crate::data::extents::plan::{ExtentChanges, part};
use std::collections::BTreeMap;
use std::ops::Range;
use syncline_format::items::extent::{EXTENT_BLOCKS_MAX, Extent, piece_start};

/// Removes the blocks `removed` from a file, and moves the blocks behind them so that they begin at
/// `to`: where `removed` begins or, if that is empty, further up. `old` are the extents from the
/// beginning of `removed` on.
pub(crate) fn shift(old: &[Extent], removed: &Range<u64>, to: u64) -> ExtentChanges {
    let mut changes = ExtentChanges::default();
    for extent in old {
        let mut kept: Vec<Extent> = extent.slice(0, removed.start).into_iter().collect();
        if let Some(moved) = extent.slice(removed.end, u64::MAX) {
            let file_block = moved.file_block - removed.end + to;
            kept.extend(pieces(&Extent { file_block, ..moved }));
        }
        part(extent, kept, extent.slice(removed.start, removed.end).into_iter().collect(), &mut changes);
    }
    join(old, &mut changes.items);
    changes
}

/// Joins two items into one where the second continues the first, in the file and on the device.
/// Otherwise each shift would leave more items.
fn join(old: &[Extent], items: &mut BTreeMap<u64, Option<Extent>>) {
    let mut last: Option<Extent> = None;
    for (file_block, item) in std::mem::take(items) {
        let Some(extent) = item else {
            items.insert(file_block, None);
            continue;
        };
        match &mut last {
            Some(last) if continues(last, &extent) => {
                last.checksums.extend(extent.checksums);
                // Only an item that existed is deleted.
                if old.binary_search_by_key(&file_block, |old| old.file_block).is_ok() {
                    items.insert(file_block, None);
                }
                items.insert(last.file_block, Some(last.clone()));
            }
            _ => {
                items.insert(file_block, Some(extent.clone()));
                last = Some(extent);
            }
        }
    }
}

fn continues(before: &Extent, extent: &Extent) -> bool {
    let plain = before.packed.is_none() && extent.packed.is_none() && before.shared == extent.shared;
    let next = before.end() == extent.file_block && before.run().end() == extent.addr;
    plain && next && piece_start(before.file_block) == piece_start(extent.file_block)
}

/// The items for an extent that may reach over the end of a piece.
pub(crate) fn pieces(extent: &Extent) -> Vec<Extent> {
    let mut pieces = Vec::new();
    let mut at = extent.file_block;
    while at < extent.end() {
        let end = extent.end().min(piece_start(at) + EXTENT_BLOCKS_MAX);
        pieces.extend(extent.slice(at, end));
        at = end;
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::extents::plan::replace;
    use proptest::prelude::*;
    use syncline_format::BlockRun;
    use syncline_format::items::extent::{Algorithm, Packed};

    /// Largest length of the modelled file: eight pieces.
    const BLOCKS: u64 = 8 * EXTENT_BLOCKS_MAX;

    /// By file block: where its extent's data begins, and which block of that data it is.
    type Blocks = Vec<Option<(u64, u64)>>;

    fn contents(items: &BTreeMap<u64, Extent>) -> Blocks {
        let mut blocks = vec![None; 2 * BLOCKS as usize];
        for (&key, extent) in items {
            let valid = Extent::decode(key, &extent.encode()).expect("every item is valid");
            assert_eq!(&valid, extent);
            for index in 0..extent.blocks() {
                let place = &mut blocks[(extent.file_block + index) as usize];
                assert_eq!(*place, None, "extents overlap");
                *place = Some(match extent.packed {
                    Some(packed) => (extent.addr, packed.skip + index),
                    None => (extent.addr + index, 0),
                });
            }
        }
        blocks
    }

    fn apply(items: &mut BTreeMap<u64, Extent>, changes: &ExtentChanges) {
        for (&block, item) in &changes.items {
            match item {
                Some(extent) => drop(items.insert(block, extent.clone())),
                // A deletion of no item would be logged in vain.
                None => assert!(items.remove(&block).is_some(), "block {block} had no item"),
            }
        }
    }

    fn references(items: &BTreeMap<u64, Extent>) -> BTreeMap<u64, u64> {
        let mut references = BTreeMap::new();
        for extent in items.values().filter(|extent| extent.packed.is_some()) {
            *references.entry(extent.addr).or_insert(0) += 1;
        }
        references
    }

    fn extents(first: u64, end: u64, addr: u64, packs: bool) -> Vec<Extent> {
        let whole = |at: u64, end: u64| {
            let blocks = end - at;
            if !packs || blocks == 1 {
                return Extent::plain(at, addr + at, vec![7; blocks as usize]);
            }
            let packed =
                Packed { algorithm: Algorithm::Lz4, bytes: 4096, unit_blocks: blocks, skip: 0, blocks };
            Extent { packed: Some(packed), ..Extent::plain(at, addr + 5000 + 2 * at, vec![7]) }
        };
        let mut extents = Vec::new();
        let mut at = first;
        while at < end {
            let piece_end = end.min(piece_start(at) + EXTENT_BLOCKS_MAX);
            extents.push(whole(at, piece_end));
            at = piece_end;
        }
        extents
    }

    proptest! {
        /// Ranges removed and inserted, between overwrites: the items agree with an array of
        /// blocks, blocks that are removed are freed once and no others are, and each part of a
        /// compressed unit is counted.
        #[test]
        fn items_follow_an_array_of_blocks(
            steps in proptest::collection::vec((0..BLOCKS, 1..80u64, 0..5u8), 1..40)
        ) {
            let mut items = BTreeMap::new();
            let (mut model, mut next_addr): (Blocks, u64) = (vec![None; 2 * BLOCKS as usize], 10_000);
            for (first, blocks, what) in steps {
                let end = (first + blocks).min(BLOCKS);
                let old: Vec<Extent> = items.values().cloned().collect();
                let from = old.partition_point(|extent| extent.end() <= first);
                let before = references(&items);
                let shifts = what < 3;
                let changes = match what {
                    0 | 1 => {
                        let gone = model.drain(first as usize..end as usize).collect::<Vec<_>>();
                        model.resize(2 * BLOCKS as usize, None);
                        let changes = shift(&old[from..], &(first..end), first);
                        let plain = |run: &&BlockRun| !before.contains_key(&run.start);
                        let freed: u64 = changes.freed.iter().filter(plain).map(|run| run.blocks).sum();
                        let expected = gone.iter().flatten().filter(|(base, _)| !before.contains_key(base)).count();
                        prop_assert_eq!(freed, expected as u64);
                        changes
                    }
                    2 if model[BLOCKS as usize - 40..].iter().all(Option::is_none) => {
                        let blocks = blocks.min(40);
                        model.splice(first as usize..first as usize, vec![None; blocks as usize]);
                        model.truncate(2 * BLOCKS as usize);
                        let changes = shift(&old[from..], &(first..first), first + blocks);
                        prop_assert!(changes.freed.is_empty() && changes.released.is_empty());
                        changes
                    }
                    _ => {
                        let new = extents(first, end, next_addr, what == 3);
                        let overwritten: BTreeMap<u64, Extent> =
                            new.iter().map(|extent| (extent.file_block, extent.clone())).collect();
                        let fresh = contents(&overwritten);
                        model[first as usize..end as usize]
                            .copy_from_slice(&fresh[first as usize..end as usize]);
                        next_addr += 10_000;
                        replace(&old, std::slice::from_ref(&(first..end)), new)
                    }
                };
                let charged = |items: &BTreeMap<u64, Extent>| -> u64 { items.values().map(Extent::charged_blocks).sum() };
                let charged_before = charged(&items);
                apply(&mut items, &changes);
                prop_assert_eq!(&contents(&items), &model);
                prop_assert_eq!(charged(&items) + changes.freed_blocks, charged_before + changes.added_blocks);
                if shifts {
                    let after = references(&items);
                    for (base, mut count) in before {
                        let of_unit = |run: &&BlockRun| run.start == base;
                        count += changes.divided.iter().filter(|(run, _)| of_unit(&run)).map(|(_, more)| more).sum::<u64>();
                        let gone = changes.released.iter().chain(&changes.freed).filter(of_unit).count() as u64;
                        prop_assert_eq!(count - gone, after.get(&base).copied().unwrap_or(0), "of unit {}", base);
                    }
                }
            }
        }
    }

    #[test]
    fn neighbours_become_one_item() {
        let mut items: BTreeMap<u64, Extent> =
            extents(0, 64, 1000, false).into_iter().map(|extent| (extent.file_block, extent)).collect();
        for by in [1, 5, 13] {
            let old: Vec<Extent> = items.values().cloned().collect();
            apply(&mut items, &shift(&old, &(0..0), by));
        }
        assert_eq!(items.len(), 3, "two pieces, that lie across three");
        let old: Vec<Extent> = items.values().cloned().collect();
        apply(&mut items, &shift(&old, &(0..19), 0));
        assert_eq!(items.len(), 2);
    }
}
