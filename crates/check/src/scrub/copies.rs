//! The copies of metadata in a scrub. It reads all copies of superblocks, of the space map, of the table of
//! snapshots and of tree nodes. Damaged copies are mended, except those of superblocks, which the next
//! checkpoints overwrite.

use super::{NAP, Part, Scrub, Stopped};
use crate::finding::{Finding, FindingKind};
use syncline_device::DeviceExt;
use syncline_format::superblock::Superblock;
use syncline_format::{BLOCK_BYTES, BlockAddr};
use syncline_space::{Space, SpaceError};
use syncline_store::{Mended, RottenPage, Store, WIPED};

/// Attempts to read a superblock copy: a read may race with a write of that copy.
const COPY_ATTEMPTS: u32 = 5;

impl Scrub {
    pub(super) async fn superblocks(&self) -> Result<(), Stopped> {
        let store = self.store()?;
        for (slot, copy) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            let (mut error, mut addr) = (None, 0);
            for _ in 0..COPY_ATTEMPTS {
                // The copy may have moved, if the filesystem was grown.
                addr = store.geometry().superblock_copies(slot)[copy];
                error = bad_copy(&store, slot, copy).await;
                if error.is_none() {
                    break;
                }
                self.spawn.sleep(NAP).await;
            }
            if let Some(error) = error {
                let text = format!("copy {copy} of superblock {slot}: {error}");
                let kind = FindingKind::SuperblockDamaged;
                self.found(Finding { kind, object: None, block: Some(addr), text });
            }
            self.count(BLOCK_BYTES as u64);
        }
        Ok(())
    }

    pub(super) async fn space_map(&self) -> Result<(), Stopped> {
        let store = self.store()?;
        // Taken before the superblock is looked up, so that the pages of its space map stay (rule
        // R2).
        let pin = store.pin();
        let pages = store.pages_of_all_copies();
        let superblock = store.superblock();
        match Space::load(&pages, superblock.geometry, superblock.space).await {
            Ok(space) => {
                self.count(space.map_runs().iter().map(|run| run.len_bytes()).sum());
            }
            Err(error) => {
                let addr = match &error {
                    SpaceError::Corrupt { addr, .. } | SpaceError::OwnPageFree { addr, .. } => Some(*addr),
                    _ => None,
                };
                let (kind, text) = (FindingKind::SpaceMapDamaged, error.to_string());
                self.found(Finding { kind, object: None, block: addr, text });
            }
        }
        drop(pin);
        self.tell_pages(store.mend_space_map(pages.take_rotten()).await);
        Ok(())
    }

    pub(super) async fn snapshot_table(&self) -> Result<(), Stopped> {
        match self.store()?.mend_snapshot_table().await {
            Ok(mended) => self.tell_pages(mended),
            Err(error) => {
                let (kind, text) = (FindingKind::SnapshotTable, error.to_string());
                self.found(Finding { kind, object: None, block: None, text });
            }
        }
        Ok(())
    }

    /// Mends the damaged copies of tree nodes that were found so far.
    pub(super) async fn mend_nodes(&self, part: &Part) -> Result<(), Stopped> {
        let store = self.store()?;
        if let Some((_, view)) = &part.kept {
            store.take_rotten_of(view);
        }
        let mended = store.mend_nodes().await;
        self.tell_copies(mended.mended, mended.left.into_iter().map(|node| (node.addr, node.why)));
        Ok(())
    }

    pub(super) fn tell_pages(&self, mended: Mended<RottenPage>) {
        self.tell_copies(mended.mended, mended.left.into_iter().map(|page| (page.addr, page.why)));
    }

    fn tell_copies(&self, mended: u64, left: impl Iterator<Item = (BlockAddr, String)>) {
        self.state.lock().report.copies_mended += mended;
        for (addr, text) in left {
            let text = format!("{text}; it could not be written again");
            self.found(Finding { kind: FindingKind::CopyDamaged, object: None, block: Some(addr), text });
        }
    }
}

/// The damage of a superblock copy, if any. A copy that was never written is fine.
async fn bad_copy(store: &Store, slot: usize, copy: usize) -> Option<String> {
    let (geometry, newest) = (store.geometry(), store.superblock().generation);
    let addrs = geometry.superblock_copies(slot);
    let read = |addr: u64| store.device().read_at(addr * BLOCK_BYTES as u64, BLOCK_BYTES);
    let is_zeros = |block: &[u8]| block.iter().all(|&byte| byte == 0);
    match read(addrs[copy]).await {
        Ok(block) if is_zeros(&block) => {
            let other = read(addrs[1 - copy]).await.ok()?;
            // While the filesystem is being grown, a superblock with the old size has its second
            // copy elsewhere, and one that is not durable yet may lack its second copy.
            let is_complete = |other: Superblock| other.geometry == geometry && other.generation <= newest;
            let was_written = is_zeros(&other) || Superblock::decode(&other).is_ok_and(is_complete);
            was_written.then(|| WIPED.to_owned())
        }
        Ok(block) => Superblock::decode(&block).err().map(|error| error.to_string()),
        Err(error) => Some(error.to_string()),
    }
}
