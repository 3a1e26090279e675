//! Explores what power cuts leave on a real filesystem, and asks a judge about each different tree.

use super::replay::{Replay, Run};
use super::states::{DiskState, disk_states};
use super::{Filesystem, Machine};
use crate::Error;
use crate::action::Event;
use crate::explore::{Explorer, Limits, Verdict};
use crate::history::History;
use crate::tree::Tree;
use parking_lot::Mutex;
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use std::sync::atomic::Ordering;

/// States of one replay that are looked at before the next replay, whose timing is another.
const STATES_MAX: usize = 100;
/// Replays of a seed whose state is looked at again.
const REPLAYS_MAX: usize = 5;
/// What a filesystem needs for each block that a program writes, beside the block.
const OVERHEAD_BYTES: u64 = 4096;

/// A state of a real filesystem that failed.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Its name: the filesystem, the seed, and the power cut.
    pub name: String,
    /// Events of the program that had happened.
    pub position: usize,
    /// Its files; `None` if it could not be mounted.
    pub tree: Option<Tree>,
    /// What the judge said.
    pub output: String,
}

/// Explores a recording on a real filesystem.
pub struct OnDisk<'a> {
    /// The recording.
    pub history: &'a History,
    /// The filesystem.
    pub filesystem: &'static Filesystem,
    /// More options for its mount.
    pub mount_options: &'a str,
    /// Asks the judge, and counts.
    pub explorer: &'a Explorer<'a>,
    /// When to end.
    pub limits: Limits<'a>,
}

impl OnDisk<'_> {
    /// Replays the program with one seed after the other, and returns the states that fail.
    pub fn run(&self, seed: u64) -> Result<Vec<Seen>, Error> {
        let (failing, error) = (Mutex::new(Vec::new()), Mutex::new(None));
        let jobs = self.limits.jobs as u64;
        std::thread::scope(|scope| {
            for worker in 0..jobs {
                let (failing, error) = (&failing, &error);
                scope.spawn(move || {
                    let seeds = (seed + worker..).step_by(jobs as usize);
                    if let Err(what) = self.work(worker as usize, seeds, failing) {
                        // After a signal, what it ended fails too.
                        if !self.limits.stop.swap(true, Ordering::Relaxed) {
                            *error.lock() = Some(what);
                        }
                    }
                });
            }
        });
        match error.into_inner() {
            Some(error) => Err(error),
            None => Ok(failing.into_inner()),
        }
    }

    fn work(
        &self,
        worker: usize,
        seeds: impl Iterator<Item = u64>,
        failing: &Mutex<Vec<Seen>>,
    ) -> Result<(), Error> {
        let mut current = self.machine()?;
        for seed in seeds {
            match self.seed(&current, seed, worker, failing) {
                // A process with mounts of its own may have got a copy of ours.
                Err(Error::InUse(_)) if !self.limits.are_reached() => current = self.machine()?,
                Err(Error::InUse(_)) => break,
                Err(error) => return Err(error),
                Ok(()) if self.is_enough(failing) => break,
                Ok(()) => {}
            }
        }
        Ok(())
    }

    fn machine(&self) -> Result<Machine, Error> {
        Machine::new(self.filesystem, room(self.history), self.mount_options)
    }

    fn is_enough(&self, failing: &Mutex<Vec<Seen>>) -> bool {
        !self.limits.keep_going && !failing.lock().is_empty() || self.limits.are_reached()
    }

    /// One replay, and the states that it can leave.
    fn seed(
        &self,
        machine: &Machine,
        seed: u64,
        worker: usize,
        failing: &Mutex<Vec<Seen>>,
    ) -> Result<(), Error> {
        let run = Replay { history: self.history, seed, stop: self.limits.stop }.run(machine)?;
        for state in self.states(&run, seed)? {
            if self.is_enough(failing) {
                break;
            }
            let found = self.look(machine, &state, seed, worker)?;
            failing.lock().extend(found);
        }
        Ok(())
    }

    /// Some states of a run, in any order.
    fn states(&self, run: &Run, seed: u64) -> Result<Vec<DiskState>, Error> {
        let mut states = disk_states(run, self.filesystem.sector, seed)?;
        states.shuffle(&mut ChaCha8Rng::seed_from_u64(seed));
        states.truncate(STATES_MAX);
        Ok(states)
    }

    /// Mounts a state and judges it, once for each moment at which it is possible.
    fn look(
        &self,
        machine: &Machine,
        state: &DiskState,
        seed: u64,
        worker: usize,
    ) -> Result<Vec<Seen>, Error> {
        let tree = machine.tree(&state.image)?;
        self.explorer.counts.states.fetch_add(1, Ordering::Relaxed);
        let mut failing = Vec::new();
        for (cut, position) in &state.cuts {
            let (name, position) = (format!("{}:{seed}.{cut}", self.filesystem.name), *position);
            match &tree {
                Ok(tree) => {
                    if let Some(Verdict::Failed(output)) =
                        self.explorer.look_at(tree, position, &name, worker)?
                    {
                        failing.push(Seen { name, position, tree: Some(tree.clone()), output });
                    }
                }
                Err(why) => failing.push(Seen { name, position, tree: None, output: why.clone() }),
            }
        }
        Ok(failing)
    }

    /// Replays the seed of a state, and looks at that state first and at the others after it. The kernel can write
    /// in another order than before, for example because another process calls sync(2), and then no state fails:
    /// after that the seed is replayed again, [`REPLAYS_MAX`] times in all.
    pub fn again(&self, name: &str) -> Result<Vec<Seen>, Error> {
        let bad = || Error::State { text: name.into(), detail: "it is FILESYSTEM:SEED.CUT".into() };
        let (seed, cut) = name.split_once(':').and_then(|(_, rest)| rest.split_once('.')).ok_or_else(bad)?;
        let seed: u64 = seed.parse().map_err(|_| bad())?;
        let machine = self.machine()?;
        for _ in 0..REPLAYS_MAX {
            let run = Replay { history: self.history, seed, stop: self.limits.stop }.run(&machine)?;
            let mut states = disk_states(&run, self.filesystem.sector, seed)?;
            states.sort_by_key(|state| state.cuts.iter().all(|(other, _)| other.to_string() != cut));
            for state in states {
                let failing = self.look(&machine, &state, seed, 0)?;
                if !failing.is_empty() || self.limits.are_reached() {
                    return Ok(failing);
                }
            }
        }
        Ok(Vec::new())
    }
}

/// Bytes that a program's files may need.
pub(crate) fn room(history: &History) -> u64 {
    let needs = |event: &Event| match &event.action {
        action if action.is_write() => {
            (action.blocks().end - action.blocks().start) * (4096 + OVERHEAD_BYTES / 4)
        }
        action if action.is_of_names() => OVERHEAD_BYTES,
        _ => 0,
    };
    history.events().iter().map(needs).sum()
}
