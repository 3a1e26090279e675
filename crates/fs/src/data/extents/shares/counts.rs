//! Reference counts of blocks on which several extents lie, as far as one transaction changes them:
//! pure arithmetic, no I/O.

use std::collections::BTreeMap;
use syncline_format::BlockRun;
use syncline_format::items::shared::{COUNT_MIN, SHARED_BLOCKS_MAX, SharedRun, piece_start};

/// By first block: the number of blocks, and of references to each of them.
type Map = BTreeMap<u64, (u64, u32)>;

/// Counts that were looked up, and their changes. A block that is not here has one reference.
#[derive(Default)]
pub(crate) struct Counts {
    before: Map,
    now: Map,
}

/// The reference count of a block is at its maximum.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TooMany;

impl Counts {
    /// Takes the counts in these items: all items that overlap the runs to be changed.
    pub(crate) fn new(items: impl IntoIterator<Item = SharedRun>) -> Self {
        let before: Map =
            items.into_iter().map(|item| (item.run.start, (item.run.blocks, item.count))).collect();
        Self { now: before.clone(), before }
    }

    /// Adds a reference to each block of a run on which an extent lies.
    pub(crate) fn add(&mut self, run: BlockRun) -> Result<(), TooMany> {
        let segments = self.segments(run);
        if segments.iter().any(|&(_, count)| count == u32::MAX) {
            return Err(TooMany);
        }
        for (segment, count) in segments {
            self.now.insert(segment.start, (segment.blocks, count + 1));
        }
        Ok(())
    }

    /// Removes a reference from each block of a run on which an extent lies. Returns the blocks
    /// that have none left.
    pub(crate) fn release(&mut self, run: BlockRun) -> Vec<BlockRun> {
        let mut unused: Vec<BlockRun> = Vec::new();
        for (segment, count) in self.segments(run) {
            if count > COUNT_MIN {
                self.now.insert(segment.start, (segment.blocks, count - 1));
                continue;
            }
            self.now.remove(&segment.start);
            if count == COUNT_MIN {
                continue;
            }
            match unused.last_mut() {
                Some(last) if last.end() == segment.start => last.blocks += segment.blocks,
                _ => unused.push(segment),
            }
        }
        unused
    }

    /// Undoes all changes.
    pub(crate) fn forget_changes(&mut self) {
        self.now.clone_from(&self.before);
    }

    /// The changes to the items: the new item, or `None` to delete one.
    pub(crate) fn changes(&self) -> BTreeMap<u64, Option<SharedRun>> {
        let after = joined(&self.now);
        let gone = self.before.keys().filter(|start| !after.contains_key(start)).map(|&start| (start, None));
        let new = after.iter().filter(|&(start, value)| self.before.get(start) != Some(value));
        let new = new.map(|(&start, &(blocks, count))| {
            (start, Some(SharedRun { run: BlockRun::new(start, blocks), count }))
        });
        gone.chain(new).collect()
    }

    /// Cuts the map at both ends of a run, and returns the pieces of the run with their counts.
    fn segments(&mut self, run: BlockRun) -> Vec<(BlockRun, u32)> {
        self.cut(run.start);
        self.cut(run.end());
        let mut segments = Vec::new();
        let mut at = run.start;
        for (&start, &(blocks, count)) in self.now.range(run.start..run.end()) {
            if at < start {
                segments.push((BlockRun::new(at, start - at), 1));
            }
            segments.push((BlockRun::new(start, blocks), count));
            at = start + blocks;
        }
        if at < run.end() {
            segments.push((BlockRun::new(at, run.end() - at), 1));
        }
        segments
    }

    /// Makes an entry begin at `block` if one covers it.
    fn cut(&mut self, block: u64) {
        if let Some((&start, entry)) = self.now.range_mut(..block).next_back() {
            let (blocks, count) = *entry;
            if start + blocks > block {
                entry.0 = block - start;
                self.now.insert(block, (start + blocks - block, count));
            }
        }
    }
}

/// The entries as items: neighbours with the same count are joined, and no item crosses the end of
/// a piece of the device.
fn joined(map: &Map) -> Map {
    let mut items = Map::new();
    for (&start, &(blocks, count)) in map {
        let mut at = start;
        while at < start + blocks {
            let end = (start + blocks).min(piece_start(at) + SHARED_BLOCKS_MAX);
            let neighbour = items.last_entry().filter(|last| {
                let (last_blocks, last_count) = *last.get();
                last.key() + last_blocks == at && last_count == count && !at.is_multiple_of(SHARED_BLOCKS_MAX)
            });
            match neighbour {
                Some(mut last) => last.get_mut().0 += end - at,
                None => drop(items.insert(at, (end - at, count))),
            }
            at = end;
        }
    }
    items
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BLOCKS: u64 = 3 * SHARED_BLOCKS_MAX;

    fn apply(items: &mut BTreeMap<u64, SharedRun>, changes: BTreeMap<u64, Option<SharedRun>>) {
        for (start, item) in changes {
            match item {
                Some(item) => {
                    assert_eq!(
                        SharedRun::decode(start, &item.encode()).unwrap(),
                        item,
                        "every item is valid"
                    );
                    items.insert(start, item);
                }
                None => assert!(items.remove(&start).is_some(), "only what is there is deleted"),
            }
        }
    }

    proptest! {
        /// References added and removed at random, several in a transaction: the items agree with
        /// an array, and blocks are given up exactly when nothing refers to them any more.
        #[test]
        fn items_follow_an_array_of_counts(
            steps in proptest::collection::vec(
                proptest::collection::vec((0..BLOCKS, 1..700u64, any::<bool>()), 1..4), 1..40)
        ) {
            let mut items: BTreeMap<u64, SharedRun> = BTreeMap::new();
            let mut model = vec![1u32; BLOCKS as usize];
            for transaction in steps {
                let mut counts = Counts::new(items.values().copied());
                for (start, blocks, more) in transaction {
                    let end = (start + blocks).min(BLOCKS);
                    // No extent refers to a block without references.
                    if model[start as usize..end as usize].contains(&0) {
                        continue;
                    }
                    let run = BlockRun::new(start, end - start);
                    let mut unused: Vec<u64> = Vec::new();
                    if more {
                        counts.add(run).unwrap();
                    } else {
                        unused = counts.release(run).iter().flat_map(|run| run.start..run.end()).collect();
                    }
                    let mut expected = Vec::new();
                    for block in start..end {
                        let count = &mut model[block as usize];
                        *count = if more { *count + 1 } else { *count - 1 };
                        if *count == 0 {
                            expected.push(block);
                        }
                    }
                    prop_assert_eq!(unused, expected);
                }
                apply(&mut items, counts.changes());
                let mut found = vec![1u32; BLOCKS as usize];
                let mut end = 0;
                for item in items.values() {
                    prop_assert!(item.run.start >= end, "items overlap");
                    end = item.run.end();
                    found[item.run.start as usize..item.run.end() as usize].fill(item.count);
                }
                // No item means one reference or none; the extents tell which.
                let shown: Vec<u32> = model.iter().map(|&count| count.max(1)).collect();
                prop_assert_eq!(found, shown);
            }
        }
    }

    #[test]
    fn a_full_count_refuses_before_anything_changes() {
        let full = SharedRun { run: BlockRun::new(10, 2), count: u32::MAX };
        let mut counts = Counts::new([full]);
        assert_eq!(counts.add(BlockRun::new(8, 3)), Err(TooMany));
        assert!(counts.changes().is_empty());
    }

    #[test]
    fn what_comes_back_to_one_reference_leaves_no_item() {
        let mut counts = Counts::new([]);
        counts.add(BlockRun::new(1000, 100)).unwrap();
        let items: Vec<SharedRun> = counts.changes().into_values().flatten().collect();
        assert_eq!(items.len(), 2, "cut where a piece of the device ends");
        let mut counts = Counts::new(items);
        assert_eq!(counts.release(BlockRun::new(1000, 100)), []);
        assert!(counts.changes().values().all(Option::is_none));
        assert_eq!(counts.release(BlockRun::new(1010, 5)), [BlockRun::new(1010, 5)]);
    }
}
