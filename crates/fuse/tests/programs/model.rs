//! The model of everything that a program has done: the laboratory's model of a filesystem, with
//! the open files and the data that only the kernel has.

use super::contents::contents;
use super::step::{Part, Step};
use std::collections::BTreeMap;
use syncline_fs::types::{Ino, ROOT};
use syncline_sim::FsHistory;
use syncline_sim::model::{Body, Change, Node, Place, Tree};

/// fallocate(2).
pub const KEEP_SIZE: u32 = libc::FALLOC_FL_KEEP_SIZE as u32;
pub const PUNCH: u32 = libc::FALLOC_FL_PUNCH_HOLE as u32 | KEEP_SIZE;
pub const ZERO: u32 = libc::FALLOC_FL_ZERO_RANGE as u32;

/// A position of the device's log that every promise has come before.
pub const END: usize = usize::MAX;

/// An open file.
pub struct Slot {
    pub ino: Ino,
    /// A write is durable when it is answered.
    pub is_synchronous: bool,
    pub appends: bool,
    /// The length of its mapping.
    pub map: Option<u64>,
}

/// The changes that are durable without an fsync.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Promised {
    /// Not even synced changes are durable.
    Nothing,
    Synced,
    Names,
    Everything,
}

/// A snapshot that was made.
pub struct Kept {
    pub name: String,
    pub op: u64,
    time: u64,
    /// Files that were stored to through a mapping and have not been synced since, and when.
    stored: BTreeMap<Ino, u64>,
}

pub struct Model {
    history: FsHistory,
    op: u64,
    next_ino: Ino,
    promised: Promised,
    pub slots: BTreeMap<u64, Slot>,
    /// Files of which the kernel may have stores that have not come to the daemon, since when.
    stored: BTreeMap<Ino, u64>,
    /// Times of modification that were set.
    mtimes: BTreeMap<Ino, i64>,
    pub kept: Vec<Kept>,
    pub limited: Option<Ino>,
}

impl Model {
    pub fn new(options: &[&str]) -> Self {
        let has = |option: &str| options.contains(&option);
        let promised = if has("sync") || has("durability=strict") {
            Promised::Everything
        } else if has("durability=ordered") {
            Promised::Nothing
        } else if has("dirsync") {
            Promised::Names
        } else {
            Promised::Synced
        };
        Self {
            history: FsHistory::starting_with(Tree::empty(), &BTreeMap::new(), 0),
            op: 0,
            next_ino: 1000,
            promised,
            slots: BTreeMap::new(),
            stored: BTreeMap::new(),
            mtimes: BTreeMap::new(),
            kept: Vec::new(),
            limited: None,
        }
    }

    pub fn history(&self) -> &FsHistory {
        &self.history
    }

    pub fn last_op(&self) -> u64 {
        self.op
    }

    pub fn tree(&self) -> Tree {
        self.history.tree().expect("programs do only what is possible")
    }

    pub fn new_tag(&self) -> u64 {
        self.history.new_tag()
    }

    /// The path of a directory.
    pub fn path_of(&self, dir: Ino) -> String {
        let places = self.tree().places();
        let found = places.into_iter().find(|at| self.tree().find(at) == Some(dir));
        found.map_or_else(|| ".".into(), |at| self.path(&at))
    }

    /// The path of a name.
    pub fn path(&self, at: &Place) -> String {
        let name = std::str::from_utf8(&at.name).expect("ours are text");
        if at.parent == ROOT { name.into() } else { format!("{}/{name}", self.path_of(at.parent)) }
    }

    pub fn names_in(&self, dir: Ino) -> Vec<String> {
        match &self.tree().nodes[&dir].body {
            Body::Directory(entries) => {
                entries.keys().map(|name| String::from_utf8_lossy(name).into_owned()).collect()
            }
            _ => Vec::new(),
        }
    }

    pub fn size(&self, ino: Ino) -> u64 {
        self.history.with_file(ino, |file| file.size())
    }

    pub fn read(&self, ino: Ino, offset: u64, len: usize) -> Vec<u8> {
        self.history.with_file(ino, |file| file.read(offset, len))
    }

    pub fn whole(&self, ino: Ino) -> Vec<u8> {
        self.read(ino, 0, self.size(ino) as usize)
    }

    pub fn mtime(&self, ino: Ino) -> Option<i64> {
        self.mtimes.get(&ino).copied()
    }

    /// Where a write through this slot begins.
    pub fn offset(&self, part: &Part) -> u64 {
        let slot = &self.slots[&part.slot];
        if slot.appends { self.size(slot.ino) } else { part.offset }
    }

    /// Up to when everything of a file has come to the daemon.
    fn come(&self, ino: Ino) -> u64 {
        self.stored.get(&ino).map_or(self.history.now(), |since| since - 1)
    }

    /// Records a step that was made; `told` if it was answered.
    pub fn made(&mut self, step: &Step, told: bool) {
        let before = self.op;
        match step {
            Step::Create { .. }
            | Step::Open { .. }
            | Step::Close(_)
            | Step::Map { .. }
            | Step::Unmap(_)
            | Step::Write(..)
            | Step::Store(..)
            | Step::Allocate { .. }
            | Step::Copy { .. }
            | Step::Truncate { .. } => self.changed_data(step, told),
            Step::Sync { .. }
            | Step::SyncDirectory(_)
            | Step::SyncAll
            | Step::Msync(_)
            | Step::Snapshot(_)
            | Step::SnapshotMeanwhile(_) => {
                if told {
                    self.synced(step);
                }
            }
            Step::Quota { dir, on } => self.limited = on.then_some(*dir),
            _ => self.changed_names(step),
        }
        if self.op > before && told && self.promised >= self.promise_for(step) {
            self.promise(None);
        }
    }

    /// The least promise with which a change is durable when its call is answered.
    fn promise_for(&self, step: &Step) -> Promised {
        match step {
            Step::Create { .. }
            | Step::Rename { .. }
            | Step::Exchange { .. }
            | Step::Link { .. }
            | Step::Unlink(_)
            | Step::Mkdir(_)
            | Step::Rmdir(_) => Promised::Names,
            _ => Promised::Everything,
        }
    }

    fn promise(&self, only: Option<Ino>) {
        if self.promised > Promised::Nothing {
            self.history.promise(0, self.op, only);
        }
    }

    /// Records that everything of a file that has come to the daemon is durable.
    fn is_durable(&self, ino: Ino, until: u64) {
        if self.promised > Promised::Nothing {
            self.history.with_file(ino, |file| file.synced(0, until));
        }
    }

    fn change(&mut self, change: Change) {
        self.op += 1;
        self.history.changed(self.op, change);
    }

    fn changed_data(&mut self, step: &Step, told: bool) {
        let ino = match step {
            Step::Create { slot, at, how } => {
                self.next_ino += 1;
                let node = Node::new(Body::File(()), 0o644);
                self.change(Change::Create { at: at.clone(), ino: self.next_ino, node });
                return self.opened(*slot, self.next_ino, how);
            }
            Step::Open { slot, at, how } => {
                let ino = self.tree().find(at).expect("it exists");
                self.opened(*slot, ino, how);
                if !how.contains('t') || self.size(ino) == 0 {
                    return;
                }
                self.op += 1;
                self.history.truncated(ino, self.op, 0);
                ino
            }
            Step::Close(slot) => {
                self.slots.remove(slot);
                return;
            }
            Step::Map { slot, len } => return self.slot(*slot).map = Some(*len),
            Step::Unmap(slot) => return self.slot(*slot).map = None,
            Step::Write(part, tag) => {
                let (ino, offset) = (self.slot(part.slot).ino, self.offset(part));
                // An append writes the bytes that it was given, wherever they end up.
                self.write(ino, offset, &contents(*tag, part.offset, part.len));
                ino
            }
            Step::Store(part, tag) => {
                let ino = self.slot(part.slot).ino;
                self.write(ino, part.offset, &contents(*tag, part.offset, part.len));
                let now = self.history.now();
                self.stored.entry(ino).or_insert(now);
                return self.mtimes.remove(&ino).map_or((), drop);
            }
            Step::Copy { from, to, to_at } => {
                let (source, ino) = (self.slot(from.slot).ino, self.slot(*to).ino);
                let data = self.read(source, from.offset, from.len);
                if data.is_empty() {
                    return;
                }
                self.write(ino, *to_at, &data);
                ino
            }
            Step::Allocate { part, mode } => {
                let ino = self.slot(part.slot).ino;
                let range = part.offset..part.offset + part.len as u64;
                let size = if mode & KEEP_SIZE == 0 { range.end } else { 0 };
                let cleared = if mode & (PUNCH | ZERO) & !KEEP_SIZE == 0 { 0..0 } else { range };
                self.change(Change::Truncate);
                let (op, time) = (self.op, self.history.tick());
                self.history.with_file(ino, |file| file.cleared(time, op, &cleared, size));
                ino
            }
            Step::Truncate { slot, size } => {
                let ino = self.slot(*slot).ino;
                self.op += 1;
                self.history.truncated(ino, self.op, *size);
                ino
            }
            other => unreachable!("{other:?} changes no data"),
        };
        self.mtimes.remove(&ino);
        let slot = match step {
            Step::Write(part, _) | Step::Allocate { part, .. } => self.slots.get(&part.slot),
            Step::Copy { to, .. } => self.slots.get(to),
            _ => None,
        };
        let by_slot = slot.is_some_and(|slot| slot.is_synchronous);
        if told && (by_slot || self.promised == Promised::Everything) {
            self.promise(Some(ino));
            self.is_durable(ino, self.come(ino));
        }
    }

    fn slot(&mut self, slot: u64) -> &mut Slot {
        self.slots.get_mut(&slot).expect("it is open")
    }

    fn opened(&mut self, slot: u64, ino: Ino, how: &str) {
        let is_synchronous = how.contains(['s', 'y']);
        self.slots.insert(slot, Slot { ino, is_synchronous, appends: how.contains('a'), map: None });
    }

    fn write(&mut self, ino: Ino, offset: u64, data: &[u8]) {
        let time = self.history.tick();
        self.history.with_file(ino, |file| file.write(time, offset, data));
    }

    fn changed_names(&mut self, step: &Step) {
        match step.clone() {
            Step::Rename { from, to } => self.renamed(from, to, false),
            Step::Exchange { from, to } => self.renamed(from, to, true),
            Step::Link { from, to } => {
                let ino = self.tree().find(&from).expect("it exists");
                let started = self.come(ino);
                self.change(Change::Link { ino, at: to, started });
            }
            Step::Unlink(at) | Step::Rmdir(at) => self.change(Change::Remove { at }),
            Step::Mkdir(at) => {
                self.next_ino += 1;
                let node = Node::new(Body::Directory(BTreeMap::new()), 0o755);
                self.change(Change::Create { at, ino: self.next_ino, node });
            }
            Step::Chmod { at, mode } => {
                let ino = self.tree().find(&at).expect("it exists");
                self.change(Change::Permissions { ino, permissions: mode });
            }
            Step::Times { at, seconds } => {
                let ino = self.tree().find(&at).expect("it exists");
                self.mtimes.insert(ino, seconds);
            }
            _ => {}
        }
    }

    /// A file's data that has come to the daemon is there with its new name.
    fn renamed(&mut self, from: Place, to: Place, exchange: bool) {
        let tree = self.tree();
        let files = [tree.find(&from), if exchange { tree.find(&to) } else { None }];
        let started = files.into_iter().flatten().map(|ino| self.come(ino)).min().unwrap_or(0);
        self.change(Change::Rename { from, to, exchange, started });
    }

    fn synced(&mut self, step: &Step) {
        let now = self.history.now();
        match step {
            Step::Sync { slot, data_only } => {
                let ino = self.slot(*slot).ino;
                self.stored.remove(&ino);
                self.promise(data_only.then_some(ino));
                self.is_durable(ino, now);
            }
            Step::Msync(slot) => {
                let Slot { ino, map, .. } = *self.slot(*slot);
                if map.is_some_and(|len| len >= self.size(ino)) {
                    self.stored.remove(&ino);
                    self.promise(Some(ino));
                    self.is_durable(ino, now);
                }
            }
            Step::SyncDirectory(_) => self.promise(None),
            Step::Snapshot(name) | Step::SnapshotMeanwhile(name) => {
                let (name, stored) = (name.clone(), self.stored.clone());
                self.kept.push(Kept { name, op: self.op, time: now, stored });
            }
            // In every class.
            _ => {
                self.stored.clear();
                self.history.promise(0, self.op, None);
                self.history.all_synced(0, now);
            }
        }
    }
}

impl Kept {
    /// Compares a file in the snapshot with the contents that it had when the snapshot was made.
    pub fn check(&self, model: &Model, ino: Ino, found: &[u8]) -> Result<(), String> {
        let asked = self.stored.get(&ino).map_or(self.time, |since| since - 1);
        model.history.check_kept(ino, found, self.op, (asked, self.time), &[])
    }
}
