//! Blocks that several extents lie on: who may stay, and what the counts must be.

use crate::finding::FindingKind;
use crate::references::to_items;
use crate::repair::planner::Planner;
use std::collections::BTreeMap;
use syncline_format::{Key, Kind};

/// Decides of the extents that share, when all others are known. Those that lie where something else does that shares
/// with nobody get blocks of their own; the counts are made those of the others.
pub(crate) fn resolve(planner: &mut Planner) {
    for (object, extent) in std::mem::take(&mut planner.sharing) {
        let taken = (extent.run().start..extent.run().end())
            .any(|block| planner.kept.contains(block) || planner.fixed.contains(block));
        if taken {
            planner.copy(object, extent);
        } else {
            planner.references.extent(extent.run());
        }
    }
    let found = planner.references.found();
    for shared in &found {
        planner.kept.add(shared.run);
    }
    let wrong = planner.references.wrong(&found);
    for it in &wrong {
        let text = format!("{} blocks: {} references → {}", it.run.blocks, it.told.max(1), it.found);
        planner.tell(FindingKind::ReferenceCount, None, Some(it.run.start), text);
    }
    if wrong.is_empty() {
        return;
    }
    let mut new: BTreeMap<u64, _> = to_items(&found).into_iter().map(|item| (item.run.start, item)).collect();
    for old in planner.references.items().to_vec() {
        match new.get(&old.run.start) {
            Some(item) if *item == old => drop(new.remove(&old.run.start)),
            Some(_) => {}
            None => planner.view.delete(Key::new(0, Kind::Shared, old.run.start)),
        }
    }
    for (start, item) in new {
        planner.view.put(Key::new(0, Kind::Shared, start), item.encode());
    }
}
