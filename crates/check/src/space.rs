//! Compares the blocks in use with the space map, in both directions.

use crate::blocks::BlockSet;
use crate::finding::{FindingKind, Report};
use syncline_format::BlockRun;
use syncline_store::Store;

/// Compares `reachable`, which has the tree nodes and extents, with the space map. The map does not
/// name the blocks of the log and of the table of snapshots.
pub(crate) fn compare(
    store: &Store,
    mut reachable: BlockSet,
    log: &[BlockRun],
    table: &[BlockRun],
    report: &mut Report,
) {
    for page in store.space_pages() {
        if !reachable.add(page) {
            let text = "a page of the space map lies where something else does";
            report.block(FindingKind::BlockUsedTwice, page.start, text);
        }
    }
    let blocks = store.geometry().total_blocks;
    let mut fixed = BlockSet::new(blocks);
    for &block in table {
        fixed.add(block);
    }
    for run in reachable.common(&fixed) {
        let text = "something lies where the table of snapshots does";
        report.block(FindingKind::BlockUsedTwice, run.start, text);
    }
    let mut named = BlockSet::new(blocks);
    for run in store.named_runs() {
        named.add(run);
    }
    let mut segments = BlockSet::new(blocks);
    for &segment in log {
        segments.add(segment);
    }
    report.blocks_used = reachable.len();
    for run in reachable.without(&named) {
        report.block(FindingKind::BlockUnnamed, run.start, format!("{} blocks", run.blocks));
    }
    for run in reachable.common(&segments) {
        report.block(FindingKind::LogOverlap, run.start, format!("{} blocks", run.blocks));
    }
    if !report.incomplete {
        // Items that could not be read may use them.
        for run in named.without(&reachable) {
            report.block(FindingKind::BlockLeaked, run.start, format!("{} blocks", run.blocks));
        }
    }
}
