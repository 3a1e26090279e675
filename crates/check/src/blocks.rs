//! A set of blocks: a bitmap, allocated only where there are blocks in the set.

use syncline_format::BlockRun;

const CHUNK_WORDS: u64 = 512;

type Chunk = [u64; CHUNK_WORDS as usize];

/// A set of blocks. A part of the image without any takes eight bytes for each 128 MiB.
pub(crate) struct BlockSet {
    chunks: Vec<Option<Box<Chunk>>>,
    blocks: u64,
}

impl BlockSet {
    /// The empty set of an image of `blocks` blocks.
    pub(crate) fn new(blocks: u64) -> Self {
        Self { chunks: vec![None; blocks.div_ceil(64 * CHUNK_WORDS) as usize], blocks }
    }

    /// Adds a run; blocks past the end of the image are ignored. Returns true if none of the run's
    /// blocks was in the set.
    pub(crate) fn add(&mut self, run: BlockRun) -> bool {
        let end = run.start.saturating_add(run.blocks).min(self.blocks);
        let mut fresh = true;
        let mut block = run.start;
        while block < end {
            let bits = (64 - block % 64).min(end - block);
            let mask = (u64::MAX >> (64 - bits)) << (block % 64);
            let (chunk, word) = place(block / 64);
            let chunk = self.chunks[chunk].get_or_insert_with(|| Box::new([0; CHUNK_WORDS as usize]));
            fresh &= chunk[word] & mask == 0;
            chunk[word] |= mask;
            block += bits;
        }
        fresh
    }

    /// Adds a run unless some of its blocks are already in the set; returns true if it was added.
    pub(crate) fn add_all_or_none(&mut self, run: BlockRun) -> bool {
        let free = (run.start..run.end()).all(|block| !self.contains(block));
        if free {
            self.add(run);
        }
        free
    }

    /// True when the block is in the set.
    pub(crate) fn contains(&self, block: u64) -> bool {
        self.word(block / 64) >> (block % 64) & 1 == 1
    }

    /// All runs in the set, ascending.
    pub(crate) fn runs(&self) -> impl Iterator<Item = BlockRun> + '_ {
        Runs::of(self.words())
    }

    /// Number of blocks in the set.
    pub(crate) fn len(&self) -> u64 {
        self.words().map(|(_, bits)| u64::from(bits.count_ones())).sum()
    }

    /// The runs of blocks that are in this set and not in the other, ascending.
    pub(crate) fn without<'a>(&'a self, other: &'a BlockSet) -> impl Iterator<Item = BlockRun> + 'a {
        Runs::of(self.words().map(|(word, bits)| (word, bits & !other.word(word))))
    }

    /// The runs of blocks that are in both sets, ascending.
    pub(crate) fn common<'a>(&'a self, other: &'a BlockSet) -> impl Iterator<Item = BlockRun> + 'a {
        Runs::of(self.words().map(|(word, bits)| (word, bits & other.word(word))))
    }

    /// The words of allocated chunks, with their numbers, ascending.
    fn words(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let chunks =
            self.chunks.iter().zip(0..).filter_map(|(chunk, number)| Some((chunk.as_deref()?, number)));
        chunks.flat_map(|(chunk, number): (&Chunk, u64)| (number * CHUNK_WORDS..).zip(chunk.iter().copied()))
    }

    fn word(&self, number: u64) -> u64 {
        let (chunk, word) = place(number);
        self.chunks.get(chunk).and_then(Option::as_deref).map_or(0, |chunk| chunk[word])
    }
}

/// The chunk that holds a word, and the word's index in that chunk.
fn place(word: u64) -> (usize, usize) {
    ((word / CHUNK_WORDS) as usize, (word % CHUNK_WORDS) as usize)
}

/// Joins the set bits of words into runs.
struct Runs<I> {
    words: I,
    /// Bits of the current word that are not yet in a run.
    bits: u64,
    /// First block of the current word.
    base: u64,
    /// A run that may continue in the next word.
    open: Option<BlockRun>,
    ended: bool,
}

impl<I: Iterator<Item = (u64, u64)>> Runs<I> {
    /// From words with their numbers, ascending; words left out count as empty.
    fn of(words: I) -> Self {
        Self { words, bits: 0, base: 0, open: None, ended: false }
    }
}

impl<I: Iterator<Item = (u64, u64)>> Iterator for Runs<I> {
    type Item = BlockRun;

    fn next(&mut self) -> Option<BlockRun> {
        loop {
            while self.bits == 0 {
                if self.ended {
                    return self.open.take();
                }
                match self.words.next() {
                    Some((number, bits)) => (self.base, self.bits) = (number * 64, bits),
                    None => self.ended = true,
                }
            }
            let first = u64::from(self.bits.trailing_zeros());
            let len = u64::from((!(self.bits >> first)).trailing_zeros()).min(64 - first);
            // Clears these bits; a shift by 64 would overflow.
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
    fn runs_cross_chunks_and_what_is_empty_takes_no_room() {
        let mut set = BlockSet::new(1 << 36);
        let runs = [BlockRun::new(32_000, 2_000), BlockRun::new(98_304, 1), BlockRun::new((1 << 36) - 5, 5)];
        for run in runs {
            assert!(set.add(run));
        }
        assert!(set.runs().eq(runs));
        assert_eq!(set.chunks.iter().flatten().count(), 4);
        assert!(set.contains(33_999) && !set.contains(34_000) && !set.contains(u64::MAX));
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
