//! The table of snapshots and what it keeps.

use crate::finding::{FindingKind, Report};
use std::sync::Arc;
use syncline_device::FlushTracker;
use syncline_format::BlockRun;
use syncline_format::superblock::Superblock;
use syncline_store::{StoreError, first_kept_by_snapshots};

/// Reads the table and the space maps of all snapshots; false if that can't be done. The log must not lie in what they keep.
pub(crate) async fn table(
    tracker: &Arc<FlushTracker>,
    superblock: &Superblock,
    log: &[BlockRun],
    report: &mut Report,
) -> bool {
    let overlap = match first_kept_by_snapshots(tracker, superblock, log).await {
        Ok(overlap) => overlap,
        Err(error) => {
            let block = match &error {
                StoreError::Corrupt { addr, .. } => Some(*addr),
                _ => None,
            };
            report.add(FindingKind::SnapshotTable, None, block, error.to_string());
            return false;
        }
    };
    if let Some(run) = overlap {
        let text = "a snapshot keeps blocks in which the log lies";
        report.block(FindingKind::LogOverlap, run.start, text);
    }
    true
}
