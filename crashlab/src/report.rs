//! What an exploration found, for people and for programs.

use crate::action::Ino;
use crate::explain::Explained;
use crate::explore::Failing;
use crate::history::{History, Paths, describe};
use crate::missing::{Addition, Missing};
use crate::model::{Model, Part};
use crate::real::Seen;
use serde_json::{Value, json};
use std::collections::{HashMap, HashSet};
use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

/// Lines of a checker's output that are shown.
const OUTPUT_LINES_MAX: usize = 20;
/// Changes that are listed one by one.
const CHANGES_MAX: usize = 20;
/// Failing states that are listed besides the first.
const LISTED_MAX: usize = 20;

/// An exploration.
pub struct Report<'a> {
    /// The recording.
    pub path: &'a Path,
    /// Its history.
    pub history: &'a History,
    /// The model.
    pub model: &'a Model,
    /// The first failing state, explained.
    pub first: Option<Explained>,
    /// All failing states.
    pub failing: &'a [Failing],
    /// The names of those that were seen on a real filesystem, instead.
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

impl Report<'_> {
    fn begin(&self) -> usize {
        self.history.recording.begin
    }

    /// The number of an event, counted from the program's first.
    fn number(&self, at: usize) -> usize {
        at + 1 - self.begin()
    }

    /// The names of all states that fail.
    fn names(&self) -> Vec<String> {
        match self.seen {
            [] => self.failing.iter().map(|failing| failing.state.name(self.begin())).collect(),
            seen => seen.iter().map(|seen| seen.name.clone()).collect(),
        }
    }
}

/// A line of the report about one event.
struct Line {
    at: usize,
    fate: &'static str,
    what: String,
}

/// The report for a terminal.
pub fn as_text(report: &Report<'_>) -> String {
    let mut text = String::new();
    let names = report.names();
    if let Some(seen) = report.seen.first() {
        write_seen(&mut text, seen, report.first.is_some());
    }
    if let Some(first) = &report.first {
        write_failing(&mut text, report, first);
    }
    if names.len() > 1 {
        let more = (names.len() - 1).saturating_sub(LISTED_MAX);
        let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
        let shown = names[1..names.len().min(LISTED_MAX + 1)].join(" ");
        let _ = writeln!(text, "Other states that fail: {shown}{rest}\n");
    }
    let how = match (names.len(), report.is_complete) {
        (0, true) => "no state fails".to_owned(),
        (0, false) => "no state fails so far; the time was over, so try --seconds N".to_owned(),
        (1, _) => "1 fails".to_owned(),
        (count, _) => format!("{count} fail"),
    };
    let (states, cases, model) = (report.states, report.cases, report.model.name);
    let seconds = report.elapsed.as_secs_f64();
    let _ =
        writeln!(text, "{model}: {states} states, {cases} different ones checked in {seconds:.1} s: {how}");
    text
}

/// A state of a real filesystem.
fn write_seen(text: &mut String, seen: &Seen, is_explained: bool) {
    let _ = writeln!(text, "State {} fails: a power cut after event {}.", seen.name, seen.position);
    if is_explained {
        let _ = writeln!(text, "The simplest state of its kind, in the words of the model:\n");
        return;
    }
    let _ = writeln!(text, "No few lost changes explain it. The checker says:");
    write_output(text, &seen.output);
    let _ = writeln!(text);
}

/// The end of what a checker said.
fn write_output(text: &mut String, output: &str) {
    let output: Vec<&str> = output.trim_end().lines().collect();
    let skipped = output.len().saturating_sub(OUTPUT_LINES_MAX);
    if skipped > 0 {
        let _ = writeln!(text, "  ... {skipped} lines before");
    }
    for line in &output[skipped..] {
        let _ = writeln!(text, "  {line}");
    }
}

fn write_failing(text: &mut String, report: &Report<'_>, first: &Explained) {
    let (history, state) = (report.history, &first.failing.state);
    let begin = report.begin();
    let name = state.name(begin);
    let _ = writeln!(text, "State {name} fails: a power cut after event {}.\n", state.position - begin);
    for line in lines(report, first) {
        let _ = writeln!(text, "  {:<7} #{:<5} {}", line.fate, report.number(line.at), line.what);
    }
    if state.lost.is_empty() {
        let _ = writeln!(text, "\nNothing is lost: a program that is killed there leaves the same files.");
    }
    let printed = history.printed(state.position);
    let count = printed.split_inclusive(|byte| *byte == b'\n').count();
    let _ = match count {
        0 => writeln!(text, "\nThe program had printed nothing yet."),
        1 => writeln!(text, "\nThe program had printed one line."),
        count => writeln!(text, "\nThe program had printed {count} lines."),
    };
    let _ = writeln!(text, "The checker says:");
    write_output(text, &first.failing.output);
    let _ = writeln!(text, "\nPossible under: {}", first.models.join(", "));
    let _ = writeln!(text, "{}", missing_text(report, first.missing.as_ref()));
    let path = report.path.display();
    let _ = writeln!(text, "To look at its files: crashlab extract {path} {name} DIRECTORY\n");
}

/// The losses, the next changes that survived, and what was printed last.
fn lines(report: &Report<'_>, first: &Explained) -> Vec<Line> {
    let (history, state) = (report.history, &first.failing.state);
    let events = history.events();
    let mut paths = Paths::default();
    let mut lines = Vec::new();
    let is_change = |at: &usize| events[*at].action.is_change();
    // Where nothing is lost, the changes around the cut.
    let near = match state.lost.is_empty() {
        true => (0..state.position).rfind(is_change).filter(|at| *at >= report.begin()),
        false => None,
    };
    let later = (state.position..events.len()).find(is_change).filter(|_| state.lost.is_empty());
    let last_printed = events[..state.position]
        .iter()
        .rposition(|event| matches!(event.action, crate::action::Action::Printed(_)));
    let first_lost = state.lost.keys().next().copied().unwrap_or(state.position);
    let is_alone =
        events.iter().map(|event| event.pid).filter(|pid| *pid != 0).collect::<HashSet<_>>().len() < 2;
    let mut programs: HashMap<u32, &str> = HashMap::new();
    for (at, event) in events[..later.map_or(state.position, |later| later + 1)].iter().enumerate() {
        // Before the event: an unlinked file still has its name.
        let what = describe(event, &paths);
        paths.add(&event.action);
        programs.extend(event.program.as_deref().map(|program| (event.pid, program)));
        let who = match programs.get(&event.pid) {
            Some(program) if !is_alone => format!(" ({program}, process {})", event.pid),
            _ => String::new(),
        };
        let fate = match state.lost.get(&at) {
            Some(None) => "LOST",
            Some(Some(_)) => "TORN",
            None if Some(at) == last_printed => "before",
            None if Some(at) == near => "there",
            None if Some(at) == later => "not yet",
            None if at > first_lost && event.action.is_change() => "there",
            None => continue,
        };
        let torn = match state.lost.get(&at) {
            Some(Some(Part::Before(offset))) => format!(": only the bytes before {offset} are there"),
            Some(Some(Part::From(offset))) => format!(": only the bytes from {offset} on are there"),
            Some(Some(Part::Slice { from, before, .. })) if !event.action.is_write() => {
                format!(": only zeros from {from} to {before} are there, and the old size")
            }
            Some(Some(Part::Slice { from, before, size })) => {
                format!(": only the bytes from {from} to {before} are there, and the size is {size}")
            }
            Some(Some(Part::Without { from, before })) => {
                format!(": the bytes from {from} to {before} are missing")
            }
            Some(Some(Part::Unlinked)) => {
                ": what had the new name has lost it, and nothing has it".to_owned()
            }
            Some(Some(Part::Linked)) => ": both names are there".to_owned(),
            Some(Some(Part::Size)) => ": only the new size is there, with zeros".to_owned(),
            _ => String::new(),
        };
        lines.push(Line { at, fate, what: format!("{what}{torn}{who}") });
    }
    if lines.len() > CHANGES_MAX {
        // Of those that are there, the ones about the same files.
        let inodes: HashSet<Ino> = state.lost.keys().filter_map(|at| events[*at].action.ino()).collect();
        let is_near = |at: usize| events[at].action.ino().is_some_and(|ino| inodes.contains(&ino));
        lines.retain(|line| line.fate != "there" || is_near(line.at));
        lines.truncate(CHANGES_MAX);
    }
    lines
}

fn missing_text(report: &Report<'_>, missing: Option<&Missing>) -> String {
    let Some(missing) = missing else {
        return "No fsync mends it: a power cut can come between two of these changes, or in the middle of one. The \
                program needs another order of changes, a checksum or a new name."
            .to_owned();
    };
    let syncs: Vec<String> = missing.syncs.iter().map(|sync| sync_text(report, sync)).collect();
    let everywhere = match missing.places.saturating_sub(missing.syncs.len()) {
        0 => String::new(),
        1 => ", and at one more place like it".to_owned(),
        more => format!(", and at {more} more places like it"),
    };
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

fn sync_text(report: &Report<'_>, sync: &Addition) -> String {
    let kind = if sync.is_directory { "the directory " } else { "" };
    let path = if sync.path == "." { "'.'" } else { &sync.path };
    format!("fsync of {kind}{path} after #{}", report.number(sync.after))
}

/// The report as JSON.
pub fn as_json(report: &Report<'_>) -> String {
    let first = report.first.as_ref().map(|first| first_json(report, first));
    let on = report.seen.first().and_then(|seen| seen.name.split(':').next());
    let seen = report
        .seen
        .first()
        .map(|seen| json!({ "state": seen.name, "position": seen.position, "output": seen.output }));
    let value = json!({
        "recording": report.path.display().to_string(),
        "model": report.model.name,
        "states": report.states,
        "checked": report.cases,
        "complete": report.is_complete,
        "seconds": report.elapsed.as_secs_f64(),
        "failing": report.names(),
        "on": on,
        "seen": seen,
        "first": first,
    });
    format!("{value:#}\n")
}

fn first_json(report: &Report<'_>, first: &Explained) -> Value {
    let events: Vec<Value> = lines(report, first)
        .into_iter()
        .map(|line| json!({ "event": report.number(line.at), "fate": line.fate.to_lowercase(), "what": line.what }))
        .collect();
    let missing = first.missing.as_ref().map(|missing| {
        let syncs: Vec<Value> = missing
            .syncs
            .iter()
            .map(|sync| json!({ "after": report.number(sync.after), "path": sync.path, "directory": sync.is_directory }))
            .collect();
        json!({ "syncs": syncs, "places": missing.places, "states_without_failure": missing.verified,
            "complete": missing.is_complete,
            "left": missing.left.as_ref().map(|left| left.name(report.begin())) })
    });
    json!({
        "state": first.failing.state.name(report.begin()),
        "events": events,
        "output": first.failing.output,
        "models": first.models,
        "missing": missing,
    })
}
