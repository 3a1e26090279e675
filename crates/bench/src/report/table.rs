//! A table for the terminal.

use super::numbers::{count, interval, number, optional};
use super::{CPU_NOTE, DAEMON_NOTE, WRITES_NOTE};
use crate::outcome::{Figures, MicroResult, Report, Row};
use std::fmt::Write;

/// Width of the column of names.
const NAME_WIDTH: usize = 22;

/// Everything that was measured, as text.
pub fn table(report: &Report) -> String {
    let mut text = String::new();
    for row in &report.rows {
        workload(&mut text, row);
    }
    if !report.rows.is_empty() {
        let counted = if report.conditions.counted_by_daemon { DAEMON_NOTE } else { WRITES_NOTE };
        let _ = writeln!(text, "{counted}\n{CPU_NOTE}");
    }
    micro(&mut text, &report.micro);
    for line in report.conditions.notes.iter().chain(&report.conditions.warnings()) {
        let _ = writeln!(text, "{line}");
    }
    text
}

fn workload(text: &mut String, row: &Row) {
    let engine = if row.engine == "built in" { String::new() } else { format!(" ({})", row.engine) };
    // Writing to a string can't fail.
    let _ = writeln!(text, "{}: {}{engine}", row.suite.to_uppercase(), row.name());
    let against = row.yardstick().map_or("", |column| column.name.as_str());
    let _ = writeln!(
        text,
        "  {:NAME_WIDTH$} {:>10} {:>17} {:>9} {:>11} {:>9} {:>9} {:>9} {:>15} {:>8} {:>8}",
        "",
        row.unit.text(),
        "min..max",
        format!("×{against}"),
        "95 %",
        "p50 µs",
        "p99 µs",
        "flushes",
        "writes",
        "bytes/B",
        "CPU µs"
    );
    for column in &row.columns {
        if let Some(figures) = row.figures(column) {
            let _ = writeln!(text, "  {:NAME_WIDTH$} {}", column.name, cells(&figures));
        }
    }
    text.push('\n');
}

fn cells(figures: &Figures) -> String {
    let spread = format!("{}..{}", number(figures.value.min), number(figures.value.max));
    format!(
        "{:>10} {spread:>17} {:>9} {:>11} {:>9} {:>9} {:>9} {:>15} {:>8} {:>8}",
        number(figures.value.median),
        figures.ratio.map_or_else(|| "–".into(), |ratio| format!("{ratio:.2}")),
        interval(figures.ratio_interval),
        optional(figures.p50_us),
        optional(figures.p99_us),
        count(figures.flushes_per_operation),
        writes(figures),
        figures.bytes_per_byte.map_or_else(|| "–".into(), count),
        number(figures.cpu_us_per_operation),
    )
}

/// Writes as counted by the block layer, followed in brackets by the daemon's count if that
/// differs.
pub(super) fn writes(figures: &Figures) -> String {
    let all = count(figures.writes_per_operation);
    match figures.daemon_writes_per_operation.map(count) {
        Some(own) if own != all => format!("{all} ({own})"),
        _ => all,
    }
}

fn micro(text: &mut String, results: &[MicroResult]) {
    if results.is_empty() {
        return;
    }
    let _ = writeln!(text, "{:40} {:>12} {:>19} {:>10}", "In the engine", "ns each", "min..max", "GiB/s");
    for result in results {
        let spread = format!("{}..{}", number(result.ns.min), number(result.ns.max));
        let speed = result.bytes.map(|bytes| bytes as f64 / result.ns.median / 1.073_741_824);
        let what = format!("{}: {}", result.name, result.operation);
        let _ =
            writeln!(text, "{what:40} {:>12} {spread:>19} {:>10}", number(result.ns.median), optional(speed));
    }
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::tests::row;
    use crate::workload::Unit;

    #[test]
    fn ratios_are_those_to_the_best_peer() {
        let report = Report { rows: vec![row(Unit::PerSecond("fsyncs"))], ..Report::default() };
        let text = table(&report);
        assert!(text.contains("K5: writing <fast>, 8 jobs"), "{text}");
        assert!(text.contains("×xfs"), "{text}");
        let line = text.lines().find(|line| line.trim().starts_with("syncline")).unwrap();
        let words: Vec<_> = line.split_whitespace().collect();
        assert_eq!(
            words,
            [
                "syncline", "200", "100..300", "2.00", "–", "1.00", "5.00", "1.00", "3.00", "(2.00)", "2.00",
                "5.00"
            ]
        );
    }
}
