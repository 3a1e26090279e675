//! The panels of a page.

use super::files::{Files, NamedFile};
use crate::live::{Interval, Spread};
use ratatui::layout::Constraint;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Block, BorderType, Padding, Row, Table};

/// From this width on, all figures of a file are shown.
const WIDE_ENOUGH: u16 = 72;
/// From this width on, all percentiles of times are shown.
const LATENCY_COLUMNS: u16 = 64;

const HEADING: Style = Style::new().fg(Color::Cyan);
const VALUE: Style = Style::new().add_modifier(Modifier::BOLD);
/// The style of frames and of empty values.
const FAINT: Style = Style::new().fg(Color::DarkGray);

fn framed(title: &str) -> Block<'static> {
    Block::bordered()
        .border_type(BorderType::Rounded)
        .border_style(FAINT)
        .padding(Padding::horizontal(1))
        .title(Line::styled(format!(" {title} "), VALUE.fg(Color::Reset)))
}

/// A value, right-aligned in its column.
fn value(text: String) -> Line<'static> {
    let style = if matches!(text.as_str(), "0" | "0 B" | "-") { FAINT } else { VALUE };
    Line::styled(text, style).right_aligned()
}

/// Names on the left, values on the right.
fn list(title: &str, lines: impl IntoIterator<Item = (&'static str, String)>) -> Table<'static> {
    let rows = lines.into_iter().map(|(name, text)| Row::new([Line::raw(name), value(text)]));
    Table::new(rows, [Constraint::Length(13), Constraint::Fill(1)]).block(framed(title))
}

/// Calls and flushes.
pub fn syncs(interval: &Interval) -> Table<'static> {
    let (syncs, flushes) = (&interval.syncs, &interval.flushes);
    let all = syncs.fsyncs_per_second + syncs.fdatasyncs_per_second + syncs.directory_fsyncs_per_second;
    let shared =
        if flushes.issued_per_second > 0.0 { number(all / flushes.issued_per_second) } else { "-".into() };
    let lines = [
        ("fsyncs/s", rate(syncs.fsyncs_per_second)),
        ("fdatasyncs/s", rate(syncs.fdatasyncs_per_second)),
        ("dir fsyncs/s", rate(syncs.directory_fsyncs_per_second)),
        ("ordered/s", rate(syncs.ordered_per_second)),
        ("issued/s", rate(flushes.issued_per_second)),
        ("syncs a flush", shared),
        ("joined/s", rate(flushes.joined_per_second)),
        ("elided/s", rate(flushes.elided_per_second)),
    ];
    list("syncs and flushes", lines)
}

/// Times, and the size of groups.
pub fn latency(interval: &Interval, width: u16) -> Table<'static> {
    let spreads = &interval.spreads;
    let names = ["p50", "p90", "p99", "p99.9", "max"];
    let columns: &[usize] = if width < LATENCY_COLUMNS { &[0, 1, 2, 4] } else { &[0, 1, 2, 3, 4] };
    let row = |name: &'static str, spread: &Spread, show: fn(f64) -> String| {
        let values = [spread.p50, spread.p90, spread.p99, spread.p999, spread.max];
        let values = columns
            .iter()
            .map(|&at| values[at])
            .map(|one| if spread.count == 0 { "-".to_owned() } else { show(one) });
        let cells = std::iter::once(spread.count.to_string()).chain(values).map(value);
        Row::new(std::iter::once(Line::raw(name)).chain(cells))
    };
    let rows = [
        row("fsync", &spreads.fsync_us, time),
        row("  gather", &spreads.gather_us, time),
        row("  write", &spreads.write_us, time),
        row("  flush", &spreads.flush_us, time),
        row("group size", &spreads.group_size, number),
    ];
    let widths = [Constraint::Length(10), Constraint::Length(7)];
    let widths = widths.into_iter().chain(columns.iter().map(|_| Constraint::Fill(1)));
    let names = std::iter::once("count").chain(columns.iter().map(|&at| names[at]));
    let names = names.map(|name| Line::raw(name).right_aligned());
    let head = Row::new(std::iter::once(Line::raw("")).chain(names)).style(HEADING);
    Table::new(rows, widths).header(head).block(framed("latency"))
}

/// Log and checkpoints.
pub fn log(interval: &Interval) -> Table<'static> {
    let log = &interval.log;
    let checkpoint = &interval.spreads.checkpoint_us;
    let longest = if checkpoint.count > 0 { time(checkpoint.max) } else { "-".into() };
    let lines = [
        ("batches/s", rate(log.batches_per_second)),
        ("log/s", bytes(log.bytes_per_second)),
        ("checkpoints", log.checkpoints.to_string()),
        ("  the longest", longest),
        ("items/s", rate(log.items_per_second)),
        ("coalesced/s", rate(log.coalesced_per_second)),
        ("tree nodes/s", rate(log.nodes_written_per_second)),
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
        ("programs/s", bytes(device.written_bytes_per_second)),
        ("amplification", amplification),
        ("data/s", bytes(device.data_bytes_per_second)),
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
        ("CPU", format!("{:.0}%", memory.cpu_seconds_per_second * 100.0)),
        ("dirty data", bytes(memory.dirty_bytes as f64)),
        ("inodes", memory.inodes_cached.to_string()),
        ("inode hits", hits),
        ("memtable", bytes(memory.memtable_bytes as f64)),
        ("log pending", bytes(memory.pending_log_bytes as f64)),
        ("node cache", bytes(memory.node_cache_bytes as f64)),
    ];
    list("memory and CPU", lines)
}

/// Requests by kind, with their share of the most frequent kind where there is room for a bar.
pub fn requests(interval: &Interval, width: u16) -> Table<'static> {
    const KIND_COLUMNS: u16 = 11;
    const RATE_COLUMNS: u16 = 6;
    // Two borders, two of padding, two between columns.
    let room = width.saturating_sub(KIND_COLUMNS + RATE_COLUMNS + 6);
    let most = interval.requests.iter().map(|(_, per_second)| *per_second).fold(0.0, f64::max);
    let rows = interval.requests.iter().map(|(kind, per_second)| {
        Row::new([
            Line::raw(kind.clone()),
            value(rate(*per_second)),
            Line::styled(bar(per_second / most, room), Style::new().fg(Color::Blue)),
        ])
    });
    let widths =
        [Constraint::Length(KIND_COLUMNS), Constraint::Length(RATE_COLUMNS), Constraint::Length(room)];
    Table::new(rows, widths).block(framed("requests/s"))
}

/// A bar for this part of so many columns, to an eighth of a column.
fn bar(part: f64, columns: u16) -> String {
    const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    if !part.is_finite() {
        return String::new();
    }
    let eighths = (part.clamp(0.0, 1.0) * f64::from(columns) * 8.0).round() as usize;
    "█".repeat(eighths / 8) + EIGHTHS[eighths % 8]
}

/// The most synced files, in this many columns.
pub fn files(files: &Files, width: u16) -> Table<'static> {
    if let Some(why) = files.refused {
        return Table::new([Row::new([why])], [Constraint::Fill(1)]).block(framed("files"));
    }
    // On a narrow page, only the first figure and the one that files are sorted by are shown, to
    // leave room for the name.
    let names = ["syncs", "elided", "mean", "longest", "written"];
    let chosen = files.sort.column();
    let shown = |at: &usize| width >= WIDE_ENOUGH || *at == 0 || names[*at] == chosen;
    let columns: Vec<usize> = (0..names.len()).filter(shown).collect();
    let mark = |name: &str| if name == chosen { format!("{name}*") } else { name.to_owned() };
    let heading = columns.iter().map(|&at| Line::raw(mark(names[at])).right_aligned());
    let head = Row::new(heading.chain([Line::raw("file")])).style(HEADING);
    let widths = columns.iter().map(|_| Constraint::Length(9)).chain([Constraint::Fill(1)]);
    let title = match files.missed {
        0 => "files".to_owned(),
        missed => format!("files (without {missed} syncs: an interval has more syncs than receipts)"),
    };
    let rows = files.list.iter().map(|file| file_row(file, &columns));
    Table::new(rows, widths).header(head).block(framed(&title))
}

fn file_row(file: &NamedFile, columns: &[usize]) -> Row<'static> {
    let busy = &file.busy;
    let values = [
        busy.syncs.to_string(),
        busy.elided.to_string(),
        time(busy.total_ns as f64 / 1000.0 / busy.syncs.max(1) as f64),
        time(busy.max_ns as f64 / 1000.0),
        bytes(busy.bytes as f64),
    ];
    let name = file.path.clone().unwrap_or_else(|| format!("inode {}", busy.inode));
    let cells = columns.iter().map(|&at| value(values[at].clone()));
    Row::new(cells.chain([Line::raw(name)]))
}

/// A rate, with a fraction for small values.
fn rate(per_second: f64) -> String {
    number(per_second)
}

/// A number with one decimal if it is small.
fn number(value: f64) -> String {
    match value {
        0.0 => "0".to_owned(),
        value if value < 9.95 => format!("{value:.1}"),
        value => format!("{value:.0}"),
    }
}

/// A time, given in microseconds, in a suitable unit.
pub fn time(us: f64) -> String {
    match us {
        us if us < 999.5 => format!("{} µs", number(us)),
        us if us < 999_500.0 => format!("{} ms", number(us / 1000.0)),
        us => format!("{} s", number(us / 1e6)),
    }
}

/// A size.
pub fn bytes(value: f64) -> String {
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
        assert_eq!(
            [0.0, 7.25, 999.0, 999.6, 12_345.0, 2_500_000.0].map(time),
            ["0 µs", "7.2 µs", "999 µs", "1.0 ms", "12 ms", "2.5 s"]
        );
    }

    #[test]
    fn bars_are_as_long_as_their_part() {
        assert_eq!(bar(1.0, 3), "███");
        assert_eq!(bar(0.5, 3), "█▌");
        assert_eq!((bar(0.0, 3), bar(f64::NAN, 3)), (String::new(), String::new()));
    }
}
