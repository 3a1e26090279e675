//! Looks for the syncs that a program lacks, and tries them.

use crate::Error;
use crate::action::{Action, Event, Ino};
use crate::explain::{open, reduce};
use crate::explore::{Explorer, Judge, Limits};
use crate::history::{History, Paths};
use crate::model::{Model, Part};
use crate::plan::Plan;
use crate::state::State;
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

/// Most kinds of syncs that are suggested at once.
const KINDS_MAX: usize = 4;
/// Most syncs that are tried for one state.
const CANDIDATES_MAX: usize = 16;
/// Most syncs that are added to try them.
const ADDED_MAX: usize = 20_000;

/// Syncs with which a failing state is impossible.
#[derive(Clone, Debug)]
pub struct Missing {
    /// One of each kind, where it excludes a failing state.
    pub syncs: Vec<Addition>,
    /// The places where such syncs were added to try them, in the order of events.
    pub added: Vec<Addition>,
    /// States that did not fail with them.
    pub verified: u64,
    /// These were all states of the plan.
    pub is_complete: bool,
    /// A state that fails all the same, and that no sync excludes.
    pub left: Option<State>,
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

/// Looks for syncs that exclude this failing state, and then all others. `None` if none excludes this
/// one.
pub fn missing(
    history: &History,
    model: &Model,
    judge: &dyn Judge,
    state: &State,
    limits: Limits<'_>,
) -> Result<Option<Missing>, Error> {
    let mut syncs: Vec<Addition> = Vec::new();
    let mut next = state.clone();
    let mut best = None;
    while syncs.len() < KINDS_MAX {
        let Some(tried) = excluding(history, model, &mut syncs, &next)? else { break };
        let explorer = Explorer::new(&tried.history, judge);
        let plan = Plan::new(model, tried.history.events(), tried.history.recording.begin, 0);
        let found = explorer.run(plan, Limits { keep_going: false, ..limits })?;
        let Some(first) = found.failing.first() else {
            let verified = explorer.counts.states.load(Ordering::Relaxed);
            let (added, is_complete) = (tried.added, found.is_complete);
            return Ok(Some(Missing { syncs, added, verified, is_complete, left: None }));
        };
        next = tried.original(&reduce(&tried.history, model, &explorer, first, limits)?.state);
        let (syncs, added, left) = (syncs.clone(), tried.added, Some(next.clone()));
        best = Some(Missing { syncs, added, verified: 0, is_complete: false, left });
    }
    Ok(best)
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

/// For each loss the sync that would have kept it, the earliest first.
fn candidates(history: &History, state: &State) -> Vec<Addition> {
    let mut paths = Paths::default();
    let mut found: Vec<Addition> = Vec::new();
    for (at, event) in history.events()[..state.position].iter().enumerate() {
        paths.add(&event.action);
        if state.lost.contains_key(&at)
            && let Some(Change { is_directory, ino, .. }) = Change::of(event, &paths)
            && !is_synced_next(history.events(), at, ino)
            && found.len() < CANDIDATES_MAX
        {
            // Of a rename by halves, the directory with the old name.
            let is_half = state.lost[&at] == Some(Part::Linked);
            let ino = event.action.names().first().filter(|_| is_half).map_or(ino, |(dir, _)| *dir);
            found.push(Addition { after: at, ino, path: paths.of(ino), is_directory });
        }
    }
    found
}

/// True if a sync of the inode follows a change, with nothing but changes of it in between: the program
/// syncs already.
fn is_synced_next(events: &[Event], at: usize, ino: Ino) -> bool {
    let own = |event: &&Event| event.action.is_change() && event.action.ino() == Some(ino);
    let next = events[at + 1..].iter().find(|event| !own(event));
    next.is_some_and(|event| match event.action {
        // An fdatasync may leave attributes out.
        Action::Sync { ino: synced, data_only } => {
            synced == ino && (!data_only || events[at].action.is_write())
        }
        Action::SyncAll => true,
        _ => false,
    })
}

/// The same syncs at every place like theirs: after the last change of a run of changes of a file, or
/// after every change of names in a directory, of the same kind of path, unless the program syncs there.
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
        if (own.is_directory || !goes_on) && !is_synced_next(events, at, own.ino) {
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
    /// The kind of path.
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

/// A path without what differs from one file of a kind to the next: numbers, names in hexadecimal, and
/// random endings of temporary names.
fn class_of(path: &str) -> String {
    path.split('/').map(class_of_name).collect::<Vec<_>>().join("/")
}

fn class_of_name(name: &str) -> String {
    if name.len() > 1 && name.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return "#".to_owned();
    }
    let (stem, ending) = name.rsplit_once(['_', '.', '-']).unwrap_or((name, ""));
    let has = |kind: fn(&u8) -> bool| ending.bytes().any(|byte| kind(&byte));
    let is_mixed = has(u8::is_ascii_digit) || has(u8::is_ascii_uppercase) && has(u8::is_ascii_lowercase);
    let is_random = ending.len() >= 6 && is_mixed && ending.bytes().all(|byte| byte.is_ascii_alphanumeric());
    let name = if is_random { &name[..=stem.len()] } else { name };
    let mut class = String::new();
    for c in name.chars() {
        match c.is_ascii_digit() {
            true if class.ends_with('#') => {}
            true => class.push('#'),
            false => class.push(c),
        }
    }
    class + if is_random { "#" } else { "" }
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

    /// A state of the first history. Syncs that were added after its last event have not ended when the
    /// power fails.
    fn moved(&self, state: &State) -> State {
        let lost = state.lost.iter().map(|(at, part)| (self.numbers[*at], *part)).collect();
        State { position: state.position.checked_sub(1).map_or(0, |last| self.numbers[last] + 1), lost }
    }

    /// The state of the first history that a state of this one stands for.
    fn original(&self, state: &State) -> State {
        let number = |at: usize| self.numbers.partition_point(|number| *number < at);
        let lost = state.lost.iter().map(|(at, part)| (number(*at), *part)).collect();
        State { position: number(state.position), lost }
    }
}

#[cfg(test)]
mod tests {
    use super::class_of;

    #[test]
    fn files_of_a_kind_have_one_class() {
        assert_eq!(class_of(".git/objects/d0/tmp_obj_ETa6Kr"), ".git/objects/#/tmp_obj_#");
        assert_eq!(class_of("mail/new/1718.M3P9.host"), "mail/new/#.M#P#.host");
        assert_eq!(class_of("settings.json"), "settings.json");
        assert_eq!(class_of("table-12.sst"), class_of("table-7.sst"));
        assert_ne!(class_of("data.new"), class_of("index.new"));
    }
}
