//! Receipts in words.

use super::network;
use crate::printed::fold;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::time::{SystemTime, UNIX_EPOCH};

/// Explains the stages; printed once, below.
const STAGES: &str = "\
submit: own data placed, checksummed and on its way, and what names it put into
        the log in memory
wait: for the batch before   gather: for others to come into the group
write: until data and batch were written, side by side
flush: of the device's cache   answer: until the caller went on
A batch is one write to the log, as a transaction of a journal is; no flush
comes between data and log.
";

/// Each reason and its meaning, in the order in which they are printed.
const REASONS: [(&str, &str); 11] = [
    ("dirty_data", "it had data that was only in memory"),
    ("size", "its size had changed"),
    ("mtime", "its modification time had changed"),
    ("write_back", "its write-back was under way"),
    ("logged", "data or size of it were in the log without a flush since"),
    ("name", "its creation, or a name of it, was not durable"),
    ("attributes", "its attributes had changed"),
    ("entries", "entries or attributes of the directory had changed"),
    ("loaded", "it had come into memory when something that may have been a change of it was not durable"),
    ("others", "changes made elsewhere before had to be durable first (P1)"),
    ("switched_off", "everything was durable, but eliding flushes is switched off"),
];

/// The names of the files that receipts are about.
pub enum Names {
    /// All receipts are about this file.
    One(String),
    /// The names of inodes, as far as they are known.
    Known(BTreeMap<u64, String>),
}

impl Names {
    fn one(&self) -> Option<&str> {
        match self {
            Self::One(name) => Some(name),
            Self::Known(_) => None,
        }
    }

    /// `notes (inode 14)`
    fn of(&self, inode: u64) -> String {
        let name = match self {
            Self::One(name) => Some(name),
            Self::Known(names) => names.get(&inode),
        };
        name.map_or_else(|| format!("inode {inode}"), |name| format!("{name} (inode {inode})"))
    }
}

/// The first inode of each receipt, which its line names.
pub fn inodes(receipts: &[Value]) -> BTreeSet<u64> {
    receipts.iter().map(|receipt| Receipt(receipt).number("/inodes/0")).collect()
}

/// Explains all receipts. `network` is that section of the statistics, if the image is on a
/// network.
pub fn explain(receipts: &[Value], names: &Names, network: Option<&Value>) -> String {
    let now_ns = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as i64);
    let mut out = String::new();
    for receipt in receipts {
        let receipt = Receipt(receipt);
        out.push_str(&one(&receipt, names, now_ns));
        if let Some(words) = network.map(|network| network::told(&receipt, network)) {
            out.push_str("  net    ");
            fold(&words, 9, &mut out);
        }
        out.push('\n');
    }
    out + STAGES
}

/// A receipt from any version of the daemon: missing values are zero.
pub struct Receipt<'a>(pub &'a Value);

impl Receipt<'_> {
    pub fn number(&self, pointer: &str) -> u64 {
        self.0.pointer(pointer).and_then(Value::as_u64).unwrap_or(0)
    }

    fn text(&self, pointer: &str) -> &str {
        self.0.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
    }

    fn words(&self, pointer: &str) -> Vec<&str> {
        let values = self.0.pointer(pointer).and_then(Value::as_array);
        values.into_iter().flatten().filter_map(Value::as_str).collect()
    }

    fn failed(&self) -> bool {
        self.0.get("failed").is_some_and(|failed| !failed.is_null())
    }
}

fn one(receipt: &Receipt<'_>, names: &Names, now_ns: i64) -> String {
    let mut out = String::new();
    fold(&head(receipt, names, now_ns), 4, &mut out);
    let mut line = |label: &str, text: String| {
        if !text.is_empty() {
            let _ = write!(out, "  {label:7}");
            fold(&text, 9, &mut out);
        }
    };
    line("why", why(receipt));
    line("data", data(receipt));
    line("log", log(receipt));
    line("group", group(receipt));
    line("flush", flush(receipt));
    line("time", times(receipt));
    out
}

/// `#12 fsync of notes (inode 14), 2.1 s ago: durable after 412 µs`
fn head(receipt: &Receipt<'_>, names: &Names, now_ns: i64) -> String {
    let call = match receipt.text("/call") {
        "fsyncdir" => "fsync",
        "sync_many" => "fsync2",
        call => call,
    };
    let (files, first) = (receipt.number("/files"), receipt.number("/inodes/0"));
    let what = match (receipt.text("/call"), names.one()) {
        ("syncfs", _) => format!("the filesystem, {} with unwritten data", count(files, "file")),
        ("sync_many" | "transaction", Some(name)) => format!("{}, among them {name}", count(files, "file")),
        ("sync_many" | "transaction", None) => {
            format!("{}, the first of them {}", count(files, "file"), names.of(first))
        }
        ("fsyncdir", _) => format!("directory {}", names.of(first)),
        _ => names.of(first),
    };
    let ago = receipt.0["time_ns"].as_i64().map_or(0, |then| now_ns.saturating_sub(then)).max(0);
    let total = micros(receipt.number("/times_ns/total"));
    let end = if receipt.failed() {
        let errno = receipt.number("/failed/errno") as i32;
        let error = std::io::Error::from_raw_os_error(errno);
        match receipt.text("/failed/stage") {
            "" => format!("REPORTED an earlier failure of write-back after {total} µs: {error}"),
            stage => format!("FAILED after {total} µs, in stage {stage}: {error}"),
        }
    } else if receipt.text("/cover") == "ordered" {
        format!("in order after {total} µs")
    } else {
        format!("durable after {total} µs")
    };
    format!("#{} {call} of {what}, {:.1} s ago: {end}", receipt.number("/serial"), ago as f64 / 1e9)
}

fn why(receipt: &Receipt<'_>) -> String {
    let names = receipt.words("/why");
    if names.is_empty() {
        return "nothing was left to do: all of it, and all that came before, was durable".into();
    }
    // A write changes the time too; mtime counts as a reason only by itself.
    let told = |name: &str| names.contains(&name) && !(name == "mtime" && names.contains(&"dirty_data"));
    let known = REASONS.iter().filter(|(name, _)| told(name)).map(|(_, meaning)| *meaning);
    let unknown = names.iter().copied().filter(|name| REASONS.iter().all(|(known, _)| known != name));
    known.chain(unknown).collect::<Vec<_>>().join("; ")
}

fn data(receipt: &Receipt<'_>) -> String {
    let number = |name: &str| receipt.number(&format!("/submitted/{name}"));
    let mut parts = Vec::new();
    if number("blocks") > 0 {
        let blocks = number("blocks");
        let mut part = format!(
            "{} KiB in {}, {}",
            blocks * 4,
            count(number("device_writes"), "device write"),
            count(number("extents"), "extent")
        );
        match number("blocks_before_log") {
            0 => part.push_str(", beside the log"),
            before => {
                let _ = write!(part, "; {} KiB of it before the log, the rest beside it", before * 4);
            }
        }
        parts.push(part);
    }
    if number("inline_bytes") > 0 {
        parts.push(format!("{} bytes, in the inode item", number("inline_bytes")));
    }
    if number("blocks_in_log") > 0 {
        parts.push(format!("{} KiB, in the log", number("blocks_in_log") * 4));
    }
    if number("blocks_released") > 0 {
        parts.push(format!("{} KiB of old data released", number("blocks_released") * 4));
    }
    parts.join("; ")
}

fn log(receipt: &Receipt<'_>) -> String {
    let own = |name: &str| receipt.number(&format!("/submitted/{name}"));
    let batches = |name: &str| receipt.number(&format!("/batches/{name}"));
    let items = own("inodes") + own("extents") + own("extents_removed");
    let mut text = match items {
        0 => "nothing of its own".to_owned(),
        items => format!("{} of its own, {} bytes more in memory", count(items, "item"), own("log_bytes")),
    };
    if batches("count") == 0 {
        return if items == 0 { String::new() } else { text };
    }
    let which = match (batches("first"), batches("last")) {
        (first, last) if first == last => format!("batch {first}"),
        (first, last) => format!("batches {first} to {last}"),
    };
    let _ = write!(text, "; {which}, {} KiB, had in all {}", batches("log_bytes") / 1024, kinds(receipt));
    if batches("removed") > 0 {
        let _ = write!(text, ", {} removed", count(batches("removed"), "item"));
    }
    let _ = write!(text, ", and named {} KiB of data", batches("data_bytes") / 1024);
    text
}

/// `3 items (1 dirent, 2 inode)`
fn kinds(receipt: &Receipt<'_>) -> String {
    let kinds = receipt.0.pointer("/batches/items").and_then(Value::as_object);
    let kinds: Vec<(&String, u64)> =
        kinds.into_iter().flatten().map(|(kind, count)| (kind, count.as_u64().unwrap_or(0))).collect();
    let total = kinds.iter().map(|(_, count)| count).sum();
    let each: Vec<String> = kinds.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
    if total == 0 { count(0, "item") } else { format!("{} ({})", count(total, "item"), each.join(", ")) }
}

fn group(receipt: &Receipt<'_>) -> String {
    match (receipt.number("/members"), receipt.0["drove"] == Value::Bool(true)) {
        (0 | 1, _) => String::new(),
        (members, true) => format!("this call took the batch to the device for {members} in all"),
        (members, false) => format!("another call took the batch to the device, for {members} in all"),
    }
}

fn flush(receipt: &Receipt<'_>) -> String {
    let durable = |name: &str| receipt.number(&format!("/durable/{name}"));
    let by = match (durable("flush"), durable("generation")) {
        (0, 0) => "since the image was opened".to_owned(),
        (0, generation) => format!("by the superblock of generation {generation}"),
        (flush, _) => format!("by flush {flush}, of all writes up to ticket {}", durable("ticket")),
    };
    let drove = receipt.0["drove"] == Value::Bool(true);
    match receipt.text("/cover") {
        "elided" if receipt.number("/batches/count") > 0 => {
            format!("elided: the batch was covered meanwhile, {by}")
        }
        "elided" => {
            let batch = match durable("batch") {
                0 => String::new(),
                batch => format!(", which is batch {batch} and all before it,"),
            };
            format!("elided: everything up to operation {}{batch} was durable {by}", durable("op"))
        }
        "joined" if drove => format!("joined: somebody outside the group had asked; durable {by}"),
        // Only a group can join: its members wait for the flush that its driver waits for.
        "joined" => format!("the group's: durable {by}"),
        "issued" => format!("issued: durable {by}"),
        "checkpoint" => format!("a checkpoint: {by}"),
        "ordered" => {
            let seconds = receipt.text("/durability").trim_start_matches("ordered:");
            format!("not waited for, by the file's class: one begins within {seconds} s of the call")
        }
        _ => String::new(),
    }
}

fn times(receipt: &Receipt<'_>) -> String {
    const NAMES: [&str; 7] = ["submit", "wait", "gather", "write", "flush", "checkpoint", "answer"];
    let time = |name: &&str| receipt.number(&format!("/times_ns/{name}"));
    let taken = NAMES.iter().filter(|name| time(name) > 0);
    let each: Vec<String> = taken.map(|name| format!("{name} {}", micros(time(name)))).collect();
    if each.is_empty() { String::new() } else { format!("{} µs", each.join(", ")) }
}

/// Microseconds, with a fraction for small values.
pub fn micros(ns: u64) -> String {
    let micros = ns as f64 / 1000.0;
    if micros < 10.0 { format!("{micros:.1}") } else { format!("{micros:.0}") }
}

fn count(number: u64, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;
    use syncline_fs::{Call, Durability, Failed, Inodes, Receipt as Made, Why};
    use syncline_store::{BatchesTrace, Cover, DurableMark, ItemCounts, Stage};

    /// Converts a receipt as the daemon sends it into the printed text.
    fn told(receipt: Made, name: Option<&str>) -> String {
        let known = || Names::Known([(14, "/mail/inbox".to_owned())].into());
        let names = name.map_or_else(known, |name| Names::One(name.to_owned()));
        let text = explain(&[serde_json::json!([receipt])[0].clone()], &names, None);
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        // As if it were not folded.
        text.lines().map(str::trim).collect::<Vec<_>>().join(" ")
    }

    fn issued() -> Made {
        let mut made = Made::new(Call::Fsync, Inodes::of([14]));
        made.serial = 12;
        made.why = Why::DIRTY_DATA | Why::SIZE | Why::MTIME | Why::OTHERS;
        made.submitted.blocks = 16;
        made.submitted.device_writes = 1;
        (made.submitted.inodes, made.submitted.extents) = (1, 1);
        let mut items = ItemCounts::default();
        (items.0[1], items.0[3]) = (4, 2);
        made.batches = BatchesTrace { count: 1, first: 57, last: 57, log_bytes: 4096, items, ..made.batches };
        (made.cover, made.drove, made.members) = (Cover::Issued, true, 8);
        made.durable = DurableMark { op: 40, batch: 57, flush: 33, ticket: 120, generation: 0 };
        (made.times_ns.submit, made.times_ns.flush, made.times_ns.total) = (40_000, 95_000, 135_000);
        made
    }

    #[test]
    fn every_part_of_a_receipt_is_told() {
        let text = told(issued(), Some("notes"));
        let expected = [
            "#12 fsync of notes (inode 14), ",
            ": durable after 135 µs ",
            "why    it had data that was only in memory; its size had changed; changes made elsewhere before",
            "data   64 KiB in 1 device write, 1 extent, beside the log",
            "log    2 items of its own, 0 bytes more in memory; batch 57, 4 KiB, had in all 6 items (2 extent, 4 inode)",
            "group  this call took the batch to the device for 8 in all",
            "flush  issued: durable by flush 33, of all writes up to ticket 120",
            "time   submit 40, flush 95 µs",
        ];
        for words in expected {
            assert!(text.contains(words), "{words:?} is missing:\n{text}");
        }
        assert!(!text.contains("modification time"), "a write changes it anyway");
    }

    #[test]
    fn elided_and_joined_ones_name_what_covered_them() {
        let made = Made { why: Why::default(), batches: BatchesTrace::default(), members: 0, ..issued() };
        let elided = told(Made { cover: Cover::Elided, ..made }, None);
        let words = "elided: everything up to operation 40, which is batch 57 and all before it, was durable by flush 33";
        assert!(elided.contains(words) && elided.contains("nothing was left to do"), "{elided}");
        let joined = told(Made { cover: Cover::Joined, drove: false, ..issued() }, None);
        assert!(joined.contains("flush  the group's: durable by flush 33"), "{joined}");
        assert!(joined.contains("fsync of /mail/inbox (inode 14), "), "{joined}");
        assert!(joined.contains("another call took the batch to the device, for 8 in all"), "{joined}");
    }

    #[test]
    fn an_ordered_sync_is_not_called_durable() {
        let made = Made { durability: Durability::Ordered(7), cover: Cover::Ordered, ..issued() };
        let text = told(made, Some("notes"));
        assert!(text.contains(": in order after 135 µs"), "{text}");
        assert!(text.contains("flush  not waited for, by the file's class: one begins within 7 s"), "{text}");
    }

    #[test]
    fn failures_are_told_with_their_stage() {
        let failed = Some(Failed { errno: 5, stage: Some(Stage::Flush) });
        let text = told(Made { failed, cover: Cover::Nothing, ..issued() }, None);
        assert!(text.contains("FAILED after 135 µs, in stage flush: Input/output error"), "{text}");
        assert!(!text.contains("  flush  "), "no flush covered it: {text}");
        let earlier = Some(Failed { errno: 5, stage: None });
        assert!(told(Made { failed: earlier, ..issued() }, None).contains("REPORTED an earlier failure"));
    }

    #[test]
    fn every_reason_has_words() {
        let mut made = issued();
        for (reason, words) in REASONS {
            let every = serde_json::json!({ "why": [reason] });
            assert_eq!(why(&Receipt(&every)), words);
        }
        made.why = Why::LOADED
            | Why::SWITCHED_OFF
            | Why::WRITE_BACK
            | Why::LOGGED
            | Why::NAME
            | Why::ATTRIBUTES
            | Why::ENTRIES
            | made.why;
        for name in made.why.names() {
            assert!(REASONS.iter().any(|(known, _)| *known == name), "{name} has no words");
        }
    }
}
