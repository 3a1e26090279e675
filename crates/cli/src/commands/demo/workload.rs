//! The two workloads that are measured: append and fsync, and random overwrite and fsync of files
//! with an attribute.

use super::counts::Counts;
use super::interrupt::Interrupt;
use super::jobs;
use super::target::{Target, WorkFile};
use crate::failure::Failure;
use rand::{Rng, RngCore};
use serde_json::{Value, json};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Bytes of each write.
const WRITE_BYTES: u64 = 64 << 10;
/// A job's file starts over at this length, or at this fraction of a small image.
const FILE_BYTES_MAX: u64 = 48 << 20;
const FILE_PART: u64 = 24;

/// The place of the next write.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pattern {
    /// At the end; a full file is emptied and started again.
    Append,
    /// At random.
    Random,
}

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
    fsyncs: u64,
    seconds: f64,
    counts: Counts,
}

impl Row {
    /// The heading above the rows.
    pub const HEADING: &'static str = "\
\x20                                                            each fsync    bytes
workload                             jobs  fsyncs/s    flushes   writes    /byte";

    /// Acknowledged fsyncs.
    pub fn fsyncs(&self) -> u64 {
        self.fsyncs
    }

    /// The row as JSON.
    pub fn json(&self) -> Value {
        let fsyncs = self.fsyncs().max(1) as f64;
        json!({
            "workload": self.name,
            "jobs": self.jobs,
            "seconds": self.seconds,
            "fsyncs": self.fsyncs(),
            "fsyncs_per_second": self.fsyncs() as f64 / self.seconds,
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
            self.fsyncs() as f64 / self.seconds,
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
        let before = target.counts()?;
        let started = Instant::now();
        let enough = || {
            bar.set_position(started.elapsed().as_secs());
            started.elapsed() >= Duration::from_secs(seconds)
        };
        let outcome = jobs::run(files, interrupt, enough, |file, stop| self.write(&*file, file_bytes, stop));
        let lasted = started.elapsed();
        bar.finish_and_clear();
        let counts = target.counts()? - before;
        let fsyncs = outcome?.into_iter().sum();
        Ok(Row { name: self.name, jobs: self.jobs, fsyncs, seconds: lasted.as_secs_f64(), counts })
    }

    /// Writes to one file, each write followed by an fsync; returns their number.
    fn write(&self, file: &dyn WorkFile, file_bytes: u64, stop: &AtomicBool) -> Result<u64, Failure> {
        let mut rng = rand::rng();
        let mut data = vec![0; WRITE_BYTES as usize];
        rng.fill_bytes(&mut data);
        let places = (file_bytes / WRITE_BYTES).max(1);
        let (mut next, mut fsyncs) = (0, 0);
        while !stop.load(Ordering::Relaxed) {
            let place = match self.pattern {
                Pattern::Random => rng.random_range(0..places),
                Pattern::Append if next == places => {
                    file.set_len(0)?;
                    0
                }
                Pattern::Append => next,
            };
            file.write_at(&data, place * WRITE_BYTES)?;
            file.sync()?;
            next = place + 1;
            fsyncs += 1;
        }
        Ok(fsyncs)
    }

    fn prepare(&self, target: &Target, name: &str, file_bytes: u64) -> Result<Box<dyn WorkFile>, Failure> {
        let file = target.create(name)?;
        if self.pattern == Pattern::Random {
            file.set_len(file_bytes)?;
            file.set_xattr()?;
        }
        file.sync()?;
        Ok(file)
    }
}
