//! A mount's activity in ten lines, and a few more for an image on a network.

use super::network;
use crate::commands::remote;
use crate::live::Sample;
use crate::printed::one_line;
use indicatif::{HumanBytes, HumanCount};
use serde_json::Value;
use std::fmt::Write;
use std::path::Path;

/// How many kinds of requests are named.
const REQUESTS_NAMED: usize = 4;
/// Counters of errors, each with its meaning.
const ERRORS: [(&str, &str); 8] = [
    ("/store/checksum_errors", "damaged blocks read"),
    ("/store/copies_mended", "damaged copies of metadata mended"),
    ("/store/device_reads_failed", "device reads failed"),
    ("/store/device_writes_failed", "device writes failed"),
    ("/store/flushes_failed", "flushes failed"),
    ("/store/checkpoints_failed", "checkpoints failed"),
    ("/files/writeback_errors", "files not written back"),
    ("/scrub/damaged", "extents found damaged by scrub"),
];

/// The lines of the summary.
pub fn text(directory: &Path, sample: &Sample) -> String {
    let number = |pointer: &str| sample.number(pointer);
    let count = |pointer: &str| HumanCount(number(pointer));
    let bytes = |pointer: &str| HumanBytes(number(pointer));
    let mut out = String::new();
    let mut line = |name: &str, what: String| {
        let what = one_line(what);
        writeln!(out, "{name:12}{what}").expect("memory takes text");
    };
    line("mount", format!("{} of {}", directory.display(), sample.text("/daemon/image")));
    line("state", state(sample));
    line("space", space(sample));
    line(
        "fsyncs",
        format!(
            "{}, {}, {} ordered only, {} barriers",
            HumanCount(number("/files/fsyncs") + number("/files/fdatasyncs")),
            latency(sample, "fsync_ns"),
            count("/files/syncs_ordered"),
            count("/files/barriers")
        ),
    );
    line(
        "flushes",
        format!(
            "{} issued, {} joined, {} elided, {}",
            count("/store/flushes_issued"),
            count("/store/flushes_joined"),
            // Those of syncs that found nothing to do, too: they asked for no flush.
            HumanCount(number("/store/flushes_elided") + number("/store/syncs_elided")),
            latency(sample, "flush_ns")
        ),
    );
    line(
        "data",
        format!(
            "{} written, {} read; the device {}, {}",
            bytes("/files/written_bytes"),
            bytes("/files/read_bytes"),
            bytes("/store/device_write_bytes"),
            bytes("/store/device_read_bytes")
        ),
    );
    line(
        "log",
        format!(
            "{} batches, {}; {} checkpoints",
            count("/store/batches"),
            bytes("/store/log_bytes"),
            count("/store/checkpoints")
        ),
    );
    line(
        "memory",
        format!(
            "{} resident: {} dirty, {} of nodes, {} of changes",
            bytes("/process/resident_bytes"),
            bytes("/files/dirty_bytes"),
            bytes("/caches/node_bytes"),
            bytes("/caches/memtable_bytes")
        ),
    );
    for (name, what) in network::lines(sample) {
        line(name, what);
    }
    line("requests", requests(&sample.stats));
    line("errors", errors(sample).unwrap_or_else(|| "none".into()));
    out
}

/// How the filesystem is mounted, since when, and what recovery found.
pub fn state(sample: &Sample) -> String {
    if let Some(lost) = remote::in_words(&sample.stats["lost"]) {
        return format!("{lost}: unmount it, and mount it again");
    }
    let access = match (
        sample.stats.get("read_only").and_then(Value::as_str),
        sample.stats.pointer("/daemon/read_only"),
    ) {
        (Some(reason), _) => format!("read-only ({reason})"),
        (None, Some(Value::Bool(true))) => "read-only".into(),
        _ => "read-write".into(),
    };
    let uptime = humantime::format_duration(std::time::Duration::from_secs(sample.uptime().as_secs()));
    let recovered = match sample.number("/recovery/batches") {
        0 => String::new(),
        batches => format!(", after a crash ({} batches)", HumanCount(batches)),
    };
    let transport = match sample.text("/daemon/transport") {
        "uring" => "io_uring",
        _ => "/dev/fuse",
    };
    let image = match sample.text("/image_changed") {
        "" => String::new(),
        change => format!("; its image file: {change}"),
    };
    format!("{access}{}, over {transport}, for {uptime}{recovered}{image}", promise(sample))
}

/// How the mount promises durability, as its options say it, where that is not the default.
fn promise(sample: &Sample) -> String {
    let class = match sample.text("/daemon/durability") {
        "" | "fsync" => String::new(),
        class => format!(", durability={class}"),
    };
    match sample.text("/daemon/synchronous") {
        "" | "async" => class,
        option => format!("{class}, {option}"),
    }
}

pub fn space(sample: &Sample) -> String {
    const BLOCK: u64 = 4096;
    let (total, free) = (sample.number("/space/total_blocks"), sample.number("/space/free_blocks"));
    let free = free + sample.number("/space/pending_free_blocks");
    let used = total.saturating_sub(free) * 100 / total.max(1);
    let mut text = format!("{}, {used} % used, {} free", HumanBytes(total * BLOCK), HumanBytes(free * BLOCK));
    // An older daemon does not tell it.
    let available = sample.stats.pointer("/space/available_blocks").and_then(Value::as_u64);
    if let Some(available) = available.filter(|available| *available < free / 2) {
        let _ = write!(text, ", {} of it for files; the rest is reserved", HumanBytes(available * BLOCK));
    }
    text
}

pub fn latency(sample: &Sample, name: &str) -> String {
    match sample.distributions.get(name) {
        Some(times) if times.count() > 0 => {
            let ms = |part| times.quantile(part) / 1e6;
            format!("p50 {:.2} ms, p99 {:.2} ms", ms(0.5), ms(0.99))
        }
        _ => "no times yet".into(),
    }
}

/// The number of requests, and the most frequent kinds.
fn requests(stats: &Value) -> String {
    let mut kinds: Vec<(&str, u64)> = stats
        .get("requests")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .filter_map(|(kind, count)| Some((kind.as_str(), count.as_u64()?)))
        .collect();
    kinds.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let total: u64 = kinds.iter().map(|(_, count)| count).sum();
    let named =
        kinds.iter().take(REQUESTS_NAMED).map(|(kind, count)| format!("{kind} {}", HumanCount(*count)));
    format!("{}: {}", HumanCount(total), named.collect::<Vec<_>>().join(", "))
}

/// The errors that have occurred, if any.
pub fn errors(sample: &Sample) -> Option<String> {
    let told = ERRORS.iter().filter_map(|(pointer, what)| match sample.number(pointer) {
        0 => None,
        count => Some(format!("{} {what}", HumanCount(count))),
    });
    Some(told.collect::<Vec<_>>().join(", ")).filter(|told| !told.is_empty())
}
