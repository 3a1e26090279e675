//! Reading the space map of an image. Every byte is untrusted.

use crate::SpaceError;
use crate::named::{BitPage, NamedMap, SharedPage};
use crate::pages::PageTable;
use crate::space::Space;
use std::sync::Arc;
use syncline_device::FlushTracker;
use syncline_format::space::{Entry, MAX_BLOCKS, PageId, decode_bitmap, decode_index, pages_at, root_level};
use syncline_format::superblock::SpaceRoot;
use syncline_format::{BLOCK_BYTES, BlockAddr, FormatError, Geometry};

/// Pages read by one device operation, at most.
const PAGES_PER_READ: usize = 64;
/// Reads in flight at a time.
const READS_IN_FLIGHT: usize = 16;

impl Space {
    /// Reads the map that a superblock points to. Every block that it does not name may be handed
    /// out; the code that reads the log reserves the log's blocks.
    pub async fn load(
        tracker: &Arc<FlushTracker>,
        geometry: Geometry,
        root: SpaceRoot,
    ) -> Result<Arc<Self>, SpaceError> {
        let loader = Loader::read(tracker, geometry, root).await?;
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
    async fn read(
        tracker: &Arc<FlushTracker>,
        geometry: Geometry,
        root: SpaceRoot,
    ) -> Result<Self, SpaceError> {
        require_root(geometry, root)?;
        let mut loader = Self::new(geometry);
        let mut wanted = vec![(PageId { level: root.level, index: 0 }, Entry { page: root.page, used: 0 })];
        // Level by level, downwards: all indexes found are different, so this ends however the
        // pages are linked.
        while !wanted.is_empty() {
            wanted = loader.read_level(tracker, wanted).await?;
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
        tracker: &Arc<FlushTracker>,
        wanted: Vec<Wanted>,
    ) -> Result<Vec<Wanted>, SpaceError> {
        let wanted = wanted.into_iter().map(|wanted| (wanted.1.page.addr, wanted)).collect();
        read_pages(tracker, wanted, &mut |block: &[u8], (id, entry): &Wanted| {
            let corrupt = |source| SpaceError::Corrupt { page: *id, addr: entry.page.addr, source };
            self.take_page(block, *id, *entry).map_err(corrupt)
        })
        .await?;
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
            self.below.extend(children.map(|(slot, entry)| (id.child(slot), entry)));
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
            let addr = entry.page.addr;
            if !named.is_named(addr) {
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

/// Reads pages by address, neighbours together, and passes each to `each` with the value given for
/// its address.
pub(crate) async fn read_pages<T>(
    tracker: &Arc<FlushTracker>,
    mut wanted: Vec<(BlockAddr, T)>,
    each: &mut (impl FnMut(&[u8], &T) -> Result<(), SpaceError> + ?Sized),
) -> Result<(), SpaceError> {
    wanted.sort_by_key(|(addr, _)| *addr);
    let together = |a: &(BlockAddr, T), b: &(BlockAddr, T)| a.0.checked_add(1) == Some(b.0);
    let runs: Vec<_> = wanted.chunk_by(together).flat_map(|run| run.chunks(PAGES_PER_READ)).collect();
    for batch in runs.chunks(READS_IN_FLIGHT) {
        // A read starts when it is created, so the whole batch is in flight before the first is
        // awaited.
        let reads = batch.iter().map(|run| {
            let offset = run[0].0.saturating_mul(BLOCK_BYTES as u64);
            tracker.read(offset, run.len() * BLOCK_BYTES)
        });
        for (read, run) in reads.collect::<Vec<_>>().into_iter().zip(batch) {
            let bytes = read.await?;
            for (block, (_, with)) in bytes.chunks_exact(BLOCK_BYTES).zip(*run) {
                each(block, with)?;
            }
        }
    }
    Ok(())
}
