//! The panels of a page.

use super::files::{Files, NamedFile};
use crate::live::{Interval, Spread};
use ratatui::layout::Constraint;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Block, Row, Table};

/// Columns from which on all figures of a file are shown.
const WIDE_ENOUGH: u16 = 72;

fn framed(title: &str) -> Block<'static> {
    Block::bordered()
        .border_style(Style::new().fg(Color::DarkGray))
        .title(Line::styled(format!(" {title} "), Style::new().add_modifier(Modifier::BOLD)))
}

/// Names on the left, values on the right.
fn list(title: &str, lines: impl IntoIterator<Item = (&'static str, String)>) -> Table<'static> {
    let rows =
        lines.into_iter().map(|(name, value)| Row::new([Line::raw(name), Line::raw(value).right_aligned()]));
    Table::new(rows, [Constraint::Length(13), Constraint::Fill(1)]).block(framed(title))
}

/// Calls and flushes.
pub fn syncs(interval: &Interval) -> Table<'static> {
    let (syncs, flushes) = (&interval.syncs, &interval.flushes);
    let lines = [
        ("fsyncs/s", rate(syncs.fsyncs_per_second)),
        ("fdatasyncs/s", rate(syncs.fdatasyncs_per_second)),
        ("dir fsyncs/s", rate(syncs.directory_fsyncs_per_second)),
        ("issued/s", rate(flushes.issued_per_second)),
        ("joined/s", rate(flushes.joined_per_second)),
        ("elided/s", rate(flushes.elided_per_second)),
    ];
    list("syncs and flushes", lines)
}

/// Times, and the size of groups.
pub fn latency(interval: &Interval) -> Table<'static> {
    let spreads = &interval.spreads;
    let names = ["µs", "count", "p50", "p90", "p99", "p99.9", "max"];
    let row = |name: &'static str, spread: &Spread| {
        let values = [spread.p50, spread.p90, spread.p99, spread.p999, spread.max].map(number);
        let cells = std::iter::once(spread.count.to_string()).chain(values);
        let right = cells.map(|text| Line::raw(text).right_aligned());
        Row::new(std::iter::once(Line::raw(name)).chain(right))
    };
    let rows = [
        row("fsync", &spreads.fsync_us),
        row("gather", &spreads.gather_us),
        row("write", &spreads.write_us),
        row("flush", &spreads.flush_us),
        row("group size", &spreads.group_size),
    ];
    let widths = [Constraint::Length(10), Constraint::Length(8)].into_iter().chain([Constraint::Fill(1); 5]);
    let head = names
        .iter()
        .enumerate()
        .map(|(at, name)| if at == 0 { Line::raw(*name) } else { Line::raw(*name).right_aligned() });
    Table::new(rows, widths)
        .header(Row::new(head).style(Style::new().fg(Color::Cyan)))
        .block(framed("latency"))
}

/// Log and checkpoints.
pub fn log(interval: &Interval) -> Table<'static> {
    let log = &interval.log;
    let checkpoint = &interval.spreads.checkpoint_us;
    let longest =
        if checkpoint.count > 0 { format!("{} ms", number(checkpoint.max / 1000.0)) } else { "-".into() };
    let lines = [
        ("batches/s", rate(log.batches_per_second)),
        ("log/s", bytes(log.bytes_per_second)),
        ("items/s", rate(log.items_per_second)),
        ("coalesced/s", rate(log.coalesced_per_second)),
        ("checkpoints", format!("{} ({}/s)", log.checkpoints, rate(log.checkpoints_per_second))),
        ("longest", longest),
        ("nodes wr./s", rate(log.nodes_written_per_second)),
    ];
    list("log and checkpoints", lines)
}

/// The device.
pub fn device(interval: &Interval) -> Table<'static> {
    let device = &interval.device;
    let amplification = device.write_amplification.map_or("-".to_owned(), |ratio| format!("{ratio:.2}"));
    let lines = [
        ("writes/s", rate(device.writes_per_second)),
        ("written/s", bytes(device.write_bytes_per_second)),
        ("data/s", bytes(device.data_bytes_per_second)),
        ("callers/s", bytes(device.written_bytes_per_second)),
        ("amplif.", format!("{amplification} (mount {:.2})", device.write_amplification_since_mount)),
        ("reads/s", rate(device.reads_per_second)),
        ("read/s", bytes(device.read_bytes_per_second)),
    ];
    list("device", lines)
}

/// Memory.
pub fn memory(interval: &Interval) -> Table<'static> {
    let memory = &interval.memory;
    let hits = memory.inode_hit_ratio.map_or("-".to_owned(), |ratio| format!("{:.0}%", ratio * 100.0));
    let lines = [
        ("resident", bytes(memory.resident_bytes as f64)),
        ("dirty data", bytes(memory.dirty_bytes as f64)),
        ("memtable", bytes(memory.memtable_bytes as f64)),
        ("log pending", bytes(memory.pending_log_bytes as f64)),
        ("node cache", bytes(memory.node_cache_bytes as f64)),
        ("inodes, hits", format!("{}, {hits}", memory.inodes_cached)),
        ("CPU", format!("{:.0}%", memory.cpu_seconds_per_second * 100.0)),
    ];
    list("memory and CPU", lines)
}

/// Requests by kind.
pub fn requests(interval: &Interval) -> Table<'static> {
    let rows = interval.requests.iter().map(|(kind, per_second)| {
        Row::new([Line::raw(kind.clone()), Line::raw(rate(*per_second)).right_aligned()])
    });
    Table::new(rows, [Constraint::Length(14), Constraint::Fill(1)]).block(framed("requests/s"))
}

/// The files that are synced most, in so many columns.
pub fn files(files: &Files, width: u16) -> Table<'static> {
    if let Some(why) = files.refused {
        return Table::new([Row::new([why])], [Constraint::Fill(1)]).block(framed("files"));
    }
    // Of the figures of a file only the first and the one that they are sorted by leave room for its name on a narrow page.
    let names = ["syncs", "elided", "mean µs", "max µs", "KiB"];
    let chosen = files.sort.column();
    let shown = |at: &usize| width >= WIDE_ENOUGH || *at == 0 || names[*at] == chosen;
    let columns: Vec<usize> = (0..names.len()).filter(shown).collect();
    let mark = |name: &str| if name == chosen { format!("{name}*") } else { name.to_owned() };
    let heading = columns.iter().map(|&at| Line::raw(mark(names[at])).right_aligned());
    let head = Row::new(heading.chain([Line::raw("file")])).style(Style::new().fg(Color::Cyan));
    let widths = columns.iter().map(|_| Constraint::Length(9)).chain([Constraint::Fill(1)]);
    let title = match files.missed {
        0 => "files".to_owned(),
        missed => format!("files (without {missed} syncs: fewer receipts are kept than come in an interval)"),
    };
    let rows = files.list.iter().map(|file| file_row(file, &columns));
    Table::new(rows, widths).header(head).block(framed(&title))
}

fn file_row(file: &NamedFile, columns: &[usize]) -> Row<'static> {
    let busy = &file.busy;
    let values = [
        busy.syncs.to_string(),
        busy.elided.to_string(),
        number(busy.total_ns as f64 / 1000.0 / busy.syncs.max(1) as f64),
        number(busy.max_ns as f64 / 1000.0),
        number(busy.bytes as f64 / 1024.0),
    ];
    let name = file.path.clone().unwrap_or_else(|| format!("inode {}", busy.inode));
    let cells = columns.iter().map(|&at| Line::raw(values[at].clone()).right_aligned());
    Row::new(cells.chain([Line::raw(name)]))
}

/// A rate, with a fraction where it matters.
fn rate(per_second: f64) -> String {
    number(per_second)
}

/// Three digits or more.
fn number(value: f64) -> String {
    match value {
        0.0 => "0".to_owned(),
        value if value < 9.95 => format!("{value:.1}"),
        value => format!("{value:.0}"),
    }
}

/// A size.
fn bytes(value: f64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let (mut value, mut unit) = (value, 0);
    while value >= 1000.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{value:.0} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_as_exact_as_they_need_to_be() {
        assert_eq!([0.0, 0.25, 9.94, 9.96, 12345.6].map(number), ["0", "0.2", "9.9", "10", "12346"]);
        assert_eq!(
            [0.0, 999.0, 1536.0, 1048576.0, 1e30].map(bytes)[..4],
            ["0 B", "999 B", "1.5 KiB", "1.0 MiB"]
        );
    }
}
