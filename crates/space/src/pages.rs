//! The places of the map's pages on the device.

use syncline_format::space::{Entry, PageId, children, pages_at, root_level};
use syncline_format::{Geometry, Metadata};

/// The pointer to each page, by level and index.
pub(crate) struct PageTable {
    levels: Vec<Vec<Entry>>,
    pub(crate) metadata: Metadata,
}

impl PageTable {
    /// A table without pages.
    pub(crate) fn empty(geometry: Geometry) -> Self {
        let count = |level| pages_at(geometry, level) as usize;
        Self {
            levels: (0..=root_level(geometry)).map(|level| vec![Entry::default(); count(level)]).collect(),
            metadata: geometry.metadata,
        }
    }

    /// The same pages in an image of another size, as far as that has them.
    pub(crate) fn resized(&self, geometry: Geometry) -> Self {
        let mut resized = Self::empty(geometry);
        for (mine, theirs) in resized.levels.iter_mut().zip(&self.levels) {
            mine.iter_mut().zip(theirs).for_each(|(mine, theirs)| *mine = *theirs);
        }
        resized
    }

    /// True when an image of this size has the page.
    pub(crate) fn has(&self, id: PageId) -> bool {
        self.levels.get(usize::from(id.level)).is_some_and(|level| (id.index as usize) < level.len())
    }

    /// The id of the root page.
    pub(crate) fn root(&self) -> PageId {
        PageId { level: self.levels.len() as u8 - 1, index: 0 }
    }

    /// The pointer to a page.
    pub(crate) fn get(&self, id: PageId) -> Entry {
        self.levels[usize::from(id.level)][id.index as usize]
    }

    /// Replaces the pointer to a page; returns the previous one.
    pub(crate) fn set(&mut self, id: PageId, entry: Entry) -> Entry {
        std::mem::replace(&mut self.levels[usize::from(id.level)][id.index as usize], entry)
    }

    /// Undoes changes, newest first.
    pub(crate) fn restore(&mut self, replaced: Vec<(PageId, Entry)>) {
        replaced.into_iter().rev().for_each(|(id, entry)| {
            self.set(id, entry);
        });
    }

    /// The pointers that an index page holds.
    pub(crate) fn children(&self, id: PageId) -> &[Entry] {
        let level = &self.levels[usize::from(id.level) - 1];
        let children = children(self.metadata) as usize;
        let first = id.index as usize * children;
        &level[first..level.len().min(first + children)]
    }

    /// All pages that exist.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (PageId, Entry)> + '_ {
        self.levels.iter().enumerate().flat_map(|(level, entries)| {
            let id = move |index| PageId { level: level as u8, index: index as u64 };
            let entries = entries.iter().enumerate().map(move |(index, entry)| (id(index), *entry));
            entries.filter(|(_, entry)| !entry.is_null())
        })
    }
}
