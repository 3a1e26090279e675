//! The report as SARIF 2.1.0, which code scanners write: a result for each state that fails, with the
//! operations that lead to it as its flow.

use super::{Entry, Line, Operations, Report, Rule, end_of, missing_text, shown};
use crate::operation::Operation;
use crate::symbols::Frame;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// What has to be encoded in the path of a URI.
const PATH: &AsciiSet = &NON_ALPHANUMERIC.remove(b'/').remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// The report as SARIF.
pub fn as_sarif(report: &Report<'_>) -> String {
    let entries = report.entries();
    let operations = Operations::new(report.history);
    let results: Vec<Value> = entries.iter().map(|entry| result(report, &operations, entry)).collect();
    let rules: Vec<Value> = Rule::ALL
        .iter()
        .map(|rule| {
            json!({ "id": rule.id(), "shortDescription": { "text": rule.about() },
                "defaultConfiguration": { "level": "error" } })
        })
        .collect();
    let left_out = match report.count() - entries.len() {
        0 => json!([]),
        more => json!([{ "level": "note",
            "message": { "text": format!("{more} more states fail that are not listed here.") } }]),
    };
    let value = json!({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{
            "tool": { "driver": {
                "name": "crashlab",
                "version": env!("CARGO_PKG_VERSION"),
                "informationUri": env!("CARGO_PKG_REPOSITORY"),
                "rules": rules,
            } },
            "invocations": [{ "executionSuccessful": true, "toolExecutionNotifications": left_out }],
            "columnKind": "unicodeCodePoints",
            "results": results,
            "properties": {
                "recording": report.path(),
                "model": report.model.name,
                "filesystem": report.on,
                "states": report.states,
                "checked": report.cases,
                "complete": report.is_complete,
                "failing": report.count(),
            },
        }],
    });
    format!("{value:#}\n")
}

fn result(report: &Report<'_>, operations: &Operations<'_>, entry: &Entry<'_>) -> Value {
    let rule = entry.rule();
    let lines = entry.state.map_or(Vec::new(), |state| report.lines(operations, state));
    let (_, said) = end_of(entry.output);
    let mut message = format!("State {} fails: {}.", entry.short_name(), report.fault(operations, entry));
    if let Some(explained) = entry.explained {
        message += &format!("\n{}", missing_text(report, operations, explained));
        message += &format!("\nPossible under: {}", explained.models.join(", "));
    }
    message += &format!("\nThe checker says: {}", said.join("\n"));
    // Where the first loss was written; if nothing is lost, where the power fails.
    let place = lines.iter().find(|line| line.fate.is_loss());
    let place = place.map(|line| line.operation).or(operations.before(report.begin() + entry.position));
    let at = |operation| location(operation, operations.frame(operation).as_ref());
    let locations: Vec<Value> = place.into_iter().map(at).collect();
    let mut result = json!({
        "ruleId": rule.id(),
        "ruleIndex": Rule::ALL.iter().position(|other| *other == rule),
        "level": "error",
        "message": { "text": shown(&message) },
        "locations": locations,
        "properties": { "state": entry.name, "models": entry.explained.map(|explained| &explained.models) },
    });
    if !lines.is_empty() {
        let flow: Vec<Value> = lines.iter().map(|line| step(report, operations, line)).collect();
        result["codeFlows"] = json!([{ "threadFlows": [{ "locations": flow }] }]);
    }
    result
}

/// An operation of a flow, with its fate.
fn step(report: &Report<'_>, operations: &Operations<'_>, line: &Line<'_>) -> Value {
    let Operation { number, .. } = line.operation;
    let mut location = location(line.operation, operations.frame(line.operation).as_ref());
    let text = format!("{}: #{number} {}", line.fate.word(), report.with_detail(line));
    location["message"] = json!({ "text": text });
    let importance = if line.fate.is_loss() { "essential" } else { "important" };
    json!({ "location": location, "executionOrder": number, "importance": importance })
}

/// The line of the source, or else the operation itself.
fn location(operation: &Operation<'_>, frame: Option<&Frame>) -> Value {
    let name = format!("#{} {}", operation.number, operation.what);
    match frame {
        Some(Frame { function, file: Some(file), line: Some(line), .. }) => {
            let mut location = json!({ "physicalLocation": {
                "artifactLocation": artifact(Path::new(file)),
                "region": { "startLine": line.max(&1) },
            } });
            if let Some(function) = function {
                location["logicalLocations"] =
                    json!([{ "fullyQualifiedName": function, "kind": "function" }]);
            }
            location
        }
        _ => json!({ "logicalLocations": [{ "fullyQualifiedName": name, "kind": "operation" }] }),
    }
}

/// A file of the source: relative to the working folder if it is in it, as code scanners want it.
fn artifact(file: &Path) -> Value {
    let folder = std::env::current_dir().unwrap_or_default();
    let own = file.strip_prefix(&folder).unwrap_or(file);
    let bytes = own.as_os_str().as_bytes();
    let path = utf8_percent_encode(&String::from_utf8_lossy(bytes), PATH).to_string();
    match own.is_absolute() {
        true => json!({ "uri": format!("file://{path}") }),
        false => json!({ "uri": path, "uriBaseId": "%SRCROOT%" }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::Sort;

    #[test]
    fn an_operation_is_at_its_line_of_the_source() {
        let operation = Operation {
            at: 7,
            number: 2,
            time_ns: 0,
            pid: 1,
            program: None,
            sort: Sort::Change,
            ino: None,
            what: "write x, 1 bytes at 0".to_owned(),
            stack: 0,
        };
        let logical = &location(&operation, None)["logicalLocations"][0];
        assert_eq!(logical["fullyQualifiedName"], "#2 write x, 1 bytes at 0");
        let here = std::env::current_dir().unwrap().display().to_string();
        for (file, uri) in
            [(format!("{here}/src/a b.rs"), "src/a%20b.rs"), ("/x/ü.c".to_owned(), "file:///x/%C3%BC.c")]
        {
            let (function, module) = (Some("save".to_owned()), "store".to_owned());
            let frame =
                Frame { function, file: Some(file), line: Some(12), module, address: 0, why_not: None };
            let found = location(&operation, Some(&frame));
            assert_eq!(found["physicalLocation"]["artifactLocation"]["uri"], uri);
            assert_eq!(found["physicalLocation"]["region"]["startLine"], 12);
            assert_eq!(found["logicalLocations"][0]["fullyQualifiedName"], "save");
        }
    }
}
