//! Makes parent pointers agree with the directory entries, for inodes whose pointers are wrong in
//! some way.

use crate::finding::FindingKind;
use crate::object::printable;
use crate::parents::{NameFacts, differences};
use crate::repair::planner::{Entry, Planner};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use syncline_format::items::dirent::Dirent;
use syncline_format::items::hash_offsets;
use syncline_format::items::inode::InodeItem;
use syncline_format::items::parent::{Parent, parent_bytes_max};
use syncline_format::{Key, Kind};

/// The parent pointers of one object, collected as its items are read.
#[derive(Default)]
pub(crate) struct Pointers {
    /// Pointers with items of their own.
    items: u32,
}

impl Pointers {
    /// Takes the pointers in the inode item.
    pub(crate) fn small(&self, planner: &mut Planner, number: u64, item: &InodeItem<'_>) {
        for pointer in &item.parents {
            remember(planner, number, pointer);
        }
        let bytes: usize = item.parents.iter().map(Parent::section_bytes).sum();
        if bytes > parent_bytes_max(planner.geometry.node_bytes) {
            planner.parent_trouble.push((number, FindingKind::InodeContradiction));
        }
    }

    /// Takes a pointer with an item of its own. Pointers of an inode that is being removed are
    /// removed with it.
    pub(crate) fn item(&mut self, planner: &mut Planner, key: Key, value: &Bytes, being_removed: bool) {
        if being_removed {
            self.items = self.items.saturating_add(1);
            return;
        }
        let pointer = match Parent::decode(value) {
            Ok(pointer) => pointer,
            Err(error) => {
                let why = format!("parent pointer at offset {}: {error}", key.offset);
                return planner.remove(FindingKind::ItemMalformed, key, why);
            }
        };
        self.items = self.items.saturating_add(1);
        let (first, last) = hash_offsets(planner.view.hash(value));
        if !(first..=last).contains(&key.offset) {
            planner.parent_trouble.push((key.object, FindingKind::NameHash));
        }
        remember(planner, key.object, &pointer);
    }

    /// Compares the count once all pointers were read; `said` is the inode item's count of pointers
    /// with items. Removal looks for such items only if the inode item counts some.
    pub(crate) fn end(&self, planner: &mut Planner, number: u64, said: u32, being_removed: bool) {
        if said != self.items && (!being_removed || self.items > said) {
            planner.parent_trouble.push((number, FindingKind::ParentCount));
        }
    }
}

fn remember(planner: &mut Planner, number: u64, pointer: &Parent<'_>) {
    let hash = planner.view.name_hash(pointer.name);
    planner.pointers.push(NameFacts { inode: number, directory: pointer.parent, hash });
}

/// Makes the parent pointers of each inode match its remaining entries. Names and inodes must have
/// been reconciled.
pub(crate) async fn resolve(planner: &mut Planner) {
    let live = |entry: &&Entry| !entry.gone && planner.find(entry.inode).is_some();
    let mut entries: Vec<Entry> = Vec::new();
    if planner.parent_pointers {
        entries.extend(planner.entries.iter().filter(live).cloned());
    }
    entries.sort_unstable_by_key(|entry| (entry.inode, entry.directory, entry.offset));
    let pointers = std::mem::take(&mut planner.pointers);
    for (number, kinds) in wrong(planner, &entries, pointers) {
        let first = entries.partition_point(|entry| entry.inode < number);
        let own = entries[first..].iter().take_while(|entry| entry.inode == number);
        let names = names(planner, own.cloned().collect()).await;
        if put(planner, number, &names).await {
            tell(planner, number, &kinds, &names);
        }
    }
}

/// The inodes with wrong pointers, and the kinds of damage.
fn wrong(
    planner: &mut Planner,
    entries: &[Entry],
    pointers: Vec<NameFacts>,
) -> BTreeMap<u64, BTreeSet<FindingKind>> {
    let found = differences(entries.iter().map(Entry::name_facts).collect(), pointers);
    let kinds = [
        (found.missing, FindingKind::ParentMissing),
        (found.dangling, FindingKind::ParentDangling),
        (found.repeated, FindingKind::DuplicateName),
    ];
    let mut wrong: BTreeMap<u64, BTreeSet<FindingKind>> = BTreeMap::new();
    for (number, kind) in std::mem::take(&mut planner.parent_trouble) {
        wrong.entry(number).or_default().insert(kind);
    }
    for (names, kind) in kinds {
        for name in names {
            wrong.entry(name.inode).or_default().insert(kind);
        }
    }
    wrong.retain(|number, _| planner.find(*number).is_some());
    wrong
}

/// The names in these entries, each with its directory.
async fn names(planner: &mut Planner, entries: Vec<Entry>) -> Vec<(u64, Vec<u8>)> {
    let mut names = Vec::with_capacity(entries.len());
    for entry in entries {
        let value = planner.view.get(entry.key()).await.unwrap_or_default();
        if let Ok(dirent) = Dirent::decode(&value) {
            names.push((entry.directory, dirent.name.to_vec()));
        }
    }
    names
}

/// Replaces the parent pointers of an inode; returns false if it has no inode item to hold them.
async fn put(planner: &mut Planner, number: u64, names: &[(u64, Vec<u8>)]) -> bool {
    let inode = Key::new(number, Kind::Inode, 0);
    let Some(value) = planner.view.get(inode).await else { return false };
    let Ok(mut item) = InodeItem::decode(&value) else { return false };
    let (from, to) = (Key::new(number, Kind::Parent, 0), Key::new(number, Kind::Parent, u64::MAX));
    let old = planner.view.range(from, to).await;
    old.into_keys().for_each(|key| planner.view.delete(key));
    let mut room = parent_bytes_max(planner.geometry.node_bytes);
    let mut taken = BTreeSet::new();
    item.parents.clear();
    for (parent, name) in names {
        let pointer = Parent { parent: *parent, name };
        if pointer.section_bytes() <= room {
            room -= pointer.section_bytes();
            item.parents.push(pointer);
            continue;
        }
        let value = pointer.encode();
        let (first, last) = hash_offsets(planner.view.hash(&value));
        let Some(offset) = (first..=last).find(|offset| taken.insert(*offset)) else { continue };
        planner.view.put(Key::new(number, Kind::Parent, offset), value);
    }
    item.parent_items = taken.len() as u32;
    let changed = item.encode();
    planner.view.put(inode, changed);
    true
}

/// Reports the change, except for inodes that the repair made up itself.
fn tell(planner: &mut Planner, number: u64, kinds: &BTreeSet<FindingKind>, names: &[(u64, Vec<u8>)]) {
    const SHOWN: usize = 3;
    let made_up = planner.find(number).is_some_and(|index| planner.inodes[index].made_up);
    if made_up {
        return;
    }
    let mut shown: Vec<String> = names
        .iter()
        .take(SHOWN)
        .map(|(directory, name)| format!("{:?} in directory {directory}", printable(name)))
        .collect();
    if names.len() > SHOWN {
        shown.push(format!("and {} more", names.len() - SHOWN));
    }
    let what = if shown.is_empty() { "none".to_owned() } else { shown.join(", ") };
    for kind in kinds {
        planner.object(*kind, number, format!("its parent pointers → {what}"));
    }
}
