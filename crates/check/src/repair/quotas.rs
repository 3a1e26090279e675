//! Recomputes the usage of quotas once all inodes are final.

use crate::finding::FindingKind;
use crate::quotas::Quotas;
use crate::repair::planner::Planner;
use syncline_format::items::inode::InodeItem;
use syncline_format::items::quota::Quota;
use syncline_format::{Key, Kind};

/// Items read at a time.
const ITEMS_EACH: usize = 4096;

/// Recounts, if there are quotas, and corrects their usage. Limits stay.
pub(crate) async fn resolve(planner: &mut Planner) {
    let mut quotas = std::mem::take(&mut planner.quotas);
    if quotas.is_empty() {
        return;
    }
    count(planner, &mut quotas).await;
    for (number, counted) in quotas.all() {
        let key = Key::new(0, Kind::Quota, number);
        let (told, right) = (counted.told, counted.right());
        match right {
            Some(right) if right == told => {}
            Some(right) => {
                planner.view.put(key, right.encode());
                planner.object(FindingKind::QuotaUsage, told.root, change(told, right));
            }
            None => {
                planner.view.delete(key);
                let text = "the quota of an inode that is no directory of its tree → removed";
                planner.object(FindingKind::QuotaRoot, told.root, text);
            }
        }
    }
}

fn change(told: Quota, right: Quota) -> String {
    format!(
        "usage of {} units of 512 bytes and {} inodes → {} and {}",
        told.used_units, told.used_inodes, right.used_units, right.used_inodes
    )
}

/// Counts all inodes as they will be after the repair.
async fn count(planner: &mut Planner, quotas: &mut Quotas) {
    let is_inode = |key: &Key| key.kind == Kind::Inode as u8 && key.offset == 0 && key.object > 0;
    let mut take = |key: &Key, value: &[u8]| {
        if let Some(item) =
            Some(value).filter(|_| is_inode(key)).and_then(|value| InodeItem::decode(value).ok())
        {
            quotas.inode(key.object, &item);
        }
    };
    let mut from = Key::MIN;
    loop {
        let chunk = planner.view.unchanged(from, Key::MAX, ITEMS_EACH).await;
        let unedited = chunk.items.iter().filter(|(key, _)| !planner.view.edits.contains_key(key));
        unedited.for_each(|(key, value)| take(key, value));
        match chunk.items.last().and_then(|(key, _)| key.next()) {
            Some(next) if !chunk.complete => from = next,
            _ => break,
        }
    }
    for (key, value) in &planner.view.edits {
        if let Some(value) = value {
            take(key, value);
        }
    }
}
