//! Answers for people: a line for each name and value, and one for each element of a list.

use crate::printed::one_line;
use serde_json::Value;
use std::fmt::Write;

/// An answer as text.
pub fn of(answer: &Value) -> String {
    let mut out = String::new();
    match answer {
        Value::Object(fields) => {
            for (name, value) in fields.iter().filter(|(name, _)| *name != "list") {
                field(&mut out, name, value);
            }
            list(&mut out, fields.get("list"));
        }
        Value::Array(_) => list(&mut out, Some(answer)),
        Value::String(text) => out.push_str(text),
        other => out.push_str(&plain(other)),
    }
    if !out.is_empty() && !out.ends_with('\n') {
        out.push('\n');
    }
    out
}

fn field(out: &mut String, name: &str, value: &Value) {
    match value {
        Value::Null => {}
        Value::Array(elements) if elements.is_empty() => {}
        Value::Array(elements) => {
            let _ = writeln!(out, "{name}");
            elements.iter().for_each(|element| {
                let _ = writeln!(out, "  {}", plain(element));
            });
        }
        value => {
            let _ = writeln!(out, "{name:17} {}", plain(value));
        }
    }
}

fn list(out: &mut String, elements: Option<&Value>) {
    for element in elements.and_then(Value::as_array).into_iter().flatten() {
        let _ = writeln!(out, "{}", plain(element));
    }
}

/// On one line: an item's name first, then its fields.
fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => one_line(text),
        Value::Object(fields) => {
            let first = ["record", "key", "command", "name"];
            let leading = first.iter().filter_map(|name| fields.get(*name)).map(plain);
            let rest =
                fields.iter().filter(|(name, value)| !first.contains(&name.as_str()) && !is_nothing(value));
            let rest = rest.map(|(name, value)| match name.as_str() {
                "shows" => plain(value),
                _ => format!("{name} {}", plain(value)),
            });
            leading.chain(rest).collect::<Vec<_>>().join("  ")
        }
        Value::Array(elements) => {
            let each: Vec<String> = elements.iter().map(plain).collect();
            format!("[{}]", each.join(", "))
        }
        other => other.to_string(),
    }
}

fn is_nothing(value: &Value) -> bool {
    value.is_null() || value.as_array().is_some_and(Vec::is_empty)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn answers_are_lines() {
        let answer = json!({ "nodes": 2, "damaged": null, "list": [
            { "key": "1 inode 0", "size": 5, "xattrs": [] }, { "record": "free", "blocks": "7+1" }] });
        assert_eq!(of(&answer), "nodes             2\n1 inode 0  size 5\nfree  blocks 7+1\n");
        assert_eq!(of(&json!([{ "command": "ls PATH", "shows": "entries" }])), "ls PATH  entries\n");
    }
}
