//! The report as a page for people: one file, which needs neither a network nor JavaScript.

mod files;
mod timeline;

use super::{Entry, Operations, Report, end_of, missing_text, shown};
use crate::explain::Explained;
use crate::model::MODELS;
use maud::{DOCTYPE, Markup, PreEscaped, html};

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");
/// The longest text of an operation, or line of a file: names come from strangers.
const CHARS_MAX: usize = 400;

/// The report as a page.
pub fn as_html(report: &Report<'_>) -> String {
    let operations = Operations::new(report.history);
    let entries = report.entries();
    let title = headline(report);
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                // Nothing is loaded, whatever the recording has put into the page.
                meta http-equiv="Content-Security-Policy"
                    content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'";
                title { (title) ": " (shown(&report.path())) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                (header(report, &operations, title))
                main {
                    @if let Some(first) = entries.first() { (failing(report, &operations, first)) }
                    @if entries.len() > 1 { (others(report, &operations, &entries)) }
                }
                footer { "Written by crashlab " (env!("CARGO_PKG_VERSION")) }
                script { (PreEscaped(SCRIPT)) }
            }
        }
    };
    page.into_string()
}

fn headline(report: &Report<'_>) -> &'static str {
    match (report.count(), report.is_complete) {
        (0, true) => "No state fails",
        (0, false) => "No state fails so far",
        _ => "A power cut breaks this program",
    }
}

fn header(report: &Report<'_>, operations: &Operations<'_>, title: &str) -> Markup {
    let verdict = if report.count() > 0 { "fails" } else { "passes" };
    let fails = match report.count() {
        0 => "none".to_owned(),
        count => count.to_string(),
    };
    let explored = match (report.is_complete, report.count()) {
        _ if report.on.is_some() => "mounted by the kernel",
        (true, _) => "all that were planned",
        (false, 0) => "until the time was over; try --seconds N",
        (false, _) => "until one failed, or the time was over",
    };
    let programs: Vec<String> = operations.programs().into_iter().map(shown).collect();
    html! {
        header class=(verdict) {
            p.brand { "crashlab" }
            h1 { (title) }
            dl {
                dt { "Program" } dd { (short(&programs.join(", "))) }
                dt { "Recording" } dd { code { (shown(&report.path())) } }
                @match report.on {
                    Some(on) => { dt { "Filesystem" } dd { (on) ", the kernel's own" } }
                    None => { dt { "Model" } dd { (report.model.name) span.note { (report.model.about) } } }
                }
                dt { "States" }
                dd { (report.states) ", " (report.cases) " different ones checked" span.note { (explored) } }
                dt { "Fail" } dd { (fails) }
                dt { "Time" } dd { (format!("{:.1} s", report.elapsed.as_secs_f64())) }
            }
        }
    }
}

/// The first state that fails.
fn failing(report: &Report<'_>, operations: &Operations<'_>, entry: &Entry<'_>) -> Markup {
    let own = entry.state.map(|state| state.name(report.begin()));
    let is_same = own.as_ref().is_none_or(|own| *own == entry.name);
    html! {
        section {
            h2 { "State " code { (entry.short_name()) } }
            p.lead {
                "The power fails after event " (entry.position) "."
                @if let Some(state) = entry.state {
                    @if state.lost.is_empty() { " Nothing is lost: a program that is killed there leaves the same files." }
                    @else { " " (short(&capitalized(&report.fault(operations, entry)))) "." }
                } @else { " No few lost changes explain what the filesystem has left." }
            }
            @if !is_same {
                p { "This is the simplest state of its kind, " code { (own.as_deref().unwrap_or_default()) }
                    ", in the words of the model " (report.model.name) "." }
            }
            @if let Some(explained) = entry.explained {
                @let is_mended = explained.missing.as_ref().is_some_and(|missing| missing.left.is_none());
                p.fix.open[!is_mended] { (missing_text(report, operations, explained)) }
            }
            h3 { "The checker says" }
            (output(entry.output))
            h3 { "What the program did" }
            (timeline::timeline(report, operations, entry))
            @if let Some(explained) = entry.explained { (models(explained)) }
            (files::files(report, entry))
            @if let Some(own) = &own {
                h3 { "To look further" }
                pre.commands {
                    "crashlab extract " (shown(&report.path())) " " (own) " DIRECTORY\n"
                    "crashlab show --state " (own) " " (shown(&report.path()))
                }
            }
        }
    }
}

fn output(output: &str) -> Markup {
    let (skipped, lines) = end_of(output);
    html! {
        @if skipped > 0 { p.note { (skipped) " lines before" } }
        pre { (shown(&lines.join("\n"))) }
    }
}

fn models(explained: &Explained) -> Markup {
    html! {
        h3 { "Where it can happen" }
        ul.models {
            @for model in &MODELS {
                @let is_possible = explained.models.contains(&model.name);
                li.possible[is_possible] {
                    b { (model.name) } " "
                    span { @if is_possible { "allows it" } @else { "does not" } }
                }
            }
        }
    }
}

/// The other states, those together about which the checker says the same.
fn others(report: &Report<'_>, operations: &Operations<'_>, entries: &[Entry<'_>]) -> Markup {
    let mut groups: Vec<(&str, Vec<&Entry<'_>>)> = Vec::new();
    for entry in &entries[1..] {
        match groups.iter_mut().find(|(output, _)| *output == entry.output) {
            Some((_, group)) => group.push(entry),
            None => groups.push((entry.output, vec![entry])),
        }
    }
    let left_out = report.count() - entries.len();
    html! {
        section {
            h2 { "Other states that fail" }
            @if left_out > 0 { p.note { (left_out) " more are not listed here." } }
            @for (said, group) in &groups {
                details.states {
                    summary {
                        b { (group.len()) @if group.len() == 1 { " state" } @else { " states" } }
                        code { (short(&shown(reason(said)))) }
                    }
                    (output(said))
                    ul {
                        @for entry in group {
                            li { code { (entry.short_name()) } " " span { (short(&report.fault(operations, entry))) } }
                        }
                    }
                }
            }
        }
    }
}

/// The line of a checker's output that says most: the last one before how it ended.
fn reason(output: &str) -> &str {
    let mut lines = output.lines().rev().filter(|line| !line.trim().is_empty());
    let last = lines.next().unwrap_or_default();
    lines.next().filter(|_| last.starts_with('[')).unwrap_or(last)
}

fn capitalized(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or(String::new(), |first| first.to_uppercase().chain(chars).collect())
}

/// Text that may be long.
fn short(text: &str) -> String {
    match text.char_indices().nth(CHARS_MAX) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

/// A number of things.
fn count(number: usize, one: &str) -> String {
    format!("{number} {one}{}", if number == 1 { "" } else { "s" })
}
