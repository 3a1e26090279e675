//! Looks for the syncs that a program lacks, and tries them.

use crate::Error;
use crate::action::{Action, Event, Ino};
use crate::explain::{open, reduce};
use crate::explore::{Explorer, Judge, Limits};
use crate::history::{History, Paths};
use crate::model::{Model, Part};
use crate::plan::Plan;
use crate::state::State;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;

/// Most kinds of syncs that are suggested at once.
const KINDS_MAX: usize = 4;
/// Most syncs that are added to try them.
const ADDED_MAX: usize = 20_000;

/// Syncs with which no state fails.
#[derive(Clone, Debug)]
pub struct Missing {
    /// One of each kind, where it excludes a failing state.
    pub syncs: Vec<Addition>,
    /// Number of places where such syncs were added to try them.
    pub places: usize,
    /// States that did not fail with them; `None` if there was no time to try.
    pub verified: Option<u64>,
}

/// A sync that a program lacks.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Addition {
    /// The event that it has to follow.
    pub after: usize,
    /// The file or directory.
    pub ino: Ino,
    /// Its path.
    pub path: String,
    /// It is a directory.
    pub is_directory: bool,
}

/// Looks for syncs that exclude this failing state and all others. `None` if no sync helps.
pub fn missing(
    history: &History,
    model: &Model,
    judge: &dyn Judge,
    state: &State,
    limits: Limits<'_>,
) -> Result<Option<Missing>, Error> {
    let mut syncs: Vec<Addition> = Vec::new();
    let mut next = state.clone();
    while syncs.len() < KINDS_MAX {
        let Some(tried) = excluding(history, model, &mut syncs, &next)? else { return Ok(None) };
        let explorer = Explorer::new(&tried.history, judge);
        let plan = Plan::new(model, tried.history.events(), tried.history.recording.begin, 0);
        let found = explorer.run(plan, Limits { keep_going: false, ..limits })?;
        let Some(first) = found.failing.first() else {
            let states = explorer.counts.states.load(Ordering::Relaxed);
            let verified = (found.is_complete || states > 0).then_some(states);
            return Ok(Some(Missing { syncs, places: tried.added.len(), verified }));
        };
        next = tried.original(&reduce(&tried.history, model, &explorer, first)?.state);
    }
    Ok(None)
}

/// Adds a sync that excludes this state to those found before.
fn excluding(
    history: &History,
    model: &Model,
    syncs: &mut Vec<Addition>,
    state: &State,
) -> Result<Option<Tried>, Error> {
    let candidates = candidates(history, state);
    let mut sets: Vec<Vec<Addition>> = candidates.iter().map(|one| vec![one.clone()]).collect();
    if candidates.len() > 1 {
        sets.push(candidates);
    }
    for set in sets {
        let all: Vec<Addition> = syncs.iter().chain(&set).cloned().collect();
        let tried = Tried::new(history, alike(history, &all))?;
        let moved = tried.moved(state);
        if open(&tried.history, model, moved.position).close(&moved.lost).is_none() {
            *syncs = all;
            return Ok(Some(tried));
        }
    }
    Ok(None)
}

/// For each loss the sync that would have kept it.
fn candidates(history: &History, state: &State) -> Vec<Addition> {
    let mut paths = Paths::default();
    let mut last: BTreeMap<(bool, Ino), Addition> = BTreeMap::new();
    for (at, event) in history.events()[..state.position].iter().enumerate() {
        paths.add(&event.action);
        if state.lost.contains_key(&at)
            && let Some(change) = Change::of(event, &paths)
        {
            let Change { is_directory, mut ino, .. } = change;
            if state.lost[&at] == Some(Part::Linked) {
                // The directory with the old name.
                ino = event.action.names().first().map_or(ino, |(dir, _)| *dir);
            }
            last.insert((is_directory, ino), Addition { after: at, ino, path: paths.of(ino), is_directory });
        }
    }
    last.into_values().collect()
}

/// The same syncs at every place like theirs: after the last change of a run of changes of a file, or
/// after every change of names in a directory, of the same kind of path.
fn alike(history: &History, syncs: &[Addition]) -> Vec<Addition> {
    let events = history.events();
    let mut paths = Paths::default();
    let mut changes = Vec::with_capacity(events.len());
    for event in events {
        paths.add(&event.action);
        changes.push(Change::of(event, &paths));
    }
    let wanted: BTreeSet<(bool, &str)> =
        syncs.iter().filter_map(|sync| changes[sync.after].as_ref()).map(Change::kind).collect();
    let mut added: BTreeSet<(usize, Ino, bool)> =
        syncs.iter().map(|sync| (sync.after, sync.ino, sync.is_directory)).collect();
    for at in history.recording.begin..events.len() {
        let Some(own) = changes[at].as_ref().filter(|change| wanted.contains(&change.kind())) else {
            continue;
        };
        let ends_run = |event: &Event| {
            event.action.is_change() || matches!(event.action, Action::Printed(_) | Action::End { .. })
        };
        let next = (at + 1..events.len()).find(|next| ends_run(&events[*next]));
        let goes_on = next.and_then(|next| changes[next].as_ref()).is_some_and(|next| next.ino == own.ino);
        if own.is_directory || !goes_on {
            added.insert((at, own.ino, own.is_directory));
        }
    }
    let added = added.into_iter().take(ADDED_MAX);
    added
        .map(|(after, ino, is_directory)| Addition { after, ino, path: String::new(), is_directory })
        .collect()
}

/// A change, and the sync that would make it durable.
struct Change {
    is_directory: bool,
    ino: Ino,
    /// The path, with each number as `#`.
    class: String,
}

impl Change {
    fn of(event: &Event, paths: &Paths) -> Option<Self> {
        if !event.action.is_change() {
            return None;
        }
        let (is_directory, ino) = match event.action.names().last() {
            Some((directory, _)) => (true, *directory),
            None => (false, event.action.ino()?),
        };
        Some(Self { is_directory, ino, class: class_of(&paths.of(ino)) })
    }

    fn kind(&self) -> (bool, &str) {
        (self.is_directory, &self.class)
    }
}

/// A path with each number as `#`.
fn class_of(path: &str) -> String {
    let mut class = String::new();
    for c in path.chars() {
        match c.is_ascii_digit() {
            true if class.ends_with('#') => {}
            true => class.push('#'),
            false => class.push(c),
        }
    }
    class
}

/// A history with syncs added.
struct Tried {
    history: History,
    added: Vec<Addition>,
    /// For each event of the first history its number in this one; and the end.
    numbers: Vec<usize>,
}

impl Tried {
    fn new(history: &History, added: Vec<Addition>) -> Result<Self, Error> {
        let mut events = Vec::with_capacity(history.events().len() + added.len());
        let mut numbers = Vec::with_capacity(history.events().len() + 1);
        let mut next = added.iter().peekable();
        for (at, event) in history.events().iter().enumerate() {
            numbers.push(events.len());
            events.push(event.clone());
            while let Some(sync) = next.next_if(|sync| sync.after == at) {
                let action = Action::Sync { ino: sync.ino, data_only: false };
                events.push(Event { action, ..event.clone() });
            }
        }
        numbers.push(events.len());
        let history = History::new(history.recording.with_events(events))?;
        Ok(Self { history, added, numbers })
    }

    /// A state of the first history. Syncs that were added after its last event come before its cut.
    fn moved(&self, state: &State) -> State {
        let lost = state.lost.iter().map(|(at, part)| (self.numbers[*at], *part)).collect();
        State { position: self.numbers[state.position], lost }
    }

    /// The state of the first history that a state of this one stands for.
    fn original(&self, state: &State) -> State {
        let number = |at: usize| self.numbers.partition_point(|number| *number < at);
        let lost = state.lost.iter().map(|(at, part)| (number(*at), *part)).collect();
        State { position: number(state.position), lost }
    }
}
