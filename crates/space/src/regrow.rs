//! Pages of a space map that are lost, made again from what is in use.
//!
//! The bits of a page follow from the tree that the map belongs to and from where the map's pages lie, an index page from the pages
//! below it, which are found by what they say of themselves. Whatever points to a lost page has the checksum of all its bytes: what is
//! made is what was there, or it is not used.

use crate::SpaceError;
use crate::load::read_pages;
use crate::named::{Change, NamedMap};
use bytes::Bytes;
use std::collections::{HashMap, HashSet};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use syncline_device::{AlignedBuf, FlushTracker};
use syncline_format::space::{
    CHILDREN, Entry, MAX_BLOCKS, PageId, WORDS, Words, claimed_page, decode_bitmap, decode_index,
    encode_bitmap, encode_index, pages_at, root_level,
};
use syncline_format::superblock::{Pointer, SpaceRoot};
use syncline_format::{BLOCK_BYTES, BlockAddr, BlockRun, Geometry, crc};

/// Blocks read at a time.
const BLOCKS_EACH: u64 = 256;
/// Choices of pages below an index page that are tried.
const TRIES_MAX: usize = 100_000;
/// Pages read while it is looked which of them belong below an index page.
const READS_MAX: usize = 1_000_000;

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
}

/// Pages of this map, of others and of earlier ones.
struct Strays {
    by_place: HashMap<PageId, Vec<Entry>>,
    addrs: HashSet<BlockAddr>,
    /// How many more may be read again, so that an image made for it can't keep a repair busy for ever.
    reads_left: AtomicUsize,
}

impl TornMap {
    /// Reads what can be read of a map; `None` if that is all of it.
    pub async fn read(
        tracker: &Arc<FlushTracker>,
        geometry: Geometry,
        root: SpaceRoot,
    ) -> Result<Option<Self>, SpaceError> {
        if geometry.total_blocks > MAX_BLOCKS {
            return Err(SpaceError::TooLarge { total_blocks: geometry.total_blocks });
        }
        let expected = root_level(geometry);
        if root.level != expected {
            return Err(SpaceError::RootLevel { found: root.level, expected });
        }
        let used = NamedMap::empty(geometry);
        let mut torn = Self { tracker: tracker.clone(), geometry, used, lost: Vec::new() };
        let mut wanted = vec![(PageId { level: root.level, index: 0 }, Entry { page: root.page, used: 0 })];
        while !wanted.is_empty() {
            let mut below = Vec::new();
            let pages = wanted.into_iter().map(|wanted| (wanted.1.page.addr, wanted)).collect();
            read_pages(tracker, pages, &mut |block: &[u8], &(id, entry): &(PageId, Entry)| {
                torn.name(BlockRun::new(entry.page.addr, 1));
                match torn.contents(block, id, entry) {
                    Some(Contents::Index(entries)) => below.extend(children(id, entries)),
                    Some(Contents::Bitmap(_)) => {}
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
    pub async fn regrow(mut self) -> Result<Vec<RegrownPage>, SpaceError> {
        let mut lost = std::mem::take(&mut self.lost);
        // Where the pages below an index page lie is part of what bitmap pages say.
        lost.sort_by_key(|(id, _)| std::cmp::Reverse(id.level));
        let indexes = lost.iter().any(|(id, _)| id.level > 0);
        let strays = if indexes { Some(self.strays().await?) } else { None };
        let mut regrown = Vec::new();
        for (id, entry) in lost {
            let bytes = match &strays {
                Some(strays) if id.level > 0 => self.index_page(id, entry.page, strays).await?,
                _ => self.bitmap_page(id, entry.page),
            };
            let (addr, level) = (entry.page.addr, id.level);
            regrown.extend(bytes.map(|bytes| RegrownPage { addr, level, bytes }));
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
        strays: &Strays,
    ) -> Result<Option<Bytes>, SpaceError> {
        let below = pages_at(self.geometry, id.level - 1);
        let slots = (0..below.saturating_sub(id.child(0).index).min(CHILDREN as u64))
            .map(|slot| id.child(slot as usize));
        let mut choices = Vec::new();
        for child in slots {
            let mut choice: Vec<(Entry, Vec<BlockAddr>)> = Vec::new();
            if !self.uses_any(child) {
                choice.push((Entry::default(), Vec::new()));
            }
            for entry in strays.by_place.get(&child).into_iter().flatten() {
                choice.extend(self.fitting(child, *entry, strays).await?.map(|pages| (*entry, pages)));
            }
            choices.push(choice);
        }
        let mut block = AlignedBuf::zeroed(BLOCK_BYTES);
        let chosen =
            choose(&choices, |entries| encode_index(&mut block, id, pointer.addr, entries).0 == pointer);
        let Some(chosen) = chosen else { return Ok(None) };
        for (choice, index) in choices.iter().zip(chosen) {
            choice[index].1.iter().for_each(|addr| self.name(BlockRun::new(*addr, 1)));
        }
        Ok(Some(block.into_bytes()))
    }

    /// Where the pages from this one downwards lie, if they are whole and say what is in use, and of the rest only that pages may
    /// lie there.
    fn fitting<'a>(
        &'a self,
        id: PageId,
        entry: Entry,
        strays: &'a Strays,
    ) -> Pin<Box<dyn Future<Output = Result<Option<Vec<BlockAddr>>, SpaceError>> + Send + 'a>> {
        Box::pin(async move {
            let spend = |left: usize| left.checked_sub(1);
            if strays.reads_left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, spend).is_err() {
                return Ok(None);
            }
            let at = BlockRun::new(entry.page.addr, 1);
            let block = self.tracker.read(at.offset_bytes(), BLOCK_BYTES).await?;
            let mut pages = vec![entry.page.addr];
            match self.contents(&block, id, entry) {
                None => return Ok(None),
                Some(Contents::Bitmap(words)) => {
                    let known = self.words(id.index);
                    let mut both = words.iter().zip(&known).enumerate();
                    let fits = both.all(|(number, (found, known))| {
                        let first = (id.index * WORDS as u64 + number as u64) * 64;
                        let more = found & !known;
                        let may_be =
                            |bit: &u64| more >> bit & 1 == 0 || strays.addrs.contains(&(first + bit));
                        known & !found == 0 && (more == 0 || (0..64).all(|bit| may_be(&bit)))
                    });
                    if !fits {
                        return Ok(None);
                    }
                }
                Some(Contents::Index(entries)) => {
                    for (slot, entry) in entries.into_iter().enumerate() {
                        let child = id.child(slot);
                        if entry.is_null() && !self.uses_any(child) {
                            continue;
                        }
                        match self.fitting(child, entry, strays).await? {
                            Some(below) => pages.extend(below),
                            None => return Ok(None),
                        }
                    }
                }
            }
            Ok(Some(pages))
        })
    }

    /// Looks for pages in everything that is not known to be in use for something else.
    async fn strays(&self) -> Result<Strays, SpaceError> {
        let mut strays =
            Strays { by_place: HashMap::new(), addrs: HashSet::new(), reads_left: READS_MAX.into() };
        for run in self.used.unnamed_parts(self.geometry.usable()) {
            let mut at = run.start;
            while at < run.end() {
                let chunk = BlockRun::new(at, (run.end() - at).min(BLOCKS_EACH));
                let bytes = self.tracker.read(chunk.offset_bytes(), chunk.len_bytes() as usize).await?;
                for (addr, block) in (at..).zip(bytes.chunks_exact(BLOCK_BYTES)) {
                    let Some((id, used)) = claimed_page(block, addr) else { continue };
                    let Ok(used) = u32::try_from(used) else { continue };
                    let entry = Entry { page: Pointer { addr, checksum: crc(block) }, used };
                    strays.by_place.entry(id).or_default().push(entry);
                    strays.addrs.insert(addr);
                }
                at = chunk.end();
            }
        }
        Ok(strays)
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
        let width = (0..id.level).fold(1, |width: u64, _| width * CHILDREN as u64);
        let pages = self.used.pages().iter().skip((id.index * width) as usize).take(width as usize);
        pages.flatten().any(|page| page.used() > 0)
    }
}

enum Contents {
    Bitmap(Box<Words>),
    Index(Vec<Entry>),
}

fn children(id: PageId, entries: Vec<Entry>) -> impl Iterator<Item = (PageId, Entry)> {
    let children = entries.into_iter().enumerate().filter(|(_, entry)| !entry.is_null());
    children.map(move |(slot, entry)| (id.child(slot), entry))
}

/// The first choice of one of each that is right.
fn choose(
    choices: &[Vec<(Entry, Vec<BlockAddr>)>],
    mut is_right: impl FnMut(&[Entry]) -> bool,
) -> Option<Vec<usize>> {
    if choices.iter().any(Vec::is_empty) {
        return None;
    }
    let mut chosen = vec![0; choices.len()];
    for _ in 0..TRIES_MAX {
        let entries: Vec<Entry> =
            choices.iter().zip(&chosen).map(|(choice, &index)| choice[index].0).collect();
        if is_right(&entries) {
            return Some(chosen);
        }
        let next = chosen.iter().zip(choices).position(|(index, choice)| index + 1 < choice.len())?;
        chosen[next] += 1;
        chosen[..next].fill(0);
    }
    None
}
