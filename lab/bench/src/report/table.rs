//! A table for the terminal.

use super::numbers::{count, interval, number, optional, ratio};
use super::{CPU_NOTE, DAEMON_NOTE, WRITES_NOTE};
use crate::outcome::{Figures, MicroResult, Report, Row};
use std::fmt::Write;

/// Width of the column of names.
const NAME_WIDTH: usize = 22;
/// Width of the narrowest terminal.
const COLUMNS: usize = 80;

/// Everything that was measured, as text.
pub fn table(report: &Report) -> String {
    let mut text = String::new();
    for row in &report.rows {
        workload(&mut text, row);
    }
    by_disk(&mut text, &report.rows);
    if !report.rows.is_empty() {
        let counted = if report.conditions.counted_by_daemon { DAEMON_NOTE } else { WRITES_NOTE };
        fold(&mut text, counted);
        fold(&mut text, CPU_NOTE);
    }
    micro(&mut text, &report.micro);
    for line in report.conditions.notes.iter().chain(&report.conditions.warnings()) {
        fold(&mut text, line);
    }
    text
}

/// Appends words in lines that are as long as a terminal is wide.
fn fold(text: &mut String, words: &str) {
    let mut column = 0;
    for word in words.split(' ') {
        let width = word.chars().count();
        let (before, start) = match column {
            0 => ("", 0),
            column if column + 1 + width > COLUMNS => ("\n", 0),
            column => (" ", column + 1),
        };
        text.push_str(before);
        text.push_str(word);
        column = start + width;
    }
    text.push('\n');
}

fn workload(text: &mut String, row: &Row) {
    let engine = if row.engine == "built in" { String::new() } else { format!(" ({})", row.engine) };
    // Writing to a string can't fail.
    let _ = writeln!(text, "{}: {}{engine}", row.suite.to_uppercase(), row.name());
    let against = row.yardstick().map_or("", |column| column.name.as_str());
    let _ = writeln!(
        text,
        "  {:NAME_WIDTH$} {:>10} {:>17} {:>9} {:>11}",
        "",
        row.unit.text(),
        "min..max",
        format!("×{against}"),
        "95 %"
    );
    let measured: Vec<_> =
        row.columns.iter().filter_map(|column| Some((&column.name, row.figures(column)?))).collect();
    for (name, figures) in &measured {
        let _ = writeln!(text, "  {name:NAME_WIDTH$} {}", rates(figures));
    }
    let _ = writeln!(
        text,
        "  {:NAME_WIDTH$} {:>7} {:>8} {:>7} {:>14} {:>7} {:>7}",
        "each", "p50 µs", "p99 µs", "flushes", "writes", "bytes/B", "CPU µs"
    );
    for (name, figures) in &measured {
        let _ = writeln!(text, "  {name:NAME_WIDTH$} {}", costs(figures));
    }
    if let Some(floor) = row.floor() {
        beside_floor(text, &floor.name, &measured);
    }
    text.push('\n');
}

/// A line for each load and contestant, a column for each disk, in Markdown. A cell is the ratio to the best
/// peer with its interval, both rates, and the flushes of both.
fn by_disk(text: &mut String, rows: &[Row]) {
    let mut disks: Vec<&str> = rows.iter().map(|row| row.disk.as_str()).collect();
    disks.sort_unstable();
    disks.dedup();
    if disks.len() < 2 {
        return;
    }
    // In the order of measurement.
    disks.sort_by_key(|disk| rows.iter().position(|row| row.disk == *disk));
    let _ = writeln!(text, "| | {} |\n|---|{}", disks.join(" | "), "---|".repeat(disks.len()));
    let mut loads: Vec<String> = Vec::new();
    for row in rows {
        let load = row.load();
        if loads.contains(&load) {
            continue;
        }
        for name in row.columns.iter().filter(|column| !column.peer).map(|column| &column.name) {
            let of_load = |disk: &&str| rows.iter().find(|row| row.disk == *disk && row.load() == load);
            let cells =
                disks.iter().map(|disk| of_load(disk).map_or_else(|| "–".into(), |row| cell(row, name)));
            let _ = writeln!(text, "| {load}: {name} | {} |", cells.collect::<Vec<_>>().join(" | "));
        }
        loads.push(load);
    }
    text.push('\n');
}

fn cell(row: &Row, name: &str) -> String {
    let of = |column| row.figures(column).map(|figures| (column, figures));
    let own = row.columns.iter().find(|column| column.name == *name).and_then(of);
    let Some(((_, own), (peer, best))) = own.zip(row.yardstick().and_then(of)) else { return "–".into() };
    format!(
        "{} ({}) {}, {} {}; flushes {}, {}",
        ratio(own.ratio),
        interval(own.ratio_interval),
        number(own.value.median),
        peer.name,
        number(best.value.median),
        count(own.flushes_per_operation),
        count(best.flushes_per_operation)
    )
}

/// Ratios to the contestant that keeps nothing.
fn beside_floor(text: &mut String, floor: &str, measured: &[(&String, Figures)]) {
    let _ = writeln!(text, "  {:NAME_WIDTH$} {:>20} {:>11}", "beside the floor", format!("×{floor}"), "95 %");
    for (name, figures) in measured.iter().filter(|(_, figures)| figures.floor_ratio.is_some()) {
        let _ = writeln!(
            text,
            "  {name:NAME_WIDTH$} {:>20} {:>11}",
            ratio(figures.floor_ratio),
            interval(figures.floor_ratio_interval)
        );
    }
}

/// How many there were, and how that compares.
fn rates(figures: &Figures) -> String {
    let spread = format!("{}..{}", number(figures.value.min), number(figures.value.max));
    format!(
        "{:>10} {spread:>17} {:>9} {:>11}",
        number(figures.value.median),
        ratio(figures.ratio),
        interval(figures.ratio_interval)
    )
}

/// The costs of each.
fn costs(figures: &Figures) -> String {
    format!(
        "{:>7} {:>8} {:>7} {:>14} {:>7} {:>7}",
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
    use crate::outcome::tests::{column, row};
    use crate::workload::Unit;

    #[test]
    fn ratios_are_those_to_the_best_peer() {
        let report = Report { rows: vec![row(Unit::PerSecond("fsyncs"))], ..Report::default() };
        let text = table(&report);
        assert!(text.contains("K5: writing <fast>, 8 jobs"), "{text}");
        assert!(text.contains("×xfs"), "{text}");
        let lines: Vec<_> = text.lines().filter(|line| line.trim().starts_with("syncline")).collect();
        let words = |line: usize| lines[line].split_whitespace().collect::<Vec<_>>();
        assert_eq!(words(0), ["syncline", "200", "100..300", "2.00", "–"]);
        assert_eq!(words(1), ["syncline", "1.00", "5.00", "1.00", "3.00", "(2.00)", "2.00", "5.00"]);
        assert!(text.lines().all(|line| line.chars().count() <= COLUMNS), "{text}");
    }
    #[test]
    fn ratios_to_the_floor_have_lines_of_their_own() {
        let mut row = row(Unit::PerSecond("fsyncs"));
        row.columns.push(column("null-flush/uring", true, &[400, 400, 400]));
        let text = table(&Report { rows: vec![row], ..Report::default() });
        let mut lines = text.lines().skip_while(|line| !line.contains("×null-flush/uring"));
        let mut words = || lines.next().unwrap().split_whitespace().collect::<Vec<_>>();
        assert_eq!(words()[3..], ["×null-flush/uring", "95", "%"]);
        assert_eq!(words(), ["syncline", "0.50", "0.25..0.75"]);
        assert_eq!(words(), ["ext4", "0.12", "–"]);
        assert_eq!(words(), ["xfs", "0.25", "–"]);
        assert!(words().is_empty(), "it has no ratio to itself: {text}");
        assert!(text.lines().all(|line| line.chars().count() <= COLUMNS), "{text}");
    }

    #[test]
    fn disks_have_a_column_each() {
        let on = |disk: &str| Row { disk: disk.into(), ..row(Unit::PerSecond("fsyncs")) };
        let rows = vec![on("plain"), on("2ms a flush")];
        let text = table(&Report { rows, ..Report::default() });
        assert!(text.contains("| | plain | 2ms a flush |"), "{text}");
        let line =
            text.lines().find(|line| line.starts_with("| writing <fast>, 8 jobs: syncline |")).unwrap();
        let cell = "2.00 (–) 200, xfs 100; flushes 1.00, 1.00";
        assert_eq!(line.matches(cell).count(), 2, "{line}");
        let one = table(&Report { rows: vec![on("plain")], ..Report::default() });
        assert!(!one.contains("| | plain"), "{one}");
    }
}
