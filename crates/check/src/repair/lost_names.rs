//! Restores entries that were lost with tree nodes, from the parent pointers of the inodes.

use crate::finding::FindingKind;
use crate::object::printable;
use crate::parents::{NameFacts, differences};
use crate::repair::names::directory_facts;
use crate::repair::planner::Planner;
use crate::repair::unreadable::lost_offsets;
use std::collections::BTreeSet;
use syncline_format::items::dirent::Dirent;
use syncline_format::items::inode::InodeItem;
use syncline_format::items::parent::Parent;
use syncline_format::items::{HASH_MAX, hash_offsets};
use syncline_format::{Key, Kind};

const ROOT: u64 = 1;
/// The lowest object number that is not reserved.
const FIRST_OBJECT: u64 = 16;
/// Items read at a time.
const ITEMS_EACH: usize = 512;

/// Restores the entries that can be restored. All items must have been read; where the names lead
/// has not been checked yet.
///
/// A parent pointer without an entry counts only if the entry would have been in a lost node;
/// anywhere else the pointer is wrong.
pub(crate) async fn put_back(planner: &mut Planner) {
    if planner.view.lost.is_empty() || !planner.parent_pointers {
        return;
    }
    let entries = planner.entries.iter().map(|entry| entry.name_facts()).collect();
    let mut names = differences(entries, planner.pointers.clone()).dangling;
    names.retain(|name| was_lost(planner, *name) && is_whole(planner, name.inode));
    make_directories(planner, &names);
    names.retain(|name| is_directory(planner, name.directory));
    for of_one in names.chunk_by(|name, next| name.inode == next.inode) {
        put_back_names(planner, of_one[0].inode, of_one.iter().copied().collect()).await;
    }
}

fn was_lost(planner: &Planner, name: NameFacts) -> bool {
    let (first, last) = hash_offsets(name.hash % (HASH_MAX + 1));
    let key = |offset| Key::new(name.directory, Kind::Dirent, offset);
    planner.view.lost_within(key(first), key(last)).next().is_some()
}

/// True for an inode that may get a name back. A torn file must not: it would look whole under that
/// name.
fn is_whole(planner: &Planner, inode: u64) -> bool {
    let found = planner.find(inode).map(|index| &planner.inodes[index]);
    found.is_some_and(|facts| facts.nlink > 0 && !facts.made_up) && !planner.torn.contains(&inode)
}

fn is_directory(planner: &Planner, number: u64) -> bool {
    let found = planner.find(number).map(|index| &planner.inodes[index]);
    found.is_some_and(|facts| facts.is_directory() && facts.nlink > 0)
}

/// Recreates directories of which only the number is left, so that their contents stay together.
fn make_directories(planner: &mut Planner, names: &[NameFacts]) {
    let was_one = |number: u64| {
        (FIRST_OBJECT..planner.handed_out).contains(&number)
            && planner.find(number).is_none()
            && !lost_offsets(planner, number, Kind::Inode).is_empty()
    };
    let numbers: BTreeSet<u64> = names.iter().map(|name| name.directory).collect();
    let made: Vec<u64> = numbers.into_iter().filter(|number| was_one(*number)).collect();
    for number in made {
        let facts = directory_facts(planner, number, ROOT, 0o700);
        planner.inodes.push(facts);
        let text = "its inode item is lost → a directory of root's, mode 0700, for the entries that name it";
        planner.object(FindingKind::ItemWithoutInode, number, text);
    }
    planner.inodes.sort_unstable_by_key(|facts| facts.number);
}

/// Restores the lost names of one inode from its parent pointers.
async fn put_back_names(planner: &mut Planner, inode: u64, mut lost: BTreeSet<NameFacts>) {
    let value = planner.view.get(Key::new(inode, Kind::Inode, 0)).await.unwrap_or_default();
    let own = InodeItem::decode(&value).map(|item| item.parents).unwrap_or_default();
    for pointer in &own {
        put_back_one(planner, inode, pointer, &mut lost).await;
    }
    let mut from = Some(Key::new(inode, Kind::Parent, 0));
    let to = Key::new(inode, Kind::Parent, u64::MAX);
    while let Some(start) = from.filter(|_| !lost.is_empty()) {
        let chunk = planner.view.unchanged(start, to, ITEMS_EACH).await;
        for (_, value) in &chunk.items {
            if let Ok(pointer) = Parent::decode(value) {
                put_back_one(planner, inode, &pointer, &mut lost).await;
            }
        }
        from = chunk.items.last().and_then(|(key, _)| key.next()).filter(|_| !chunk.complete);
    }
}

async fn put_back_one(
    planner: &mut Planner,
    inode: u64,
    pointer: &Parent<'_>,
    lost: &mut BTreeSet<NameFacts>,
) {
    let (directory, name) = (pointer.parent, pointer.name);
    if !lost.remove(&NameFacts { inode, directory, hash: planner.view.name_hash(name) }) {
        return;
    }
    let taken = planner.view.named(directory, Kind::Dirent, name).await;
    let same = |value: &bytes::Bytes| Dirent::decode(value).is_ok_and(|entry| entry.name == name);
    let Some(index) = planner.find(inode).filter(|_| !taken.values().any(same)) else { return };
    let file_type = planner.inodes[index].file_type;
    if let Some(name) = planner.add_entry(directory, name, inode, file_type).await {
        let name = printable(&name);
        let text = format!(
            "the entry {name:?} in directory {directory} is lost → put back, as the inode knows its name"
        );
        planner.object(FindingKind::NodeDamaged, inode, text);
    }
}
