//! The page and its layout.

use super::panels;
use super::state::State;
use crate::commands::remote;
use crate::live::Spread;
use crate::printed::one_line;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Paragraph, Sparkline};
use std::time::Duration;

/// Below this width only the most important panels are shown.
const WIDE: u16 = 80;
/// From this height on, the curve has more than one line.
const TALL: u16 = 32;
const CURVE_LINES: u16 = 4;
const BLOCK: u64 = syncline_format::BLOCK_BYTES as u64;

const HELP: &str = "\
q, Esc     quit
p, Space   pause, go on
+, -       longer, shorter interval
s          sort files by syncs, time, longest sync, bytes
h, ?       this help

ordered    syncs that waited for no flush, by class
issued     flushes that reached the device
joined     batches that shared another batch's flush
elided     fsyncs that needed none any more
a flush    syncs for each flush that was issued
group size fsyncs that shared one log batch
amplification  device bytes for each byte of data
net        p50/p99 of its requests; lease: what is left
'syncline explain FILE' tells why an fsync took
what it took.";

/// Draws all of it.
pub fn draw(frame: &mut Frame<'_>, state: &State) {
    let curve_lines = if frame.area().height >= TALL { CURVE_LINES } else { 1 };
    let network = network(state);
    let network_lines = u16::from(network.is_some());
    let rows = [
        Constraint::Length(1),
        Constraint::Length(network_lines),
        Constraint::Length(curve_lines),
        Constraint::Fill(1),
        Constraint::Length(1),
    ];
    let [head, second, curve, body, foot] = Layout::vertical(rows).areas(frame.area());
    frame.render_widget(Paragraph::new(title(state)), head);
    frame.render_widget(network.map(Paragraph::new).unwrap_or_default(), second);
    draw_curve(frame, state, curve);
    match &state.interval {
        Some(_) if body.width >= WIDE => draw_wide(frame, state, body),
        Some(_) => draw_narrow(frame, state, body),
        None => frame.render_widget(Paragraph::new("measuring ..."), body),
    }
    frame.render_widget(Paragraph::new(keys(state)), foot);
    if state.helping {
        draw_help(frame);
    }
}

fn title(state: &State) -> Line<'static> {
    let strong = Style::new().add_modifier(Modifier::BOLD);
    let sample = &state.sample;
    let mut spans = vec![Span::styled("syncline top ", strong.fg(Color::Cyan))];
    // The important parts come before paths, which may be long.
    if state.paused {
        spans.push(Span::styled("PAUSED ", strong.fg(Color::Yellow)));
    }
    if sample.stats["lost"].is_object() {
        spans.push(Span::styled("IMAGE LOST: unmount, and mount again ", strong.fg(Color::Red)));
    } else if sample.stats["read_only"].is_string() {
        spans.push(Span::styled("READ-ONLY ", strong.fg(Color::Red)));
    }
    let failed = state.interval.as_ref().map_or(0, |interval| interval.flushes.failed);
    if failed > 0 {
        spans.push(Span::styled(format!("{failed} FLUSHES FAILED "), strong.fg(Color::Red)));
    }
    spans.push(Span::styled(one_line(state.directory.display()), strong));
    let (free, all) = (sample.number("/space/free_blocks"), sample.number("/space/total_blocks"));
    let room = format!(
        "{} of {} used",
        panels::bytes((all.saturating_sub(free) * BLOCK) as f64),
        panels::bytes((all * BLOCK) as f64)
    );
    let (up, transport) = (duration(sample.uptime()), sample.text("/daemon/transport"));
    let mut facts = vec![format!("up {up}"), room, format!("{transport} transport")];
    // The image comes last: it may be long, and is cut off if there is no room.
    facts.push(one_line(sample.text("/daemon/image")));
    for fact in facts {
        spans.push(Span::styled("  ·  ", Style::new().fg(Color::DarkGray)));
        spans.push(Span::raw(fact));
    }
    if let Some(why) = sample.stats["read_only"].as_str() {
        spans.push(Span::raw(format!("  {why}")));
    }
    Line::from(spans)
}

/// The network and the device lease in a line; or that the image was lost.
fn network(state: &State) -> Option<Line<'static>> {
    if let Some(lost) = remote::in_words(&state.sample.stats["lost"]) {
        return Some(Line::styled(one_line(lost), Style::new().fg(Color::Red)));
    }
    let interval = state.interval.as_ref()?;
    let mut words = Vec::new();
    if let Some(network) = &interval.network {
        let times = |name: &str, spread: &Spread| match spread.count {
            0 => format!("{name} -"),
            _ => format!("{name} {}/{}", panels::time(spread.p50), panels::time(spread.p99)),
        };
        words.push(times("write", &network.write_us));
        words.push(times("flush", &network.flush_us));
        words.push(match (network.connections, network.reconnects) {
            (0, _) => "SERVER AWAY".to_owned(),
            (_, reconnects) => format!("reconnects {reconnects}"),
        });
    }
    words.extend(interval.lease.as_ref().map(|lease| format!("lease {:.1} s", lease.left_seconds)));
    (!words.is_empty()).then(|| Line::raw(format!("net  {}", words.join("  "))))
}

fn keys(state: &State) -> Line<'static> {
    let every = format!("every {} s", state.every.as_secs_f64());
    let sort = format!("sort by {}", state.files.sort.column());
    let keys =
        [("q", "quit".to_owned()), ("p", "pause".into()), ("+-", every), ("s", sort), ("h", "help".into())];
    let key = Style::new().fg(Color::Cyan).add_modifier(Modifier::BOLD);
    let spans =
        keys.into_iter().flat_map(|(name, what)| [Span::styled(name, key), Span::raw(format!(" {what}   "))]);
    Line::from(spans.collect::<Vec<_>>())
}

/// The last syncs per second, the newest on the right.
fn draw_curve(frame: &mut Frame<'_>, state: &State, area: Rect) {
    let [label, curve] = Layout::horizontal([Constraint::Length(12), Constraint::Fill(1)]).areas(area);
    let newest = state.history.back().copied().unwrap_or(0);
    let highest = state.history.iter().copied().max().unwrap_or(0);
    let strong = Style::new().fg(Color::Green).add_modifier(Modifier::BOLD);
    let mut lines = vec![Line::raw("syncs/s")];
    if label.height > 1 {
        lines.push(Line::styled(newest.to_string(), strong));
        lines.push(Line::styled(format!("peak {highest}"), Style::new().fg(Color::DarkGray)));
    }
    frame.render_widget(Paragraph::new(lines), label);
    let room = usize::from(curve.width);
    let newest: Vec<u64> =
        state.history.iter().copied().skip(state.history.len().saturating_sub(room)).collect();
    let blank = room - newest.len();
    let data: Vec<u64> = std::iter::repeat_n(0, blank).chain(newest).collect();
    frame.render_widget(Sparkline::default().data(&data).style(Style::new().fg(Color::Green)), curve);
}

fn draw_wide(frame: &mut Frame<'_>, state: &State, area: Rect) {
    let Some(interval) = &state.interval else { return };
    // On a low page the panels lose their last lines, so that files are visible; the most important
    // lines come first.
    let heights = if frame.area().height >= TALL { (9, 10) } else { (8, 6) };
    let rows = [Constraint::Length(heights.0), Constraint::Length(heights.1), Constraint::Fill(1)];
    let [upper, middle, lower] = Layout::vertical(rows).areas(area);
    // One grid for all rows: one third and two thirds.
    let thirds = Layout::horizontal([Constraint::Fill(1); 3]);
    let split = |area: Rect| {
        let [first, second, third] = thirds.areas(area);
        (first, second.union(third))
    };
    let (left, right) = split(upper);
    frame.render_widget(panels::syncs(interval), left);
    frame.render_widget(panels::latency(interval, right.width), right);
    let [log, device, memory] = thirds.areas(middle);
    frame.render_widget(panels::log(interval), log);
    frame.render_widget(panels::device(interval), device);
    frame.render_widget(panels::memory(interval), memory);
    let (kinds, files) = split(lower);
    frame.render_widget(panels::requests(interval, kinds.width), kinds);
    frame.render_widget(panels::files(&state.files, files.width), files);
}

fn draw_narrow(frame: &mut Frame<'_>, state: &State, area: Rect) {
    let Some(interval) = &state.interval else { return };
    let rows = [Constraint::Length(8), Constraint::Length(8), Constraint::Fill(1)];
    let [upper, middle, lower] = Layout::vertical(rows).areas(area);
    frame.render_widget(panels::syncs(interval), upper);
    frame.render_widget(panels::latency(interval, middle.width), middle);
    frame.render_widget(panels::files(&state.files, lower.width), lower);
}

fn draw_help(frame: &mut Frame<'_>) {
    let (width, height) = (54, HELP.lines().count() as u16 + 2);
    let area = frame.area();
    let area =
        area.centered(Constraint::Length(width.min(area.width)), Constraint::Length(height.min(area.height)));
    frame.render_widget(Clear, area);
    frame.render_widget(Paragraph::new(HELP).block(Block::bordered().title(" help ")), area);
}

/// A time span in at most two units.
fn duration(span: Duration) -> String {
    let seconds = span.as_secs();
    match (seconds / 86400, seconds / 3600 % 24, seconds / 60 % 60, seconds % 60) {
        (0, 0, 0, seconds) => format!("{seconds}s"),
        (0, 0, minutes, seconds) => format!("{minutes}m{seconds:02}s"),
        (0, hours, minutes, _) => format!("{hours}h{minutes:02}m"),
        (days, hours, _, _) => format!("{days}d{hours:02}h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_spans_are_short() {
        let told = |seconds| duration(Duration::from_secs(seconds));
        assert_eq!([told(7), told(67), told(3700), told(90_000)], ["7s", "1m07s", "1h01m", "1d01h"]);
    }
}
