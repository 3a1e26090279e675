//! The two workloads that are measured: append and fsync, and random overwrite and fsync of files
//! with an attribute.

use super::target::Target;
use crate::failure::Failure;
use serde_json::{Value, json};
use std::fmt;
use std::time::Duration;
use syncline_bench::Interrupt;
use syncline_bench::counts::Counts;
use syncline_bench::synced::{Pattern, SyncedWrites, WorkFile, set_xattr};
use syncline_bench::workload::{Pace, Sample};

/// Bytes of each write.
const WRITE_BYTES: u64 = 64 << 10;
/// A job's file starts over at this length, or at this fraction of a small image.
const FILE_BYTES_MAX: u64 = 48 << 20;
const FILE_PART: u64 = 24;

/// A workload.
pub struct Workload {
    name: &'static str,
    jobs: usize,
    pattern: Pattern,
}

/// All workloads.
pub const WORKLOADS: &[Workload] = &[
    Workload { name: "64 KiB append + fsync", jobs: 1, pattern: Pattern::Append },
    Workload { name: "64 KiB append + fsync", jobs: 8, pattern: Pattern::Append },
    Workload { name: "64 KiB random overwrite, xattr+fsync", jobs: 8, pattern: Pattern::Random },
];

/// The result of one workload.
pub struct Row {
    name: &'static str,
    jobs: usize,
    sample: Sample,
    counts: Counts,
}

impl Row {
    /// The heading above the rows.
    pub const HEADING: &'static str = "\
\x20                                                            each fsync    bytes
workload                             jobs  fsyncs/s    flushes   writes    /byte";

    /// Acknowledged fsyncs.
    pub fn fsyncs(&self) -> u64 {
        self.sample.operations
    }

    /// The row as JSON.
    pub fn json(&self) -> Value {
        let fsyncs = self.fsyncs().max(1) as f64;
        json!({
            "workload": self.name,
            "jobs": self.jobs,
            "seconds": self.sample.seconds,
            "fsyncs": self.fsyncs(),
            "fsyncs_per_second": self.fsyncs() as f64 / self.sample.seconds,
            "flushes_per_fsync": self.counts.flushes as f64 / fsyncs,
            "writes_per_fsync": self.counts.writes as f64 / fsyncs,
            "write_amplification": self.counts.write_bytes as f64 / (fsyncs * WRITE_BYTES as f64),
        })
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fsyncs = self.fsyncs().max(1) as f64;
        write!(
            f,
            "{:36} {:>4} {:>9.0} {:>10.2} {:>8.2} {:>8.2}",
            self.name,
            self.jobs,
            self.fsyncs() as f64 / self.sample.seconds,
            self.counts.flushes as f64 / fsyncs,
            self.counts.writes as f64 / fsyncs,
            self.counts.write_bytes as f64 / (fsyncs * WRITE_BYTES as f64),
        )
    }
}

impl Workload {
    /// The names of its files, which it leaves behind.
    pub fn files(&self) -> impl Iterator<Item = String> + use<> {
        (0..self.jobs).map(|job| format!("job {job}"))
    }

    /// Runs it for some seconds.
    pub fn run(&self, target: &Target, seconds: u64, interrupt: &Interrupt) -> Result<Row, Failure> {
        let file_bytes = (target.image_bytes() / FILE_PART).min(FILE_BYTES_MAX);
        let file_bytes = file_bytes - file_bytes % WRITE_BYTES;
        let mut files = Vec::with_capacity(self.jobs);
        for name in self.files() {
            files.push(self.prepare(target, &name, file_bytes)?);
        }
        let bar = super::bar(seconds, "s");
        let tick = |lasted: Duration| bar.set_position(lasted.as_secs());
        let pace = Pace { duration: Duration::from_secs(seconds), interrupt, tick: &tick };
        let load =
            SyncedWrites { pattern: self.pattern, write_bytes: WRITE_BYTES, file_bytes, data_only: false };
        let before = target.counts()?;
        let sample = load.run(files, pace);
        bar.finish_and_clear();
        let counts = target.counts()? - before;
        Ok(Row { name: self.name, jobs: self.jobs, sample: sample?, counts })
    }

    fn prepare(&self, target: &Target, name: &str, file_bytes: u64) -> Result<Box<dyn WorkFile>, Failure> {
        let file = target.create(name)?;
        if self.pattern == Pattern::Random {
            file.set_len(file_bytes)?;
            set_xattr(&*file)?;
        }
        file.sync()?;
        Ok(file)
    }
}
