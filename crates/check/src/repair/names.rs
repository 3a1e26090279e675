//! Reconciles names with inodes: every name leads to an inode, every inode with links is reachable
//! from the root.

use crate::finding::FindingKind;
use crate::object::{DIRECTORY, printable};
use crate::repair::lost_names;
use crate::repair::objects::type_name;
use crate::repair::planner::{InodeFacts, Planner};
use crate::repair::unreadable;
use syncline_format::items::dirent::Dirent;
use syncline_format::items::inode::InodeItem;
use syncline_format::{Key, Kind, OBJECTS_END};

const ROOT: u64 = 1;
/// The directory for inodes without a name.
const LOST_AND_FOUND: &[u8] = b"lost+found";

/// Reconciles everything. All items must have been read.
pub(crate) async fn resolve(planner: &mut Planner) {
    root(planner);
    lost_names::put_back(planner).await;
    planner.entries.sort_unstable_by_key(|entry| (entry.inode, entry.directory, entry.offset));
    targets(planner).await;
    let mut loose = directory_names(planner).await;
    loose.extend(cut_loops(planner).await);
    loose.extend(nameless(planner));
    loose.sort_unstable();
    loose.dedup();
    attach(planner, loose).await;
    marks(planner);
    counts(planner).await;
}

/// Creates the root directory if nothing is left of it.
fn root(planner: &mut Planner) {
    if planner.find(ROOT).is_some() {
        return;
    }
    let text = "there is none → made again, empty";
    planner.object(FindingKind::RootMissing, ROOT, text);
    make_directory(planner, ROOT, ROOT, 0o755);
}

/// Creates an empty directory in the root directory.
fn make_directory(planner: &mut Planner, number: u64, parent: u64, permissions: u16) {
    let facts = directory_facts(planner, number, parent, permissions);
    let at = planner.inodes.partition_point(|inode| inode.number < number);
    planner.inodes.insert(at, facts);
}

/// The facts of a new empty directory, which is not added to the inodes yet.
pub(crate) fn directory_facts(
    planner: &mut Planner,
    number: u64,
    parent: u64,
    permissions: u16,
) -> InodeFacts {
    let now = planner.now;
    let item = InodeItem {
        mode: (u16::from(DIRECTORY) << 12) | permissions,
        nlink: 2,
        parent,
        atime: now,
        mtime: now,
        ctime: now,
        btime: now,
        ..InodeItem::default()
    };
    planner.view.put(Key::new(number, Kind::Inode, 0), item.encode());
    InodeFacts {
        number,
        file_type: DIRECTORY,
        made_up: true,
        nlink: 2,
        size: 0,
        parent,
        names: 0,
        named_by: 0,
    }
}

/// Removes an entry and reports the reason.
async fn drop_entry(planner: &mut Planner, index: usize, kind: FindingKind, why: &str) {
    let key = planner.entries[index].key();
    let value = planner.view.get(key).await.unwrap_or_default();
    let name = Dirent::decode(&value).map(|entry| printable(entry.name)).unwrap_or_default();
    let entry = &mut planner.entries[index];
    entry.gone = true;
    planner.moved.insert((entry.directory, entry.name_hash, entry.inode));
    planner.remove(kind, key, format!("the entry {name:?} of inode {}: {why}", planner.entries[index].inode));
}

/// Removes entries without an inode; corrects entries with the wrong type.
async fn targets(planner: &mut Planner) {
    for index in 0..planner.entries.len() {
        let (inode, file_type) = (planner.entries[index].inode, planner.entries[index].file_type);
        let Some(found) = planner.find(inode) else {
            if !unreadable::lost_offsets(planner, inode, Kind::Inode).is_empty() {
                planner.lose(inode, "lost".to_owned());
            }
            drop_entry(planner, index, FindingKind::DanglingEntry, "there is no such inode").await;
            continue;
        };
        if planner.torn.contains(&inode) {
            let why = "a part of it is lost, nobody can say where; it goes to lost+found";
            drop_entry(planner, index, FindingKind::NodeDamaged, why).await;
            continue;
        }
        let facts = &planner.inodes[found];
        if facts.made_up && !facts.is_directory() {
            // A file with a made-up inode would look whole under its name.
            let why = "its inode item is lost; the rest of it goes to lost+found";
            drop_entry(planner, index, FindingKind::DanglingEntry, why).await;
            continue;
        }
        let right = facts.file_type;
        planner.inodes[found].names += 1;
        if right != file_type {
            retype(planner, index, right).await;
        }
    }
}

async fn retype(planner: &mut Planner, index: usize, file_type: u8) {
    let entry = planner.entries[index].clone();
    let Some(value) = planner.view.get(entry.key()).await else { return };
    if let Ok(dirent) = Dirent::decode(&value) {
        let text = format!(
            "the entry {:?} in directory {} calls it a {} → {}",
            printable(dirent.name),
            entry.directory,
            type_name(entry.file_type),
            type_name(file_type)
        );
        let right = Dirent { file_type, ..dirent }.encode();
        planner.view.put(entry.key(), right);
        planner.object(FindingKind::EntryType, entry.inode, text);
        planner.entries[index].file_type = file_type;
    }
}

/// Leaves each directory one name, and the root none. Returns the directories without a name.
async fn directory_names(planner: &mut Planner) -> Vec<u64> {
    let mut nameless = Vec::new();
    let mut entry = 0;
    for index in 0..planner.inodes.len() {
        let facts = planner.inodes[index].clone();
        while planner.entries.get(entry).is_some_and(|entry| entry.inode < facts.number) {
            entry += 1;
        }
        if !facts.is_directory() {
            continue;
        }
        let own: Vec<usize> = (entry..planner.entries.len())
            .take_while(|&at| planner.entries[at].inode == facts.number)
            .filter(|&at| !planner.entries[at].gone)
            .collect();
        let is_root = facts.number == ROOT;
        let by_parent = own.iter().copied().find(|&at| planner.entries[at].directory == facts.parent);
        let kept = by_parent.or(own.first().copied()).filter(|_| !is_root);
        for &at in own.iter().filter(|&&at| Some(at) != kept) {
            let why = if is_root { "the root has no name" } else { "a directory has one name" };
            drop_entry(planner, at, FindingKind::DirectoryNames, why).await;
        }
        planner.inodes[index].names = u32::from(kept.is_some());
        planner.inodes[index].named_by = kept.map_or(0, |at| planner.entries[at].directory);
        if kept.is_none() && !is_root && facts.nlink > 0 {
            nameless.push(facts.number);
        }
    }
    nameless
}

/// Cuts loops of directories that are their own ancestors. Returns the directories that were cut
/// off.
async fn cut_loops(planner: &mut Planner) -> Vec<u64> {
    #[derive(Clone, Copy, PartialEq, Eq)]
    enum Way {
        Unknown,
        Here,
        Known,
    }
    let mut ways = vec![Way::Unknown; planner.inodes.len()];
    let (mut path, mut cut) = (Vec::new(), Vec::new());
    for start in 0..planner.inodes.len() {
        let mut next = planner.inodes[start].is_directory().then_some(start);
        while let Some(index) = next.filter(|&index| ways[index] != Way::Known) {
            if ways[index] == Way::Here {
                cut.push(index);
                break;
            }
            ways[index] = Way::Here;
            path.push(index);
            let named_by = planner.inodes[index].named_by;
            next = (named_by != 0).then(|| planner.find(named_by)).flatten();
        }
        path.drain(..).for_each(|index| ways[index] = Way::Known);
    }
    for &index in &cut {
        let (number, named_by) = (planner.inodes[index].number, planner.inodes[index].named_by);
        let mut entries = planner.entries.iter();
        let at =
            entries.position(|entry| entry.inode == number && entry.directory == named_by && !entry.gone);
        if let Some(at) = at {
            drop_entry(planner, at, FindingKind::Unreachable, "the directory lies in itself").await;
        }
        planner.inodes[index].names = 0;
        planner.inodes[index].named_by = 0;
    }
    cut.into_iter().map(|index| planner.inodes[index].number).collect()
}

/// Files that have a link count but no name.
fn nameless(planner: &Planner) -> Vec<u64> {
    let files = planner.inodes.iter().filter(|inode| !inode.is_directory());
    files.filter(|inode| inode.nlink > 0 && inode.names == 0).map(|inode| inode.number).collect()
}

/// Gives these inodes names in `lost+found`.
async fn attach(planner: &mut Planner, loose: Vec<u64>) {
    if loose.is_empty() {
        return;
    }
    let Some(parent) = lost_and_found(planner).await else { return };
    for number in loose {
        let Some(index) = planner.find(number).filter(|_| number != parent) else { continue };
        let facts = planner.inodes[index].clone();
        let name = format!("#{number}").into_bytes();
        let Some(name) = planner.add_entry(parent, &name, number, facts.file_type).await else { continue };
        planner.inodes[index].names = 1;
        planner.inodes[index].named_by = if facts.is_directory() { parent } else { 0 };
        planner.unnamed += u64::from(!facts.made_up);
        let kind = if facts.made_up { FindingKind::ItemWithoutInode } else { FindingKind::UnnamedInode };
        let text =
            format!("nothing names this {} → lost+found/{}", type_name(facts.file_type), printable(&name));
        planner.object(kind, number, text);
    }
}

/// The directory `lost+found`; created if there is none. `None` when no object number is left.
async fn lost_and_found(planner: &mut Planner) -> Option<u64> {
    let taken = planner.view.named(ROOT, Kind::Dirent, LOST_AND_FOUND).await;
    let mut decoded = taken.values().filter_map(|value| Dirent::decode(value).ok());
    let named = decoded.find(|entry| entry.name == LOST_AND_FOUND).map(|entry| entry.ino);
    if let Some(number) = named
        && let Some(found) = planner.find(number)
        && planner.inodes[found].named_by == ROOT
    {
        return Some(number);
    }
    let number = planner.next_object;
    if number >= OBJECTS_END - 1 {
        return None;
    }
    planner.next_object += 1;
    planner.created.push(number);
    make_directory(planner, number, ROOT, 0o700);
    let name = planner.add_entry(ROOT, LOST_AND_FOUND, number, DIRECTORY).await?;
    let index = planner.find(number)?;
    planner.inodes[index].names = 1;
    planner.inodes[index].named_by = ROOT;
    let text = format!("{:?} → made, mode 0700", printable(&name));
    planner.object(FindingKind::UnnamedInode, number, text);
    Some(number)
}

/// Corrects orphan marks: exactly the inodes without a name and without a link have one.
fn marks(planner: &mut Planner) {
    let marked = std::mem::take(&mut planner.orphans);
    for &number in &marked {
        let why = match planner.find(number).map(|index| planner.inodes[index].clone()) {
            None => "marked for removal, but there is no inode",
            Some(facts) if facts.nlink > 0 => "marked for removal, but its link count is not 0",
            Some(facts) if facts.names > 0 => "marked for removal, but it has a name",
            Some(_) => continue,
        };
        planner.view.delete(Key::new(0, Kind::Orphan, number));
        planner.object(FindingKind::OrphanMark, number, format!("{why} → mark removed"));
    }
    let unmarked = planner.inodes.iter().filter(|inode| inode.nlink == 0 && inode.names == 0);
    let unmarked: Vec<u64> =
        unmarked.map(|inode| inode.number).filter(|number| marked.binary_search(number).is_err()).collect();
    for number in unmarked {
        planner.view.put(Key::new(0, Kind::Orphan, number), Vec::new());
        let text = "its link count is 0 and nothing names it → marked for removal";
        planner.object(FindingKind::OrphanMark, number, text);
    }
}

/// Corrects the link counts, sizes and parents of directories in inode items.
async fn counts(planner: &mut Planner) {
    let mut entries = vec![(0u64, 0u32); planner.inodes.len()];
    for entry in planner.entries.iter().filter(|entry| !entry.gone) {
        if let Some(directory) = planner.find(entry.directory) {
            entries[directory].0 += 1;
            entries[directory].1 += u32::from(entry.file_type == DIRECTORY);
        }
    }
    for (index, (count, subdirectories)) in entries.into_iter().enumerate() {
        let facts = planner.inodes[index].clone();
        let directory = facts.is_directory();
        if facts.nlink == 0 && facts.names == 0 {
            continue;
        }
        let nlink = if directory { subdirectories.saturating_add(2) } else { facts.names };
        let size = if directory { count } else { facts.size };
        // It has no name only if there was no room in lost+found.
        let named = directory && facts.named_by != 0;
        let parent = if named { facts.named_by } else { facts.parent };
        if (nlink, size, parent) == (facts.nlink, facts.size, facts.parent) {
            continue;
        }
        planner
            .edit_inode(facts.number, |item| (item.nlink, item.size, item.parent) = (nlink, size, parent))
            .await;
        if facts.made_up {
            continue;
        }
        let mut tell = |kind, before: u64, after: u64| {
            if before != after {
                planner.object(kind, facts.number, format!("{before} → {after}"));
            }
        };
        tell(FindingKind::LinkCount, facts.nlink.into(), nlink.into());
        tell(FindingKind::DirectorySize, facts.size, size);
        tell(FindingKind::DirectoryParent, facts.parent, parent);
    }
}
