//! The history of a filesystem: its tree through all transactions, and its files' data.

use super::file::FileHistory;
use super::snapshots::View;
use super::tree::{Body, Change, Tree};
use crate::snapshots::Snapshots;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use syncline_fs::types::Ino;

/// The history of one life of a filesystem, from the state it started with.
pub struct FsHistory {
    start: Tree,
    start_op: u64,
    grown: Mutex<Grown>,
    /// The snapshots of this life and those it began with.
    pub(super) snapshots: Snapshots<View>,
}

/// What an fsync was answered with.
struct Promise {
    /// From this position of the device log on.
    position: usize,
    /// This transaction and all before it survive.
    op: u64,
    /// Of those only the ones that change this file's size or names, and what came before them: an fdatasync.
    only: Option<Ino>,
}

#[derive(Default)]
struct Grown {
    /// What each transaction did to names and attributes; those that are missing did nothing to them.
    changes: BTreeMap<u64, Change>,
    files: BTreeMap<Ino, FileHistory>,
    promises: Vec<Promise>,
    /// Files whose data somebody is changing.
    busy: BTreeSet<Ino>,
    time: u64,
    newest_tag: u64,
    /// The tree after all changes so far, up to this one, while they came in order and were possible.
    now: Option<(u64, Tree)>,
}

impl FsHistory {
    /// A history that starts with this tree after transaction `op`, and these contents of its files.
    pub(crate) fn starting_with(start: Tree, contents: &BTreeMap<Ino, Vec<u8>>, op: u64) -> Self {
        let files = contents.iter().map(|(ino, bytes)| (*ino, FileHistory::holding(bytes))).collect();
        let now = Some((op, start.clone()));
        let grown = Grown { files, newest_tag: op << 32, now, ..Grown::default() };
        Self { start, start_op: op, grown: Mutex::new(grown), snapshots: Snapshots::default() }
    }

    /// The same, with these snapshots; what was made in the life `before` and is lost lends its number to nothing else.
    pub(super) fn after(self, before: &Self, snapshots: Snapshots<View>) -> Self {
        let used = before.grown.lock().newest_tag;
        let mut grown = self.grown.into_inner();
        grown.newest_tag = grown.newest_tag.max(used);
        Self { snapshots, grown: Mutex::new(grown), ..self }
    }

    /// The tree after transaction `op`; an error if the filesystem said that it did what it can't have done.
    pub(crate) fn tree_after(&self, op: u64) -> Result<Tree, String> {
        let grown = self.grown.lock();
        let mut tree = self.start.clone();
        for (by, change) in grown.changes.range(..=op) {
            tree.apply(change).map_err(|what| format!("transaction {by}: {what}"))?;
        }
        Ok(tree)
    }

    /// The trees after each transaction from `first` to `last`, with that transaction; those that did nothing to names,
    /// attributes or sizes are left out.
    pub(super) fn trees_between(&self, first: u64, last: u64) -> Result<Vec<(u64, Tree)>, String> {
        let mut tree = self.tree_after(first)?;
        let mut trees = vec![(first, tree.clone())];
        let grown = self.grown.lock();
        let ops: BTreeSet<u64> =
            grown.changes.keys().copied().chain(grown.files.values().flat_map(FileHistory::ops)).collect();
        for by in ops.into_iter().filter(|by| (first + 1..=last).contains(by)) {
            if let Some(change) = grown.changes.get(&by) {
                tree.apply(change).map_err(|what| format!("transaction {by}: {what}"))?;
            }
            trees.push((by, tree.clone()));
        }
        Ok(trees)
    }

    /// The present tree.
    pub(crate) fn tree(&self) -> Result<Tree, String> {
        if let Some((_, tree)) = &self.grown.lock().now {
            return Ok(tree.clone());
        }
        let tree = self.tree_after(u64::MAX)?;
        let mut grown = self.grown.lock();
        let newest = grown.changes.last_key_value().map_or(self.start_op, |(by, _)| *by);
        grown.now = Some((newest, tree.clone()));
        Ok(tree)
    }

    /// The least transaction that a crash at `position` must leave.
    pub(crate) fn promised_at(&self, position: usize) -> u64 {
        let grown = self.grown.lock();
        let given = grown.promises.iter().filter(|promise| promise.position <= position);
        let (all, own): (Vec<_>, Vec<_>) = given.partition(|promise| promise.only.is_none());
        let mut least = all.iter().map(|promise| promise.op).max().unwrap_or(0).max(self.start_op);
        for promise in own {
            // A promise about one file says nothing more when everything up to there is promised.
            if let Some(ino) = promise.only.filter(|_| promise.op > least) {
                least = least.max(self.own_op(&grown, ino, promise.op));
            }
        }
        least
    }

    /// The newest transaction up to `op` that changed a file's size or names.
    fn own_op(&self, grown: &Grown, ino: Ino, op: u64) -> u64 {
        let mut newest = grown.files.get(&ino).and_then(|file| file.last_truncation(op)).unwrap_or(0);
        let mut tree = self.start.clone();
        for (by, change) in grown.changes.range(..=op) {
            if tree.touched_by(change).contains(&ino) {
                newest = newest.max(*by);
            }
            // What is wrong with the changes is for those to say who compare trees.
            let _ = tree.apply(change);
        }
        newest
    }

    /// The data that renames up to `op` took along (promise P3), by file: the transaction, and up to when.
    pub(crate) fn carried_by_renames(&self, op: u64) -> BTreeMap<Ino, Vec<(u64, u64)>> {
        let grown = self.grown.lock();
        let mut carried: BTreeMap<Ino, Vec<(u64, u64)>> = BTreeMap::new();
        let mut tree = self.start.clone();
        for (by, change) in grown.changes.range(..=op) {
            for (ino, until) in tree.carried_by(change) {
                carried.entry(ino).or_default().push((*by, until));
            }
            let _ = tree.apply(change);
        }
        carried
    }

    /// Compares a file's contents with what a crash may leave. `carried` is what renames took along.
    pub(crate) fn check_file(
        &self,
        ino: Ino,
        found: &[u8],
        (op, position): (u64, usize),
        carried: &[(u64, u64)],
    ) -> Result<(), String> {
        let Some(mut file) = self.grown.lock().files.get(&ino).cloned() else {
            return Err("the model knows no such file".to_owned());
        };
        carried.iter().for_each(|(by, until)| file.carried_by(*by, *until));
        file.check(found, op, position).map_err(|what| format!("{what} ({})", file.story()))
    }

    /// Compares what a snapshot shows of a file, which is of transaction `op` and was made between two moments: what was written
    /// before the first is there, and nothing from after the second.
    pub(super) fn check_kept(
        &self,
        ino: Ino,
        found: &[u8],
        op: u64,
        (asked, made): (u64, u64),
        carried: &[(u64, u64)],
    ) -> Result<(), String> {
        let Some(file) = self.grown.lock().files.get(&ino).cloned() else {
            return Err("the model knows no such file".to_owned());
        };
        let mut file = file.until(made);
        carried.iter().for_each(|(by, until)| file.carried_by(*by, *until));
        file.carried_by(op, asked);
        file.check(found, op, 0).map_err(|what| format!("{what} ({})", file.story()))
    }

    /// The next moment.
    pub(crate) fn tick(&self) -> u64 {
        let mut grown = self.grown.lock();
        grown.time += 1;
        grown.time
    }

    /// The present moment.
    pub(crate) fn now(&self) -> u64 {
        self.grown.lock().time
    }

    /// A number never used before for contents.
    pub(crate) fn new_tag(&self) -> u64 {
        let mut grown = self.grown.lock();
        grown.newest_tag += 1;
        grown.newest_tag
    }

    /// Notes what transaction `op` did.
    pub(crate) fn changed(&self, op: u64, change: Change) {
        let mut grown = self.grown.lock();
        if let Change::Create { ino, node, .. } = &change
            && node.body == Body::File
        {
            grown.files.entry(*ino).or_default();
        }
        grown.now = grown.now.take().filter(|(newest, _)| *newest < op).and_then(|(_, mut tree)| {
            tree.apply(&change).ok()?;
            Some((op, tree))
        });
        grown.changes.insert(op, change);
    }

    /// Notes that transaction `op` gave a file this size.
    pub(super) fn truncated(&self, ino: Ino, op: u64, size: u64) {
        let time = self.tick();
        self.with_file(ino, |file| file.truncate(time, op, size));
        self.changed(op, Change::Truncate);
    }

    /// Notes that everything up to `op` was called durable when the device log was at `position`; with `only`, what
    /// concerns this file.
    pub(crate) fn promise(&self, position: usize, op: u64, only: Option<Ino>) {
        tracing::info!("promised at event {position}: {op} {only:?}");
        self.grown.lock().promises.push(Promise { position, op, only });
    }

    /// Changes or asks a file's data.
    pub(crate) fn with_file<T>(&self, ino: Ino, look: impl FnOnce(&mut FileHistory) -> T) -> T {
        look(self.grown.lock().files.entry(ino).or_default())
    }

    /// Notes that the data of every file up to `time` was called durable.
    pub(crate) fn all_synced(&self, position: usize, time: u64) {
        self.grown.lock().files.values_mut().for_each(|file| file.synced(position, time));
    }

    /// Makes the caller the only one to change this file's data, unless somebody else is.
    pub(crate) fn claim(&self, ino: Ino) -> bool {
        self.grown.lock().busy.insert(ino)
    }

    /// Ends that.
    pub(crate) fn release(&self, ino: Ino) {
        self.grown.lock().busy.remove(&ino);
    }
}
