//! Reads several space maps on a device side by side. Every byte is untrusted.
//!
//! The maps of snapshots share most of their pages. They are walked together, place by place of the
//! radix tree from left to right, and each page at a place is read once, however many maps have it.
//! So only the differences are read, and memory holds the pages of one place on each level and of a
//! few places at the bottom: some megabytes, however many maps there are and however large the
//! image is.

use crate::SpaceError;
use crate::load::require_root;
use crate::reader::PageReader;
use std::collections::{BTreeMap, HashMap};
use syncline_format::space::{Entry, PageId, Words, decode_bitmap, decode_index, pages_at, root_level};
use syncline_format::superblock::{Pointer, SpaceRoot};
use syncline_format::{FormatError, Geometry, Metadata};

/// Approximate number of bitmap pages in memory at a time: 4 MiB. (All pages of one place are read
/// together.)
const PAGES_AT_ONCE: usize = 1024;

/// A page, and the maps that have it at its place.
struct Group {
    entry: Entry,
    /// The sizes of the image when the page was written, by which its contents are checked.
    geometry: Geometry,
    maps: Vec<u32>,
}

/// A place in the tree, and the pages found there.
type Place = (PageId, Vec<Group>);

/// Identifies a page at a place.
type GroupKey = (Pointer, u32, u64);

/// Facts about the bitmap pages of a place, as the pointers to them say.
#[derive(Clone, Copy)]
pub(crate) struct Pages {
    /// How many different ones there are.
    pub(crate) count: usize,
    /// The number of maps that have the rarest of them.
    pub(crate) fewest_maps: usize,
    /// The blocks that the first of them names. A superblock's pointer says nothing: 0.
    pub(crate) used: u32,
}

/// One of the bitmap pages at a place: the maps that have it, and its bits.
pub(crate) struct Side<'a> {
    pub(crate) maps: &'a [u32],
    pub(crate) words: &'a Words,
}

/// Called during a walk through maps.
pub(crate) trait Visitor {
    /// Whether the bitmap pages of a place must be read.
    fn wants(&mut self, place: Pages) -> bool;
    /// Called with the bitmap pages of a place.
    fn visit(&mut self, index: u64, sides: &[Side<'_>]);
    /// Called for each page that was read, with the pointer to it.
    fn found(&mut self, page: PageId, pointer: Pointer);
}

struct Walk {
    /// Maps whose root is on a lower level than the highest root, by level.
    lower: BTreeMap<u8, Vec<Group>>,
    places: Vec<Place>,
}

/// Walks through these maps, each with the geometry that the image had at its time.
pub(crate) async fn walk(
    pages: &PageReader,
    maps: &[(Geometry, SpaceRoot)],
    visitor: &mut impl Visitor,
) -> Result<(), SpaceError> {
    let mut walk = Walk::begin(maps)?;
    while let Some((id, groups)) = walk.places.pop() {
        if id.level == 0 {
            // The map of an image this small is a single page.
            visit(pages, vec![(id, groups)], visitor).await?;
            continue;
        }
        let below = children(pages, id, groups, visitor).await?;
        let below = walk.joined(id, below);
        if id.level > 1 {
            // The leftmost is visited first.
            walk.places.extend(below.into_iter().rev());
            continue;
        }
        let (mut together, mut count) = (Vec::new(), 0);
        for place in below {
            count += place.1.len();
            together.push(place);
            if count >= PAGES_AT_ONCE {
                visit(pages, std::mem::take(&mut together), visitor).await?;
                count = 0;
            }
        }
        visit(pages, together, visitor).await?;
    }
    Ok(())
}

impl Walk {
    fn begin(maps: &[(Geometry, SpaceRoot)]) -> Result<Self, SpaceError> {
        let mut roots: BTreeMap<u8, Grouping> = BTreeMap::new();
        for (index, (geometry, root)) in (0..).zip(maps) {
            require_root(*geometry, *root)?;
            let entry = Entry { page: root.page, used: 0 };
            roots.entry(root.level).or_default().add(entry, *geometry, &[index]);
        }
        let mut lower: BTreeMap<u8, Vec<Group>> =
            roots.into_iter().map(|(level, grouping)| (level, grouping.groups)).collect();
        let top = lower.pop_last().map(|(level, groups)| (PageId { level, index: 0 }, groups));
        Ok(Self { lower, places: top.into_iter().collect() })
    }

    /// The places below `id`, with the roots of lower maps that begin there.
    fn joined(&mut self, id: PageId, mut below: Vec<Place>) -> Vec<Place> {
        if id.index > 0 || self.lower.is_empty() {
            return below;
        }
        let child = PageId { level: id.level - 1, index: 0 };
        if below.first().is_none_or(|(first, _)| *first != child) {
            below.insert(0, (child, Vec::new()));
        }
        below[0].1.extend(self.lower.remove(&child.level).unwrap_or_default());
        below
    }
}

/// Pages, without duplicates.
#[derive(Default)]
struct Grouping {
    groups: Vec<Group>,
    known: HashMap<GroupKey, usize>,
}

impl Grouping {
    /// Adds a page for these maps. (If pointers disagree about a page, at least one of them will
    /// reject it.)
    fn add(&mut self, entry: Entry, geometry: Geometry, maps: &[u32]) {
        let key = (entry.page, entry.used, geometry.total_blocks);
        match self.known.get(&key) {
            Some(&group) => self.groups[group].maps.extend_from_slice(maps),
            None => {
                self.known.insert(key, self.groups.len());
                self.groups.push(Group { entry, geometry, maps: maps.to_vec() });
            }
        }
    }
}

/// Reads the index pages of a place; returns the places below it that have any page.
async fn children(
    pages: &PageReader,
    id: PageId,
    groups: Vec<Group>,
    visitor: &mut impl Visitor,
) -> Result<Vec<Place>, SpaceError> {
    let mut below: BTreeMap<usize, Grouping> = BTreeMap::new();
    let wanted = groups.iter().map(|group| (group.entry.page, group)).collect();
    let mut take = |block: &[u8], group: &&Group| {
        let decoded = decode_index(block, group.geometry, id, group.entry.page);
        let entries = checked(decoded, id, group)?;
        visitor.found(id, group.entry.page);
        for (slot, entry) in entries.into_iter().enumerate().filter(|(_, entry)| !entry.is_null()) {
            below.entry(slot).or_default().add(entry, group.geometry, &group.maps);
        }
        Ok(())
    };
    pages.read_all(wanted, &mut take).await?;
    // The copies of the metadata are the same for all maps of an image.
    let metadata = groups.first().map_or(Metadata::default(), |group| group.geometry.metadata);
    Ok(below.into_iter().map(|(slot, grouping)| (id.child(slot, metadata), grouping.groups)).collect())
}

/// Reads the bitmap pages of these places, and passes them to the visitor.
async fn visit(
    pages: &PageReader,
    mut places: Vec<Place>,
    visitor: &mut impl Visitor,
) -> Result<(), SpaceError> {
    places.retain(|(_, groups)| {
        let fewest = groups.iter().map(|group| group.maps.len()).min();
        let used = groups.first().map_or(0, |group| group.entry.used);
        fewest.is_some_and(|fewest_maps| visitor.wants(Pages { count: groups.len(), fewest_maps, used }))
    });
    let mut read: Vec<Vec<Option<Box<Words>>>> =
        places.iter().map(|(_, groups)| groups.iter().map(|_| None).collect()).collect();
    let wanted = places.iter().enumerate().flat_map(|(place, (id, groups))| {
        let groups = groups.iter().enumerate();
        groups.map(move |(index, group)| (group.entry.page, (place, *id, index, group)))
    });
    let mut take = |block: &[u8], (place, id, index, group): &(usize, PageId, usize, &Group)| {
        let decoded = decode_bitmap(block, group.geometry, id.index, group.entry.page);
        read[*place][*index] = Some(checked(decoded, *id, group)?);
        visitor.found(*id, group.entry.page);
        Ok(())
    };
    pages.read_all(wanted.collect(), &mut take).await?;
    for ((id, groups), words) in places.iter().zip(&read) {
        let sides = groups.iter().zip(words);
        let sides =
            sides.filter_map(|(group, words)| Some(Side { maps: &group.maps, words: words.as_deref()? }));
        visitor.visit(id.index, &sides.collect::<Vec<_>>());
    }
    Ok(())
}

/// The decoded page, if it names as many blocks as the pointer to it says.
fn checked<T>(decoded: Result<(T, u64), FormatError>, id: PageId, group: &Group) -> Result<T, SpaceError> {
    let corrupt = |source| SpaceError::Corrupt { page: id, addr: group.entry.page.addr, source };
    let (contents, used) = decoded.map_err(corrupt)?;
    // The superblock's pointer carries no count.
    let is_root = id.level == root_level(group.geometry) && pages_at(group.geometry, id.level) == 1;
    if !is_root && used != u64::from(group.entry.used) {
        return Err(corrupt(FormatError::Field { structure: "space page", field: "count of used blocks" }));
    }
    Ok(contents)
}
