//! What becomes of a file's extent items when some of its blocks change: pure arithmetic, no I/O.

use super::reflink::Shares;
use std::collections::BTreeMap;
use std::ops::Range;
use syncline_format::items::extent::Extent;
use syncline_format::{BlockRun, Key, Kind, ObjectId};
use syncline_store::Transaction;

/// Changes to a file's extent items.
#[derive(Default, Debug, PartialEq, Eq)]
pub(crate) struct ExtentChanges {
    /// By first file block: the new item, or `None` where an item goes.
    pub items: BTreeMap<u64, Option<Extent>>,
    /// Device blocks that nothing uses any more.
    pub freed: Vec<BlockRun>,
    /// Device blocks that the file no longer uses, and that other extents may lie on.
    pub released: Vec<BlockRun>,
    /// File blocks that were cleared before the new extents came.
    pub cleared: Vec<Range<u64>>,
    /// File blocks that are preallocated from now on.
    pub preallocated: Vec<Range<u64>>,
    /// Blocks in the new extents.
    pub added_blocks: u64,
    /// Blocks in `freed` and `released`.
    pub freed_blocks: u64,
}

impl ExtentChanges {
    /// Puts the changes of `ino` into a transaction. `shares` has the counts of what is released.
    pub(crate) fn put(&self, ino: ObjectId, shares: &mut Shares<'_>, transaction: &mut Transaction) {
        for (&file_block, item) in &self.items {
            let key = Key::new(ino, Kind::Extent, file_block);
            match item {
                Some(extent) => transaction.put(key, extent.encode()),
                None => transaction.delete(key),
            }
        }
        let unused = self.released.iter().flat_map(|run| shares.release(*run));
        self.freed.iter().copied().chain(unused).for_each(|run| transaction.free(run));
    }
}

/// Empties the file blocks in `cleared` (in order, disjoint), then puts the extents `new` there. `old` are the extents that
/// overlap what is cleared; others do no harm.
pub(crate) fn replace(old: &[Extent], cleared: &[Range<u64>], new: Vec<Extent>) -> ExtentChanges {
    let mut changes = ExtentChanges { cleared: cleared.to_vec(), ..ExtentChanges::default() };
    for extent in old {
        clear(extent, cleared, &mut changes);
    }
    for extent in new {
        changes.added_blocks += extent.blocks();
        changes.items.insert(extent.file_block, Some(extent));
    }
    changes.freed_blocks = changes.freed.iter().chain(&changes.released).map(|run| run.blocks).sum();
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
    // Ranges are disjoint and in order, so those that end after the extent starts come first here.
    let first = cleared.partition_point(|range| range.end <= extent.file_block);
    let overlapping = cleared[first..].iter().take_while(|range| range.start < extent.end());
    let mut kept_from = extent.file_block;
    let mut touched = false;
    for range in overlapping {
        if !touched {
            // If something remains or comes at the same place, it replaces this.
            changes.items.entry(extent.file_block).or_insert(None);
            touched = true;
        }
        keep(extent.slice(kept_from, range.start), changes);
        if let Some(gone) = extent.slice(range.start, range.end) {
            let list = if gone.shared { &mut changes.released } else { &mut changes.freed };
            extend(list, gone.run());
            kept_from = gone.end();
        }
    }
    if touched {
        keep(extent.slice(kept_from, extent.end()), changes);
    }
}

fn keep(rest: Option<Extent>, changes: &mut ExtentChanges) {
    if let Some(rest) = rest {
        changes.items.insert(rest.file_block, Some(rest));
    }
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
    use syncline_format::items::extent::EXTENT_BLOCKS_MAX;

    /// Length of the modelled file: four pieces.
    const BLOCKS: u64 = 4 * EXTENT_BLOCKS_MAX;

    type Items = BTreeMap<u64, Extent>;

    /// What each file block holds: (address, checksum).
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
                _ => extents.push(Extent {
                    file_block: block,
                    addr,
                    checksums: vec![addr as u32],
                    shared: false,
                }),
            }
        }
        extents
    }

    proptest! {
        /// Overwrites and punches at random: the items say what an array of blocks says, and each block that is no
        /// longer used is freed exactly once.
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

        /// Several ranges at once come out as one after the other.
        #[test]
        fn many_ranges_equal_one_by_one(blocks in proptest::collection::btree_set(0..BLOCKS, 1..40)) {
            let start: Items = fresh(0, BLOCKS, 1000).into_iter().map(|extent| (extent.file_block, extent)).collect();
            let new: Vec<Extent> = blocks
                .iter()
                .map(|&block| Extent { file_block: block, addr: 9000 + block, checksums: vec![7], shared: false })
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
