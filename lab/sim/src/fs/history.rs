//! The history of a filesystem: its tree after each transaction, and its files' data.

use super::snapshots::View;
use crate::model::FileHistory;
use crate::model::{Change, Tree};
use crate::snapshots::Snapshots;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use syncline_fs::types::{Ino, Timestamp};

/// The history of one life of a filesystem, from the state in which it began.
pub struct FsHistory {
    start: Tree,
    start_op: u64,
    grown: Mutex<Grown>,
    /// The snapshots of this life and those from before it.
    pub(super) snapshots: Snapshots<View>,
}

/// The promise that an fsync gave.
struct Promise {
    /// It holds from this position of the device log on.
    position: usize,
    /// This transaction and all before it survive.
    op: u64,
    /// If set (fdatasync), the promise covers only transactions up to `op` that change this file's
    /// size or names, and all transactions before those.
    only: Option<Ino>,
}

/// An access time that an inode had.
pub(super) struct Accessed {
    /// The position of the device log from which on it is durable, if that was promised.
    pub durable_at: Option<usize>,
    pub ino: Ino,
    /// The history's time at which the inode had it.
    pub seen: u64,
    pub time: Timestamp,
}

#[derive(Default)]
struct Grown {
    /// The change that each transaction made to names and attributes; transactions without such a
    /// change are absent.
    changes: BTreeMap<u64, Change>,
    /// When the operations began that committed these transactions.
    begun: BTreeMap<u64, u64>,
    files: BTreeMap<Ino, FileHistory>,
    promises: Vec<Promise>,
    /// Access times that were seen.
    accessed: Vec<Accessed>,
    /// Transactions of the store that come back all or none.
    together: Vec<RangeInclusive<u64>>,
    /// Files whose data a task is changing.
    busy: BTreeSet<Ino>,
    time: u64,
    newest_tag: u64,
    /// The tree after all changes so far, with the last transaction; `None` once a change came out
    /// of order or was impossible.
    now: Option<(u64, Tree)>,
}

impl FsHistory {
    /// A history that starts with this tree, after transaction `op`, and these file contents.
    pub fn starting_with(start: Tree, contents: &BTreeMap<Ino, Vec<u8>>, op: u64) -> Self {
        let files = contents.iter().map(|(ino, bytes)| (*ino, FileHistory::holding(bytes))).collect();
        let now = Some((op, start.clone()));
        let grown = Grown { files, newest_tag: op << 32, now, ..Grown::default() };
        Self { start, start_op: op, grown: Mutex::new(grown), snapshots: Snapshots::default() }
    }

    /// Adds these snapshots. Tags used in the life `before`, even for lost data, are not used
    /// again.
    pub(super) fn after(self, before: &Self, snapshots: Snapshots<View>) -> Self {
        let used = before.grown.lock().newest_tag;
        let mut grown = self.grown.into_inner();
        grown.newest_tag = grown.newest_tag.max(used);
        Self { snapshots, grown: Mutex::new(grown), ..self }
    }

    /// The tree after transaction `op`; an error if the filesystem reported a change that was
    /// impossible.
    pub fn tree_after(&self, op: u64) -> Result<Tree, String> {
        let grown = self.grown.lock();
        let mut tree = self.start.clone();
        for (by, change) in grown.changes.range(..=op) {
            tree.apply(change).map_err(|what| format!("transaction {by}: {what}"))?;
        }
        Ok(tree)
    }

    /// The trees after each transaction from `first` to `last`, with these transactions; those that
    /// did not change names, attributes or sizes are left out.
    pub fn trees_between(&self, first: u64, last: u64) -> Result<Vec<(u64, Tree)>, String> {
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

    /// The current tree.
    pub fn tree(&self) -> Result<Tree, String> {
        if let Some((_, tree)) = &self.grown.lock().now {
            return Ok(tree.clone());
        }
        let tree = self.tree_after(u64::MAX)?;
        let mut grown = self.grown.lock();
        let newest = grown.changes.last_key_value().map_or(self.start_op, |(by, _)| *by);
        grown.now = Some((newest, tree.clone()));
        Ok(tree)
    }

    /// The lowest transaction number that a crash at `position` may recover to.
    pub fn promised_at(&self, position: usize) -> u64 {
        let grown = self.grown.lock();
        let given = grown.promises.iter().filter(|promise| promise.position <= position);
        let (all, own): (Vec<_>, Vec<_>) = given.partition(|promise| promise.only.is_none());
        let mut least = all.iter().map(|promise| promise.op).max().unwrap_or(0).max(self.start_op);
        for promise in own {
            // A promise about one file adds nothing if everything up to it is promised anyway.
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
            // Impossible changes are reported where trees are compared.
            let _ = tree.apply(change);
        }
        newest
    }

    /// The data that new names up to `op` carried along (promise P3): for each file the transaction,
    /// and the time up to which.
    pub fn carried_by_names(&self, op: u64) -> BTreeMap<Ino, Vec<(u64, u64)>> {
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

    /// Compares a file's contents with those that a crash may leave. `carried` is the data that
    /// new names carried along.
    pub fn check_file(
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

    /// Records that an operation which began at `time` committed transaction `op` at its end.
    pub(super) fn begun(&self, op: u64, time: u64) {
        self.grown.lock().begun.insert(op, time);
    }

    /// The latest time at which anything was asked for that a snapshot shows which ends with
    /// transaction `op` and has these contents: all that was done before then must be in it, too
    /// (promise P10).
    pub(super) fn begun_in(&self, op: u64, contents: &BTreeMap<Ino, Vec<u8>>) -> u64 {
        let grown = self.grown.lock();
        let names = grown.begun.range(..=op).map(|(_, time)| *time);
        let data = contents.iter().filter_map(|(ino, found)| Some(grown.files.get(ino)?.begun_of(found)));
        names.chain(data).max().unwrap_or(0)
    }

    /// Compares a file's contents in a snapshot that ends with transaction `op` and was made
    /// between two times: data written before the first is present, and none from after the second.
    pub fn check_kept(
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

    /// Advances the time and returns it.
    pub fn tick(&self) -> u64 {
        let mut grown = self.grown.lock();
        grown.time += 1;
        grown.time
    }

    /// The current time.
    pub fn now(&self) -> u64 {
        self.grown.lock().time
    }

    /// A tag never used before for contents.
    pub fn new_tag(&self) -> u64 {
        let mut grown = self.grown.lock();
        grown.newest_tag += 1;
        grown.newest_tag
    }

    /// Records the change made by transaction `op`.
    pub fn changed(&self, op: u64, change: Change) {
        let mut grown = self.grown.lock();
        if let Change::Create { ino, node, .. } = &change
            && node.is_file()
        {
            grown.files.entry(*ino).or_default();
        }
        grown.now = grown.now.take().filter(|(newest, _)| *newest < op).and_then(|(_, mut tree)| {
            tree.apply(&change).ok()?;
            Some((op, tree))
        });
        grown.changes.insert(op, change);
    }

    /// Records that transaction `op` set the file's size.
    pub fn truncated(&self, ino: Ino, op: u64, size: u64) {
        let time = self.tick();
        self.with_file(ino, |file| file.truncate(time, op, size));
        self.changed(op, Change::Truncate);
    }

    /// Records that everything up to `op` was acknowledged as durable when the device log was at
    /// `position`; with `only`, just the part that concerns this file.
    pub fn promise(&self, position: usize, op: u64, only: Option<Ino>) {
        tracing::info!("promised at event {position}: {op} {only:?}");
        self.grown.lock().promises.push(Promise { position, op, only });
    }

    /// Records an access time.
    pub(super) fn note_access(&self, accessed: Accessed) {
        self.grown.lock().accessed.push(accessed);
    }

    /// The files whose access times were promised up to `position` of the device log, with the newest
    /// promise and all older times that were seen.
    pub(super) fn accessed_at(&self, position: usize) -> Vec<(Ino, Timestamp, Vec<Timestamp>)> {
        let grown = self.grown.lock();
        let mut newest: BTreeMap<Ino, &Accessed> = BTreeMap::new();
        let is_promised = |it: &&Accessed| it.durable_at.is_some_and(|durable_at| durable_at <= position);
        for it in grown.accessed.iter().filter(is_promised) {
            let known = newest.entry(it.ino).or_insert(it);
            *known = if it.seen > known.seen { it } else { *known };
        }
        let older = |than: &Accessed| {
            let are_older = grown.accessed.iter().filter(|it| it.ino == than.ino && it.seen < than.seen);
            are_older.map(|it| it.time).collect()
        };
        newest.into_values().map(|it| (it.ino, it.time, older(it))).collect()
    }

    /// Records that these transactions of the store are one of the library.
    pub(super) fn together(&self, ops: RangeInclusive<u64>) {
        self.grown.lock().together.push(ops);
    }

    /// Checks that a crash that leads back to transaction `op` leaves no part of a transaction of
    /// the library.
    pub(super) fn check_whole(&self, op: u64) -> Result<(), String> {
        let grown = self.grown.lock();
        match grown.together.iter().find(|ops| ops.contains(&op) && *ops.end() != op) {
            Some(ops) => Err(format!("transaction {op} came back, which belongs together with {ops:?}")),
            None => Ok(()),
        }
    }

    /// Accesses a file's data history.
    pub fn with_file<T>(&self, ino: Ino, look: impl FnOnce(&mut FileHistory) -> T) -> T {
        look(self.grown.lock().files.entry(ino).or_default())
    }

    /// Records that the data of every file up to `time` was acknowledged as durable.
    pub fn all_synced(&self, position: usize, time: u64) {
        self.grown.lock().files.values_mut().for_each(|file| file.synced(position, time));
    }

    /// Claims the file's data for the caller; returns false if another task has claimed it.
    pub fn claim(&self, ino: Ino) -> bool {
        self.grown.lock().busy.insert(ino)
    }

    /// Releases the claim.
    pub fn release(&self, ino: Ino) {
        self.grown.lock().busy.remove(&ino);
    }
}
