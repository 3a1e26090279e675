//! Inner nodes of the tree that are lost, put back where they were.
//!
//! What is put back is what was there, byte for byte, as the checksum above it says; so it goes where it was, which mends it for every
//! snapshot that has the same node, and nothing else has to be written.

use crate::finding::{FINDINGS_MAX, Finding, FindingKind};
use crate::repair::flaw::Flaw;
use crate::repair::{Repair, Stopped, Work};
use syncline_store::{Store, StoreError, read_snapshots};

impl Work {
    /// Puts back all it can. True if that is any.
    pub(super) async fn inner_nodes(&mut self, repair: &mut Repair) -> Result<bool, Stopped> {
        if self.flaw == Some(Flaw::InnerNodesGoAway) {
            return Ok(false);
        }
        let opened = Store::open_to_salvage(self.over(), self.spawn.clone()).await;
        let (store, salvaged) = match opened {
            Ok(opened) => opened,
            Err(StoreError::Device(error)) => return Err(error.into()),
            // The pass that follows says why.
            Err(_) => return Ok(false),
        };
        let snapshots = read_snapshots(&self.over()).await.map(|(_, entries)| entries).unwrap_or_default();
        let regrown = store.regrow_nodes(&salvaged, &snapshots).await?;
        if regrown.is_empty() {
            return Ok(false);
        }
        // What can be read again has its blocks, and what could be read all the time.
        let before = Store::open_to_salvage(self.device.clone(), self.spawn.clone()).await?;
        for ((store, salvaged), and_nodes) in [((store, salvaged), false), (before, true)] {
            if let Some(block) = store.contested(&salvaged, &snapshots, &regrown, and_nodes).await {
                let why = format!(
                    "a node of the tree belongs to block {block}, where something else lies that would be lost"
                );
                return Err(Stopped::Refused(why));
            }
        }
        for node in &regrown {
            self.put_back.extend(&node.blocks);
            if repair.changes.len() == FINDINGS_MAX {
                repair.changes_dropped += 1;
                continue;
            }
            repair.changes.push(Finding {
                kind: FindingKind::NodeDamaged,
                object: None,
                block: Some(node.addr),
                text: format!(
                    "a node of level {} → the same bytes again, which follow from the nodes below it",
                    node.level
                ),
            });
        }
        Ok(true)
    }
}
