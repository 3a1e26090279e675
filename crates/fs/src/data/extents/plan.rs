//! Works out what becomes of a file's extent items when some of its blocks change: pure arithmetic,
//! no I/O.

mod shift;

pub(crate) use shift::{pieces, shift};
use std::collections::BTreeMap;
use std::ops::Range;
use syncline_format::items::extent::Extent;
use syncline_format::{BlockRun, Key, Kind, ObjectId};
use syncline_store::Transaction;

/// Changes to a file's extent items.
#[derive(Default, Debug, PartialEq, Eq)]
pub(crate) struct ExtentChanges {
    /// By first file block: the new item, or `None` to delete an item.
    pub items: BTreeMap<u64, Option<Extent>>,
    /// Device blocks that nothing uses any more.
    pub freed: Vec<BlockRun>,
    /// Device blocks that the file no longer uses, and on which other extents may lie.
    pub released: Vec<BlockRun>,
    /// Device blocks of compressed units of which more parts remain than there were, and how many
    /// more.
    pub divided: Vec<(BlockRun, u64)>,
    /// File blocks that are cleared before the new extents are put.
    pub cleared: Vec<Range<u64>>,
    /// File blocks that are preallocated from now on.
    pub preallocated: Vec<Range<u64>>,
    /// Blocks that are added to the inode's count.
    pub added_blocks: u64,
    /// Blocks that are subtracted from the inode's count.
    pub freed_blocks: u64,
}

impl ExtentChanges {
    /// Puts the changes of `ino` into a transaction, apart from shared blocks.
    pub(crate) fn put(&self, ino: ObjectId, transaction: &mut Transaction) {
        for (&file_block, item) in &self.items {
            let key = Key::new(ino, Kind::Extent, file_block);
            match item {
                Some(extent) => transaction.put(key, extent.encode()),
                None => transaction.delete(key),
            }
        }
        self.freed.iter().for_each(|run| transaction.free(*run));
    }

    /// Blocks that the file no longer uses.
    pub(crate) fn blocks_released(&self) -> u64 {
        self.freed.iter().chain(&self.released).map(|run| run.blocks).sum()
    }
}

/// Empties the file blocks in `cleared` (in order, disjoint), then puts the extents `new` there.
/// `old` has all extents that overlap the cleared blocks; others in it do no harm.
pub(crate) fn replace(old: &[Extent], cleared: &[Range<u64>], new: Vec<Extent>) -> ExtentChanges {
    let mut changes = ExtentChanges { cleared: cleared.to_vec(), ..ExtentChanges::default() };
    for extent in old {
        clear(extent, cleared, &mut changes);
    }
    for extent in new {
        changes.added_blocks += extent.charged_blocks();
        changes.items.insert(extent.file_block, Some(extent));
    }
    changes
}

/// The ranges that `extents` (in order) cover, neighbours joined.
pub(crate) fn ranges(extents: &[Extent]) -> Vec<Range<u64>> {
    let mut ranges: Vec<Range<u64>> = Vec::new();
    for extent in extents {
        match ranges.last_mut() {
            Some(last) if last.end == extent.file_block => last.end = extent.end(),
            _ => ranges.push(extent.file_block..extent.end()),
        }
    }
    ranges
}

fn clear(extent: &Extent, cleared: &[Range<u64>], changes: &mut ExtentChanges) {
    // Ranges are disjoint and in order: the first that can overlap is the first that ends after the
    // extent starts.
    let first = cleared.partition_point(|range| range.end <= extent.file_block);
    let overlapping = cleared[first..].iter().take_while(|range| range.start < extent.end());
    let mut kept_from = extent.file_block;
    let (mut kept, mut gone) = (Vec::new(), Vec::new());
    for range in overlapping {
        kept.extend(extent.slice(kept_from, range.start));
        if let Some(part) = extent.slice(range.start, range.end) {
            kept_from = part.end();
            gone.push(part);
        }
    }
    if gone.is_empty() {
        return;
    }
    kept.extend(extent.slice(kept_from, extent.end()));
    part(extent, kept, gone, changes);
}

/// Replaces an extent by its parts in `kept`, perhaps elsewhere in the file; the parts in `gone`
/// are given up.
fn part(extent: &Extent, mut kept: Vec<Extent>, gone: Vec<Extent>, changes: &mut ExtentChanges) {
    let list = if extent.shared { &mut changes.released } else { &mut changes.freed };
    if extent.packed.is_none() {
        gone.iter().for_each(|part| extend(list, part.run()));
    } else if kept.is_empty() {
        extend(list, extent.run());
    } else if kept.len() > 1 {
        // Each part that remains needs all of the unit.
        changes.divided.push((extent.run(), kept.len() as u64 - 1));
        kept.iter_mut().for_each(|part| part.shared = true);
    }
    // The parts of a compressed extent may be charged for more blocks than it was.
    let (before, after) = (extent.charged_blocks(), kept.iter().map(Extent::charged_blocks).sum::<u64>());
    changes.freed_blocks += before.saturating_sub(after);
    changes.added_blocks += after.saturating_sub(before);
    // A part that remains, or an extent that is put, at the same place replaces this removal.
    changes.items.entry(extent.file_block).or_insert(None);
    kept.into_iter().for_each(|part| drop(changes.items.insert(part.file_block, Some(part))));
}

fn extend(runs: &mut Vec<BlockRun>, run: BlockRun) {
    match runs.last_mut() {
        Some(last) if last.end() == run.start => last.blocks += run.blocks,
        _ => runs.push(run),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use syncline_format::items::extent::{Algorithm, EXTENT_BLOCKS_MAX, Packed};

    /// Length of the modelled file: four pieces.
    const BLOCKS: u64 = 4 * EXTENT_BLOCKS_MAX;

    type Items = BTreeMap<u64, Extent>;

    /// The address and checksum of each file block.
    fn contents(items: &Items) -> Vec<Option<(u64, u32)>> {
        let mut blocks = vec![None; BLOCKS as usize];
        for (&key, extent) in items {
            assert_eq!(key, extent.file_block);
            Extent::decode(key, &extent.encode()).expect("every item is valid");
            for (index, &crc) in extent.checksums.iter().enumerate() {
                let place = &mut blocks[extent.file_block as usize + index];
                assert_eq!(*place, None, "extents overlap");
                *place = Some((extent.addr + index as u64, crc));
            }
        }
        blocks
    }

    fn apply(items: &mut Items, changes: &ExtentChanges) {
        for (&block, item) in &changes.items {
            match item {
                Some(extent) => drop(items.insert(block, extent.clone())),
                None => drop(items.remove(&block)),
            }
        }
    }

    /// Extents for `blocks` consecutive file blocks at fresh addresses.
    fn fresh(first: u64, blocks: u64, addr: u64) -> Vec<Extent> {
        let mut extents: Vec<Extent> = Vec::new();
        for index in 0..blocks {
            let (block, addr) = (first + index, addr + index);
            match extents.last_mut() {
                Some(last) if block % EXTENT_BLOCKS_MAX != 0 => last.checksums.push(addr as u32),
                _ => extents.push(Extent::plain(block, addr, vec![addr as u32])),
            }
        }
        extents
    }

    proptest! {
        /// Overwrites and punches at random: the items agree with an array of blocks, and each
        /// block that is no longer used is freed exactly once.
        #[test]
        fn items_follow_an_array_of_blocks(
            steps in proptest::collection::vec((0..BLOCKS, 1..80u64, any::<bool>()), 1..60)
        ) {
            let mut items = Items::new();
            let mut model = vec![None; BLOCKS as usize];
            let mut next_addr = 1000;
            for (first, blocks, punch) in steps {
                let end = (first + blocks).min(BLOCKS);
                let new = if punch { Vec::new() } else { fresh(first, end - first, next_addr) };
                let old: Vec<Extent> = items.values().cloned().collect();
                let changes = replace(&old, std::slice::from_ref(&(first..end)), new);
                let mut expected_freed: Vec<u64> =
                    model[first as usize..end as usize].iter().flatten().map(|&(addr, _)| addr).collect();
                for block in first..end {
                    let addr = next_addr + block - first;
                    model[block as usize] = (!punch).then_some((addr, addr as u32));
                }
                next_addr += 1000;
                apply(&mut items, &changes);
                prop_assert_eq!(&contents(&items), &model);
                let mut freed: Vec<u64> =
                    changes.freed.iter().flat_map(|run| run.start..run.end()).collect();
                freed.sort_unstable();
                expected_freed.sort_unstable();
                prop_assert_eq!(freed, expected_freed);
                prop_assert_eq!(changes.added_blocks, if punch { 0 } else { end - first });
            }
        }

        /// Clearing several ranges at once gives the same result as one after the other.
        #[test]
        fn many_ranges_equal_one_by_one(blocks in proptest::collection::btree_set(0..BLOCKS, 1..40)) {
            let start: Items = fresh(0, BLOCKS, 1000).into_iter().map(|extent| (extent.file_block, extent)).collect();
            let new: Vec<Extent> = blocks
                .iter()
                .map(|&block| Extent::plain(block, 9000 + block, vec![7]))
                .collect();
            let old: Vec<Extent> = start.values().cloned().collect();
            let at_once = replace(&old, &ranges(&new), new.clone());
            prop_assert_eq!(at_once.freed_blocks, blocks.len() as u64);
            let mut together = start.clone();
            apply(&mut together, &at_once);
            let mut stepwise = start;
            for extent in new {
                let old: Vec<Extent> = stepwise.values().cloned().collect();
                let range = extent.file_block..extent.end();
                apply(&mut stepwise, &replace(&old, &[range], vec![extent]));
            }
            prop_assert_eq!(contents(&together), contents(&stepwise));
        }
    }

    /// A compressed unit of `blocks` file blocks in a quarter as many device blocks.
    fn unit(first: u64, blocks: u64, addr: u64) -> Extent {
        let stored = blocks.div_ceil(4);
        let bytes = (stored * 4096) as u32;
        let packed = Packed { algorithm: Algorithm::Lz4, bytes, unit_blocks: blocks, skip: 0, blocks };
        let checksums = (0..stored).map(|block| block as u32).collect();
        Extent { packed: Some(packed), ..Extent::plain(first, addr, checksums) }
    }

    proptest! {
        /// Overwrites and punches of compressed units: each part reads the right blocks of its
        /// unit, a unit's count is the number of its parts, its blocks are freed exactly when no
        /// part is left, and the inode's count is exact.
        #[test]
        fn parts_of_units_are_counted(
            steps in proptest::collection::vec((0..BLOCKS, 1..80u64, 0..3u8), 1..60)
        ) {
            let mut items = Items::new();
            // By file block: its unit, and which block of the unit it is; plain blocks are units of
            // one.
            let mut model: Vec<Option<(u64, u64)>> = vec![None; BLOCKS as usize];
            let mut counts: BTreeMap<u64, u64> = BTreeMap::new();
            let (mut next_addr, mut charged) = (1000, 0);
            for (first, blocks, what) in steps {
                let end = (first + blocks).min(BLOCKS);
                let mut new = Vec::new();
                let mut at = first;
                while what > 0 && at < end {
                    let piece_end = end.min(at - at % EXTENT_BLOCKS_MAX + EXTENT_BLOCKS_MAX);
                    let packs = what == 1 && piece_end - at > 1;
                    let addr = next_addr + at;
                    new.push(if packs { unit(at, piece_end - at, addr) } else {
                        Extent::plain(at, addr, vec![0; (piece_end - at) as usize])
                    });
                    at = piece_end;
                }
                let old: Vec<Extent> = items.values().cloned().collect();
                let changes = replace(&old, std::slice::from_ref(&(first..end)), new.clone());
                model[first as usize..end as usize].fill(None);
                for extent in &new {
                    for index in 0..extent.blocks() {
                        let (base, within) = match extent.packed {
                            Some(_) => (extent.addr, index),
                            None => (extent.addr + index, 0),
                        };
                        model[(extent.file_block + index) as usize] = Some((base, within));
                    }
                    if extent.packed.is_some() {
                        counts.insert(extent.addr, 1);
                    }
                }
                next_addr += 1000;
                for &(run, more) in &changes.divided {
                    *counts.get_mut(&run.start).expect("only units are divided") += more;
                }
                for run in &changes.released {
                    let count = counts.get_mut(&run.start).expect("only units were ever shared");
                    *count -= 1;
                }
                let freed: Vec<u64> = changes.freed.iter().flat_map(|run| run.start..run.end()).collect();
                apply(&mut items, &changes);
                charged = charged + changes.added_blocks - changes.freed_blocks;
                let mut parts: BTreeMap<u64, u64> = BTreeMap::new();
                for (&key, extent) in &items {
                    prop_assert_eq!(&Extent::decode(key, &extent.encode()).unwrap(), extent);
                    for index in 0..extent.blocks() {
                        let found = match extent.packed {
                            Some(packed) => (extent.addr, packed.skip + index),
                            None => (extent.addr + index, 0),
                        };
                        prop_assert_eq!(model[(key + index) as usize], Some(found));
                        prop_assert!(!freed.contains(&found.0), "a block in use is freed");
                    }
                    if extent.packed.is_some() {
                        *parts.entry(extent.addr).or_default() += 1;
                    }
                }
                prop_assert_eq!(items.values().map(Extent::blocks).sum::<u64>(), model.iter().flatten().count() as u64);
                // Units of which no part is left were freed: by themselves, or with the last count.
                counts.retain(|addr, count| *count > 0 && !freed.contains(addr));
                prop_assert_eq!(parts, counts.clone());
                prop_assert_eq!(charged, items.values().map(Extent::charged_blocks).sum::<u64>());
            }
        }
    }

    #[test]
    fn a_unit_cut_at_its_end_has_one_part_and_no_count() {
        let changes = replace(&[unit(0, 32, 100)], std::slice::from_ref(&(20..32)), Vec::new());
        assert_eq!((changes.divided.len(), changes.freed.len(), changes.released.len()), (0, 0, 0));
        assert_eq!((changes.added_blocks, changes.freed_blocks), (0, 0));
        let rest = changes.items[&0].as_ref().unwrap();
        assert!(!rest.shared && rest.blocks() == 20 && rest.run() == BlockRun::new(100, 8));
    }

    #[test]
    fn extents_outside_are_left_alone() {
        let old = fresh(0, 64, 100);
        let changes = replace(&old, std::slice::from_ref(&(70..80)), Vec::new());
        let cleared = std::iter::once(70..80).collect();
        assert_eq!(changes, ExtentChanges { cleared, ..ExtentChanges::default() });
    }

    #[test]
    fn an_overwrite_of_a_whole_item_is_one_put() {
        let old = fresh(32, 32, 100);
        let changes = replace(&old, std::slice::from_ref(&(32..64)), fresh(32, 32, 500));
        assert_eq!(changes.items.len(), 1);
        assert_eq!(changes.freed, [BlockRun::new(100, 32)]);
    }
}
