//! Verifies snapshots after a crash: each must show exactly the tree and contents of the time it
//! was made, and the reported differences between two snapshots must be the real ones.

use super::history::FsHistory;
use super::verify::{Contents, difference, read_all};
use crate::lab::World;
use crate::model::{Body, Tree};
use crate::snapshots::Snapshots;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use syncline_fs::types::{Ino, ROOT};
use syncline_fs::{Change, ChangeKind, Filesystem, Options};
use syncline_store::{Snapshot, Store, StoreOptions};

/// The tree and file contents in a snapshot.
#[derive(PartialEq, Eq)]
pub(crate) struct View {
    tree: Tree,
    contents: Contents,
}

/// Compares the snapshots of a recovered filesystem with the known ones; returns the snapshots with
/// which the next life begins.
pub(super) async fn verify(
    world: &World,
    fs: &Arc<Filesystem>,
    history: &FsHistory,
    position: usize,
) -> Result<Snapshots<View>, String> {
    let mut there = fs.store().snapshots().await;
    // Nobody has made the base of a fork here, and nobody can delete it.
    let base = fs.store().superblock().base;
    there.retain(|snapshot| snapshot.id != base);
    let names: Vec<String> = there.iter().map(|snapshot| snapshot.name.clone()).collect();
    history.snapshots.check(&names, position)?;
    let mut seen: Vec<(String, View)> = Vec::new();
    let mut before: Option<Arc<Filesystem>> = None;
    for snapshot in there {
        let wrong = |what: String| format!("snapshot {}: {what}", snapshot.name);
        let shown = open(world, &snapshot).await.map_err(wrong)?;
        let view = verify_one(&shown, history, &snapshot).await.map_err(wrong)?;
        if let (Some(before), Some((_, earlier))) = (&before, seen.last())
            && shown.has_parent_pointers()
        {
            let changes = shown.changes_since(before).await.map_err(|error| wrong(error.to_string()))?;
            compare_changes(&changes, earlier, &view).map_err(wrong)?;
        }
        before = Some(shown);
        seen.push((snapshot.name.clone(), view));
    }
    Ok(history.snapshots.go_on(position, seen))
}

async fn open(world: &World, snapshot: &Snapshot) -> Result<Arc<Filesystem>, String> {
    let options = StoreOptions { node_cache_bytes: 1 << 20, ..StoreOptions::default() };
    let (device, spawn) = (world.device.clone(), world.spawn.clone());
    let (store, _) = Store::open_snapshot(device, options, spawn.clone(), &snapshot.name)
        .await
        .map_err(|error| format!("does not open: {error}"))?;
    let options = Options { clock: world.clock.clone(), ..Options::default() };
    Filesystem::open(store, spawn, options).await.map_err(|error| format!("does not open: {error}"))
}

async fn verify_one(
    shown: &Arc<Filesystem>,
    history: &FsHistory,
    snapshot: &Snapshot,
) -> Result<View, String> {
    let (tree, contents) = read_all(shown).await?;
    let view = View { tree, contents };
    let life = history.snapshots.get(&snapshot.name).ok_or("nobody asked for it")?;
    if let Some(known) = &life.contents {
        return if **known == view {
            Ok(view)
        } else {
            Err("it shows something else than before".to_owned())
        };
    }
    if life.unseen {
        return Ok(view);
    }
    // The last transaction in the snapshot is not known; it is one of the transactions committed
    // while the snapshot was made.
    let mut wrong = Vec::new();
    for (op, expected) in history.trees_between(life.ops.0, life.ops.1)? {
        match compare(&view, &expected, history, op, life.moments) {
            Ok(()) => return Ok(view),
            Err(what) => wrong.push(format!("not {op}: {what}")),
        }
    }
    Err(format!("of transactions {:?} it shows none: {}", life.ops, wrong.join("; ")))
}

/// Compares the contents of a snapshot with the model after transaction `op`.
fn compare(
    view: &View,
    expected: &Tree,
    history: &FsHistory,
    op: u64,
    moments: (u64, u64),
) -> Result<(), String> {
    if let Some(difference) = difference(&view.tree, expected) {
        return Err(difference);
    }
    let carried = history.carried_by_names(op);
    let moments = (moments.0.max(history.begun_in(op, &view.contents)), moments.1);
    view.contents.iter().try_for_each(|(ino, bytes)| {
        let carried = carried.get(ino).map_or(&[][..], Vec::as_slice);
        let checked = history.check_kept(*ino, bytes, op, moments, carried);
        checked.map_err(|what| format!("file {ino}: {what}"))
    })
}

/// The paths of an inode's names.
type Paths = BTreeSet<Vec<u8>>;
type Names = BTreeMap<Ino, Paths>;

/// The names that `tree` has and `other` does not, compared by directory inode rather than by path.
fn names_beside(tree: &Tree, other: &Tree) -> Names {
    let mut paths = BTreeMap::from([(ROOT, Vec::new())]);
    let (mut waiting, mut names) = (vec![ROOT], Names::new());
    while let Some(dir) = waiting.pop() {
        let Some(Body::Directory(entries)) = tree.nodes.get(&dir).map(|node| &node.body) else { continue };
        let same = match other.nodes.get(&dir).map(|node| &node.body) {
            Some(Body::Directory(entries)) => Some(entries),
            _ => None,
        };
        for (name, ino) in entries {
            let path = [&paths[&dir], b"/".as_slice(), name].concat();
            if same.is_none_or(|same| same.get(name) != Some(ino)) {
                names.entry(*ino).or_default().insert(path.clone());
            }
            paths.insert(*ino, path);
            waiting.push(*ino);
        }
    }
    names
}

/// Compares the reported changes with the real ones.
fn compare_changes(changes: &[Change], before: &View, after: &View) -> Result<(), String> {
    let (mut gone, mut new) =
        (names_beside(&before.tree, &after.tree), names_beside(&after.tree, &before.tree));
    // A name that moved with its directory, where another took its place, is not a change.
    for (ino, gone) in &mut gone {
        let Some(new) = new.get_mut(ino) else { continue };
        let both: Vec<Vec<u8>> = gone.intersection(new).cloned().collect();
        both.iter().for_each(|path| {
            gone.remove(path);
            new.remove(path);
        });
    }
    let none = BTreeSet::new();
    let (mut contents, mut attributes) = (BTreeSet::new(), BTreeSet::new());
    let mut told: BTreeMap<Ino, (Paths, Paths, usize)> = BTreeMap::new();
    for Change { path, kind, ino, .. } in changes {
        let (told_gone, told_new, renamed) = told.entry(*ino).or_default();
        match kind {
            ChangeKind::Added => drop(told_new.insert(path.clone())),
            ChangeKind::Removed => drop(told_gone.insert(path.clone())),
            ChangeKind::Renamed { from } => {
                told_new.insert(path.clone());
                told_gone.insert(from.clone());
                *renamed += 1;
            }
            ChangeKind::Contents => drop(contents.insert(*ino)),
            ChangeKind::Attributes => drop(attributes.insert(*ino)),
        }
    }
    for ino in gone.keys().chain(new.keys()).chain(told.keys()) {
        let (gone, new) = (gone.get(ino).unwrap_or(&none), new.get(ino).unwrap_or(&none));
        let nothing = Default::default();
        let (told_gone, told_new, renamed) = told.get(ino).unwrap_or(&nothing);
        if (told_gone, told_new, *renamed) != (gone, new, gone.len().min(new.len())) {
            return Err(format!(
                "of inode {ino} the names {gone:?} are gone and {new:?} are new; it is said that {told_gone:?} are gone and {told_new:?} are new"
            ));
        }
    }
    for (ino, node) in &before.tree.nodes {
        let Some(now) = after.tree.nodes.get(ino) else { continue };
        if before.contents.get(ino) != after.contents.get(ino) && !contents.contains(ino) {
            return Err(format!("nothing is said of the changed contents of inode {ino}"));
        }
        let differ = (node.permissions, &node.xattrs, node.compression, node.class)
            != (now.permissions, &now.xattrs, now.compression, now.class);
        if differ != attributes.contains(ino) {
            return Err(format!("attributes of inode {ino}, changed {differ}, are said to be {}", !differ));
        }
    }
    Ok(())
}
