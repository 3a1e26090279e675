//! The operations of a program in their order, with the power cut as a line across.

use super::{count, short};
use crate::missing::Addition;
use crate::operation::{Fate, Operation, Operations, Sort};
use crate::report::{Entry, Report, shown, sync_name};
use maud::{Markup, html};
use std::collections::BTreeMap;

/// Operations that are shown around a loss or a missing sync, and around the power cut.
const AROUND_LOSS: usize = 2;
const AROUND_CUT: usize = 6;
/// Losses that are shown; there may be thousands.
const LOSSES_MAX: usize = 100;
/// The fewest operations that are worth folding.
const FOLDED_MIN: usize = 4;
/// Operations that are on the page, but folded.
const FOLDED_MAX: usize = 10_000;

enum What<'a> {
    /// An operation, and its fate if that is known.
    Operation(&'a Operation<'a>, Option<Fate>),
    /// A sync that is missing.
    Add(&'a Addition),
    /// The power cut.
    Cut,
}

struct Item<'a> {
    what: What<'a>,
    is_shown: bool,
}

/// The timeline of a state.
pub fn timeline(report: &Report<'_>, operations: &Operations<'_>, entry: &Entry<'_>) -> Markup {
    let items = items(report, operations, entry);
    let mut left = FOLDED_MAX;
    html! {
        ol.timeline.many[!operations.is_alone] {
            li.head { b { "Fate" } span.n { "Event" } time { "Time in ms" } i { "Process" } code { "Operation" } }
            @for run in items.chunk_by(|one, next| one.is_shown == next.is_shown) {
                @if run[0].is_shown || run.len() < FOLDED_MIN {
                    @for item in run { (row(report, operations, item)) }
                } @else {
                    (folded(report, operations, run, &mut left))
                }
            }
        }
    }
}

/// Everything in its order; shown is what is near a loss, a missing sync or the power cut.
fn items<'a>(report: &Report<'_>, operations: &'a Operations<'a>, entry: &Entry<'a>) -> Vec<Item<'a>> {
    let position = report.begin() + entry.position;
    let mut missing: BTreeMap<usize, Vec<&Addition>> = BTreeMap::new();
    for sync in entry.explained.and_then(|one| one.missing.as_ref()).iter().flat_map(|one| &one.syncs) {
        missing.entry(sync.after).or_default().push(sync);
    }
    let (before, after) = operations.until(position);
    let printed = before.iter().rfind(|one| one.sort == Sort::Printed).map(|one| one.at);
    let mut items: Vec<Item<'a>> = Vec::new();
    let mut near: Vec<(usize, usize)> = Vec::new();
    let mut losses = 0;
    for operation in before.iter().chain(after) {
        if after.first().is_some_and(|first| first.at == operation.at) {
            near.push((items.len(), AROUND_CUT));
            items.push(Item { what: What::Cut, is_shown: true });
        }
        let fate = entry.state.map(|state| report.fate(state, operation));
        let is_loss = fate.is_some_and(Fate::is_loss) && losses < LOSSES_MAX;
        losses += usize::from(is_loss);
        let syncs = missing.remove(&operation.at).unwrap_or_default();
        if is_loss || !syncs.is_empty() {
            near.push((items.len(), AROUND_LOSS));
        }
        let is_shown = operation.sort == Sort::Border || printed == Some(operation.at);
        items.push(Item { what: What::Operation(operation, fate), is_shown });
        items.extend(syncs.into_iter().map(|sync| Item { what: What::Add(sync), is_shown: true }));
    }
    if after.is_empty() {
        near.push((items.len(), AROUND_CUT));
        items.push(Item { what: What::Cut, is_shown: true });
    }
    for (at, around) in near {
        let end = (at + around + 1).min(items.len());
        items[at.saturating_sub(around)..end].iter_mut().for_each(|item| item.is_shown = true);
    }
    items
}

fn row(report: &Report<'_>, operations: &Operations<'_>, item: &Item<'_>) -> Markup {
    let (operation, fate) = match &item.what {
        What::Operation(operation, fate) => (*operation, *fate),
        What::Add(sync) => {
            return html! { li.add { b { "missing" } code { "add " (short(&sync_name(sync))) " here" } } };
        }
        What::Cut => return html! { li.cut { "the power fails here" } },
    };
    let (class, word) = match (fate, operation.sort) {
        (Some(Fate::NotYet), _) => ("later", "not yet"),
        (_, Sort::Printed) => ("printed", "printed"),
        (_, Sort::Sync) => ("sync", "synced"),
        (_, Sort::Border) => ("border", ""),
        (Some(fate @ (Fate::Lost | Fate::Torn(_) | Fate::There)), _) => (fate.word(), fate.word()),
        (Some(Fate::Before) | None, Sort::Change) => ("there", ""),
    };
    let detail = fate.and_then(|fate| fate.detail(&report.history.events()[operation.at].action));
    html! {
        li class=(class) {
            b { (word) }
            span.n { @if operation.number > 0 { "#" (operation.number) } }
            time { (format!("{:.3}", operation.time_ns as f64 / 1e6)) }
            @if operation.pid != 0 {
                i { (shown(operation.program.unwrap_or("process"))) " " (operation.pid) }
            } @else { i {} }
            code {
                (short(&operation.what))
                @if let Some(detail) = detail { em { (detail) } }
                @if let Some(frame) = operations.frame(operation) { em { (short(&shown(&frame.to_string()))) } }
            }
        }
    }
}

/// Operations that are far from the power cut and from every loss.
fn folded(report: &Report<'_>, operations: &Operations<'_>, run: &[Item<'_>], left: &mut usize) -> Markup {
    let mut fates: Vec<(&str, usize)> = Vec::new();
    for item in run {
        let word = match &item.what {
            What::Operation(_, Some(Fate::Before)) => "synced or printed",
            What::Operation(_, Some(fate)) => fate.word(),
            _ => continue,
        };
        match fates.iter_mut().find(|(own, _)| *own == word) {
            Some((_, number)) => *number += 1,
            None => fates.push((word, 1)),
        }
    }
    let fates: Vec<String> = fates.iter().map(|(word, number)| format!("{number} {word}")).collect();
    let shown = run.len().min(*left);
    *left -= shown;
    html! {
        li.fold {
            details {
                summary { b { (count(run.len(), "operation")) } " " span.note { (fates.join(", ")) } }
                ol { @for item in &run[..shown] { (row(report, operations, item)) } }
                @if shown < run.len() {
                    p.note { (run.len() - shown) " more are left out here: 'crashlab show' lists them." }
                }
            }
        }
    }
}
