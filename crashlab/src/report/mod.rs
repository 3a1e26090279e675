//! What an exploration found, for people and for programs.

mod file;
mod html;
mod json;
mod junit;
mod sarif;
mod text;

pub use file::ReportFile;
pub use text::as_text;

use crate::action::Ino;
use crate::explain::Explained;
use crate::explore::Failing;
use crate::history::{History, is_obeyed};
use crate::missing::{Addition, Missing};
use crate::model::Model;
use crate::operation::{Fate, Operation, Operations, Sort};
use crate::real::Seen;
use crate::state::State;
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::time::Duration;

/// Failing states that a report lists.
const LISTED_MAX: usize = 200;
/// Changes of a state that are listed one by one.
const CHANGES_MAX: usize = 20;
/// The longest name of a state that is shown whole. It has ASCII characters only.
const NAME_BYTES_MAX: usize = 80;
/// Places in the source that lack a sync and are named.
const SOURCE_MAX: usize = 5;
/// Lines of a checker's output that are shown.
const OUTPUT_LINES_MAX: usize = 20;

/// An exploration.
pub struct Report<'a> {
    /// The recording, if it stays.
    pub path: Option<&'a Path>,
    /// Its history.
    pub history: &'a History,
    /// The model.
    pub model: &'a Model,
    /// The real filesystem that was explored instead.
    pub on: Option<&'a str>,
    /// The first failing state, explained.
    pub first: Option<Explained>,
    /// All failing states.
    pub failing: &'a [Failing],
    /// Those that were seen on a real filesystem, instead.
    pub seen: &'a [Seen],
    /// All planned states were explored.
    pub is_complete: bool,
    /// States explored.
    pub states: u64,
    /// Different cases checked.
    pub cases: u64,
    /// Time taken.
    pub elapsed: Duration,
}

/// A state that fails.
struct Entry<'a> {
    name: String,
    /// Number of events before the power cut, counted from the program's first.
    position: usize,
    /// The state of the model; none if only a real filesystem has shown it.
    state: Option<&'a State>,
    /// What the checker said.
    output: &'a str,
    explained: Option<&'a Explained>,
}

/// An operation of a state that fails, and what became of it.
struct Line<'a> {
    operation: &'a Operation<'a>,
    fate: Fate,
}

/// The ways in which a state fails.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rule {
    /// A change is lost.
    Lost,
    /// A part of a change is lost.
    Torn,
    /// All changes until then are there.
    Unfinished,
    /// A real filesystem has left it, and no model explains it.
    Unexplained,
}

impl Rule {
    const ALL: [Self; 4] = [Self::Lost, Self::Torn, Self::Unfinished, Self::Unexplained];

    fn id(self) -> &'static str {
        match self {
            Self::Lost => "crashlab/lost-change",
            Self::Torn => "crashlab/torn-change",
            Self::Unfinished => "crashlab/unfinished-change",
            Self::Unexplained => "crashlab/unexplained-state",
        }
    }

    fn about(self) -> &'static str {
        match self {
            Self::Lost => "A power cut can take back a change that the program needs.",
            Self::Torn => "A power cut can leave a part of a change.",
            Self::Unfinished => {
                "A power cut, or a kill, between two changes leaves files that the program can't use."
            }
            Self::Unexplained => {
                "A power cut has left files on a real filesystem that the program can't use."
            }
        }
    }
}

impl Entry<'_> {
    fn rule(&self) -> Rule {
        match self.state {
            None => Rule::Unexplained,
            Some(state) if state.lost.is_empty() => Rule::Unfinished,
            Some(state) if state.lost.values().all(Option::is_some) => Rule::Torn,
            Some(_) => Rule::Lost,
        }
    }

    /// The name of a state, as far as people can use it: one that has lost thousands of changes has a name of
    /// as many words.
    fn short_name(&self) -> String {
        match self.name.len() {
            0..=NAME_BYTES_MAX => self.name.clone(),
            _ => format!("{}...", &self.name[..NAME_BYTES_MAX]),
        }
    }
}

impl Report<'_> {
    fn begin(&self) -> usize {
        self.history.recording.begin
    }

    /// The recording's path, for people and programs.
    fn path(&self) -> String {
        self.path.map_or(String::new(), |path| path.display().to_string())
    }

    /// The number of an event, counted from the program's first.
    fn number(&self, at: usize) -> usize {
        at + 1 - self.begin()
    }

    /// The number of states that fail.
    fn count(&self) -> usize {
        self.failing.len().max(self.seen.len())
    }

    /// The names of all states that fail, as they were found.
    fn names(&self) -> Vec<String> {
        match self.seen {
            [] => self.failing.iter().map(|failing| failing.state.name(self.begin())).collect(),
            seen => seen.iter().map(|seen| seen.name.clone()).collect(),
        }
    }

    /// The states that fail, as far as a report lists them. The first is in its simplest form.
    fn entries(&self) -> Vec<Entry<'_>> {
        let mut entries: Vec<Entry<'_>> = match self.seen {
            [] => self.failing.iter().map(|one| self.of_state(&one.state, &one.output)).collect(),
            seen => seen.iter().map(|seen| self.of_seen(seen)).collect(),
        };
        if let (Some(entry), Some(first)) = (entries.first_mut(), &self.first) {
            let simplest = self.of_state(&first.failing.state, &first.failing.output);
            let name = if self.seen.is_empty() { simplest.name.clone() } else { entry.name.clone() };
            *entry = Entry { name, explained: Some(first), ..simplest };
        }
        entries.truncate(LISTED_MAX);
        entries
    }

    fn of_state<'a>(&self, state: &'a State, output: &'a str) -> Entry<'a> {
        let (name, position) = (state.name(self.begin()), state.position - self.begin());
        Entry { name, position, state: Some(state), output, explained: None }
    }

    fn of_seen<'a>(&self, seen: &'a Seen) -> Entry<'a> {
        let position = seen.position.saturating_sub(self.begin());
        Entry { name: seen.name.clone(), position, state: None, output: &seen.output, explained: None }
    }

    /// The verdict, in a few words.
    fn verdict(&self) -> String {
        match (self.count(), self.is_complete) {
            (0, true) => "no state fails".to_owned(),
            (0, false) => "no state fails so far; the time was over, so try --seconds N".to_owned(),
            (1, _) => "1 fails".to_owned(),
            (count, _) => format!("{count} fail"),
        }
    }

    /// The verdict, and what it is about.
    fn summary(&self) -> String {
        let (states, cases, verdict) = (self.states, self.cases, self.verdict());
        let (name, seconds) = (self.on.unwrap_or(self.model.name), self.elapsed.as_secs_f64());
        let plural = if states == 1 { "" } else { "s" };
        format!("{name}: {states} state{plural}, {cases} different ones checked in {seconds:.1} s: {verdict}")
    }

    /// The fate of an operation in a state.
    fn fate(&self, state: &State, operation: &Operation<'_>) -> Fate {
        Fate::of(state, operation.at, &self.history.events()[operation.at])
    }

    /// What is wrong in a state, in a line.
    fn fault(&self, operations: &Operations<'_>, entry: &Entry<'_>) -> String {
        let Some(state) = entry.state else { return format!("a power cut after event {}", entry.position) };
        let lines = self.lines(operations, state);
        let mut losses = lines.iter().filter(|line| line.fate.is_loss());
        let Some(first) = losses.next() else {
            return format!("a power cut after event {}, with no change lost", entry.position);
        };
        let more = match state.lost.len() - 1 {
            0 => String::new(),
            more => format!(", and {more} more"),
        };
        format!("{}: #{} {}{more}", first.fate.word(), first.operation.number, self.with_detail(first))
    }

    /// What a state has lost, the changes after it that are there, and what was printed last.
    fn lines<'o>(&self, operations: &'o Operations<'o>, state: &State) -> Vec<Line<'o>> {
        let is_change = |one: &&Operation<'_>| one.sort == Sort::Change;
        let (before, after) = operations.until(state.position);
        // Where nothing is lost, the changes around the cut.
        let around = |one: Option<&Operation<'_>>| one.filter(|_| state.lost.is_empty()).map(|one| one.at);
        let near = around(before.iter().rfind(is_change));
        let later = after.iter().find(is_change).filter(|_| state.lost.is_empty());
        let printed = before.iter().rfind(|one| one.sort == Sort::Printed).map(|one| one.at);
        let first_lost = state.lost.keys().next().copied().unwrap_or(state.position);
        let mut lines: Vec<Line<'o>> = before
            .iter()
            .chain(later)
            .map(|operation| Line { operation, fate: self.fate(state, operation) })
            .filter(|Line { operation: Operation { at, .. }, fate }| match fate {
                Fate::Lost | Fate::Torn(_) | Fate::NotYet => true,
                Fate::There => *at > first_lost || near == Some(*at),
                Fate::Before => printed == Some(*at),
            })
            .collect();
        if lines.len() > CHANGES_MAX {
            // Of those that are there, the ones about the same files.
            let events = self.history.events();
            let inodes: HashSet<Ino> = state.lost.keys().filter_map(|at| events[*at].action.ino()).collect();
            let is_near = |line: &Line<'_>| line.operation.ino.is_some_and(|ino| inodes.contains(&ino));
            lines.retain(|line| line.fate != Fate::There || is_near(line));
            lines.truncate(CHANGES_MAX);
        }
        lines
    }

    /// An operation with the part of it that is there.
    fn with_detail(&self, Line { operation, fate }: &Line<'_>) -> String {
        let detail = fate.detail(&self.history.events()[operation.at].action);
        format!("{}{}", operation.what, detail.map_or(String::new(), |detail| format!(": {detail}")))
    }
}

/// The end of what a checker said, and the number of lines before it.
fn end_of(output: &str) -> (usize, Vec<&str>) {
    let lines: Vec<&str> = output.trim_end().lines().collect();
    let skipped = lines.len().saturating_sub(OUTPUT_LINES_MAX);
    (skipped, lines[skipped..].to_vec())
}

/// Text of strangers: what a page would obey and XML forbids is replaced.
fn shown(text: &str) -> String {
    let is_bad = |c: char| is_obeyed(c) && !matches!(c, '\n' | '\t');
    text.replace("\r\n", "\n").chars().map(|c| if is_bad(c) { '\u{fffd}' } else { c }).collect()
}

/// The syncs that are missing, in words.
fn missing_text(report: &Report<'_>, operations: &Operations<'_>, explained: &Explained) -> String {
    let Some(missing) = &explained.missing else {
        let state = &explained.failing.state;
        if state.position <= report.begin() && state.lost.is_empty() {
            return "The checker refuses the files as they were before the program began. It has to accept them: a power \
                    cut can come before the first change."
                .to_owned();
        }
        return "No fsync mends it: a power cut can come between two of these changes, or in the middle of one. The \
                program needs another order of changes, a checksum or a new name."
            .to_owned();
    };
    let syncs: Vec<String> = missing.syncs.iter().map(|sync| sync_text(report, sync)).collect();
    let everywhere = match missing.added.len().saturating_sub(missing.syncs.len()) {
        0 => String::new(),
        1 => "; also at one more place like it".to_owned(),
        more => format!("; also at {more} more places like it"),
    } + &source_text(operations, missing);
    if let Some(left) = &missing.left {
        let left = left.name(report.begin());
        return format!(
            "Missing: {}{everywhere}. State {left} fails all the same, and no fsync mends that one: the program needs another \
             order of changes there, a checksum or a new name.",
            syncs.join(", and ")
        );
    }
    let verified = match (missing.verified, missing.is_complete) {
        (0, _) => "There was no time to try it: use --seconds N.".to_owned(),
        (states, true) => format!("With that none of {states} states fails."),
        (states, false) => format!("With that none of {states} states fails; for more there was no time."),
    };
    format!("Missing: {}{everywhere}. {verified}", syncs.join(", and "))
}

/// The places in the source whose changes lack such a sync, with the number of these changes, the most first.
fn source(operations: &Operations<'_>, missing: &Missing) -> Vec<(String, usize)> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    let changes = missing.added.iter().filter_map(|sync| operations.at(sync.after));
    for frame in changes.filter_map(|change| operations.frame(change)) {
        *counts.entry(frame.to_string()).or_default() += 1;
    }
    let mut found: Vec<(String, usize)> = counts.into_iter().collect();
    found.sort_by_key(|(_, count)| Reverse(*count));
    found
}

/// The same in words, unless it is only one.
fn source_text(operations: &Operations<'_>, missing: &Missing) -> String {
    let found = source(operations, missing);
    let times = |(frame, count): &(String, usize)| match count {
        1 => format!("once in {frame}"),
        count => format!("{count} times in {frame}"),
    };
    match found.len() {
        0 | 1 => String::new(),
        len => {
            let named: Vec<String> = found.iter().take(SOURCE_MAX).map(times).collect();
            let rest = if len > SOURCE_MAX { ", and elsewhere" } else { "" };
            format!(" (all of them: {}{rest})", named.join(", "))
        }
    }
}

fn sync_text(report: &Report<'_>, sync: &Addition) -> String {
    format!("{} after #{}", sync_name(sync), report.number(sync.after))
}

fn sync_name(sync: &Addition) -> String {
    let kind = if sync.is_directory { "the directory " } else { "" };
    let path = if sync.path == "." { "'.'" } else { &sync.path };
    format!("fsync of {kind}{path}")
}
