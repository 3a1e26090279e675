//! Restores lost inner nodes of trees and pages of space maps in place, and a copy of a fork's record.
//!
//! The restored bytes are those that were there, as the checksum in the pointer to them proves. So
//! they go to the same place; that also mends every snapshot with the same node or page, and
//! nothing else has to be written.

use crate::finding::{FINDINGS_MAX, Finding, FindingKind};
use crate::repair::flaw::Flaw;
use crate::repair::{Repair, Stopped, Work};
use syncline_device::{AlignedBuf, DeviceExt};
use syncline_format::fork::{ForkRecord, RECORD_AT};
use syncline_format::{BLOCK_BYTES, BlockRun};
use syncline_store::{Regrown, Store, StoreError, read_snapshots};

impl Work {
    /// Restores all it can. Returns true if it restored anything.
    pub(super) async fn put_back(&mut self, repair: &mut Repair) -> Result<bool, Stopped> {
        let record = self.put_back_record(repair).await?;
        Ok(self.put_back_nodes(repair).await? || record)
    }

    /// Restores a copy of a fork's record from the other one.
    async fn put_back_record(&mut self, repair: &mut Repair) -> Result<bool, Stopped> {
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
        self.put_back.insert(place);
        let text = format!("{} → as the other copy", finding.text);
        repair.changes.push(Finding { text, ..finding });
        Ok(true)
    }

    async fn put_back_nodes(&mut self, repair: &mut Repair) -> Result<bool, Stopped> {
        if self.flaw == Some(Flaw::InnerNodesGoAway) {
            return Ok(false);
        }
        let opened = Store::open_to_salvage(self.over(), self.spawn.clone()).await;
        let (store, salvaged) = match opened {
            Ok(opened) => opened,
            Err(StoreError::Device(error)) => return Err(error.into()),
            // The pass that follows reports the error.
            Err(_) => return Ok(false),
        };
        let snapshots = read_snapshots(&self.over()).await.map(|(_, entries)| entries).unwrap_or_default();
        let mut regrown = store.regrow_nodes(&salvaged, &snapshots).await?;
        for node in &regrown {
            let text = format!("a node of level {}", node.level);
            self.tell_put_back(repair, FindingKind::NodeDamaged, node, text, "the nodes below it");
        }
        let pages = store.regrow_pages(&salvaged, &snapshots).await?;
        for page in &pages {
            let text = format!("a page of level {} of a space map", page.level);
            self.tell_put_back(repair, FindingKind::SpaceMapDamaged, page, text, "the blocks in use");
        }
        regrown.extend(pages);
        if regrown.is_empty() {
            return Ok(false);
        }
        // Neither items that can be read again nor items that could be read before may lie in these
        // blocks.
        let before = Store::open_to_salvage(self.device.clone(), self.spawn.clone()).await?;
        for ((store, salvaged), and_nodes) in [((store, salvaged), false), (before, true)] {
            if let Some(block) = store.contested(&salvaged, &snapshots, &regrown, and_nodes).await {
                let why = format!(
                    "the lost contents of block {block} could be restored, but that would destroy other contents there"
                );
                return Err(Stopped::Refused(why));
            }
        }
        Ok(true)
    }

    fn tell_put_back(
        &mut self,
        repair: &mut Repair,
        kind: FindingKind,
        what: &Regrown,
        text: String,
        source: &str,
    ) {
        self.put_back.extend(&what.blocks);
        if repair.changes.len() == FINDINGS_MAX {
            repair.changes_dropped += 1;
            return;
        }
        let text = format!("{text} → the same bytes again, which follow from {source}");
        repair.changes.push(Finding { kind, object: None, block: Some(what.addr), text });
    }
}
