//! Compares a model with the filesystem that it stands for: every tree that a power cut leaves of a
//! generated program must be one that the model allows at that moment.

use super::program::program;
use super::replay::Replay;
use super::states::{DiskState, disk_states};
use super::{Filesystem, Machine};
use crate::Error;
use crate::explore::Limits;
use crate::history::{History, describe};
use crate::model::Model;
use crate::search::{Allowed, moments};
use crate::state::State;
use crate::tree::{Kind, Tree};
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// States of one program that are mounted.
const STATES_MAX: usize = 40;

/// What was compared.
#[derive(Default, Debug)]
pub struct Compared {
    /// Programs.
    pub programs: u64,
    /// States that were mounted.
    pub states: u64,
    /// Different trees, over all programs.
    pub trees: u64,
    /// Different trees that the program itself never went through.
    pub out_of_order: u64,
    /// Moments at which the model allows too many trees to compare.
    pub skipped: u64,
    /// Trees outside the model, and states that can't be mounted, each in words.
    pub outside: Vec<String>,
}

/// A comparison of a filesystem with its model.
pub struct Validation<'a> {
    /// The filesystem.
    pub filesystem: &'static Filesystem,
    /// Its model.
    pub model: &'static Model,
    /// The first seed.
    pub seed: u64,
    /// Ends it when set.
    pub stop: &'a AtomicBool,
    /// No program is begun after this moment.
    pub until: Instant,
}

impl Validation<'_> {
    /// Compares as many programs.
    pub fn run(&self, programs: u64, mut progress: impl FnMut(&Compared)) -> Result<Compared, Error> {
        let mut machine = Machine::new(self.filesystem, 0, "")?;
        let file = tempfile::NamedTempFile::new();
        let file = file.map_err(|error| Error::file(&std::env::temp_dir(), error))?;
        let mut compared = Compared::default();
        for seed in self.seed..self.seed + programs {
            if Instant::now() >= self.until || self.stop.load(Ordering::Relaxed) {
                break;
            }
            let history = program(seed, file.path())?;
            let mut one = One { validation: self, history: &history, seed, allowed: HashMap::new() };
            match one.compare(&machine, &mut compared) {
                // A process with mounts of its own may have got a copy of ours.
                Err(Error::InUse(_)) => machine = Machine::new(self.filesystem, 0, "")?,
                Err(Error::Stopped(why)) => return Err(Error::Stopped(format!("program {seed}: {why}"))),
                other => other?,
            }
            compared.programs += 1;
            progress(&compared);
        }
        Ok(compared)
    }
}

/// One program.
struct One<'a> {
    validation: &'a Validation<'a>,
    history: &'a History,
    seed: u64,
    /// By the number of events.
    allowed: HashMap<usize, Allowed<'a>>,
}

impl<'a> One<'a> {
    fn compare(&mut self, machine: &Machine, compared: &mut Compared) -> Result<(), Error> {
        let Validation { filesystem, stop, .. } = self.validation;
        let run = Replay { history: self.history, seed: self.seed, stop }.run(machine)?;
        let mut states = disk_states(&run, filesystem.sector, self.seed)?;
        states.shuffle(&mut ChaCha8Rng::seed_from_u64(self.seed));
        let ordered = self.ordered()?;
        let mut seen: HashSet<u128> = HashSet::new();
        let mut told: HashSet<u128> = HashSet::new();
        for state in states.into_iter().take(STATES_MAX) {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            compared.states += 1;
            let tree = match machine.tree(&state.image)? {
                Ok(tree) => tree,
                Err(why) => {
                    compared.outside.push(format!("{}: {why}", self.name(&state)));
                    continue;
                }
            };
            let digest = tree.digest();
            let is_new = seen.insert(digest);
            compared.trees += u64::from(is_new);
            compared.out_of_order += u64::from(is_new && !ordered.contains(&digest));
            for (_, position) in &state.cuts {
                match self.allows(&tree, *position)? {
                    Some(true) => {}
                    None => compared.skipped += 1,
                    Some(false) if !told.insert(digest) => {}
                    Some(false) => compared.outside.push(self.words(&state, *position, &tree)?),
                }
            }
        }
        Ok(())
    }

    fn name(&self, state: &DiskState) -> String {
        let cuts: Vec<String> = state.cuts.iter().map(|(cut, _)| cut.to_string()).collect();
        format!("{}:{}.{}", self.validation.filesystem.name, self.seed, cuts.join(","))
    }

    /// The trees that the program went through.
    fn ordered(&self) -> Result<HashSet<u128>, Error> {
        let begin = self.history.recording.begin;
        let positions = begin..=self.history.events().len();
        let tree = |position| self.history.tree(&State { position, lost: BTreeMap::new() });
        positions.map(|position| Ok(tree(position)?.digest())).collect()
    }

    /// True if the model allows the tree; `None` if that can't be said.
    fn allows(&mut self, tree: &Tree, position: usize) -> Result<Option<bool>, Error> {
        let mut is_complete = true;
        for position in moments(self.history, position) {
            let allowed = self.allowed(position)?;
            if allowed.find(tree)?.is_some() {
                return Ok(Some(true));
            }
            is_complete &= allowed.is_complete();
        }
        Ok(is_complete.then_some(false))
    }

    fn allowed(&mut self, position: usize) -> Result<&Allowed<'a>, Error> {
        let Validation { model, filesystem, stop, .. } = self.validation;
        let allowed = match self.allowed.remove(&position) {
            Some(allowed) => allowed,
            None => {
                let limits = Limits { stop, until: None, keep_going: true, jobs: 1 };
                Allowed::new(self.history, model, position, filesystem.torn_at(), limits)?
            }
        };
        Ok(self.allowed.entry(position).or_insert(allowed))
    }

    /// A tree outside the model, with the program.
    fn words(&self, state: &DiskState, position: usize, tree: &Tree) -> Result<String, Error> {
        let mut text = format!("{} after event {position}:\n", self.name(state));
        let begin = self.history.recording.begin;
        let mut paths = self.history.paths(begin);
        for (at, event) in self.history.events().iter().enumerate().skip(begin) {
            let when = if at < position { "" } else { " (after the power cut)" };
            let _ = writeln!(text, "  #{at} {}{when}", describe(event, &paths));
            paths.add(&event.action);
        }
        for (path, ino) in tree.walk() {
            let _ = writeln!(text, "    {}", line(tree, &path, ino)?);
        }
        Ok(text)
    }
}

/// One file or directory of a tree in words: its mode, and its bytes as runs.
fn line(tree: &Tree, path: &[u8], ino: u64) -> Result<String, Error> {
    let path = String::from_utf8_lossy(path);
    let Some(node) = tree.node(ino) else { return Ok(path.into_owned()) };
    let mut text = format!("{path} {:o}", node.mode);
    if let Kind::File(contents) = &node.kind {
        let _ = write!(text, " inode {ino}, {} bytes:", contents.len());
        for run in contents.read(0, 1 << 20)?.chunk_by(|one, next| one == next) {
            let byte = if run[0] == 0 { '0' } else { char::from(run[0]) };
            let _ = write!(text, " {}*{byte}", run.len());
        }
    }
    Ok(text)
}
