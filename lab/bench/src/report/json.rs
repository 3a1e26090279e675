//! JSON with everything: every run, and the figures made of them.

use crate::outcome::{Figures, Report, Row};
use serde::Serialize;
use serde_json::{Value, json};

/// Changed when readers of the JSON must change.
const VERSION: u32 = 1;

/// Everything that was measured.
pub fn json(report: &Report) -> Value {
    json!({
        "version": VERSION,
        "conditions": report.conditions,
        "warnings": report.conditions.warnings(),
        "workloads": report.rows.iter().map(row).collect::<Vec<_>>(),
        "micro": report.micro,
        "failures": report.failures,
    })
}

#[derive(Serialize)]
struct Contestant<'a> {
    name: &'a str,
    peer: bool,
    #[serde(flatten)]
    figures: Option<Figures>,
    runs: Value,
}

fn row(row: &Row) -> Value {
    let contestants = row.columns.iter().map(|column| Contestant {
        name: &column.name,
        peer: column.peer,
        figures: row.figures(column),
        runs: json!(column.runs),
    });
    json!({
        "suite": row.suite,
        "title": row.title,
        "variant": row.variant,
        "phase": row.phase,
        "disk": row.disk,
        "engine": row.engine,
        "unit": row.unit.text(),
        "more_is_better": row.unit.more_is_better(),
        "latency_of": row.latency_of,
        "compared_with": row.yardstick().map(|column| &column.name),
        "floor": row.floor().map(|column| &column.name),
        "contestants": contestants.collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::tests::{column, row as sample_row};
    use crate::workload::Unit;

    #[test]
    fn runs_and_figures_are_all_there() {
        let mut row = sample_row(Unit::PerSecond("fsyncs"));
        row.columns.push(column("null-flush", true, &[400, 400, 400]));
        let report = Report { rows: vec![row], ..Report::default() };
        let json = json(&report);
        let syncline = &json["workloads"][0]["contestants"][0];
        assert_eq!(syncline["value"]["median"], 200.0);
        assert_eq!(syncline["flushes_per_operation"], 1.0);
        assert_eq!(syncline["runs"].as_array().map(Vec::len), Some(3));
        assert_eq!(syncline["runs"][0]["counts"]["flushes"], 300);
        assert_eq!(json["workloads"][0]["compared_with"], "xfs");
        assert_eq!(json["workloads"][0]["floor"], "null-flush");
        assert_eq!((&syncline["floor_ratio"], &syncline["ratio"]), (&0.5.into(), &2.0.into()));
        assert_eq!(syncline["floor_ratio_interval"]["high"], 0.75);
    }
}
