//! Draws the steps of a program, one at a time, from those that are possible.

use super::model::{KEEP_SIZE, Model, PUNCH, Slot, ZERO};
use super::step::{How, Part, Step, Who};
use rand::Rng;
use rand::seq::IndexedRandom;
use rand_chacha::ChaCha8Rng;
use syncline_fs::types::{Ino, ROOT};
use syncline_sim::model::Place;

/// Open files at a time.
const SLOTS: u64 = 5;
/// Names in a directory: few, so that they are used again.
const NAMES: u64 = 6;
const DIRECTORIES: u64 = 2;
/// Largest size of a file.
const SIZE_MAX: u64 = 300_000;
const PAGE: u64 = 4096;

pub struct Generator {
    pub rng: ChaCha8Rng,
    snapshots: u64,
    size: u64,
    spins: bool,
}

impl Generator {
    pub fn new(rng: ChaCha8Rng) -> Self {
        Self { rng, snapshots: 0, size: 64 << 20, spins: false }
    }

    /// The next step, and who makes it.
    pub fn next(&mut self, model: &Model) -> (Who, Step) {
        loop {
            if let Some(step) = self.draw(model) {
                let who = match &step {
                    Step::Spin(_) => Who::Lister,
                    step if step.is_for_owner() => Who::Owner,
                    step if step.is_for_witnesses() && self.rng.random() => Who::Witness,
                    _ => Who::Program,
                };
                return (who, step);
            }
        }
    }

    fn draw(&mut self, model: &Model) -> Option<Step> {
        match self.rng.random_range(0..100) {
            0..10 => self.create(model),
            10..16 => self.open(model),
            16..20 => Some(Step::Close(self.slot(model)?.0)),
            20..37 => self.write(model),
            37..45 => self.map_or_store(model),
            45..48 => {
                let (slot, open) = self.slot(model)?;
                let unmaps = open.map.is_some() && self.rng.random();
                open.map.is_some().then_some(if unmaps { Step::Unmap(slot) } else { Step::Msync(slot) })
            }
            48..54 => self.allocate(model),
            54..60 => self.copy(model),
            60..64 => self.truncate(model),
            64..77 => self.change_names(model),
            77..82 => self.sync(model),
            82..85 => self.ask_the_daemon(model),
            _ => self.look(model),
        }
    }

    fn slot<'a>(&mut self, model: &'a Model) -> Option<(u64, &'a Slot)> {
        let slots: Vec<_> = model.slots.iter().collect();
        slots.choose(&mut self.rng).map(|(slot, open)| (**slot, *open))
    }

    fn directory(&mut self, model: &Model) -> Ino {
        let tree = model.tree();
        if self.rng.random() { ROOT } else { *tree.directories().choose(&mut self.rng).unwrap_or(&ROOT) }
    }

    fn place(&mut self, model: &Model) -> Place {
        let parent = self.directory(model);
        Place { parent, name: format!("f{}", self.rng.random_range(0..NAMES)).into_bytes() }
    }

    /// A name that is free.
    fn free(&mut self, model: &Model) -> Option<Place> {
        let at = self.place(model);
        model.tree().find(&at).is_none().then_some(at)
    }

    /// A name of a file.
    fn known(&mut self, model: &Model) -> Option<Place> {
        let tree = model.tree();
        let mut places = tree.places();
        places.retain(|at| tree.nodes[&tree.find(at).expect("it has this name")].is_file());
        places.choose(&mut self.rng).cloned()
    }

    fn how(&mut self) -> How {
        ["-", "-", "-", "-", "d", "s", "y", "ds", "dy", "a", "ay"].choose(&mut self.rng).expect("some")
    }

    fn create(&mut self, model: &Model) -> Option<Step> {
        let slot = self.rng.random_range(0..SLOTS);
        if model.slots.contains_key(&slot) {
            return Some(Step::Close(slot)).filter(|_| model.slots[&slot].map.is_none());
        }
        Some(Step::Create { slot, at: self.free(model)?, how: self.how() })
    }

    fn open(&mut self, model: &Model) -> Option<Step> {
        let slot = self.rng.random_range(0..SLOTS);
        let truncates = self.rng.random_range(0..6) == 0;
        let how = if truncates { "t" } else { self.how() };
        let at = self.known(model)?;
        (!model.slots.contains_key(&slot)).then_some(Step::Open { slot, at, how })
    }

    /// A range that begins inside a file or somewhat behind it, mostly at borders of pages.
    fn part(&mut self, model: &Model, slot: u64) -> Part {
        let size = model.size(model.slots[&slot].ino);
        let most = (size + if self.rng.random() { 1 } else { 40_000 }).min(SIZE_MAX);
        let mut offset = self.rng.random_range(0..=most);
        let longest = [100u64, 5000, 20_000, 100_000][self.rng.random_range(0..4)];
        let mut len = self.rng.random_range(1..=longest);
        if self.rng.random() {
            (offset, len) = (offset / PAGE * PAGE, len.next_multiple_of(PAGE));
        }
        Part { slot, offset, len: len as usize }
    }

    fn write(&mut self, model: &Model) -> Option<Step> {
        let (slot, open) = self.slot(model)?;
        let mut part = self.part(model, slot);
        if open.appends && model.size(open.ino) > SIZE_MAX {
            return None;
        }
        if self.rng.random_range(0..3) == 0 {
            part.offset = model.size(open.ino).min(SIZE_MAX);
        }
        Some(Step::Write(part, model.new_tag()))
    }

    /// The part of a range that lies in a file and in its mapping.
    fn mapped(&mut self, model: &Model, slot: u64) -> Option<Part> {
        let open = &model.slots[&slot];
        let most = open.map?.min(model.size(open.ino));
        let part = self.part(model, slot);
        let len = most.checked_sub(part.offset).filter(|len| *len > 0)?.min(part.len as u64);
        Some(Part { len: len as usize, ..part })
    }

    fn map_or_store(&mut self, model: &Model) -> Option<Step> {
        let (slot, open) = self.slot(model)?;
        if open.map.is_none() {
            let len = model.size(open.ino);
            return (len > 0).then_some(Step::Map { slot, len });
        }
        Some(Step::Store(self.mapped(model, slot)?, model.new_tag()))
    }

    fn allocate(&mut self, model: &Model) -> Option<Step> {
        let (slot, _) = self.slot(model)?;
        let mode = *[0, KEEP_SIZE, PUNCH, PUNCH, ZERO, ZERO | KEEP_SIZE].choose(&mut self.rng)?;
        Some(Step::Allocate { part: self.part(model, slot), mode })
    }

    fn copy(&mut self, model: &Model) -> Option<Step> {
        let ((from, source), (to, target)) = (self.slot(model)?, self.slot(model)?);
        if target.appends {
            return None;
        }
        let (mut from, mut to_at) = (self.part(model, from), self.part(model, to).offset);
        match self.rng.random_range(0..3) {
            0 => (from.offset, to_at, from.len) = (0, 0, SIZE_MAX as usize),
            1 => (from.offset, to_at) = (from.offset / PAGE * PAGE, to_at / PAGE * PAGE),
            _ => {}
        }
        if source.ino == target.ino {
            // The copy ends at the present end of the file: it does not copy the bytes that it
            // appends.
            let rest = model.size(source.ino).checked_sub(from.offset).filter(|rest| *rest > 0)?;
            from.len = from.len.min(rest as usize);
        }
        let overlaps = source.ino == target.ino && from.offset.abs_diff(to_at) < from.len as u64;
        (!overlaps).then_some(Step::Copy { from, to, to_at })
    }

    fn truncate(&mut self, model: &Model) -> Option<Step> {
        let (slot, open) = self.slot(model)?;
        let size = model.size(open.ino);
        let size = match self.rng.random_range(0..4) {
            0 => 0,
            1 => size / PAGE * PAGE,
            2 => size + self.rng.random_range(0..30_000),
            _ => self.rng.random_range(0..=size),
        };
        Some(Step::Truncate { slot, size: size.min(SIZE_MAX) })
    }

    fn change_names(&mut self, model: &Model) -> Option<Step> {
        let directory = |name: u64| Place { parent: ROOT, name: format!("d{name}").into_bytes() };
        let step = match self.rng.random_range(0..20) {
            0..6 => Step::Rename { from: self.known(model)?, to: self.place(model) },
            6..8 => Step::Exchange { from: self.known(model)?, to: self.known(model)? },
            8..11 => Step::Link { from: self.known(model)?, to: self.free(model)? },
            11..15 => Step::Unlink(self.known(model)?),
            15 | 16 => {
                let at = directory(self.rng.random_range(0..DIRECTORIES));
                match model.tree().find(&at) {
                    None => Step::Mkdir(at),
                    Some(ino) if model.names_in(ino).is_empty() && model.limited != Some(ino) => {
                        Step::Rmdir(at)
                    }
                    Some(_) => return None,
                }
            }
            17 => Step::Chmod {
                at: self.known(model)?,
                mode: [0o600, 0o644, 0o755][self.rng.random_range(0..3)],
            },
            _ => Step::Times { at: self.known(model)?, seconds: self.rng.random_range(1_000..1_000_000) },
        };
        let (from, to) = match &step {
            Step::Rename { from, to } | Step::Exchange { from, to } | Step::Link { from, to } => (from, to),
            _ => return Some(step),
        };
        let across = from.parent != to.parent && model.limited.is_some();
        (from != to && !across).then_some(step)
    }

    fn sync(&mut self, model: &Model) -> Option<Step> {
        match self.rng.random_range(0..8) {
            0 => Some(Step::SyncDirectory(self.directory(model))),
            1 => Some(Step::SyncAll),
            _ => Some(Step::Sync { slot: self.slot(model)?.0, data_only: self.rng.random() }),
        }
    }

    fn ask_the_daemon(&mut self, model: &Model) -> Option<Step> {
        match self.rng.random_range(0..6) {
            0 | 1 => {
                self.snapshots += 1;
                let name = format!("s{}", self.snapshots);
                Some(if self.rng.random() { Step::Snapshot(name) } else { Step::SnapshotMeanwhile(name) })
            }
            2 => match model.limited {
                Some(dir) => Some(Step::Quota { dir, on: false }),
                None => {
                    let dirs = model.tree().directories();
                    let dir =
                        *dirs.iter().filter(|dir| **dir != ROOT).collect::<Vec<_>>().choose(&mut self.rng)?;
                    // A hard link across its border would be refused from then on.
                    let tree = model.tree();
                    let linked = tree.files().iter().any(|ino| tree.nodes[ino].nlink > 1);
                    (!linked).then_some(Step::Quota { dir: *dir, on: true })
                }
            },
            3 => {
                self.size += 1 << 20;
                Some(Step::Grow(self.size))
            }
            _ => {
                self.spins = !self.spins;
                Some(Step::Spin(self.spins))
            }
        }
    }

    fn look(&mut self, model: &Model) -> Option<Step> {
        match self.rng.random_range(0..16) {
            0..5 => Some(Step::Read(self.slot(model).map(|(slot, _)| self.part(model, slot))?)),
            5 | 6 => {
                let slot = self.slot(model)?.0;
                Some(Step::Load(self.mapped(model, slot)?))
            }
            7..10 => Some(Step::ReadWhole(self.known(model)?)),
            10 => Some(Step::MapWhole(self.known(model)?)),
            11 => Some(Step::Stat(self.known(model)?)),
            12 | 13 => Some(Step::List { dir: self.directory(model), again: self.rng.random() }),
            14 => Some(Step::Seek(self.slot(model)?.0)),
            _ => Some(Step::Drop(self.slot(model)?.0)),
        }
    }
}
