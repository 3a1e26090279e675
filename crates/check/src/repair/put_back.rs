//! Restores lost inner nodes of trees and pages of space maps in place.
//!
//! The restored bytes are those that were there, as the checksum in the pointer to them proves. So
//! they go to the same place; that also mends every snapshot with the same node or page, and
//! nothing else has to be written.

use crate::finding::{FINDINGS_MAX, Finding, FindingKind};
use crate::repair::flaw::Flaw;
use crate::repair::{Repair, Stopped, Work};
use syncline_store::{Regrown, Store, StoreError, read_snapshots};

impl Work {
    /// Restores all it can. Returns true if it restored anything.
    pub(super) async fn put_back(&mut self, repair: &mut Repair) -> Result<bool, Stopped> {
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
