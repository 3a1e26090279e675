//! The report for a terminal.

use super::{Entry, NAME_BYTES_MAX, Operations, Report, end_of, missing_text};
use std::fmt::Write;

/// Failing states that are named besides the first.
const NAMED_MAX: usize = 20;

/// The report for a terminal.
pub fn as_text(report: &Report<'_>) -> String {
    let mut text = String::new();
    let operations = Operations::new(report.history);
    if let Some(first) = report.entries().first() {
        text += &entry_text(report, &operations, first);
    }
    let names = report.names();
    if names.len() > 1 {
        let short = names[1..].iter().filter(|name| name.len() <= NAME_BYTES_MAX);
        let named: Vec<&str> = short.take(NAMED_MAX).map(String::as_str).collect();
        let rest = match (named.len(), names.len() - 1 - named.len()) {
            (_, 0) => String::new(),
            (0, more) => format!("{more}, with many losses each"),
            (_, more) => format!(" and {more} more"),
        };
        let shown = named.join(" ");
        let _ = writeln!(text, "Other states that fail: {shown}{rest}\n");
    }
    text + &report.summary() + "\n"
}

/// A state that fails.
pub(super) fn entry_text(report: &Report<'_>, operations: &Operations<'_>, entry: &Entry<'_>) -> String {
    let mut text = String::new();
    let Entry { name, position, state, output, explained } = entry;
    let short = entry.short_name();
    let Some(state) = state else {
        let _ = writeln!(text, "State {short} fails: a power cut after event {position}.");
        if report.seen.first().is_some_and(|first| first.name == *name) {
            let _ = writeln!(text, "No few lost changes explain it.");
        }
        write_output(&mut text, output);
        return text + "\n";
    };
    let own = state.name(report.begin());
    if *name != own {
        let seen = report.seen.first().map_or(0, |seen| seen.position.saturating_sub(report.begin()));
        let _ = writeln!(text, "State {name} fails: a power cut after event {seen}.");
        let _ = writeln!(text, "The simplest state of its kind, in the words of the model:\n");
    }
    let shown = if explained.is_some() { &own } else { &short };
    let _ = writeln!(text, "State {shown} fails: a power cut after event {position}.\n");
    for line in report.lines(operations, state) {
        let operation = line.operation;
        let word = line.fate.word();
        let word = if line.fate.is_loss() { word.to_uppercase() } else { word.to_owned() };
        let who = match operation.program {
            Some(program) if !operations.is_alone => format!(" ({program}, process {})", operation.pid),
            _ => String::new(),
        };
        let what = report.with_detail(&line);
        let place = operations.frame(operation).map_or(String::new(), |frame| format!("   {frame}"));
        let _ = writeln!(text, "  {word:<7} #{:<5} {what}{who}{place}", operation.number);
    }
    if state.lost.is_empty() {
        let _ = writeln!(text, "\nNothing is lost: a program that is killed there leaves the same files.");
    }
    let printed = report.history.printed(state.position);
    let count = printed.split_inclusive(|byte| *byte == b'\n').count();
    let _ = match count {
        0 => writeln!(text, "\nThe program had printed nothing yet."),
        1 => writeln!(text, "\nThe program had printed one line."),
        count => writeln!(text, "\nThe program had printed {count} lines."),
    };
    write_output(&mut text, output);
    if let Some(explained) = explained {
        let _ = writeln!(text, "\nPossible under: {}", explained.models.join(", "));
        let _ = writeln!(text, "{}", missing_text(report, operations, explained));
        let lost = state.lost.keys().filter_map(|at| operations.at(*at));
        if let Some(lost) = lost.into_iter().find(|lost| operations.frame(lost).is_some()) {
            let _ = writeln!(text, "\nThe program made #{} in:", lost.number);
            for frame in operations.frames(lost) {
                let _ = writeln!(text, "  {frame}");
            }
        }
        if let Some(path) = report.path {
            let path = path.display();
            let _ = writeln!(text, "To look at its files: crashlab extract {path} {own} DIRECTORY");
        }
    }
    text + "\n"
}

fn write_output(text: &mut String, output: &str) {
    let _ = writeln!(text, "The checker says:");
    let (skipped, lines) = end_of(output);
    if skipped > 0 {
        let _ = writeln!(text, "  ... {skipped} lines before");
    }
    for line in lines {
        let _ = writeln!(text, "  {line}");
    }
}
