//! Reading the space map of an image. Every byte is untrusted.

use crate::SpaceError;
use crate::named::{BitPage, NamedMap, SharedPage};
use crate::pages::PageTable;
use crate::reader::PageReader;
use crate::space::Space;
use std::sync::Arc;
use syncline_format::space::{Entry, MAX_BLOCKS, PageId, decode_bitmap, decode_index, pages_at, root_level};
use syncline_format::superblock::SpaceRoot;
use syncline_format::{FormatError, Geometry};

impl Space {
    /// Reads the map that a superblock points to. Every block that it does not name may be handed
    /// out; the code that reads the log reserves the log's blocks.
    pub async fn load(
        pages: &PageReader,
        geometry: Geometry,
        root: SpaceRoot,
    ) -> Result<Arc<Self>, SpaceError> {
        let loader = Loader::read(pages, geometry, root).await?;
        Ok(Space::with_map(geometry, NamedMap::new(loader.pages), loader.table))
    }
}

/// A page on a level, and the pointer that leads to it.
type Wanted = (PageId, Entry);

struct Loader {
    geometry: Geometry,
    pages: Vec<SharedPage>,
    table: PageTable,
    below: Vec<Wanted>,
}

impl Loader {
    async fn read(pages: &PageReader, geometry: Geometry, root: SpaceRoot) -> Result<Self, SpaceError> {
        require_root(geometry, root)?;
        let mut loader = Self::new(geometry);
        let mut wanted = vec![(PageId { level: root.level, index: 0 }, Entry { page: root.page, used: 0 })];
        // Level by level, downwards: all indexes found are different, so this ends however the
        // pages are linked.
        while !wanted.is_empty() {
            wanted = loader.read_level(pages, wanted).await?;
        }
        loader.check()?;
        Ok(loader)
    }

    fn new(geometry: Geometry) -> Self {
        let pages = vec![None; pages_at(geometry, 0) as usize];
        Self { geometry, pages, table: PageTable::empty(geometry), below: Vec::new() }
    }

    /// Reads the pages of one level; returns those of the next.
    async fn read_level(
        &mut self,
        pages: &PageReader,
        wanted: Vec<Wanted>,
    ) -> Result<Vec<Wanted>, SpaceError> {
        let wanted = wanted.into_iter().map(|wanted| (wanted.1.page, wanted)).collect();
        let mut take = |block: &[u8], (id, entry): &Wanted| {
            let corrupt = |source| SpaceError::Corrupt { page: *id, addr: entry.page.addr, source };
            self.take_page(block, *id, *entry).map_err(corrupt)
        };
        pages.read_all(wanted, &mut take).await?;
        Ok(std::mem::take(&mut self.below))
    }

    fn take_page(&mut self, block: &[u8], id: PageId, entry: Entry) -> Result<(), FormatError> {
        let used = if id.level == 0 {
            let (words, used) = decode_bitmap(block, self.geometry, id.index, entry.page)?;
            self.pages[id.index as usize] = Some(Arc::new(BitPage::new(*words)));
            used
        } else {
            let (entries, used) = decode_index(block, self.geometry, id, entry.page)?;
            let children = entries.into_iter().enumerate().filter(|(_, entry)| !entry.is_null());
            self.below.extend(children.map(|(slot, entry)| (id.child(slot, self.geometry.metadata), entry)));
            used
        };
        // The superblock's pointer carries no count; the store checks the superblock's own field.
        if id != self.table.root() && used != u64::from(entry.used) {
            return Err(FormatError::Field { structure: "space page", field: "count of used blocks" });
        }
        self.table.set(id, entry);
        Ok(())
    }

    /// Checks that involve all pages.
    fn check(&self) -> Result<(), SpaceError> {
        let named = NamedMap::new(self.pages.clone());
        for (page, entry) in self.table.iter() {
            if let Some(addr) = entry.page.places().find(|addr| !named.is_named(*addr)) {
                // It would be handed out, and the map overwritten while in use (rule R2).
                return Err(SpaceError::OwnPageFree { page, addr });
            }
        }
        Ok(())
    }
}

/// Refuses a root that does not fit an image of this size.
pub(crate) fn require_root(geometry: Geometry, root: SpaceRoot) -> Result<(), SpaceError> {
    if geometry.total_blocks > MAX_BLOCKS {
        return Err(SpaceError::TooLarge { total_blocks: geometry.total_blocks });
    }
    let expected = root_level(geometry);
    if root.level == expected { Ok(()) } else { Err(SpaceError::RootLevel { found: root.level, expected }) }
}
