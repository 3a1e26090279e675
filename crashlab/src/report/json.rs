//! The report as JSON.

use super::{Operations, Report};
use crate::explain::Explained;
use crate::operation::Operation;
use crate::symbols::Frame;
use serde_json::{Value, json};

/// The report as JSON.
pub fn as_json(report: &Report<'_>) -> String {
    let first = report.first.as_ref().map(|first| first_json(report, first));
    let seen = report.seen.first().map(|seen| {
        let position = seen.position.saturating_sub(report.begin());
        json!({ "state": seen.name, "position": position, "output": seen.output })
    });
    let value = json!({
        "recording": report.path(),
        "model": report.model.name,
        "states": report.states,
        "checked": report.cases,
        "complete": report.is_complete,
        "seconds": report.elapsed.as_secs_f64(),
        "failing": report.names(),
        "on": report.on,
        "seen": seen,
        "first": first,
    });
    format!("{value:#}\n")
}

/// The functions that led to an operation, from the innermost outwards.
fn stack(operations: &Operations<'_>, operation: &Operation<'_>) -> Value {
    let frame = |frame: Frame| json!({ "function": frame.function, "file": frame.file, "line": frame.line, "module": frame.module });
    operations.frames(operation).into_iter().map(frame).collect()
}

fn first_json(report: &Report<'_>, first: &Explained) -> Value {
    let operations = Operations::new(report.history);
    let lines = report.lines(&operations, &first.failing.state);
    let events: Vec<Value> = lines
        .iter()
        .map(|line| {
            json!({ "event": line.operation.number, "fate": line.fate.word(), "what": report.with_detail(line),
                "process": line.operation.pid, "program": line.operation.program,
                "stack": stack(&operations, line.operation) })
        })
        .collect();
    let missing = first.missing.as_ref().map(|missing| {
        let syncs: Vec<Value> = missing
            .syncs
            .iter()
            .map(|sync| json!({ "after": report.number(sync.after), "path": sync.path, "directory": sync.is_directory }))
            .collect();
        let source: Vec<Value> = super::source(&operations, missing)
            .into_iter()
            .map(|(frame, changes)| json!({ "place": frame, "changes": changes }))
            .collect();
        json!({ "syncs": syncs, "places": missing.added.len(),
            "source": source, "states_without_failure": missing.verified,
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
