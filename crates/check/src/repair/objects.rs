//! The pass over all items, which mends each object by itself.

use crate::finding::FindingKind;
use crate::object::{DIRECTORY, REGULAR};
use crate::repair::object::Object;
use crate::repair::planner::Planner;
use crate::repair::{rooms, shared};
use bytes::Bytes;
use syncline_format::{Key, Kind};

/// Items read at a time.
const ITEMS_EACH: usize = 512;

/// Reads every item that can be read.
pub(crate) async fn pass(planner: &mut Planner) {
    let mut object: Option<Object> = None;
    let mut from = Key::MIN;
    loop {
        let chunk = planner.view.unchanged(from, Key::MAX, ITEMS_EACH).await;
        for (key, value) in &chunk.items {
            if key.object == 0 {
                mark(planner, *key, value);
                continue;
            }
            if object.as_ref().is_none_or(|object| object.number != key.object) {
                if let Some(done) = object.take() {
                    done.end(planner).await;
                }
                object = Some(Object::begin(planner, *key, value).await);
            }
            if let Some(object) = &mut object {
                object.item(planner, *key, value).await;
            }
        }
        match chunk.items.last().and_then(|(key, _)| key.next()) {
            Some(next) if !chunk.complete => from = next,
            _ => break,
        }
    }
    if let Some(done) = object {
        done.end(planner).await;
    }
    for (inode, blocks) in planner.sums.rest() {
        planner.view.delete(Key::new(0, Kind::Preallocation, inode));
        let text = format!("{blocks} preallocated blocks of a missing inode → removed");
        planner.object(FindingKind::PreallocationSum, inode, text);
    }
    shared::resolve(planner);
    rooms::resolve(planner).await;
    lost_nodes(planner);
}

/// An item of object 0: an orphan mark, a reference count, a sum of preallocated blocks, or a
/// quota.
fn mark(planner: &mut Planner, key: Key, value: &Bytes) {
    if key.kind == Kind::Orphan as u8 && value.is_empty() {
        planner.orphans.push(key.offset);
        return;
    }
    let fits = match Kind::from_u8(key.kind) {
        Some(Kind::Shared) => planner.references.item(planner.geometry, key, value),
        Some(Kind::Preallocation) => planner.sums.item(key, value),
        Some(Kind::Quota) => planner.quotas.item(key, value),
        _ => false,
    };
    if !fits {
        let why = format!("an item of kind {} at offset {} that belongs to nothing", key.kind, key.offset);
        planner.remove(FindingKind::ItemMalformed, key, why);
    }
}

/// Reports the losses by each unreadable node.
fn lost_nodes(planner: &mut Planner) {
    let show = |key: Option<Key>, none: &str| {
        key.map_or_else(
            || none.to_owned(),
            |key| format!("inode {}, kind {}, offset {}", key.object, key.kind, key.offset),
        )
    };
    let lost: Vec<_> = planner.view.lost.values().cloned().collect();
    for node in lost {
        let text = format!(
            "the items from ({}) up to ({}) → given up",
            show(node.first, "the first"),
            show(node.bound, "the end")
        );
        planner.tell(FindingKind::NodeDamaged, None, Some(node.addr), text);
    }
}

/// A word for a file type.
pub(crate) fn type_name(file_type: u8) -> &'static str {
    match file_type {
        DIRECTORY => "directory",
        REGULAR => "file",
        0o12 => "symbolic link",
        _ => "special file",
    }
}
