//! Restores lost pages of a space map from the blocks that are in use.
//!
//! The bits of a bitmap page follow from the tree that the map belongs to and from the places of
//! the map's own pages. An index page follows from the pages below it, which are found because each
//! page states its own place. The pointer to a lost page has the checksum of all its bytes, so a
//! restored page is either exactly what was there or not used.

use crate::SpaceError;
use crate::bits::push_bits;
use crate::load::{read_pages, require_root};
use crate::named::{Change, NamedMap};
use bytes::Bytes;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use syncline_device::{AlignedBuf, FlushTracker};
use syncline_format::space::{
    BITS, CHILDREN, Entry, MAX_LEVEL, PageId, WORDS, Words, claimed_page, decode_bitmap, decode_index,
    encode_bitmap, encode_index, pages_at, root_level,
};
use syncline_format::superblock::{Pointer, SpaceRoot};
use syncline_format::{BLOCK_BYTES, BlockAddr, BlockRun, Geometry, crc};

/// Blocks read at a time.
const BLOCKS_EACH: u64 = 256;
/// Maximum number of choices of pages below index pages that are tried, for all maps together. Like
/// the other limits here, this keeps a crafted image from occupying a repair for ever.
const TRIES_MAX: usize = 100_000;
/// Maximum number of pages read to find out which belong below an index page.
const READS_MAX: usize = 1_000_000;
/// Maximum number of candidates tried for one place. A map that was not made to mislead hardly ever
/// has more than one.
const CHOICES_MAX: usize = 64;
/// A choice that reports this many blocks costs as much as one more try.
const BLOCKS_A_TRY: usize = 1024;
/// Maximum number of blocks that look like pages.
const STRAYS_MAX: usize = 1 << 20;
/// Maximum number of blocks searched for pages: 16 TiB.
const SEARCHED_MAX: u64 = 1 << 32;

/// A restored page, which matches its pointer again.
#[derive(Clone, Debug)]
pub struct RegrownPage {
    /// The page's block.
    pub addr: BlockAddr,
    /// The page's distance from the bitmap pages.
    pub level: u8,
    /// The page's contents.
    pub bytes: Bytes,
}

/// A map that has lost pages.
pub struct TornMap {
    tracker: Arc<FlushTracker>,
    geometry: Geometry,
    /// The blocks known to be in use.
    used: NamedMap,
    lost: Vec<(PageId, Entry)>,
    /// The contents of the readable bitmap pages.
    read: Vec<(u64, Box<Words>)>,
}

/// The search for pages of all maps of an image. Each lost page is searched for only once.
pub struct PageSearch {
    tracker: Arc<FlushTracker>,
    /// Geometry of the present image.
    geometry: Geometry,
    strays: Option<Strays>,
    tries_left: usize,
    reads_left: AtomicUsize,
    failed: HashSet<(BlockAddr, u32)>,
}

/// Pages found anywhere, of present or earlier maps.
#[derive(Default)]
struct Strays {
    by_place: HashMap<PageId, Vec<Entry>>,
    addrs: BTreeSet<BlockAddr>,
}

/// A candidate for one place below a lost page: a page, or no page.
#[derive(Clone, Default)]
struct Choice {
    entry: Entry,
    /// The blocks of the page and of the pages below it.
    pages: Vec<BlockAddr>,
    /// Blocks that these pages call used although nothing else is known to use them: pages of their
    /// map.
    more: Vec<BlockAddr>,
}

impl PageSearch {
    /// A search that has found nothing yet. `geometry` is that of the present image.
    pub fn new(tracker: Arc<FlushTracker>, geometry: Geometry) -> Self {
        let (reads_left, failed) = (READS_MAX.into(), HashSet::new());
        Self { tracker, geometry, strays: None, tries_left: TRIES_MAX, reads_left, failed }
    }

    /// Reads through all blocks, once. If there are too many blocks, or too many look like pages,
    /// nothing is found.
    async fn look(&mut self) -> Result<(), SpaceError> {
        if self.strays.is_some() {
            return Ok(());
        }
        let (mut strays, area) = (Strays::default(), self.geometry.usable());
        let mut at = area.start;
        while area.blocks <= SEARCHED_MAX && at < area.end() {
            let chunk = BlockRun::new(at, (area.end() - at).min(BLOCKS_EACH));
            let bytes = self.tracker.read(chunk.offset_bytes(), chunk.len_bytes() as usize).await?;
            for (addr, block) in (at..).zip(bytes.chunks_exact(BLOCK_BYTES)) {
                let Some((id, used)) = claimed_page(block, addr) else { continue };
                let there = id.level <= MAX_LEVEL && id.index < pages_at(self.geometry, id.level);
                let Some(used) = u32::try_from(used).ok().filter(|_| there) else { continue };
                let entry = Entry { page: Pointer { addr, checksum: crc(block) }, used };
                strays.by_place.entry(id).or_default().push(entry);
                strays.addrs.insert(addr);
            }
            if strays.addrs.len() > STRAYS_MAX {
                strays = Strays::default();
                break;
            }
            at = chunk.end();
        }
        self.strays = Some(strays);
        Ok(())
    }
}

impl TornMap {
    /// Reads as much of a map as possible; `None` if all of it can be read.
    pub async fn read(
        tracker: &Arc<FlushTracker>,
        geometry: Geometry,
        root: SpaceRoot,
    ) -> Result<Option<Self>, SpaceError> {
        require_root(geometry, root)?;
        let used = NamedMap::empty(geometry);
        let mut torn = Self { tracker: tracker.clone(), geometry, used, lost: Vec::new(), read: Vec::new() };
        let mut wanted = vec![(PageId { level: root.level, index: 0 }, Entry { page: root.page, used: 0 })];
        while !wanted.is_empty() {
            let mut below = Vec::new();
            let pages = wanted.into_iter().map(|wanted| (wanted.1.page.addr, wanted)).collect();
            read_pages(tracker, pages, &mut |block: &[u8], &(id, entry): &(PageId, Entry)| {
                torn.name(BlockRun::new(entry.page.addr, 1));
                match torn.contents(block, id, entry) {
                    Some(Contents::Index(entries)) => below.extend(children(id, entries)),
                    Some(Contents::Bitmap(words)) => torn.read.push((id.index, words)),
                    None => torn.lost.push((id, entry)),
                }
                Ok(())
            })
            .await?;
            wanted = below;
        }
        Ok((!torn.lost.is_empty()).then_some(torn))
    }

    /// Records that this run is in use.
    pub fn name(&mut self, run: BlockRun) {
        if self.geometry.contains(run) {
            self.used.change_quietly(run, Change::Name);
        }
    }

    /// Restores the lost pages, as far as they follow from the named runs, which must cover
    /// everything that the tree uses.
    pub async fn regrow(mut self, search: &mut PageSearch) -> Result<Vec<RegrownPage>, SpaceError> {
        let mut lost = std::mem::take(&mut self.lost);
        // Index pages first: the bitmap pages also record where the pages below an index page lie.
        lost.sort_by_key(|(id, _)| std::cmp::Reverse(id.level));
        let mut regrown = Vec::new();
        for (id, entry) in lost {
            let Pointer { addr, checksum } = entry.page;
            let bytes = match id.level {
                0 => self.bitmap_page(id, entry.page),
                _ if search.failed.contains(&(addr, checksum)) => None,
                _ => self.index_page(id, entry.page, search).await?,
            };
            match bytes {
                Some(bytes) => regrown.push(RegrownPage { addr, level: id.level, bytes }),
                None => drop(search.failed.insert((addr, checksum))),
            }
        }
        Ok(regrown)
    }

    fn bitmap_page(&self, id: PageId, pointer: Pointer) -> Option<Bytes> {
        let mut block = AlignedBuf::zeroed(BLOCK_BYTES);
        let made = encode_bitmap(&mut block, id.index, pointer.addr, &self.words(id.index));
        (made.page == pointer).then(|| block.into_bytes())
    }

    async fn index_page(
        &mut self,
        id: PageId,
        pointer: Pointer,
        search: &mut PageSearch,
    ) -> Result<Option<Bytes>, SpaceError> {
        search.look().await?;
        let below = pages_at(self.geometry, id.level - 1).saturating_sub(id.child(0).index);
        let mut choices = Vec::new();
        for slot in 0..below.min(CHILDREN as u64) {
            choices.push(self.choices(id.child(slot as usize), search).await?);
        }
        let mut block = AlignedBuf::zeroed(BLOCK_BYTES);
        let is_right = |entries: &[Entry]| encode_index(&mut block, id, pointer.addr, entries).0 == pointer;
        let tells: Vec<bool> = (0..choices.len()).map(|slot| search.has_any_in(id.child(slot))).collect();
        let own = self.told_of_pages();
        let Some(pages) = choose(&choices, &tells, &own, &mut search.tries_left, is_right) else {
            return Ok(None);
        };
        pages.into_iter().for_each(|addr| self.name(BlockRun::new(addr, 1)));
        Ok(Some(block.into_bytes()))
    }

    /// Blocks that readable bitmap pages call used although nothing else is known to use them:
    /// pages of this map.
    fn told_of_pages(&self) -> HashSet<BlockAddr> {
        let mut told = Vec::new();
        for (index, words) in &self.read {
            let known = self.words(*index);
            for (number, (found, known)) in (index * WORDS as u64..).zip(words.iter().zip(&known)) {
                push_bits(&mut told, number, found & !known);
            }
        }
        told.into_iter().flat_map(|run| run.start..run.end()).collect()
    }

    /// The candidates for this page, up to the number that is tried.
    async fn choices(&self, id: PageId, search: &PageSearch) -> Result<Vec<Choice>, SpaceError> {
        let mut choices = Vec::new();
        if !self.uses_any(id) {
            choices.push(Choice::default());
        }
        let strays = search.strays.iter().filter_map(|strays| strays.by_place.get(&id)).flatten();
        for entry in strays {
            let mut choice = Choice { entry: *entry, ..Choice::default() };
            if self.fits(id, *entry, search, &mut choice).await? {
                choices.push(choice);
            }
            if choices.len() == CHOICES_MAX {
                break;
            }
        }
        Ok(choices)
    }

    /// True if the pages from this one downwards are whole, name all blocks known to be in use, and
    /// beyond these name only blocks where pages lie.
    fn fits<'a>(
        &'a self,
        id: PageId,
        entry: Entry,
        search: &'a PageSearch,
        choice: &'a mut Choice,
    ) -> Pin<Box<dyn Future<Output = Result<bool, SpaceError>> + Send + 'a>> {
        Box::pin(async move {
            let spend = |left: usize| left.checked_sub(1);
            if search.reads_left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, spend).is_err() {
                return Ok(false);
            }
            let at = BlockRun::new(entry.page.addr, 1);
            let block = self.tracker.read(at.offset_bytes(), BLOCK_BYTES).await?;
            choice.pages.push(entry.page.addr);
            match self.contents(&block, id, entry) {
                None => return Ok(false),
                Some(Contents::Bitmap(words)) => {
                    let known = self.words(id.index);
                    for (number, (found, known)) in (id.index * WORDS as u64..).zip(words.iter().zip(&known))
                    {
                        if known & !found != 0 {
                            return Ok(false);
                        }
                        let mut more = Vec::new();
                        push_bits(&mut more, number, found & !known);
                        choice.more.extend(more.into_iter().flat_map(|run| run.start..run.end()));
                        if choice.more.len() as u64 > self.pages_max() {
                            return Ok(false);
                        }
                    }
                    let strays = search.strays.as_ref();
                    let is_page = |addr| strays.is_some_and(|strays| strays.addrs.contains(addr));
                    return Ok(choice.more.iter().all(is_page));
                }
                Some(Contents::Index(entries)) => {
                    for (slot, entry) in entries.into_iter().enumerate() {
                        let child = id.child(slot);
                        let right = match entry.is_null() {
                            true => !self.uses_any(child),
                            false => self.fits(child, entry, search, choice).await?,
                        };
                        if !right {
                            return Ok(false);
                        }
                    }
                }
            }
            Ok(true)
        })
    }

    /// An upper bound on the number of pages of a map.
    fn pages_max(&self) -> u64 {
        (0..=root_level(self.geometry)).map(|level| pages_at(self.geometry, level)).sum()
    }

    /// The contents of a page, if it matches its pointer.
    fn contents(&self, block: &[u8], id: PageId, entry: Entry) -> Option<Contents> {
        let (contents, used) = match id.level {
            0 => {
                let (words, used) = decode_bitmap(block, self.geometry, id.index, entry.page).ok()?;
                (Contents::Bitmap(words), used)
            }
            _ => {
                let (entries, used) = decode_index(block, self.geometry, id, entry.page).ok()?;
                (Contents::Index(entries), used)
            }
        };
        // The superblock's pointer carries no count.
        let is_root = id.level == root_level(self.geometry);
        (is_root || used == u64::from(entry.used)).then_some(contents)
    }

    fn words(&self, index: u64) -> Words {
        self.used
            .pages()
            .get(index as usize)
            .and_then(Option::as_ref)
            .map_or([0; WORDS], |page| *page.words())
    }

    /// True if anything that this page covers is known to be in use.
    fn uses_any(&self, id: PageId) -> bool {
        let width = bitmaps_below(id.level);
        let pages = self.used.pages().iter().skip((id.index * width) as usize).take(width as usize);
        pages.flatten().any(|page| page.used() > 0)
    }
}

impl PageSearch {
    /// True if pages lie in the blocks that this page covers.
    fn has_any_in(&self, id: PageId) -> bool {
        let blocks = bitmaps_below(id.level) * BITS;
        let covered = id.index * blocks..(id.index + 1) * blocks;
        self.strays.as_ref().is_some_and(|strays| strays.addrs.range(covered).next().is_some())
    }
}

/// Number of bitmap pages that a page of this level covers.
fn bitmaps_below(level: u8) -> u64 {
    (0..level).fold(1, |width, _| width * CHILDREN as u64)
}

enum Contents {
    Bitmap(Box<Words>),
    Index(Vec<Entry>),
}

fn children(id: PageId, entries: Vec<Entry>) -> impl Iterator<Item = (PageId, Entry)> {
    let children = entries.into_iter().enumerate().filter(|(_, entry)| !entry.is_null());
    children.map(move |(slot, entry)| (id.child(slot), entry))
}

/// Tries combinations of one candidate per place, and returns the pages of the first combination
/// that is right. Candidates for places that cover pages determine which of all pages belong to
/// this map, so the other places mostly have only one candidate left.
fn choose(
    choices: &[Vec<Choice>],
    tells: &[bool],
    told_elsewhere: &HashSet<BlockAddr>,
    tries_left: &mut usize,
    mut is_right: impl FnMut(&[Entry]) -> bool,
) -> Option<Vec<BlockAddr>> {
    let telling: Vec<usize> = (0..choices.len()).filter(|slot| tells[*slot]).collect();
    let mut told = Odometer::new(telling.iter().map(|slot| choices[*slot].len()))?;
    loop {
        let picked: HashMap<usize, usize> = telling.iter().copied().zip(told.at.iter().copied()).collect();
        let own: HashSet<BlockAddr> =
            picked.iter().flat_map(|(slot, index)| &choices[*slot][*index].more).copied().collect();
        let is_one = |addr: &BlockAddr| own.contains(addr) || told_elsewhere.contains(addr);
        let is_own = |choice: &Choice| choice.pages.iter().all(is_one);
        let left: Vec<Vec<&Choice>> = choices
            .iter()
            .enumerate()
            .map(|(slot, all)| match picked.get(&slot) {
                Some(index) => all[*index..=*index].iter().filter(|choice| is_own(choice)).collect(),
                None => all.iter().filter(|choice| is_own(choice)).collect(),
            })
            .collect();
        let mut rest = Odometer::new(left.iter().map(Vec::len));
        while let Some(odometer) = &mut rest {
            *tries_left = tries_left.checked_sub(1)?;
            let chosen: Vec<&Choice> =
                left.iter().zip(&odometer.at).map(|(all, index)| all[*index]).collect();
            let entries: Vec<Entry> = chosen.iter().map(|choice| choice.entry).collect();
            if is_right(&entries) {
                return Some(chosen.iter().flat_map(|choice| choice.pages.iter().copied()).collect());
            }
            if !odometer.turn() {
                break;
            }
        }
        *tries_left = tries_left.checked_sub(1 + own.len() / BLOCKS_A_TRY)?;
        if !told.turn() {
            return None;
        }
    }
}

/// Enumerates all ways to take one of each.
struct Odometer {
    at: Vec<usize>,
    sizes: Vec<usize>,
}

impl Odometer {
    /// Starts with the first way; `None` if one of them has nothing to take.
    fn new(sizes: impl Iterator<Item = usize>) -> Option<Self> {
        let sizes: Vec<usize> = sizes.collect();
        (!sizes.contains(&0)).then(|| Self { at: vec![0; sizes.len()], sizes })
    }

    /// Moves to the next way; false after the last one.
    fn turn(&mut self) -> bool {
        let next = self.at.iter().zip(&self.sizes).position(|(at, size)| at + 1 < *size);
        let Some(next) = next else { return false };
        self.at[next] += 1;
        self.at[..next].fill(0);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two pages at each place, which report so many blocks that each combination takes long.
    #[test]
    fn what_a_try_costs_counts() {
        let choices: Vec<Vec<Choice>> = (0..12)
            .map(|slot| {
                let one = |at: u64| Choice {
                    entry: Entry { page: Pointer { addr: slot * BITS + at, checksum: 1 }, used: 1 },
                    pages: vec![slot * BITS + at],
                    more: (slot * BITS..(slot + 1) * BITS).collect(),
                };
                vec![one(0), one(1)]
            })
            .collect();
        let (mut left, mut tried) = (1000, 0);
        let wrong = |_: &[Entry]| {
            tried += 1;
            false
        };
        assert!(choose(&choices, &[true; 12], &HashSet::new(), &mut left, wrong).is_none());
        assert!((1..10).contains(&tried), "{tried}");
    }
}
