//! The losses of a repair: reported file by file, and weighed before anything is changed.

use crate::finding::{FindingKind, Report};
use crate::object::printable;
use crate::repair::planner::Planner;
use std::collections::HashMap;
use syncline_format::items::dirent::Dirent;
use syncline_store::{Salvaged, Store, Unreadable};

const ROOT: u64 = 1;
/// A repair that gives up more than one object in this many refuses unless losses are accepted.
const SHARE: u64 = 8;
/// Nodes listed in a refusal.
const SHOWN: usize = 3;
/// Longest path that is shown, in directories.
const DEPTH_MAX: usize = 64;

/// A loss of one inode.
pub(crate) struct Loss {
    pub(crate) kind: FindingKind,
    pub(crate) inode: u64,
    pub(crate) what: String,
}

/// Reports which files lost what, by their paths. Names and inodes must have been reconciled.
pub(crate) async fn tell(planner: &mut Planner) {
    let losses = std::mem::take(&mut planner.losses);
    if losses.is_empty() {
        return;
    }
    let mut named: HashMap<u64, usize> = HashMap::new();
    for (index, entry) in planner.entries.iter().enumerate() {
        // The name before the repair says more than the name after it.
        named.entry(entry.inode).or_insert(index);
    }
    for Loss { kind, inode, what } in losses {
        let text = match path(planner, &named, inode).await {
            Some(path) => format!("{path}: {what}"),
            None => format!("without a name now: {what}"),
        };
        planner.object(kind, inode, text);
    }
}

/// The path of an inode before the repair.
async fn path(planner: &mut Planner, named: &HashMap<u64, usize>, inode: u64) -> Option<String> {
    let (mut path, mut at) = (String::new(), inode);
    for _ in 0..DEPTH_MAX {
        if at == ROOT {
            return Some(if path.is_empty() { "/".to_owned() } else { path });
        }
        let entry = planner.entries.get(*named.get(&at)?)?.clone();
        let mut found = planner.view.unchanged(entry.key(), entry.key(), 1).await.items;
        let value = match found.pop() {
            Some((_, value)) => value,
            None => planner.view.get(entry.key()).await?,
        };
        let name = Dirent::decode(&value).map(|entry| printable(entry.name)).ok()?;
        path = format!("/{name}{path}");
        at = entry.directory;
    }
    None
}

/// The reason to refuse unless losses are accepted, if there is one.
pub(crate) fn too_much(
    found: &Report,
    store: &Store,
    salvaged: &Salvaged,
    planner: &Planner,
) -> Option<String> {
    let slot = || {
        salvaged.lost_slot.as_ref().map(|loss| format!("it would go on from an older state perhaps: {loss}"))
    };
    objects(store, planner)
        .or_else(|| snapshots(store, salvaged))
        .or_else(|| log(found, salvaged))
        .or_else(slot)
}

/// The reason to refuse if nothing may be given up.
pub(crate) fn any(planner: &Planner) -> Option<String> {
    if let Some(node) = planner.view.lost.values().next() {
        return Some(format!("something would be given up: the tree node at block {} is lost", node.addr));
    }
    let removed = planner.changes.iter().find(|change| !change.kind.follows_from_the_rest());
    match removed {
        Some(change) => Some(format!("something would be given up or removed: {change}")),
        None if planner.changes_dropped > 0 => {
            Some("there are more changes than can be looked at".to_owned())
        }
        None => None,
    }
}

/// The end of the log may be wrong. A mount for writing refuses such an image too, unless told
/// otherwise.
fn log(found: &Report, salvaged: &Salvaged) -> Option<String> {
    let told = found.of(FindingKind::LogDamaged).next().map(|finding| &finding.text);
    let why = told.or(salvaged.log_cut.as_ref())?;
    Some(format!("it would give up all that the log has from there on, some of it synced perhaps: {why}"))
}

/// Only the table says which blocks snapshots keep; without it these blocks count as free.
fn snapshots(store: &Store, salvaged: &Salvaged) -> Option<String> {
    let table = store.superblock().snapshots.addr;
    if salvaged.snapshots.is_none() && table != 0 {
        return Some(format!("it would give up all snapshots: their table at block {table} is damaged"));
    }
    let given_up = salvaged.given_up();
    let first = given_up.first()?;
    let more = if given_up.len() > 1 { format!(" and {} more", given_up.len() - 1) } else { String::new() };
    Some(format!("it would give up snapshot {:?}{more}: which blocks it needs is lost", first.name))
}

fn objects(store: &Store, planner: &Planner) -> Option<String> {
    let lost = &planner.view.lost;
    if lost.is_empty() {
        return None;
    }
    let left = planner.inodes.iter().filter(|inode| !inode.made_up).count() as u64;
    let before = store.objects();
    let gone = before.saturating_sub(left);
    let wide = |node: &&Unreadable| node.level > 0 || node.first.is_none();
    let mut shown: Vec<_> = lost.values().filter(wide).take(SHOWN).collect();
    if shown.is_empty() && gone.saturating_add(planner.unnamed) <= before / SHARE {
        return None;
    }
    if shown.is_empty() {
        shown = lost.values().take(SHOWN).collect();
    }
    let nodes: Vec<_> = shown.iter().map(|node| format!("{} (level {})", node.addr, node.level)).collect();
    let more = lost.len() - shown.len();
    let more = if more > 0 { format!(", and {more} more") } else { String::new() };
    let names = match planner.unnamed {
        0 => String::new(),
        unnamed => format!(" and the names of {unnamed} more"),
    };
    Some(format!(
        "it would give up {gone} of {before} objects{names}, with the tree nodes at block {}{more}: they are damaged, and what lies below \
         them could not be found again",
        nodes.join(", ")
    ))
}
