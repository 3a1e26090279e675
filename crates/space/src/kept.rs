//! Blocks that snapshots keep: those that the space map of a snapshot names are not handed out while it exists.
//!
//! One bitmap is the union over all snapshots, so that the allocator asks one question however many there are. (WAFL keeps one
//! bit for each snapshot in its block map; here each snapshot's own map is on the device already, and the union is made of
//! them.)

use crate::SpaceError;
use crate::bits::{blocks_of, push_bits, words_of};
use crate::load::Loader;
use crate::named::{BitPage, Change, SharedPage, change_page, pages_of};
use crate::space::Space;
use std::collections::HashMap;
use std::sync::Arc;
use syncline_device::FlushTracker;
use syncline_format::space::{WORDS, pages_at};
use syncline_format::superblock::SpaceRoot;
use syncline_format::{BlockAddr, BlockRun, Geometry};

/// The bits of a map or of several together, in pages shared with whoever has the same.
#[derive(Clone)]
pub struct KeptMap {
    pages: Vec<SharedPage>,
    blocks: u64,
}

/// Bitmap pages by address and place: those that two maps share are read once.
pub(crate) type KnownPages = HashMap<(BlockAddr, u64), SharedPage>;

impl KeptMap {
    fn new(pages: Vec<SharedPage>) -> Self {
        let blocks = used(&pages);
        Self { pages, blocks }
    }

    /// Nothing is kept.
    pub fn empty(geometry: Geometry) -> Self {
        Self::new(vec![None; pages_at(geometry, 0) as usize])
    }

    /// Reads space maps, each with the sizes that the image had then. What they share is read once.
    pub async fn load(
        tracker: &Arc<FlushTracker>,
        maps: &[(Geometry, SpaceRoot)],
    ) -> Result<Vec<Self>, SpaceError> {
        let mut known = KnownPages::new();
        let mut loaded = Vec::new();
        for (geometry, root) in maps {
            loaded.push(Self::new(Loader::pages(tracker, *geometry, *root, &mut known).await?));
        }
        Ok(loaded)
    }

    /// The blocks of these runs, in as many pages as the image has.
    pub(crate) fn of_runs(pages: usize, runs: impl Iterator<Item = BlockRun>) -> Self {
        let mut pages = vec![None; pages];
        let mut changed = Vec::new();
        for run in runs {
            for index in pages_of(run) {
                change_page(&mut pages[index as usize], index, run, Change::Name, &mut changed);
            }
            changed.clear();
        }
        Self::new(pages)
    }

    /// Keeps what `other` keeps too.
    pub fn add(&mut self, other: &Self) {
        // The image may have grown since.
        for (mine, theirs) in self.pages.iter_mut().zip(&other.pages) {
            add_page(mine, theirs);
        }
        self.blocks = used(&self.pages);
    }

    /// True when nothing is kept.
    pub fn is_empty(&self) -> bool {
        self.blocks == 0
    }

    /// Number of blocks kept.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// True when the block is kept.
    pub fn contains(&self, block: BlockAddr) -> bool {
        self.word(block / 64) >> (block % 64) & 1 == 1
    }

    /// For each map, how many of its blocks no other of them and not `live` has.
    pub fn exclusive(maps: &[Self], live: &Self) -> Vec<u64> {
        let mut counts = vec![0; maps.len()];
        for index in 0..live.pages.len() {
            let pages: Vec<Option<&BitPage>> =
                maps.iter().map(|map| map.pages.get(index).and_then(|page| page.as_deref())).collect();
            for slot in 0..WORDS {
                let word = |page: &Option<&BitPage>| page.map_or(0, |page| page.words()[slot]);
                // Bits seen at least once, and at least twice.
                let (once, twice) = pages
                    .iter()
                    .map(word)
                    .fold((0, 0), |(once, twice), bits| (once | bits, twice | once & bits));
                let single = once & !twice & !live.word((index * WORDS + slot) as u64);
                if single == 0 {
                    continue;
                }
                for (count, page) in counts.iter_mut().zip(&pages) {
                    *count += u64::from((word(page) & single).count_ones());
                }
            }
        }
        counts
    }

    /// The bits of one word.
    pub(crate) fn word(&self, word: u64) -> u64 {
        let page = self.pages.get(word as usize / WORDS).and_then(|page| page.as_deref());
        page.map_or(0, |page| page.words()[word as usize % WORDS])
    }

    /// The blocks, in order of address.
    pub fn runs(&self) -> Vec<BlockRun> {
        let mut runs = Vec::new();
        self.words().for_each(|(word, bits)| push_bits(&mut runs, word, bits));
        runs
    }

    /// The words with a bit set, by number.
    pub(crate) fn words(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let words = (0..self.pages.len()).filter(|index| self.pages[*index].is_some());
        let words = words.flat_map(|index| (index * WORDS..(index + 1) * WORDS).map(|word| word as u64));
        words.map(|word| (word, self.word(word))).filter(|(_, bits)| *bits != 0)
    }

    /// The parts of the runs that are not kept, in their order.
    pub(crate) fn others(&self, runs: Vec<BlockRun>) -> Vec<BlockRun> {
        if runs.iter().all(|run| self.is_clear_of(*run)) {
            return runs;
        }
        let mut others = Vec::new();
        for run in runs {
            words_of(run).for_each(|(word, mask)| push_bits(&mut others, word, mask & !self.word(word)));
        }
        others
    }

    fn is_clear_of(&self, run: BlockRun) -> bool {
        pages_of(run).all(|index| self.pages.get(index as usize).is_none_or(Option::is_none))
            || words_of(run).all(|(word, mask)| self.word(word) & mask == 0)
    }
}

/// Number of bits set in all pages.
fn used(pages: &[SharedPage]) -> u64 {
    pages.iter().flatten().map(|page| u64::from(page.used())).sum()
}

/// Adds the bits of a page to another; what is equal stays shared.
fn add_page(mine: &mut SharedPage, theirs: &SharedPage) {
    match (&*mine, theirs) {
        (_, None) => {}
        (None, Some(_)) => *mine = theirs.clone(),
        (Some(one), Some(other)) if Arc::ptr_eq(one, other) => {}
        (Some(one), Some(other)) => {
            let mut words = *one.words();
            words.iter_mut().zip(other.words()).for_each(|(word, bits)| *word |= bits);
            *mine = Some(Arc::new(BitPage::new(words)));
        }
    }
}

impl Space {
    /// Keeps blocks from now on that no one may be using for anything else: at the opening of an image, before anything is
    /// allocated.
    pub fn keep(&self, kept: KeptMap) {
        let state = &mut *self.lock();
        kept.words().for_each(|(word, bits)| state.live.set_word(word, bits));
        state.kept = kept;
        state.count_pending();
    }

    /// Keeps besides what the frozen map names: what the checkpoint in flight made a snapshot of.
    pub fn keep_frozen(&self, frozen: &crate::FrozenMap) {
        let state = &mut *self.lock();
        let pages = (0..state.kept.pages.len() as u64).map(|index| match frozen.pages().get(&index) {
            Some(page) => page.clone(),
            None => state.named.at_freeze(index),
        });
        let map = KeptMap::new(pages.collect());
        // They are all in use, or wait to become free: none of them has to be taken from the allocator.
        state.kept.add(&map);
        state.count_pending();
    }

    /// Keeps only `rest` from now on. What nothing else uses becomes reusable when a superblock of `generation` is durable.
    pub fn keep_only(&self, rest: KeptMap, generation: u64) {
        let state = &mut *self.lock();
        let before = std::mem::replace(&mut state.kept, rest);
        // What was freed meanwhile waits for a superblock of its own.
        let waiting = state.waiting();
        let mut free = Vec::new();
        for (word, bits) in before.words() {
            let used = state.kept.word(word) | state.named.word(word) | waiting.word(word);
            push_bits(&mut free, word, bits & !used);
        }
        let blocks = blocks_of(&free);
        state.pending.add(generation, free, blocks);
        state.count_pending();
    }

    /// What the snapshots keep.
    pub fn kept(&self) -> KeptMap {
        self.lock().kept.clone()
    }

    /// True when there is a snapshot that keeps something.
    pub fn keeps_any(&self) -> bool {
        !self.lock().kept.is_empty()
    }

    /// What is named now, in the same form.
    pub fn named_map(&self) -> KeptMap {
        KeptMap::new(self.lock().named.pages().to_vec())
    }
}
