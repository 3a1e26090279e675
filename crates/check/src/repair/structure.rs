//! Damage to the structures that hold the items: superblocks, log, nodes, space map.

use crate::finding::{FindingKind, Report};
use crate::repair::planner::Planner;
use syncline_store::{Salvaged, Store};

/// The remedy for damage outside items. `None`: it is reported elsewhere, or it is not structural.
fn remedy(kind: FindingKind) -> Option<&'static str> {
    Some(match kind {
        FindingKind::SuperblockDamaged => "rewritten",
        FindingKind::SuperblockCounter => "counted again",
        FindingKind::LogLead => "its copy counts, and a new log begins",
        FindingKind::LogDamaged => "the log ends there; the changes that followed are given up",
        FindingKind::SpaceMapDamaged => "made again from the blocks in use",
        FindingKind::BlockUsedTwice => "each gets blocks of its own",
        FindingKind::BlockLeaked => "free",
        FindingKind::BlockUnnamed => "in use",
        FindingKind::LogOverlap => "the log moves",
        FindingKind::SnapshotTable => "the snapshots are given up",
        _ => return None,
    })
}

/// Reports the structural changes.
pub(crate) fn tell(before: &Report, salvaged: &Salvaged, planner: &mut Planner) {
    for snapshot in salvaged.given_up() {
        let text = format!("the space map of snapshot {:?} → the snapshot is given up", snapshot.name);
        planner.tell(FindingKind::SnapshotTable, None, Some(snapshot.space.page.addr), text);
    }
    for finding in &before.findings {
        let told = finding.kind == FindingKind::SnapshotTable && salvaged.snapshots.is_some();
        if let Some(remedy) = remedy(finding.kind).filter(|_| !told) {
            let text = format!("{} → {remedy}", finding.text);
            planner.tell(finding.kind, finding.object, finding.block, text);
        }
    }
    if let Some(cut) = &salvaged.log_cut
        && before.of(FindingKind::LogDamaged).next().is_none()
    {
        planner.tell(FindingKind::LogDamaged, None, None, format!("{cut} → the log ends there"));
    }
    ignored(salvaged, planner);
}

/// Reports the parts of the log that are left out.
fn ignored(salvaged: &Salvaged, planner: &mut Planner) {
    if let Some(object) = salvaged.ignored.object {
        let text =
            format!("{} items of the log, of objects that can't be → left out", salvaged.ignored.items);
        planner.object(FindingKind::ObjectNumber, object, text);
    }
}

/// Reports the number of objects if it changes, whether it was wrong or the repair changes it.
pub(crate) fn counters(store: &Store, planner: &mut Planner) {
    let (before, after) = (store.objects(), planner.inodes.len() as u64);
    if before != after {
        planner.tell(FindingKind::ObjectCount, None, None, format!("{before} → {after}"));
    }
}

/// True if there are objects whose numbers were never handed out.
fn numbers_overrun(planner: &Planner) -> bool {
    planner.next_object > planner.handed_out + planner.created.len() as u64
}

/// True if changing items is not enough and the tree and space map must be rebuilt.
pub(crate) fn is_broken(before: &Report, salvaged: &Salvaged, planner: &Planner) -> bool {
    // These have another good copy, and opening the image rewrites what matters.
    let copied = |kind| matches!(kind, FindingKind::SuperblockDamaged | FindingKind::LogLead);
    let structural = |kind| remedy(kind).is_some() && !copied(kind);
    before.incomplete
        || before.findings_dropped > 0
        || before.findings.iter().any(|finding| structural(finding.kind))
        || !salvaged.space_map
        || salvaged.log_cut.is_some()
        || !planner.view.lost.is_empty()
        || !planner.copies.is_empty()
        || !planner.unreadable.is_empty()
        || planner.leaks
        || numbers_overrun(planner)
}
