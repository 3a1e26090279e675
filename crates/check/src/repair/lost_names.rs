//! Entries that were lost with tree nodes, put back from what the inodes themselves say of their names.

use crate::finding::FindingKind;
use crate::object::printable;
use crate::parents::{NameFacts, differences};
use crate::repair::names::make_directory;
use crate::repair::planner::Planner;
use crate::repair::unreadable::lost_offsets;
use syncline_format::items::dirent::Dirent;
use syncline_format::items::inode::InodeItem;
use syncline_format::items::parent::Parent;
use syncline_format::items::{HASH_MAX, hash_offsets};
use syncline_format::{Key, Kind};

const ROOT: u64 = 1;

/// Puts back what can be. All items were read; nobody has looked yet where the names lead.
///
/// A parent pointer without an entry counts only where the entry would have lain in what was lost: anywhere else it is wrong.
pub(crate) async fn put_back(planner: &mut Planner) {
    if planner.view.lost.is_empty() || !planner.parent_pointers {
        return;
    }
    let entries = planner.entries.iter().map(|entry| entry.name_facts()).collect();
    for name in differences(entries, planner.pointers.clone()).dangling {
        if was_lost(planner, name)
            && is_whole(planner, name.inode)
            && let Some(bytes) = pointer_name(planner, name).await
            && has_directory(planner, name.directory)
        {
            put(planner, name, &bytes).await;
        }
    }
}

fn was_lost(planner: &Planner, name: NameFacts) -> bool {
    let (first, last) = hash_offsets(name.hash % (HASH_MAX + 1));
    let lost = lost_offsets(planner, name.directory, Kind::Dirent);
    lost.iter().any(|range| range.start <= last && range.end > first)
}

/// An inode that may have a name. What is torn would look whole under it.
fn is_whole(planner: &Planner, inode: u64) -> bool {
    let found = planner.find(inode).map(|index| &planner.inodes[index]);
    found.is_some_and(|facts| facts.nlink > 0 && !facts.made_up) && !planner.torn.contains(&inode)
}

async fn pointer_name(planner: &mut Planner, name: NameFacts) -> Option<Vec<u8>> {
    let inode = planner.view.get(Key::new(name.inode, Kind::Inode, 0)).await.unwrap_or_default();
    let own = InodeItem::decode(&inode).map(|item| item.parents).unwrap_or_default();
    if let Some(pointer) = own.iter().find(|pointer| is(planner, pointer, name)) {
        return Some(pointer.name.to_vec());
    }
    let (from, to) = (Key::new(name.inode, Kind::Parent, 0), Key::new(name.inode, Kind::Parent, u64::MAX));
    let items = planner.view.range(from, to).await;
    let mut pointers = items.values().filter_map(|value| Parent::decode(value).ok());
    pointers.find(|pointer| is(planner, pointer, name)).map(|pointer| pointer.name.to_vec())
}

fn is(planner: &Planner, pointer: &Parent<'_>, name: NameFacts) -> bool {
    pointer.parent == name.directory && planner.view.name_hash(pointer.name) == name.hash
}

/// A directory of which nothing is left but its number is made anew, for what it held to stay together.
fn has_directory(planner: &mut Planner, number: u64) -> bool {
    if let Some(index) = planner.find(number) {
        return planner.inodes[index].is_directory();
    }
    if lost_offsets(planner, number, Kind::Inode).is_empty() {
        return false;
    }
    make_directory(planner, number, ROOT, 0o700);
    let text = "its inode item is lost → a directory of root's, mode 0700, for what says that it lay there";
    planner.object(FindingKind::ItemWithoutInode, number, text);
    true
}

async fn put(planner: &mut Planner, name: NameFacts, bytes: &[u8]) {
    let taken = planner.view.named(name.directory, Kind::Dirent, bytes).await;
    let same = |value: &bytes::Bytes| Dirent::decode(value).is_ok_and(|entry| entry.name == bytes);
    let Some(index) = planner.find(name.inode).filter(|_| !taken.values().any(same)) else { return };
    let file_type = planner.inodes[index].file_type;
    if planner.add_entry(name.directory, bytes, name.inode, file_type).await.is_some() {
        let text = format!(
            "the entry {:?} in directory {} is lost → put back, as the inode knows its name",
            printable(bytes),
            name.directory
        );
        planner.object(FindingKind::NodeDamaged, name.inode, text);
    }
}
