//! Compares directory entries with parent pointers in both directions: each entry must have a
//! pointer in the inode that it names, and each pointer an entry.
//!
//! Only hashes of the names are kept. The names themselves are read again where something is wrong.

use crate::finding::{FindingKind, Report};
use crate::names::Facts;
use crate::object::printable;
use std::sync::Arc;
use syncline_format::items::dirent::Dirent;
use syncline_format::items::inode::InodeItem;
use syncline_format::items::parent::Parent;
use syncline_format::items::{HASH_MAX, SLOTS, hash_offsets};
use syncline_format::{Key, Kind};
use syncline_store::Store;

/// One name of an inode, kept as a hash; it comes from a directory entry or from a parent pointer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct NameFacts {
    pub(crate) inode: u64,
    pub(crate) directory: u64,
    pub(crate) hash: u64,
}

/// Mismatches between entries and pointers.
#[derive(Default)]
pub(crate) struct Differences {
    /// Entries without a pointer.
    pub(crate) missing: Vec<NameFacts>,
    /// Pointers without an entry.
    pub(crate) dangling: Vec<NameFacts>,
    /// Pointers that occur more than once.
    pub(crate) repeated: Vec<NameFacts>,
}

/// Compares entries and pointers; both may be in any order.
pub(crate) fn differences(mut entries: Vec<NameFacts>, mut pointers: Vec<NameFacts>) -> Differences {
    entries.sort_unstable();
    entries.dedup();
    pointers.sort_unstable();
    let repeats = pointers.windows(2).filter(|pair| pair[0] == pair[1]);
    let repeated = repeats.map(|pair| pair[0]).collect();
    pointers.dedup();
    let (mut missing, mut dangling) = (Vec::new(), Vec::new());
    let mut pointers = pointers.into_iter().peekable();
    for entry in entries {
        while let Some(pointer) = pointers.next_if(|pointer| *pointer < entry) {
            dangling.push(pointer);
        }
        if pointers.next_if_eq(&entry).is_none() {
            missing.push(entry);
        }
    }
    dangling.extend(pointers);
    Differences { missing, dangling, repeated }
}

/// Reports all mismatches. All items must have been read.
pub(crate) async fn compare(store: &Arc<Store>, facts: &mut Facts, report: &mut Report) {
    let pointers = std::mem::take(&mut facts.pointers);
    let entries = if store.has_parent_pointers() { facts.named() } else { Vec::new() };
    let found = differences(entries, pointers);
    for name in found.missing {
        let shown = entry_name(store, name).await;
        let text = format!("the entry {shown:?} in directory {} has no parent pointer", name.directory);
        report.object(FindingKind::ParentMissing, name.inode, text);
    }
    for name in found.dangling {
        let shown = pointer_name(store, name).await;
        let text = format!(
            "its parent pointer says {shown:?} in directory {}, which has no such entry",
            name.directory
        );
        report.object(FindingKind::ParentDangling, name.inode, text);
    }
    for name in found.repeated {
        let shown = pointer_name(store, name).await;
        let text =
            format!("the parent pointer {shown:?} in directory {} is there more than once", name.directory);
        report.object(FindingKind::DuplicateName, name.inode, text);
    }
}

/// The name of an entry; empty if its hash does not lead to it, as for an entry out of place.
async fn entry_name(store: &Arc<Store>, name: NameFacts) -> String {
    let (first, last) = hash_offsets(name.hash % (HASH_MAX + 1));
    let (from, to) =
        (Key::new(name.directory, Kind::Dirent, first), Key::new(name.directory, Kind::Dirent, last));
    let Ok(chunk) = store.scan(from, to, SLOTS as usize).await else { return String::new() };
    let mut entries = chunk.items.iter().filter_map(|(_, value)| Dirent::decode(value).ok());
    entries.find(|entry| entry.ino == name.inode).map(|entry| printable(entry.name)).unwrap_or_default()
}

/// The name in a parent pointer.
async fn pointer_name(store: &Arc<Store>, name: NameFacts) -> String {
    let hasher = siphasher::sip::SipHasher24::new_with_key(&store.hash_seed());
    let is =
        |pointer: &Parent<'_>| pointer.parent == name.directory && hasher.hash(pointer.name) == name.hash;
    if let Ok(Some(value)) = store.get(Key::new(name.inode, Kind::Inode, 0)).await
        && let Ok(item) = InodeItem::decode(&value)
        && let Some(pointer) = item.parents.iter().find(|pointer| is(pointer))
    {
        return printable(pointer.name);
    }
    const ITEMS_EACH: usize = 256;
    let mut from = Some(Key::new(name.inode, Kind::Parent, 0));
    let to = Key::new(name.inode, Kind::Parent, u64::MAX);
    while let Some(start) = from {
        let Ok(chunk) = store.scan(start, to, ITEMS_EACH).await else { break };
        let mut pointers = chunk.items.iter().filter_map(|(_, value)| Parent::decode(value).ok());
        if let Some(pointer) = pointers.find(is) {
            return printable(pointer.name);
        }
        from = chunk.items.last().and_then(|(key, _)| key.next()).filter(|_| !chunk.complete);
    }
    String::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_side_is_compared_with_the_other() {
        let name = |inode, directory, hash| NameFacts { inode, directory, hash };
        let entries = vec![name(5, 1, 7), name(4, 1, 9), name(4, 1, 9), name(6, 2, 1)];
        let pointers = vec![name(6, 2, 1), name(4, 1, 8), name(4, 1, 9), name(6, 2, 1), name(9, 9, 9)];
        let found = differences(entries, pointers);
        assert_eq!(found.missing, [name(5, 1, 7)]);
        assert_eq!(found.dangling, [name(4, 1, 8), name(9, 9, 9)]);
        assert_eq!(found.repeated, [name(6, 2, 1)]);
    }
}
