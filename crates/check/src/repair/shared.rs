//! Blocks that several extents share: which extents may stay, and the correct reference counts.

use crate::finding::FindingKind;
use crate::references::to_items;
use crate::repair::planner::Planner;
use std::collections::BTreeMap;
use syncline_format::{Key, Kind};

/// Decides about the sharing extents, once all others are known. A sharing extent that overlaps
/// unshared use gets blocks of its own; the reference counts become those of the remaining ones.
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
