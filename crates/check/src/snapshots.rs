//! The table of snapshots and the blocks that it keeps.

use crate::finding::{FindingKind, Report};
use syncline_format::BlockRun;
use syncline_format::superblock::Superblock;
use syncline_store::{
    PageReader, StoreError, first_kept_by_snapshots, table_in_what_is_kept, table_of_snapshots,
};

/// Reads the table and the space maps of all snapshots, and reports where they overlap the log.
/// Returns the blocks of the table; `None` if they can't be read.
pub(crate) async fn table(
    pages: &PageReader,
    superblock: &Superblock,
    log: &[BlockRun],
    report: &mut Report,
) -> Option<Vec<BlockRun>> {
    let overlap = match first_kept_by_snapshots(pages, superblock, log).await {
        Ok(overlap) => overlap,
        Err(error) => {
            let block = match &error {
                StoreError::Corrupt { addr, .. } => Some(*addr),
                _ => None,
            };
            report.add(FindingKind::SnapshotTable, None, block, error.to_string());
            return None;
        }
    };
    if let Some(run) = overlap {
        let text = "a snapshot keeps blocks in which the log lies";
        report.block(FindingKind::LogOverlap, run.start, text);
    }
    let table = table_of_snapshots(pages, superblock).await.ok()?;
    if let Ok(Some(block)) = table_in_what_is_kept(pages, superblock).await {
        let text = "the table lies in what a snapshot keeps";
        report.block(FindingKind::SnapshotTable, block.start, text);
    }
    Some(table)
}
