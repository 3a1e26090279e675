//! `stats --watch`: a line for each interval, as vmstat(8) prints them.

use crate::failure::Failure;
use crate::live::{Interval, Sample};
use crate::printed;
use std::io::{ErrorKind, Write};
use std::path::Path;
use std::time::Duration;

/// Lines between two headings.
const HEADING_EVERY: usize = 20;
const HEADING: &str = "\
fsync/s fdata/s  p50 µs  p99 µs  max µs group issued joined elided  batch/s  log KiB/s  dev KiB/s amplif. ckpt dirty KiB";

/// Prints a line, or a JSON object on a line, for each interval until the mount is gone or the
/// reader closes the pipe.
pub fn watch(directory: &Path, every: Duration, json: bool) -> Result<(), Failure> {
    let mut earlier = Sample::take(directory)?;
    for number in 0.. {
        std::thread::sleep(every);
        let later = Sample::take_again(directory)?;
        if later.is_of_same_daemon(&earlier) {
            let interval = Interval::between(&earlier, &later);
            let mut text = if json { json_line(&interval) } else { line(&interval) };
            if !json && number % HEADING_EVERY == 0 {
                text = format!("{HEADING}\n{text}");
            }
            let mut output = printed::stdout();
            match writeln!(output, "{text}").and_then(|()| output.flush()) {
                // The reader has closed the pipe.
                Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(()),
                written => written?,
            }
        }
        earlier = later;
    }
    Ok(())
}

fn json_line(interval: &Interval) -> String {
    serde_json::to_string(interval).expect("numbers and texts are JSON")
}

fn line(interval: &Interval) -> String {
    let (syncs, flushes, fsync) = (&interval.syncs, &interval.flushes, &interval.spreads.fsync_us);
    let kib = |bytes: f64| bytes / 1024.0;
    let amplification =
        interval.device.write_amplification.map_or("-".to_owned(), |ratio| format!("{ratio:.2}"));
    format!(
        "{:7.0} {:7.0} {:7.0} {:7.0} {:7.0} {:5.1} {:6.0} {:6.0} {:6.0} {:8.0} {:10.0} {:10.0} {:>7} {:4.0} {:9.0}",
        syncs.fsyncs_per_second,
        syncs.fdatasyncs_per_second,
        fsync.p50,
        fsync.p99,
        fsync.max,
        interval.spreads.group_size.mean,
        flushes.issued_per_second,
        flushes.joined_per_second,
        flushes.elided_per_second,
        interval.log.batches_per_second,
        kib(interval.log.bytes_per_second),
        kib(interval.device.write_bytes_per_second),
        amplification,
        interval.log.checkpoints_per_second * interval.seconds,
        kib(interval.memory.dirty_bytes as f64),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_stand_below_their_headings() {
        let mut interval = Interval::default();
        interval.device.write_amplification = Some(1.0);
        assert_eq!(line(&interval).chars().count(), HEADING.chars().count());
        assert_eq!(line(&interval).split_whitespace().count(), 15);
    }
}
