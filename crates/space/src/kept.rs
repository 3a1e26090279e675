//! Blocks that snapshots keep: blocks that a snapshot's space map names are not handed out while
//! the snapshot exists.
//!
//! One bitmap is the union over all snapshots, so the allocator does one lookup however many there
//! are. (WAFL keeps one bit for each snapshot in its block map; here each snapshot's own map is
//! already on the device, and the union is computed from them.)

use crate::SpaceError;
use crate::bits::{blocks_of, clip, push_bits, split_by, words_of};
use crate::named::{BitPage, Change, change_page, pages_of};
use crate::reader::PageReader;
use crate::space::Space;
use crate::walk::{Pages, Side, Visitor, walk};
use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};
use syncline_format::space::{BITS, PageId, WORDS, Words, pages_at};
use syncline_format::superblock::{Pointer, SpaceRoot};
use syncline_format::{BlockAddr, BlockRun, Geometry};

/// The page with all bits set: nearly all pages of a full image are equal to it.
static FULL: LazyLock<Arc<BitPage>> = LazyLock::new(|| Arc::new(BitPage::new([u64::MAX; WORDS])));

/// The bits of one map, or the union of several. Pages without bits take no memory, and neither do
/// full ones; a page that is also held elsewhere is shared. So it takes at most 4 KiB for each 127
/// MiB of the image in which something is kept.
#[derive(Clone)]
pub struct KeptMap {
    /// The pages with a bit set, by index.
    pages: BTreeMap<u64, Arc<BitPage>>,
    blocks: u64,
    /// Number of pages that the image has.
    pages_max: u64,
}

impl KeptMap {
    /// A map that keeps nothing.
    pub fn empty(geometry: Geometry) -> Self {
        Self::with_pages(pages_at(geometry, 0))
    }

    fn with_pages(pages_max: u64) -> Self {
        Self { pages: BTreeMap::new(), blocks: 0, pages_max }
    }

    /// The union of these maps for an image of size `geometry`. Each map comes with the geometry
    /// that the image had at its time.
    pub async fn union(
        pages: &PageReader,
        geometry: Geometry,
        maps: &[(Geometry, SpaceRoot)],
    ) -> Result<Self, SpaceError> {
        let mut union =
            Union { kept: Self::empty(geometry), own: Self::empty(geometry), first: BTreeMap::new() };
        walk(pages, maps, &mut union).await?;
        union.check()?;
        Ok(union.kept)
    }

    /// The blocks of these runs, in a map with this many pages.
    pub(crate) fn of_runs(pages: usize, runs: impl Iterator<Item = BlockRun>) -> Self {
        let mut map = Self::with_pages(pages as u64);
        runs.for_each(|run| map.add_run(run));
        map
    }

    fn add_run(&mut self, run: BlockRun) {
        let mut changed = Vec::new();
        for index in pages_of(run) {
            let mut page = self.pages.remove(&index);
            change_page(&mut page, index, run, Change::Name, &mut changed);
            self.pages.extend(page.map(|page| (index, page)));
        }
        self.blocks += blocks_of(&changed);
    }

    fn remove_run(&mut self, run: BlockRun) {
        let mut changed = Vec::new();
        for index in pages_of(run) {
            let mut page = self.pages.remove(&index);
            change_page(&mut page, index, run, Change::Unname, &mut changed);
            self.pages.extend(page.filter(|page| page.used() > 0).map(|page| (index, page)));
        }
        self.blocks -= blocks_of(&changed);
    }

    /// Adds everything that `other` keeps.
    pub fn add(&mut self, other: &Self) {
        other.pages.iter().for_each(|(index, page)| self.add_page(*index, page));
    }

    /// Adds the bits of a page, which stays shared if no other bits are there.
    fn add_page(&mut self, index: u64, page: &Arc<BitPage>) {
        // The image may have grown or shrunk since.
        if index >= self.pages_max || page.used() == 0 {
            return;
        }
        let both = match self.pages.get(&index) {
            None => page.clone(),
            Some(mine) if Arc::ptr_eq(mine, page) => return,
            Some(mine) => {
                let mut words = *mine.words();
                words.iter_mut().zip(page.words()).for_each(|(word, bits)| *word |= bits);
                Arc::new(BitPage::new(words))
            }
        };
        let used = both.used();
        let both = if used == FULL.used() { FULL.clone() } else { both };
        let before = self.pages.insert(index, both).map_or(0, |before| before.used());
        self.blocks += u64::from(used - before);
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

    /// For each map, the number of blocks that neither another map nor `live` has. Each map comes
    /// with the geometry that the image had at its time.
    pub async fn exclusive(
        pages: &PageReader,
        maps: &[(Geometry, SpaceRoot)],
        live: &Self,
    ) -> Result<Vec<u64>, SpaceError> {
        let mut exclusive = Exclusive { counts: vec![0; maps.len()], live };
        walk(pages, maps, &mut exclusive).await?;
        Ok(exclusive.counts)
    }

    /// The number of blocks that these maps have together, each map with the geometry that the image
    /// had at its time. Pages that all maps share at a place are not read.
    pub async fn together(pages: &PageReader, maps: &[(Geometry, SpaceRoot)]) -> Result<u64, SpaceError> {
        let mut together = Together { blocks: 0 };
        walk(pages, maps, &mut together).await?;
        Ok(together.blocks)
    }

    /// One word of the bitmap.
    pub(crate) fn word(&self, word: u64) -> u64 {
        let page = self.pages.get(&(word / WORDS as u64));
        page.map_or(0, |page| page.words()[word as usize % WORDS])
    }

    /// The kept blocks, in order of address.
    pub fn runs(&self) -> Vec<BlockRun> {
        let mut runs = Vec::new();
        self.words().for_each(|(word, bits)| push_bits(&mut runs, word, bits));
        runs
    }

    /// The words with a bit set, by number.
    pub(crate) fn words(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.pages.iter().flat_map(|(index, page)| {
            let words = page.words().iter().enumerate().filter(|(_, bits)| **bits != 0);
            words.map(move |(slot, bits)| (index * WORDS as u64 + slot as u64, *bits))
        })
    }

    /// The parts of these runs that are not kept.
    pub fn without(&self, runs: &[BlockRun]) -> Vec<BlockRun> {
        self.others(runs.to_vec())
    }

    /// The parts of the runs that are not kept, in the same order.
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

    /// True when none of these blocks is kept.
    pub fn is_clear_of(&self, run: BlockRun) -> bool {
        self.pages.range(pages_of(run)).next().is_none()
            || words_of(run).all(|(word, mask)| self.word(word) & mask == 0)
    }
}

/// Builds the union of maps.
struct Union {
    kept: KeptMap,
    /// The blocks of the maps' own pages.
    own: KeptMap,
    /// For each stretch of `BITS` blocks with such pages, one of these pages, for error messages.
    first: BTreeMap<u64, PageId>,
}

impl Visitor for Union {
    fn wants(&mut self, _: Pages) -> bool {
        true
    }

    fn visit(&mut self, index: u64, sides: &[Side<'_>]) {
        let Some((first, rest)) = sides.split_first() else { return };
        let mut words = *first.words;
        for side in rest {
            words.iter_mut().zip(side.words).for_each(|(word, bits)| *word |= bits);
        }
        self.kept.add_page(index, &Arc::new(BitPage::new(words)));
    }

    fn found(&mut self, page: PageId, pointer: Pointer) {
        for addr in pointer.places() {
            self.own.add_run(BlockRun::new(addr, 1));
            self.first.entry(addr / BITS).or_insert(page);
        }
    }
}

impl Union {
    /// Checks that the maps' own pages are kept too: otherwise they would be handed out, and a map
    /// overwritten while in use (rule R2).
    fn check(&self) -> Result<(), SpaceError> {
        let lacks = |(word, bits): (u64, u64)| (word, bits & !self.kept.word(word));
        match self.own.words().map(lacks).find(|(_, bits)| *bits != 0) {
            None => Ok(()),
            Some((word, bits)) => {
                let addr = word * 64 + u64::from(bits.trailing_zeros());
                Err(SpaceError::OwnPageFree { page: self.first[&(addr / BITS)], addr })
            }
        }
    }
}

/// Counts the blocks that only one map has.
struct Exclusive<'a> {
    counts: Vec<u64>,
    live: &'a KeptMap,
}

impl Visitor for Exclusive<'_> {
    /// If no map has a page of its own here, no map has a block of its own.
    fn wants(&mut self, place: Pages) -> bool {
        place.fewest_maps == 1
    }

    fn visit(&mut self, index: u64, sides: &[Side<'_>]) {
        // Bits seen in at least one map, and in at least two.
        let mut once: Box<Words> = Box::new([0; WORDS]);
        let mut twice = once.clone();
        for side in sides {
            for ((once, twice), bits) in once.iter_mut().zip(twice.iter_mut()).zip(side.words) {
                *twice |= if side.maps.len() > 1 { *bits } else { *once & bits };
                *once |= bits;
            }
        }
        for side in sides {
            let [map] = side.maps else { continue };
            let own = (0..WORDS).map(|slot| {
                let live = self.live.word(index * WORDS as u64 + slot as u64);
                u64::from((side.words[slot] & !twice[slot] & !live).count_ones())
            });
            self.counts[*map as usize] += own.sum::<u64>();
        }
    }

    fn found(&mut self, _: PageId, _: Pointer) {}
}

/// Counts the blocks that any map has.
struct Together {
    blocks: u64,
}

impl Visitor for Together {
    fn wants(&mut self, place: Pages) -> bool {
        // The pointer to a single page tells enough.
        let is_told = place.count == 1 && place.used > 0;
        self.blocks += if is_told { u64::from(place.used) } else { 0 };
        !is_told
    }

    fn visit(&mut self, _: u64, sides: &[Side<'_>]) {
        let any = |slot| sides.iter().fold(0, |bits, side| bits | side.words[slot]);
        self.blocks += (0..WORDS).map(|slot| u64::from(any(slot).count_ones())).sum::<u64>();
    }

    fn found(&mut self, _: PageId, _: Pointer) {}
}

impl Space {
    /// Keeps these blocks from now on. Call when an image is opened, before anything is allocated:
    /// nothing else may be using them.
    pub fn keep(&self, kept: KeptMap) {
        let state = &mut *self.lock();
        kept.words().for_each(|(word, bits)| state.live.set_word(word, bits));
        state.kept = kept;
        state.count_pending();
    }

    /// Also keeps the blocks that the frozen map names, of which the checkpoint in flight made a
    /// snapshot.
    pub fn keep_frozen(&self, frozen: &crate::FrozenMap) {
        let state = &mut *self.lock();
        // All of them are in use or waiting to become free, so none has to be taken from the
        // allocator.
        for index in 0..state.kept.pages_max {
            let page = match frozen.pages().get(&index) {
                Some(page) => page.clone(),
                None => state.named.at_freeze(index),
            };
            page.iter().for_each(|page| state.kept.add_page(index, page));
        }
        state.count_pending();
    }

    /// Hands out blocks of these runs only, ordered by address, as long as the image is open: all
    /// others stay as they are. Call like `keep`, instead of it.
    pub fn hand_out_only(&self, runs: &[BlockRun]) {
        let usable = self.geometry().usable();
        let (others, _) = split_by(&[usable], runs);
        self.keep(KeptMap::of_runs(pages_at(self.geometry(), 0) as usize, others.into_iter()));
    }

    /// Hands out blocks of these runs, too. Nobody may use them, here or elsewhere.
    pub fn hand_out_also(&self, runs: &[BlockRun]) {
        let usable = self.geometry().usable();
        let runs: Vec<BlockRun> = runs.iter().filter_map(|run| clip(*run, usable)).collect();
        let state = &mut *self.lock();
        runs.iter().for_each(|run| state.kept.remove_run(*run));
        let open = state.in_front(&runs);
        state.live.clear(&open);
        state.count_pending();
    }

    /// Also keeps these blocks, which are allocated and not named.
    pub fn keep_also(&self, kept: &KeptMap) {
        let state = &mut *self.lock();
        state.kept.add(kept);
        state.count_pending();
    }

    /// Keeps only `rest` from now on. Blocks that nothing else uses become reusable when a
    /// superblock of `generation` is durable.
    pub fn keep_only(&self, rest: KeptMap, generation: u64) {
        let state = &mut *self.lock();
        let before = std::mem::replace(&mut state.kept, rest);
        // Blocks freed meanwhile wait for a superblock of their own.
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

    /// The blocks that snapshots keep.
    pub fn kept(&self) -> KeptMap {
        self.lock().kept.clone()
    }

    /// True when some snapshot keeps something.
    pub fn keeps_any(&self) -> bool {
        !self.lock().kept.is_empty()
    }

    /// The blocks that are named now, as a map of the same form.
    pub fn named_map(&self) -> KeptMap {
        let state = self.lock();
        let mut map = KeptMap::with_pages(state.named.pages().len() as u64);
        let pages = (0..).zip(state.named.pages());
        pages.for_each(|(index, page)| page.iter().for_each(|page| map.add_page(index, page)));
        map
    }
}
