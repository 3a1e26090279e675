//! Drops preallocations that can't have room: otherwise the filesystem would stay full.

use crate::finding::FindingKind;
use crate::object::UNITS_PER_BLOCK;
use crate::preallocation::excess;
use crate::repair::planner::Planner;
use syncline_format::{Key, Kind};

/// Drops preallocations until the rest fit, starting with the files that have most. The dropped
/// blocks read as zeros before and after.
pub(crate) async fn resolve(planner: &mut Planner) {
    let sum =
        |planner: &Planner| planner.rooms.values().fold(0, |sum: u64, blocks| sum.saturating_add(*blocks));
    while excess(planner.geometry, planner.kept.len(), sum(planner)) > 0 {
        let most = planner
            .rooms
            .iter()
            .max_by_key(|(_, blocks)| **blocks)
            .map(|(&number, &blocks)| (number, blocks));
        let Some((number, blocks)) = most else { return };
        planner.rooms.remove(&number);
        let (from, to) =
            (Key::new(number, Kind::Preallocation, 0), Key::new(number, Kind::Preallocation, u64::MAX));
        let items = planner.view.range(from, to).await;
        items.into_keys().for_each(|key| planner.view.delete(key));
        planner.view.delete(Key::new(0, Kind::Preallocation, number));
        planner
            .edit_inode(number, |item| {
                item.blocks = item.blocks.saturating_sub(blocks.saturating_mul(UNITS_PER_BLOCK));
            })
            .await;
        let text = format!("{blocks} preallocated blocks, for which there is no room → none");
        planner.object(FindingKind::PreallocationSum, number, text);
    }
}
