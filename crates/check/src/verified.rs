//! The blocks that a scrub has read, so that blocks shared by several snapshots are read once.

use std::collections::BTreeMap;
use syncline_format::BlockRun;

/// Blocks in one page of the set.
const PAGE_BLOCKS: u64 = 32_768;
const WORDS: usize = PAGE_BLOCKS as usize / 64;

/// A set of blocks: a bitmap in pages, allocated only where there are blocks in the set. 32 MiB for
/// each TiB in use.
pub(crate) struct Verified(Option<BTreeMap<u64, Box<[u64; WORDS]>>>);

impl Verified {
    /// An empty set. Unless it is `needed`, it keeps nothing and every block is new to it.
    pub(crate) fn new(needed: bool) -> Self {
        Self(needed.then(BTreeMap::new))
    }

    /// Adds blocks; returns those that were not in the set.
    pub(crate) fn insert(&mut self, run: BlockRun) -> Vec<BlockRun> {
        let Some(pages) = &mut self.0 else { return vec![run] };
        let mut fresh: Vec<BlockRun> = Vec::new();
        for block in run.start..run.end() {
            let page = pages.entry(block / PAGE_BLOCKS).or_insert_with(|| Box::new([0; WORDS]));
            let within = (block % PAGE_BLOCKS) as usize;
            let (word, bit) = (&mut page[within / 64], 1_u64 << (within % 64));
            if *word & bit != 0 {
                continue;
            }
            *word |= bit;
            match fresh.last_mut() {
                Some(last) if last.end() == block => last.blocks += 1,
                _ => fresh.push(BlockRun::new(block, 1)),
            }
        }
        fresh
    }

    /// Removes a block from the set.
    pub(crate) fn forget(&mut self, block: u64) {
        if let Some(page) = self.0.as_mut().and_then(|pages| pages.get_mut(&(block / PAGE_BLOCKS))) {
            let within = (block % PAGE_BLOCKS) as usize;
            page[within / 64] &= !(1_u64 << (within % 64));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_there_is_not_new() {
        let mut verified = Verified::new(true);
        let all = BlockRun::new(PAGE_BLOCKS - 2, 4);
        assert_eq!(verified.insert(BlockRun::new(PAGE_BLOCKS - 1, 2)), [BlockRun::new(PAGE_BLOCKS - 1, 2)]);
        let ends = [BlockRun::new(PAGE_BLOCKS - 2, 1), BlockRun::new(PAGE_BLOCKS + 1, 1)];
        assert_eq!(verified.insert(all), ends);
        assert!(verified.insert(all).is_empty());
        verified.forget(PAGE_BLOCKS);
        assert_eq!(verified.insert(all), [BlockRun::new(PAGE_BLOCKS, 1)]);
        let mut nothing = Verified::new(false);
        assert_eq!((nothing.insert(all), nothing.insert(all)), (vec![all], vec![all]));
    }
}
