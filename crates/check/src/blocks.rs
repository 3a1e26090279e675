//! A set of blocks: one bit for each block of the image.

use syncline_format::BlockRun;

/// A set of blocks.
pub(crate) struct BlockSet {
    words: Vec<u64>,
    blocks: u64,
}

impl BlockSet {
    /// The empty set of an image of `blocks` blocks.
    pub(crate) fn new(blocks: u64) -> Self {
        Self { words: vec![0; blocks.div_ceil(64) as usize], blocks }
    }

    /// Adds a run, of which only what lies in the image counts. True when none of its blocks was in the set.
    pub(crate) fn add(&mut self, run: BlockRun) -> bool {
        let end = run.start.saturating_add(run.blocks).min(self.blocks);
        let mut fresh = true;
        let mut block = run.start;
        while block < end {
            let bits = (64 - block % 64).min(end - block);
            let mask = (u64::MAX >> (64 - bits)) << (block % 64);
            let word = &mut self.words[(block / 64) as usize];
            fresh &= *word & mask == 0;
            *word |= mask;
            block += bits;
        }
        fresh
    }

    /// Adds a run unless some of its blocks are in the set already; true when it was added.
    pub(crate) fn add_all_or_none(&mut self, run: BlockRun) -> bool {
        let free = (run.start..run.end()).all(|block| !self.contains(block));
        if free {
            self.add(run);
        }
        free
    }

    /// True when the block is in the set.
    pub(crate) fn contains(&self, block: u64) -> bool {
        self.words.get((block / 64) as usize).is_some_and(|word| word >> (block % 64) & 1 == 1)
    }

    /// All runs, ascending.
    pub(crate) fn runs(&self) -> impl Iterator<Item = BlockRun> + '_ {
        Runs { words: self.words.iter().copied().enumerate(), bits: 0, base: 0, open: None, ended: false }
    }

    /// Number of blocks in the set.
    pub(crate) fn len(&self) -> u64 {
        self.words.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    /// The runs of blocks that are in this set and not in the other, ascending.
    pub(crate) fn without<'a>(&'a self, other: &'a BlockSet) -> impl Iterator<Item = BlockRun> + 'a {
        let words = self.words.iter().zip(&other.words).map(|(mine, theirs)| mine & !theirs);
        Runs { words: words.enumerate(), bits: 0, base: 0, open: None, ended: false }
    }

    /// The runs of blocks that are in both sets, ascending.
    pub(crate) fn common<'a>(&'a self, other: &'a BlockSet) -> impl Iterator<Item = BlockRun> + 'a {
        let words = self.words.iter().zip(&other.words).map(|(mine, theirs)| mine & theirs);
        Runs { words: words.enumerate(), bits: 0, base: 0, open: None, ended: false }
    }
}

/// Joins the bits of words to runs.
struct Runs<I> {
    words: std::iter::Enumerate<I>,
    /// What is left of the current word.
    bits: u64,
    /// First block of the current word.
    base: u64,
    /// A run that may go on.
    open: Option<BlockRun>,
    ended: bool,
}

impl<I: Iterator<Item = u64>> Iterator for Runs<I> {
    type Item = BlockRun;

    fn next(&mut self) -> Option<BlockRun> {
        loop {
            while self.bits == 0 {
                if self.ended {
                    return self.open.take();
                }
                match self.words.next() {
                    Some((index, bits)) => (self.base, self.bits) = (index as u64 * 64, bits),
                    None => self.ended = true,
                }
            }
            let first = u64::from(self.bits.trailing_zeros());
            let len = u64::from((!(self.bits >> first)).trailing_zeros()).min(64 - first);
            // Clears them; a shift by 64 would be undefined.
            self.bits &= if first + len == 64 { !(u64::MAX << first) } else { u64::MAX << (first + len) };
            let run = BlockRun::new(self.base + first, len);
            match &mut self.open {
                Some(open) if open.end() == run.start => open.blocks += len,
                open => {
                    if let Some(done) = open.replace(run) {
                        return Some(done);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_cross_words_and_come_back_whole() {
        let mut set = BlockSet::new(1000);
        let runs =
            [BlockRun::new(0, 1), BlockRun::new(3, 200), BlockRun::new(320, 64), BlockRun::new(999, 1)];
        for run in runs {
            assert!(set.add(run));
        }
        assert!(set.without(&BlockSet::new(1000)).eq(runs));
        assert_eq!(set.len(), 266);
        assert!(!set.add(BlockRun::new(202, 2)));
        assert!(set.add(BlockRun::new(998, 1)));
    }

    #[test]
    fn what_lies_outside_is_left_out() {
        let mut set = BlockSet::new(100);
        assert!(set.add(BlockRun::new(99, 50)));
        assert!(set.add(BlockRun::new(u64::MAX, 5)));
        assert_eq!(set.len(), 1);
    }

    #[test]
    fn differences_and_intersections_are_runs() {
        let (mut one, mut other) = (BlockSet::new(300), BlockSet::new(300));
        one.add(BlockRun::new(10, 100));
        other.add(BlockRun::new(50, 10));
        other.add(BlockRun::new(105, 100));
        assert!(one.without(&other).eq([BlockRun::new(10, 40), BlockRun::new(60, 45)]));
        assert!(one.common(&other).eq([BlockRun::new(50, 10), BlockRun::new(105, 5)]));
    }
}
