//! Pages of a space map that are lost, made again from what is in use.
//!
//! The bits of a page follow from the tree that the map belongs to and from where the map's pages lie, an index page from the pages
//! below it, which are found by what they say of themselves. Whatever points to a lost page has the checksum of all its bytes: what is
//! made is what was there, or it is not used.

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
/// Choices of pages below index pages that are tried, for all maps together, so that an image made for it can't keep a repair busy for
/// ever. So are the others.
const TRIES_MAX: usize = 100_000;
/// Pages read while it is looked which of them belong below an index page.
const READS_MAX: usize = 1_000_000;
/// Pages that are tried at one place. Of a map that was not made to mislead there is hardly ever more than one.
const CHOICES_MAX: usize = 64;
/// Blocks told by a choice that cost as much as a try.
const BLOCKS_A_TRY: usize = 1024;
/// Blocks that look like pages.
const STRAYS_MAX: usize = 1 << 20;
/// Blocks that are looked through for them: 16 TiB.
const SEARCHED_MAX: u64 = 1 << 32;

/// A page that is what its pointer says again.
#[derive(Clone, Debug)]
pub struct RegrownPage {
    /// Where it belongs.
    pub addr: BlockAddr,
    /// How far it is from the bitmap pages.
    pub level: u8,
    /// What it holds.
    pub bytes: Bytes,
}

/// A map of which pages are lost.
pub struct TornMap {
    tracker: Arc<FlushTracker>,
    geometry: Geometry,
    /// What is known to be in use.
    used: NamedMap,
    lost: Vec<(PageId, Entry)>,
    /// What the bitmap pages say that can be read.
    read: Vec<(u64, Box<Words>)>,
}

/// A search for pages of all maps of an image, each of which is looked for once.
pub struct PageSearch {
    tracker: Arc<FlushTracker>,
    /// Of the image as it is.
    geometry: Geometry,
    strays: Option<Strays>,
    tries_left: usize,
    reads_left: AtomicUsize,
    failed: HashSet<(BlockAddr, u32)>,
}

/// Pages of any map, present or earlier.
#[derive(Default)]
struct Strays {
    by_place: HashMap<PageId, Vec<Entry>>,
    addrs: BTreeSet<BlockAddr>,
}

/// A page that may lie below a lost one, or none.
#[derive(Clone, Default)]
struct Choice {
    entry: Entry,
    /// It, and the pages below it.
    pages: Vec<BlockAddr>,
    /// What these say is in use and nothing else knows of: pages of their map.
    more: Vec<BlockAddr>,
}

impl PageSearch {
    /// One that has found nothing yet. `geometry` is that of the image as it is.
    pub fn new(tracker: Arc<FlushTracker>, geometry: Geometry) -> Self {
        let (reads_left, failed) = (READS_MAX.into(), HashSet::new());
        Self { tracker, geometry, strays: None, tries_left: TRIES_MAX, reads_left, failed }
    }

    /// Looks through all blocks, once; too many, or too much that looks like pages, and nothing is found.
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
    /// Reads what can be read of a map; `None` if that is all of it.
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

    /// Says that this is in use.
    pub fn name(&mut self, run: BlockRun) {
        if self.geometry.contains(run) {
            self.used.change_quietly(run, Change::Name);
        }
    }

    /// Makes the pages that are lost, as far as they follow from what was named: everything that the tree uses.
    pub async fn regrow(mut self, search: &mut PageSearch) -> Result<Vec<RegrownPage>, SpaceError> {
        let mut lost = std::mem::take(&mut self.lost);
        // Where the pages below an index page lie is part of what bitmap pages say.
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

    /// What the bitmap pages that can be read say is in use and nothing else knows of: pages of this map.
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

    /// The pages that may be this one, as many of them as are tried.
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

    /// True if the pages from this one downwards are whole and say what is in use, and of the rest only that pages lie there.
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

    /// No map has more pages.
    fn pages_max(&self) -> u64 {
        (0..=root_level(self.geometry)).map(|level| pages_at(self.geometry, level)).sum()
    }

    /// What a page says, if it is what is pointed to.
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
    /// True if pages lie in what this page covers.
    fn has_any_in(&self, id: PageId) -> bool {
        let blocks = bitmaps_below(id.level) * BITS;
        let covered = id.index * blocks..(id.index + 1) * blocks;
        self.strays.as_ref().is_some_and(|strays| strays.addrs.range(covered).next().is_some())
    }
}

/// Bitmap pages that a page of this level covers.
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

/// The pages of the first choice of one of each that is right. Those that cover pages tell which of all pages are of this map, and so
/// there is mostly no choice for the others.
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

/// All ways to take one of each.
struct Odometer {
    at: Vec<usize>,
    sizes: Vec<usize>,
}

impl Odometer {
    /// The first way; `None` if there is nothing to take of one of them.
    fn new(sizes: impl Iterator<Item = usize>) -> Option<Self> {
        let sizes: Vec<usize> = sizes.collect();
        (!sizes.contains(&0)).then(|| Self { at: vec![0; sizes.len()], sizes })
    }

    /// The next one; false after the last.
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

    /// Two pages at each place, which tell of so much that each way to choose takes long.
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
