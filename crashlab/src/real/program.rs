//! Short programs from seeds, to compare the models with real filesystems.

use crate::Error;
use crate::action::{Action, Ino, Name, ROOT, Stored, What};
use crate::history::History;
use crate::recording::{Recorder, Recording};
use crate::tree::Tree;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::fs::File;
use std::io;
use std::path::Path;

/// Names in each of the two directories.
const NAMES: [&[u8]; 3] = [b"a", b"b", b"c"];
/// Writes of a program: more would have too many states.
const WRITES_MAX: usize = 4;
const BLOCK: u64 = 4096;

/// A generated program, as a recording in this file.
pub fn program(seed: u64, path: &Path) -> Result<History, Error> {
    let failed = |error: io::Error| Error::file(path, error);
    let recorder = Recorder::new(File::create(path).map_err(failed)?).map_err(failed)?;
    let mut program = Program {
        rng: ChaCha8Rng::seed_from_u64(seed),
        recorder,
        tree: Tree::default(),
        next_ino: ROOT + 1,
        writes: 0,
        fill: b'A',
        kinds: [20, 28, 36][(seed % 3) as usize],
        moves_directories: seed / 3 % 2 == 1,
        failed: None,
    };
    program.prepare();
    let steps = program.rng.random_range(4..=8);
    let mut done = 0;
    while done < steps {
        done += usize::from(program.step());
    }
    program.act(Action::End { code: 0 });
    program.failed.map_or(Ok(()), Err)?;
    program.recorder.finish().map_err(failed)?;
    History::new(Recording::open(path)?)
}

struct Program {
    rng: ChaCha8Rng,
    recorder: Recorder,
    tree: Tree,
    next_ino: Ino,
    writes: usize,
    /// The byte that fills the next write.
    fill: u8,
    /// The first of three programs syncs little, the next more, and the last in all ways.
    kinds: u32,
    /// Half of the programs move directories too, and use those that they make.
    moves_directories: bool,
    /// The first error.
    failed: Option<Error>,
}

impl Program {
    fn act(&mut self, action: Action) {
        let bytes = match &action {
            Action::Write { len, .. } => vec![self.fill; *len as usize],
            _ => Vec::new(),
        };
        if action.is_write() {
            self.fill += 1;
        }
        let time_ns = self.recorder.record(0, action.clone(), &bytes);
        if let Err(error) = self.tree.apply(&action, time_ns.into(), &bytes) {
            self.failed.get_or_insert(error);
        }
    }

    /// Makes the files from which the program starts.
    fn prepare(&mut self) {
        for name in [b"one", b"two"] {
            self.create(ROOT, name.to_vec(), What::Directory, 0o755);
        }
        for (directory, name, len) in [(2, b"a", 2 * BLOCK), (3, b"b", 100)] {
            let ino = self.create(directory, name.to_vec(), What::File, 0o644);
            self.write(ino, 0, len);
        }
        self.writes = 0;
        self.act(Action::Begin);
    }

    fn create(&mut self, parent: Ino, name: Name, what: What, mode: u32) -> Ino {
        let ino = self.next_ino;
        self.next_ino += 1;
        self.act(Action::Create { parent, name, ino, what, mode, uid: 0, gid: 0 });
        ino
    }

    fn write(&mut self, ino: Ino, offset: u64, len: u64) {
        let size = self.len(ino);
        self.writes += 1;
        self.act(Action::Write {
            ino,
            offset,
            len: len as u32,
            size,
            mapped: false,
            stored: Stored::default(),
        });
    }

    fn len(&self, ino: Ino) -> u64 {
        self.tree.contents(ino).map_or(0, |contents| contents.len())
    }

    /// Files with a name; the newest comes twice, as most programs go on with what they have made.
    fn files(&self) -> Vec<(Ino, Name, Ino)> {
        let is_file = |(_, _, ino): &(Ino, Name, Ino)| self.tree.contents(*ino).is_some();
        let mut files: Vec<_> = self.entries().into_iter().filter(is_file).collect();
        files.sort_by_key(|(_, _, ino)| *ino);
        files.extend(files.last().cloned());
        files
    }

    /// Each name with its directory.
    fn entries(&self) -> Vec<(Ino, Name, Ino)> {
        let of = |directory: Ino| {
            let entries = self.tree.entries(directory).into_iter().flatten();
            entries.map(move |(name, ino)| (directory, name.clone(), *ino))
        };
        self.directories().into_iter().flat_map(of).collect()
    }

    /// The directories in which the program works.
    fn directories(&self) -> Vec<Ino> {
        match self.moves_directories {
            true => [ROOT].into_iter().chain(self.below(ROOT)).collect(),
            false => vec![2, 3],
        }
    }

    /// The directories below this one.
    fn below(&self, directory: Ino) -> Vec<Ino> {
        let below = self.tree.walk_from(&[], directory).into_iter().map(|(_, ino)| ino);
        below.filter(|ino| self.tree.entries(*ino).is_some()).collect()
    }

    /// A name in one of the directories, mostly in one of the first two.
    fn name(&mut self) -> (Ino, Name) {
        let directory = match self.moves_directories && self.rng.random_bool(0.3) {
            true => self.directories().choose(&mut self.rng).copied().unwrap_or(ROOT),
            false => self.rng.random_range(2..4),
        };
        (directory, NAMES.choose(&mut self.rng).map_or(Vec::new(), |name| name.to_vec()))
    }

    /// One more operation, unless it is impossible now.
    fn step(&mut self) -> bool {
        let Some((parent, name, ino)) = self.files().choose(&mut self.rng).cloned() else {
            return self.new_name(|program, parent, name| {
                program.create(parent, name, What::File, 0o644);
            });
        };
        if self.moves_directories && self.rng.random_bool(0.3) {
            return self.move_any();
        }
        match self.rng.random_range(0..self.kinds) {
            0..2 => self.new_name(|program, parent, name| {
                program.create(parent, name, What::File, 0o644);
            }),
            2..6 => self.append(ino),
            6..8 => self.overwrite(ino),
            8 => self.truncate(ino),
            9..12 => self.rename(parent, name, ino),
            12 => self.new_name(|program, parent, name| program.act(Action::Link { ino, parent, name })),
            13 => {
                self.act(Action::Unlink { parent, name, ino });
                true
            }
            14 if self.rng.random() => self.new_name(|program, parent, name| {
                program.create(parent, name, What::Directory, 0o755);
            }),
            14 => {
                let mode = Some(*[0o600, 0o640, 0o755].choose(&mut self.rng).unwrap_or(&0o600));
                self.act(Action::Attributes { ino, mode, uid: None, gid: None, mtime_ns: None });
                true
            }
            15..18 | 20..25 => self.sync(ino, false),
            18 | 25 => self.sync(ino, true),
            28..34 => self.sync_range(ino),
            34.. => {
                self.act(Action::SyncAll);
                true
            }
            _ => {
                let directory = match self.moves_directories {
                    true => self.directories().choose(&mut self.rng).copied().unwrap_or(ROOT),
                    false => self.rng.random_range(ROOT..4),
                };
                self.sync(directory, false)
            }
        }
    }

    fn sync(&mut self, ino: Ino, data_only: bool) -> bool {
        self.act(Action::Sync { ino, data_only });
        true
    }

    fn sync_range(&mut self, ino: Ino) -> bool {
        let size = self.len(ino);
        let (offset, len) = match self.rng.random_bool(0.7) {
            true => (0, size),
            false => (self.rng.random_range(0..=size / BLOCK) * BLOCK, BLOCK),
        };
        self.act(Action::SyncRange { ino, offset, len });
        true
    }

    fn new_name(&mut self, make: impl FnOnce(&mut Self, Ino, Name)) -> bool {
        let (parent, name) = self.name();
        let is_free = self.tree.lookup(parent, &name).is_none();
        if is_free {
            make(self, parent, name);
        }
        is_free
    }

    fn append(&mut self, ino: Ino) -> bool {
        if self.writes >= WRITES_MAX {
            return false;
        }
        let len = if self.rng.random_bool(0.4) { 100 } else { self.rng.random_range(1..=3) * BLOCK };
        self.write(ino, self.len(ino), len);
        true
    }

    fn overwrite(&mut self, ino: Ino) -> bool {
        let size = self.len(ino);
        if self.writes >= WRITES_MAX || size == 0 {
            return false;
        }
        let offset = match self.rng.random_bool(0.5) {
            true => self.rng.random_range(0..size.div_ceil(BLOCK)) * BLOCK,
            false => self.rng.random_range(0..size),
        };
        let len = (*[100, BLOCK, 2 * BLOCK].choose(&mut self.rng).unwrap_or(&100)).min(size - offset);
        self.write(ino, offset, len);
        true
    }

    fn truncate(&mut self, ino: Ino) -> bool {
        let from = self.len(ino);
        let to = match self.rng.random_range(0..3) {
            0 => 0,
            1 => self.rng.random_range(0..=from),
            _ => from + self.rng.random_range(1..=2 * BLOCK),
        };
        if from != to {
            self.act(Action::Truncate { ino, from, to });
        }
        from != to
    }

    /// Renames a directory or a file, or exchanges two of them.
    fn move_any(&mut self) -> bool {
        let entries = self.entries();
        let Some((parent, name, ino)) = entries.choose(&mut self.rng).cloned() else { return false };
        let exchanged = self.rng.random_bool(0.3);
        let (to, to_name) = match entries.choose(&mut self.rng).filter(|_| exchanged) {
            Some((to, to_name, _)) => (*to, to_name.clone()),
            None => self.name(),
        };
        let replaced = self.tree.lookup(to, &to_name);
        let is_within = |tree: &Self, dir: Ino, ino: Ino| dir == ino || tree.below(ino).contains(&dir);
        let is_possible = match replaced {
            Some(other) if other == ino => false,
            Some(other) if exchanged => !is_within(self, parent, other),
            // A directory replaces an empty one, and never those in which the program works.
            Some(other) => match self.tree.entries(other) {
                Some(entries) => other > 3 && entries.is_empty() && self.tree.entries(ino).is_some(),
                None => self.tree.entries(ino).is_none(),
            },
            None => !exchanged,
        };
        let is_possible = is_possible && !is_within(self, to, ino);
        if is_possible {
            self.act(Action::Rename { parent, name, to, to_name, ino, replaced, exchanged });
        }
        is_possible
    }

    fn rename(&mut self, parent: Ino, name: Name, ino: Ino) -> bool {
        let (to, to_name) = self.name();
        let replaced = self.tree.lookup(to, &to_name);
        let is_file = replaced.is_none_or(|other| other != ino && self.tree.contents(other).is_some());
        if is_file {
            self.act(Action::Rename { parent, name, to, to_name, ino, replaced, exchanged: false });
        }
        is_file
    }
}
