//! Texts for points, states and what they lost.

use crate::failure::Failure;
use crate::size;
use syncline_cuts::{Cause, Failing, Names, Recording, describe, describe_next, points};
use syncline_powercut::Fate;

/// Up to this many open writes, the number of images is written out.
const WRITTEN_OUT_MAX: usize = 16;
/// Lines of a checker's output that are shown.
const OUTPUT_LINES_MAX: usize = 40;
/// Longest text of a printed line.
const LINE_CHARS_MAX: usize = 60;
/// Open writes shown one by one.
const WRITES_MAX: usize = 40;

/// A cause in words.
pub fn cause_text(cause: &Cause, names: &Names) -> String {
    match cause {
        Cause::Begin => "COMMAND begins".to_owned(),
        Cause::Flush => "flush".to_owned(),
        Cause::Fsync(ino) => format!("fsync {}", names.path(*ino)),
        Cause::Fdatasync(ino) => format!("fdatasync {}", names.path(*ino)),
        Cause::SyncFs => "sync of everything".to_owned(),
        Cause::Line(line) => format!("printed '{}'", short(line)),
        Cause::Ended => "COMMAND has ended".to_owned(),
        Cause::Unmounted => "unmounted".to_owned(),
    }
}

/// The start of a printed line, safe for a terminal.
pub fn short(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(line);
    let clean: String = text.trim_end().chars().map(|c| if c.is_control() { '?' } else { c }).collect();
    match clean.char_indices().nth(LINE_CHARS_MAX) {
        Some((end, _)) => format!("{}...", &clean[..end]),
        None => clean,
    }
}

/// How many images these open writes can leave.
pub fn images_text(open_writes: usize) -> String {
    if open_writes <= WRITTEN_OUT_MAX {
        (1_u64 << open_writes).to_string()
    } else {
        format!("~2^{open_writes}")
    }
}

/// The full report of a failing state.
pub fn failing_text(recording: &Recording, failing: &Failing) -> Result<String, Failure> {
    let state = &failing.state;
    let cut = recording.cut(state.position);
    let mut text = format!("State {state} fails: a power cut after event {}", state.position);
    let before = points(recording).into_iter().rfind(|point| point.position <= state.position);
    let mut names = Names::new(recording)?;
    names.advance(recording, state.position);
    if let Some(point) = before {
        let causes: Vec<String> = point.causes.iter().map(|cause| cause_text(cause, &names)).collect();
        text += &format!(" ({:.3} ms; after: {})", point.time_ns as f64 / 1e6, causes.join(", "));
    }
    let writes = describe(recording, state, &cut)?;
    if writes.is_empty() {
        text += "\nNo write was in flight. These writes are missing, and came later:";
        let next = describe_next(recording, state.position)?;
        next.iter().take(WRITES_MAX).for_each(|what| text += &format!("\n      {what}"));
        match next.len() {
            0 => text += "\n      nothing more was written",
            count if count > WRITES_MAX => text += &format!("\n      ... and {} more", count - WRITES_MAX),
            _ => {}
        }
    } else {
        text += "\nOn their way, not covered by a flush:";
    }
    for (number, write) in (1..).zip(&writes).take(WRITES_MAX) {
        let fate = match write.fate {
            Fate::Kept => "arrived",
            Fate::Lost => "LOST",
            Fate::Torn(_) => "TORN",
        };
        text += &format!("\n  {number:>3} {fate:<8} {} ({})", write.what, size::show(write.bytes));
    }
    if writes.len() > WRITES_MAX {
        text += &format!("\n  ... and {} more", writes.len() - WRITES_MAX);
    }
    let lines = recording.lines_before(state.position);
    let printed = recording.printed(lines);
    let last = printed.trim_ascii_end().rsplit(|byte| *byte == b'\n').next().unwrap_or_default();
    text += &match lines {
        0 => "\nCOMMAND had printed nothing yet.".to_owned(),
        _ => format!("\nCOMMAND had printed {lines} lines; the last: {}", short(last)),
    };
    text += "\nThe checker:";
    let output: Vec<&str> = failing.output.trim_end().lines().collect();
    let skipped = output.len().saturating_sub(OUTPUT_LINES_MAX);
    if skipped > 0 {
        text += &format!("\n  ... {skipped} lines before");
    }
    output[skipped..].iter().for_each(|line| text += &format!("\n  {line}"));
    Ok(text)
}
