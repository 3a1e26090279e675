//! The persistent truth: which blocks a committed transaction or a checkpoint's own structures
//! name.
//!
//! Pages are shared with frozen maps and copied when they change after a freeze, so a freeze only
//! clones one pointer for each page that changed since the previous freeze.

use crate::bits::{blocks_of, clip, push_bits, words_of};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use syncline_format::space::{BITS, WORDS, Words};
use syncline_format::{BlockRun, Geometry};

/// The bits of one bitmap page.
#[derive(Clone)]
pub(crate) struct BitPage {
    words: Words,
    used: u32,
}

impl BitPage {
    pub(crate) fn new(words: Words) -> Self {
        let used = words.iter().map(|word| word.count_ones()).sum();
        Self { words, used }
    }
    /// The bits.
    pub(crate) fn words(&self) -> &Words {
        &self.words
    }
    /// The number of bits set.
    pub(crate) fn used(&self) -> u32 {
        self.used
    }

    /// Sets bits of a word; returns the bits that were not set before.
    fn set(&mut self, slot: usize, mask: u64) -> u64 {
        let added = mask & !self.words[slot];
        self.words[slot] |= mask;
        self.used += added.count_ones();
        added
    }

    /// Clears bits of a word; returns the bits that were set before.
    fn clear(&mut self, slot: usize, mask: u64) -> u64 {
        let removed = mask & self.words[slot];
        self.words[slot] &= !mask;
        self.used -= removed.count_ones();
        removed
    }
}

/// A page; `None` if no bit of it is set.
pub(crate) type SharedPage = Option<Arc<BitPage>>;

/// Whether a bit is set or cleared.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    /// The blocks are named.
    Name,
    /// The blocks are no longer named.
    Unname,
}

/// Changes the bits of `run` that lie in bitmap page `index`; appends the parts that actually
/// changed to `changed`.
pub(crate) fn change_page(
    shared: &mut SharedPage,
    index: u64,
    run: BlockRun,
    change: Change,
    changed: &mut Vec<BlockRun>,
) {
    let page = Arc::make_mut(shared.get_or_insert_with(|| Arc::new(BitPage::new([0; WORDS]))));
    let Some(part) = clip(run, BlockRun::new(index * BITS, BITS)) else { return };
    for (word, mask) in words_of(part) {
        let slot = (word % WORDS as u64) as usize;
        let bits = match change {
            Change::Name => page.set(slot, mask),
            Change::Unname => page.clear(slot, mask),
        };
        push_bits(changed, word, bits);
    }
}

/// True when a bit of `run` is set in bitmap page `index`.
pub(crate) fn names_any(page: &SharedPage, index: u64, run: BlockRun) -> bool {
    let (Some(page), Some(part)) = (page, clip(run, BlockRun::new(index * BITS, BITS))) else { return false };
    words_of(part).any(|(word, mask)| page.words[(word % WORDS as u64) as usize] & mask != 0)
}

/// The bitmap pages that a run touches.
pub(crate) fn pages_of(run: BlockRun) -> std::ops::RangeInclusive<u64> {
    run.start / BITS..=(run.end() - 1) / BITS
}

/// The named bits as of now, plus their state at the freeze as far as a checkpoint in flight needs
/// it.
#[derive(Default)]
pub(crate) struct NamedMap {
    pages: Vec<SharedPage>,
    used: u64,
    /// Pages that may differ from the device by more than a checkpoint in flight writes.
    dirty: BTreeSet<u64>,
    /// Pages that were clean at the freeze and have changed since, as they were at the freeze.
    preserved: HashMap<u64, SharedPage>,
    frozen: bool,
}

impl NamedMap {
    /// A map with these pages, all of which agree with the device.
    pub(crate) fn new(pages: Vec<SharedPage>) -> Self {
        let used = pages.iter().flatten().map(|page| u64::from(page.used)).sum();
        Self { pages, used, dirty: BTreeSet::new(), preserved: HashMap::new(), frozen: false }
    }

    /// A map with no bit set.
    pub(crate) fn empty(geometry: Geometry) -> Self {
        Self::new(vec![None; geometry.total_blocks.div_ceil(BITS) as usize])
    }

    /// Sets the number of pages: added pages have no bit set, and removed pages must have none.
    pub(crate) fn resize(&mut self, pages: usize) {
        debug_assert!(self.pages.iter().skip(pages).flatten().all(|page| page.used == 0));
        self.pages.resize(pages, None);
        self.dirty.retain(|index| (*index as usize) < pages);
    }

    /// Number of named blocks.
    pub(crate) fn used(&self) -> u64 {
        self.used
    }

    /// True when the block is named.
    pub(crate) fn is_named(&self, block: u64) -> bool {
        self.word(block / 64) >> (block % 64) & 1 == 1
    }

    /// The parts of `run` that are not named.
    pub(crate) fn unnamed_parts(&self, run: BlockRun) -> Vec<BlockRun> {
        let mut parts = Vec::new();
        words_of(run).for_each(|(word, mask)| push_bits(&mut parts, word, mask & !self.word(word)));
        parts
    }

    /// The words with a bit set, by number.
    pub(crate) fn words(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.pages.iter().enumerate().flat_map(|(index, page)| {
            let words = page.iter().flat_map(|page| page.words.iter().enumerate());
            words
                .filter(|(_, bits)| **bits != 0)
                .map(move |(slot, bits)| ((index * WORDS + slot) as u64, *bits))
        })
    }

    /// Changes the bits of a run on behalf of a transaction; returns the parts that actually
    /// changed.
    pub(crate) fn change(&mut self, run: BlockRun, change: Change) -> Vec<BlockRun> {
        for index in pages_of(run) {
            if self.dirty.insert(index) && self.frozen {
                let page = &self.pages[index as usize];
                self.preserved.entry(index).or_insert_with(|| page.clone());
            }
        }
        self.change_quietly(run, change)
    }

    /// Changes bits that a checkpoint in flight changes as well. The pages do not become dirty,
    /// since the checkpoint writes the changes.
    pub(crate) fn change_quietly(&mut self, run: BlockRun, change: Change) -> Vec<BlockRun> {
        let mut changed = Vec::new();
        for index in pages_of(run) {
            change_page(&mut self.pages[index as usize], index, run, change, &mut changed);
        }
        let blocks = blocks_of(&changed);
        match change {
            Change::Name => self.used += blocks,
            Change::Unname => self.used -= blocks,
        }
        changed
    }

    /// Takes the pages that changed since the last freeze, in their present state.
    pub(crate) fn freeze(&mut self) -> BTreeMap<u64, SharedPage> {
        self.frozen = true;
        self.preserved.clear();
        std::mem::take(&mut self.dirty)
            .into_iter()
            .map(|index| (index, self.pages[index as usize].clone()))
            .collect()
    }

    /// The state at the freeze of a page that was clean then.
    pub(crate) fn at_freeze(&self, index: u64) -> SharedPage {
        self.preserved.get(&index).unwrap_or(&self.pages[index as usize]).clone()
    }

    /// Drops the states at the last freeze, which nobody needs any more.
    pub(crate) fn thaw(&mut self) {
        self.frozen = false;
        self.preserved.clear();
    }

    /// Marks pages that a failed checkpoint should have written.
    pub(crate) fn mark_dirty(&mut self, pages: impl IntoIterator<Item = u64>) {
        self.dirty.extend(pages);
    }

    /// The pages, by index.
    pub(crate) fn pages(&self) -> &[SharedPage] {
        &self.pages
    }

    /// The bits of one word.
    pub(crate) fn word(&self, word: u64) -> u64 {
        let page = self.pages[word as usize / WORDS].as_deref();
        page.map_or(0, |page| page.words[word as usize % WORDS])
    }
}
