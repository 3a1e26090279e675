//! Makes the states of a plan, skips trees that were seen before, and asks a judge about the others.

use crate::Error;
use crate::history::History;
use crate::state::State;
use crate::tree::Tree;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

/// A judge's verdict on a state.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The state is fine.
    Passed,
    /// The state is wrong, for this reason.
    Failed(String),
}

/// A state to judge.
pub struct Case<'a> {
    /// Its files.
    pub tree: &'a Tree,
    /// The state's name.
    pub name: &'a str,
    /// The program's output that was certainly printed before the power cut.
    pub printed: &'a [u8],
    /// Number of the worker that asks; no two workers use the same number at once.
    pub worker: usize,
}

/// Decides whether a state is correct.
pub trait Judge: Sync {
    /// Judges a state. An error ends the exploration.
    fn judge(&self, case: &Case<'_>) -> Result<Verdict, Error>;
}

/// A state that failed.
#[derive(Clone, Debug)]
pub struct Failing {
    /// Its place in the plan.
    pub index: u64,
    /// The state.
    pub state: State,
    /// What the judge said.
    pub output: String,
}

/// Progress so far.
#[derive(Default, Debug)]
pub struct Counts {
    /// States looked at.
    pub states: AtomicU64,
    /// Different trees with what was printed before: as often the judge was asked.
    pub cases: AtomicU64,
    /// Cases that failed.
    pub failing: AtomicU64,
}

/// When to end an exploration.
#[derive(Clone, Copy)]
pub struct Limits<'a> {
    /// Ends it when set.
    pub stop: &'a AtomicBool,
    /// No state is begun after this moment.
    pub until: Option<Instant>,
    /// Go on after the first failure.
    pub keep_going: bool,
    /// States at once.
    pub jobs: usize,
}

impl Limits<'_> {
    pub(crate) fn are_reached(&self) -> bool {
        self.stop.load(Ordering::Relaxed) || self.until.is_some_and(|until| Instant::now() >= until)
    }
}

/// What an exploration found.
pub struct Found {
    /// The failing states, in the order of the plan.
    pub failing: Vec<Failing>,
    /// Every state of the plan was looked at.
    pub is_complete: bool,
}

/// The digest of a tree, and the length of the program's output before the power cut.
type Key = (u128, usize);

/// Explores states of one recording.
pub struct Explorer<'a> {
    history: &'a History,
    judge: &'a dyn Judge,
    verdicts: Mutex<HashMap<Key, Option<Verdict>>>,
    /// Progress so far.
    pub counts: Counts,
}

impl<'a> Explorer<'a> {
    /// Nothing is explored yet.
    pub fn new(history: &'a History, judge: &'a dyn Judge) -> Self {
        Self { history, judge, verdicts: Mutex::default(), counts: Counts::default() }
    }

    /// Explores a plan.
    pub fn run(&self, plan: impl Iterator<Item = State> + Send, limits: Limits<'_>) -> Result<Found, Error> {
        let plan = Mutex::new(plan.zip(0..));
        let (failing, error) = (Mutex::new(Vec::<Failing>::new()), Mutex::new(None));
        let is_complete = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for worker in 0..limits.jobs {
                let (plan, failing, error, is_complete) = (&plan, &failing, &error, &is_complete);
                scope.spawn(move || {
                    loop {
                        let enough = !limits.keep_going && !failing.lock().is_empty();
                        if enough || limits.are_reached() || error.lock().is_some() {
                            return;
                        }
                        let Some((state, index)) = plan.lock().next() else {
                            return is_complete.store(true, Ordering::Relaxed);
                        };
                        match self.look(&state, worker) {
                            Ok(Some(Verdict::Failed(output))) => {
                                failing.lock().push(Failing { index, state, output });
                            }
                            Ok(_) => {}
                            Err(what) => drop(error.lock().get_or_insert(what)),
                        }
                    }
                });
            }
        });
        if let Some(error) = error.into_inner() {
            return Err(error);
        }
        let mut failing = failing.into_inner();
        failing.sort_by_key(|failing| failing.index);
        Ok(Found { failing, is_complete: is_complete.into_inner() })
    }

    /// Refuses a judge that fails on the files as the program left them: it would fail on everything.
    /// `path` is the recording's, if it stays.
    pub fn accept_the_end(&self, path: Option<&Path>) -> Result<(), Error> {
        self.counts.states.fetch_add(1, Ordering::Relaxed);
        let end = State { position: self.history.events().len(), lost: Default::default() };
        match self.verdict(&end)? {
            Verdict::Passed => Ok(()),
            Verdict::Failed(output) => {
                let name = end.name(self.history.recording.begin);
                let advice = path.map_or(String::new(), |path| {
                    format!("\nTo look at these files: crashlab extract {} {name} DIRECTORY", path.display())
                });
                Err(Error::Usage(format!(
                    "the checker fails on the files as the program left them, without any power cut, so it would fail on \
                     all states:\n{}{advice}",
                    output.trim_end()
                )))
            }
        }
    }

    /// The verdict on a state of which nothing was known; `None` if there is or will be one already.
    fn look(&self, state: &State, worker: usize) -> Result<Option<Verdict>, Error> {
        let tree = self.history.tree(state)?;
        self.counts.states.fetch_add(1, Ordering::Relaxed);
        self.look_at(&tree, state.position, &state.name(self.history.recording.begin), worker)
    }

    /// The same for a tree, wherever it comes from.
    pub fn look_at(
        &self,
        tree: &Tree,
        position: usize,
        name: &str,
        worker: usize,
    ) -> Result<Option<Verdict>, Error> {
        let printed = self.history.printed(position);
        let key = (tree.digest(), printed.len());
        match self.verdicts.lock().entry(key) {
            Entry::Occupied(_) => return Ok(None),
            Entry::Vacant(case) => drop(case.insert(None)),
        }
        self.judged(key, &Case { tree, name, printed, worker }).map(Some)
    }

    fn judged(&self, key: Key, case: &Case<'_>) -> Result<Verdict, Error> {
        let verdict = self.judge.judge(case)?;
        self.counts.cases.fetch_add(1, Ordering::Relaxed);
        self.counts.failing.fetch_add(u64::from(verdict != Verdict::Passed), Ordering::Relaxed);
        self.verdicts.lock().insert(key, Some(verdict.clone()));
        Ok(verdict)
    }

    /// The verdict on a state, while nothing else is explored.
    pub fn verdict(&self, state: &State) -> Result<Verdict, Error> {
        let tree = self.history.tree(state)?;
        let printed = self.history.printed(state.position);
        let key = (tree.digest(), printed.len());
        let known = self.verdicts.lock().get(&key).cloned().flatten();
        match known {
            Some(verdict) => Ok(verdict),
            None => {
                let name = state.name(self.history.recording.begin);
                self.judged(key, &Case { tree: &tree, name: &name, printed, worker: 0 })
            }
        }
    }
}
