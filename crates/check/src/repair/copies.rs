//! Mends damaged copies of metadata from the sound ones: of an image that holds its metadata twice, and of a
//! fork's record.
//!
//! The bytes are those that were there, as the checksum in the pointer to them proves. So they go to the
//! same place; that also mends every snapshot with the same node or page.

use crate::finding::{FINDINGS_MAX, Finding, FindingKind};
use crate::repair::{Repair, Stopped, Work};
use syncline_device::{AlignedBuf, DeviceExt, FlushTracker};
use syncline_format::fork::{ForkRecord, RECORD_AT};
use syncline_format::{BLOCK_BYTES, BlockRun};
use syncline_space::Space;
use syncline_store::{PageReader, StoreError, kept_by_snapshots, read_snapshots, read_superblocks};
use syncline_tree::Tree;

const NODE_CACHE_BYTES: usize = 1 << 20;

impl Work {
    /// Mends all damaged copies that have a sound one. Returns true if there were any.
    ///
    /// If a block is `used_twice`, nodes and pages stay as they are: a file may own the block in which a copy
    /// seems to lie. The passes that follow write the tree to other blocks.
    pub(super) async fn mend_copies(
        &mut self,
        used_twice: bool,
        repair: &mut Repair,
    ) -> Result<bool, Stopped> {
        let record = self.mend_record(repair).await?;
        Ok((!used_twice && self.mend_nodes_and_pages(repair).await?) || record)
    }

    /// Mends a copy of a fork's record.
    async fn mend_record(&mut self, repair: &mut Repair) -> Result<bool, Stopped> {
        let damaged: Vec<Finding> = repair.before.of(FindingKind::ForkRecord).cloned().collect();
        let over = self.over();
        let mut copies = Vec::new();
        for addr in RECORD_AT.into_iter().filter(|_| !damaged.is_empty()) {
            let read = over.read_at(BlockRun::new(addr, 1).offset_bytes(), BLOCK_BYTES).await;
            copies.extend(read.ok().and_then(|block| ForkRecord::decode(&block).ok()));
        }
        let Some(whole) = copies.pop() else { return Ok(false) };
        // The next number has the place of the other copy.
        let again = ForkRecord { sequence: whole.sequence.wrapping_add(1), ..whole };
        let place = again.place();
        let (Some(finding), Some(block)) =
            (damaged.into_iter().find(|finding| finding.block == Some(place)), again.encode())
        else {
            return Ok(false);
        };
        let block = AlignedBuf::copy_from(&block).into_bytes();
        over.write_at(BlockRun::new(place, 1).offset_bytes(), vec![block]).await?;
        self.mended.insert(place, place);
        let text = format!("{} → as the other copy", finding.text);
        repair.changes.push(Finding { text, ..finding });
        Ok(true)
    }

    async fn mend_nodes_and_pages(&mut self, repair: &mut Repair) -> Result<bool, Stopped> {
        // Without a superblock, the pass that follows reports the error.
        let Ok(slots) = read_superblocks(&self.over()).await else { return Ok(false) };
        let (tracker, superblock) = (FlushTracker::new(self.over()), slots.superblock);
        let pages = PageReader::of_all_copies(tracker.clone());
        // The check reports pages without a sound copy.
        let _ = Space::load(&pages, superblock.geometry, superblock.space).await;
        let _ = kept_by_snapshots(&pages, &superblock).await;
        let rotten_pages = pages.take_rotten();
        for page in &rotten_pages {
            page.mend(&tracker).await?;
            self.tell_mended(repair, BlockRun::new(page.addr, 1), &format!("a page: {}", page.why));
        }
        let mut roots = vec![(superblock.geometry, superblock.tree)];
        let snapshots = read_snapshots(&self.over()).await.map(|(_, entries)| entries).unwrap_or_default();
        roots.extend(snapshots.iter().map(|entry| (entry.geometry(superblock.geometry), entry.tree)));
        let mut any = !rotten_pages.is_empty();
        for (geometry, root) in roots {
            let tree = Tree::new(tracker.clone(), geometry, NODE_CACHE_BYTES);
            loop {
                tree.walk(root, &mut |_, _, _| {}).await;
                // In a hostile image, mending one copy may damage another.
                let mut rotten = tree.take_rotten();
                rotten.retain(|node| !self.mended.contains_key(&node.addr));
                if rotten.is_empty() {
                    break;
                }
                any = true;
                for node in rotten {
                    tree.mend(&node).await.map_err(StoreError::from)?;
                    let text = format!("a tree node of level {}: {}", node.level, node.why);
                    let run = BlockRun::new(node.addr, geometry.node_blocks());
                    self.tell_mended(repair, run, &text);
                }
            }
        }
        Ok(any)
    }

    fn tell_mended(&mut self, repair: &mut Repair, run: BlockRun, text: &str) {
        if self.mended.contains_key(&run.start) {
            return;
        }
        self.mended.extend((run.start..run.end()).map(|block| (block, run.start)));
        if repair.changes.len() == FINDINGS_MAX {
            repair.changes_dropped += 1;
            return;
        }
        let text = format!("a copy of {text} → the bytes of the other copy");
        repair.changes.push(Finding {
            kind: FindingKind::CopyDamaged,
            object: None,
            block: Some(run.start),
            text,
        });
    }
}
