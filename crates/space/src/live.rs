//! Which blocks must not be handed out now, and the search for runs of blocks that may be.

use crate::bits::words_of;
use crate::bounds::{Bound, RunBounds};
use crate::frames::Frames;
use syncline_format::{BlockAddr, BlockRun, Geometry};

const CHUNK_WORDS: usize = 512;
const CHUNK_BLOCKS: u64 = CHUNK_WORDS as u64 * 64;

type Chunk = [u64; CHUNK_WORDS];

/// One bit for each block, set when the block must not be handed out. Chunks without a set bit take
/// no memory.
#[derive(Clone)]
pub(crate) struct LiveMap {
    chunks: Vec<Option<Box<Chunk>>>,
    bounds: RunBounds,
    usable: BlockRun,
    free: u64,
    frames: Frames,
    /// Blocks in wholly free frames.
    whole: u64,
    /// The same figures for each chunk, so that a search can skip chunks that have nothing to
    /// offer.
    counts: Vec<Counts>,
}

/// Numbers of free blocks in a chunk.
#[derive(Clone, Copy)]
struct Counts {
    free: u16,
    /// The free blocks that lie in wholly free frames.
    whole: u16,
}

impl Counts {
    const ALL: Self = Self { free: CHUNK_BLOCKS as u16, whole: CHUNK_BLOCKS as u16 };
}

impl LiveMap {
    /// A map in which every usable block may be handed out.
    pub(crate) fn new(geometry: Geometry) -> Self {
        let count = geometry.total_blocks.div_ceil(CHUNK_BLOCKS);
        let usable = geometry.usable();
        let mut chunks = Vec::new();
        chunks.resize_with(count as usize, || None);
        let bounds = RunBounds::new(CHUNK_BLOCKS, (0..count as usize).map(|_| Bound::free(CHUNK_BLOCKS)));
        let (free, frames) = (count * CHUNK_BLOCKS, Frames::of(geometry));
        let counts = vec![Counts::ALL; count as usize];
        let mut map = Self { chunks, bounds, usable, free, frames, whole: free, counts };
        // The areas at both ends, and the part of the last chunk beyond the image, are never handed
        // out.
        map.set(BlockRun::new(0, usable.start));
        map.set(BlockRun::new(usable.end(), count * CHUNK_BLOCKS - usable.end()));
        map.refresh(0..=0);
        map.refresh(usable.end() / CHUNK_BLOCKS..=count - 1);
        debug_assert_eq!(map.free, usable.blocks, "all that is usable is free");
        map
    }

    /// The map of the same image at a larger size. The old tail counts as in use; blocks behind it
    /// may be handed out.
    pub(crate) fn widened(&self, geometry: Geometry) -> Self {
        let mut wide = Self::new(geometry);
        let end = self.usable.end();
        for word in 0..end.div_ceil(64) {
            // Bits set behind the old end mean nothing.
            let below = if (word + 1) * 64 <= end { u64::MAX } else { (1 << (end % 64)) - 1 };
            let bits = self.word(word) & below & !wide.word(word);
            if bits != 0 {
                wide.set_word(word, bits);
            }
        }
        wide.set(BlockRun::new(end, Geometry::TAIL_BLOCKS));
        wide
    }

    /// Blocks that may be handed out now.
    pub(crate) fn free(&self) -> u64 {
        self.free
    }

    /// The number of free blocks in wholly free frames.
    pub(crate) fn whole(&self) -> u64 {
        self.whole
    }

    /// The size of a frame.
    pub(crate) fn frames(&self) -> Frames {
        self.frames
    }

    /// Upper bound on the longest free run; exact after a search for a run of that length has
    /// failed.
    pub(crate) fn longest_bound(&self) -> u64 {
        self.bounds.longest()
    }

    /// Sets the bits of a run of usable blocks; some may be set already.
    pub(crate) fn set(&mut self, run: BlockRun) {
        words_of(run).for_each(|(word, mask)| self.set_word(word, mask));
    }

    /// Sets the bits of one word, as `set` does.
    pub(crate) fn set_word(&mut self, word: u64, mask: u64) {
        let (frames, bits) = (self.frames, self.word_mut(word));
        let old = *bits;
        *bits |= mask;
        let taken = (mask & !old).count_ones();
        let broken = (frames.whole(old) & !frames.whole(old | mask)).count_ones();
        (self.free, self.whole) = (self.free - u64::from(taken), self.whole - u64::from(broken));
        let counts = &mut self.counts[word as usize / CHUNK_WORDS];
        (counts.free, counts.whole) = (counts.free - taken as u16, counts.whole - broken as u16);
    }

    /// Clears the bits of usable blocks, and makes them findable; returns how many were set.
    pub(crate) fn clear(&mut self, runs: &[BlockRun]) -> u64 {
        let before = self.free;
        // Runs mostly come in order of address, so one refresh serves neighbours.
        let mut stale: Option<std::ops::RangeInclusive<u64>> = None;
        for run in runs {
            for (word, mask) in words_of(*run) {
                let (frames, bits) = (self.frames, self.word_mut(word));
                let old = *bits;
                *bits &= !mask;
                let given = (mask & old).count_ones();
                let mended = (frames.whole(old & !mask) & !frames.whole(old)).count_ones();
                (self.free, self.whole) = (self.free + u64::from(given), self.whole + u64::from(mended));
                let counts = &mut self.counts[word as usize / CHUNK_WORDS];
                (counts.free, counts.whole) = (counts.free + given as u16, counts.whole + mended as u16);
            }
            let touched = run.start / CHUNK_BLOCKS..=(run.end() - 1) / CHUNK_BLOCKS;
            stale = Some(match stale {
                Some(chunks) if (*chunks.start()..=*chunks.end() + 1).contains(touched.start()) => {
                    *chunks.start()..=*chunks.end().max(touched.end())
                }
                Some(chunks) => {
                    self.refresh(chunks);
                    touched
                }
                None => touched,
            });
        }
        if let Some(chunks) = stale {
            self.refresh(chunks);
        }
        self.free - before
    }

    /// The first run of `want` free blocks that starts in `from..to`.
    pub(crate) fn find(&mut self, from: BlockAddr, to: BlockAddr, want: u64) -> Option<BlockAddr> {
        let mut chunk = from / CHUNK_BLOCKS;
        loop {
            chunk = self.bounds.candidate(chunk as usize, want)? as u64;
            if chunk * CHUNK_BLOCKS >= to {
                return None;
            }
            let start = from.max(chunk * CHUNK_BLOCKS);
            let end = to.min((chunk + 1) * CHUNK_BLOCKS);
            if let Some(found) = self.scan(start, end, want) {
                return Some(found);
            }
            // A bound that is too high somewhere within the run's reach may have led here; the
            // refresh prevents a second time.
            let last = chunk + want / CHUNK_BLOCKS + 1;
            self.refresh(chunk..=last.min(self.chunks.len() as u64 - 1));
            chunk += 1;
        }
    }

    /// The first run in `from..to` of at least `min` free blocks in frames that are not wholly
    /// free, cut to `want` blocks.
    pub(crate) fn find_broken(
        &self,
        from: BlockAddr,
        to: BlockAddr,
        want: u64,
        min: u64,
    ) -> Option<BlockRun> {
        let frames = self.frames;
        let any = |counts: Counts| counts.free > counts.whole;
        self.find_picked(from, to, (want, min), any, |bits| !bits & !frames.whole(bits))
    }

    /// The first run in `from..to` of at least `min` blocks in wholly free frames, cut to `want`
    /// blocks. It starts at the start of a frame.
    pub(crate) fn find_whole(&self, from: BlockAddr, to: BlockAddr, want: u64, min: u64) -> Option<BlockRun> {
        let frames = self.frames;
        let from = from.next_multiple_of(frames.blocks());
        self.find_picked(from, to, (want, min), |counts| counts.whole > 0, |bits| frames.whole(bits))
    }

    fn find_picked(
        &self,
        from: BlockAddr,
        to: BlockAddr,
        (want, min): (u64, u64),
        any: impl Fn(Counts) -> bool,
        pick: impl Fn(u64) -> u64,
    ) -> Option<BlockRun> {
        let mut at = from;
        while at < to {
            let chunk = at / CHUNK_BLOCKS;
            let chunk_end = to.min((chunk + 1) * CHUNK_BLOCKS);
            if !any(self.counts[chunk as usize]) {
                at = chunk_end;
                continue;
            }
            at = self.next(at, chunk_end, &pick);
            if at == chunk_end {
                continue;
            }
            let end = self.next(at, to.min(at + want), |bits| !pick(bits));
            if end - at >= min {
                return Some(BlockRun::new(at, end - at));
            }
            at = end;
        }
        None
    }

    /// The free runs within `run`.
    pub(crate) fn free_parts(&self, run: BlockRun) -> Vec<BlockRun> {
        let mut parts = Vec::new();
        let mut at = self.next_clear(run.start, run.end());
        while at < run.end() {
            let end = self.next_set(at, run.end());
            parts.push(BlockRun::new(at, end - at));
            at = self.next_clear(end, run.end());
        }
        parts
    }

    /// The first run of `want` free blocks that starts in `start..end`, found by reading the map.
    fn scan(&self, start: BlockAddr, end: BlockAddr, want: u64) -> Option<BlockAddr> {
        let mut at = self.next_clear(start, end);
        while at < end && at + want <= self.usable.end() {
            let stop = self.next_set(at, at + want);
            if stop == at + want {
                return Some(at);
            }
            at = self.next_clear(stop, end);
        }
        None
    }

    /// The first clear bit in `from..limit`, or `limit`.
    fn next_clear(&self, from: BlockAddr, limit: BlockAddr) -> BlockAddr {
        self.next(from, limit, |bits| !bits)
    }

    /// The first set bit in `from..limit`, or `limit`.
    fn next_set(&self, from: BlockAddr, limit: BlockAddr) -> BlockAddr {
        self.next(from, limit, |bits| bits)
    }

    fn next(&self, from: BlockAddr, limit: BlockAddr, pick: impl Fn(u64) -> u64) -> BlockAddr {
        let mut at = from;
        while at < limit {
            let picked = pick(self.word(at / 64)) >> (at % 64);
            if picked != 0 {
                return limit.min(at + u64::from(picked.trailing_zeros()));
            }
            at = (at / 64 + 1) * 64;
        }
        limit
    }

    /// Makes the bounds of these chunks exact.
    fn refresh(&mut self, chunks: std::ops::RangeInclusive<u64>) {
        for chunk in chunks {
            let chunk = chunk as usize;
            let bound = self.chunks[chunk].as_deref().map_or(Bound::free(CHUNK_BLOCKS), bound_of);
            self.bounds.set(chunk, bound);
        }
    }

    fn word(&self, word: u64) -> u64 {
        let chunk = &self.chunks[word as usize / CHUNK_WORDS];
        chunk.as_deref().map_or(0, |words| words[word as usize % CHUNK_WORDS])
    }

    fn word_mut(&mut self, word: u64) -> &mut u64 {
        let chunk = &mut self.chunks[word as usize / CHUNK_WORDS];
        &mut chunk.get_or_insert_with(|| Box::new([0; CHUNK_WORDS]))[word as usize % CHUNK_WORDS]
    }
}

/// The exact lengths of the free runs of a chunk.
fn bound_of(words: &Chunk) -> Bound {
    let mut bound = Bound::default();
    let mut open = 0;
    let mut at_start = true;
    for bits in words {
        if *bits == 0 {
            open += 64;
            continue;
        }
        open += u64::from(bits.trailing_zeros());
        if at_start {
            bound.prefix = open;
            at_start = false;
        }
        bound.longest = bound.longest.max(open);
        if u64::from(bits.count_zeros()) > bound.longest {
            bound.longest = bound.longest.max(longest_zeros(*bits));
        }
        open = u64::from(bits.leading_zeros());
    }
    if at_start {
        return Bound::free(CHUNK_BLOCKS);
    }
    bound.suffix = open;
    bound.longest = bound.longest.max(open);
    bound
}

/// The longest run of clear bits in a word.
fn longest_zeros(bits: u64) -> u64 {
    let mut clear = !bits;
    let mut longest = 0;
    while clear != 0 {
        // Each step shortens every run of ones by one.
        clear &= clear << 1;
        longest += 1;
    }
    longest
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use syncline_format::Metadata;

    const BLOCKS: u64 = 3 * CHUNK_BLOCKS - 1000;

    fn geometry() -> Geometry {
        Geometry { total_blocks: BLOCKS, node_bytes: 16384, metadata: Metadata::Dup }
    }

    #[test]
    fn the_ends_of_the_image_are_never_found() {
        let mut map = LiveMap::new(geometry());
        let usable = geometry().usable();
        assert_eq!(map.free(), usable.blocks);
        assert_eq!(map.longest_bound(), usable.blocks);
        assert_eq!(map.find(0, BLOCKS, 1), Some(usable.start));
        assert_eq!(map.find(0, BLOCKS, usable.blocks), Some(usable.start));
        assert_eq!(map.find(0, BLOCKS, usable.blocks + 1), None);
        assert_eq!(map.find(usable.end(), BLOCKS, 1), None);
    }

    #[test]
    fn the_longest_run_of_clear_bits_in_a_word() {
        assert_eq!(longest_zeros(u64::MAX), 0);
        assert_eq!(longest_zeros(0), 64);
        assert_eq!(longest_zeros(0xff00_00ff_ffff_0fff), 16);
    }

    fn runs() -> impl Strategy<Value = Vec<(bool, u64, u64)>> {
        let length = prop_oneof![1..4_u64, 1..200_u64, 1..2 * CHUNK_BLOCKS];
        prop::collection::vec((any::<bool>(), 0..BLOCKS, length), 0..30)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn finds_what_a_plain_scan_finds(
            steps in runs(),
            searches in prop::collection::vec((0..BLOCKS, 0..BLOCKS, 1..2 * CHUNK_BLOCKS), 1..6),
        ) {
            let usable = geometry().usable();
            let mut map = LiveMap::new(geometry());
            let mut used: Vec<bool> = (0..BLOCKS).map(|block| !(usable.start..usable.end()).contains(&block)).collect();
            for (set, start, blocks) in steps {
                let Some(run) = crate::bits::clip(BlockRun::new(start, blocks), usable) else { continue };
                used[run.start as usize..run.end() as usize].fill(set);
                if set { map.set(run) } else { map.clear(&[run]); }
            }
            prop_assert_eq!(map.free(), used.iter().filter(|used| !**used).count() as u64);
            let frame = map.frames().blocks() as usize;
            let is_whole = |block: usize| {
                let first = block / frame * frame;
                (first..first + frame).all(|block| used.get(block) == Some(&false))
            };
            let whole: Vec<bool> = (0..BLOCKS as usize).map(is_whole).collect();
            prop_assert_eq!(map.whole(), whole.iter().filter(|whole| **whole).count() as u64);
            let broken = |block: u64| !used[block as usize] && !whole[block as usize];
            let first_run = |from: u64, to: u64, want: u64, min: u64, step: u64, picked: &dyn Fn(u64) -> bool| {
                let mut at = from.next_multiple_of(step);
                while at < to {
                    let len = (at..to.min(at + want)).take_while(|block| picked(*block)).count() as u64;
                    if len >= min {
                        return Some(BlockRun::new(at, len));
                    }
                    at += len.max(1);
                }
                None
            };
            for (from, to, want) in &searches {
                let (from, to, want) = (*from, *to, *want);
                for (want, min) in [(want, 1), (want.max(5), 5), (6, 2)] {
                    prop_assert_eq!(map.find_broken(from, to, want, min), first_run(from, to, want, min, 1, &broken));
                    let (want, min) = (want.next_multiple_of(4), min.next_multiple_of(4));
                    let expected = first_run(from, to, want, min, 4, &|block| whole[block as usize]);
                    prop_assert_eq!(map.find_whole(from, to, want, min), expected);
                }
            }
            // For each block, the length of the free run that starts there.
            let mut reach = vec![0_u64; BLOCKS as usize + 1];
            for block in (0..BLOCKS as usize).rev() {
                reach[block] = if used[block] { 0 } else { reach[block + 1] + 1 };
            }
            let longest = *reach.iter().max().expect("there are blocks");
            prop_assert!(map.longest_bound() >= longest);
            for (from, to, want) in searches {
                for want in [want, longest.max(1), 1, longest + 1] {
                    let expected = (from..to).find(|block| reach[*block as usize] >= want);
                    prop_assert_eq!(map.find(from, to, want), expected);
                }
            }
            prop_assert_eq!(map.find(0, BLOCKS, longest + 1), None);
            prop_assert_eq!(map.longest_bound(), longest);
        }
    }
}
