//! K3: fsync of a directory that has a million new files, and again after a thousand of them were
//! removed.

use super::Scale;
use super::names::numbered;
use crate::error::During;
use crate::workload::{Pace, Phase, Sample, Unit, Workload};
use crate::{BenchError, Interrupt};
use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

/// Number of files, on a device that has room for them.
const FILES: u64 = 1_000_000;
const FILES_QUICK: u64 = 100_000;
/// Space on the device that an empty file may take on any filesystem.
const BYTES_PER_FILE: u64 = 2 << 10;
/// One file in this many is removed.
const REMOVE_ONE_IN: usize = 1000;
/// Files per second that the slowest creates, for estimating the time.
const FILES_PER_SECOND: f64 = 20_000.0;
const NAME: &str = "d";

/// The workload.
pub struct K3 {
    files: u64,
}

impl K3 {
    /// As large as the device allows.
    pub fn new(scale: &Scale) -> Self {
        let files = if scale.quick { FILES_QUICK } else { FILES };
        Self { files: files.min(scale.device_bytes / BYTES_PER_FILE) }
    }

    /// A tenth of a percent of the files, in quick runs too: what matters is that they are in
    /// different leaves.
    fn removed(&self) -> impl Iterator<Item = u64> + use<> {
        (0..self.files).step_by(REMOVE_ONE_IN.min(self.files as usize))
    }
}

impl Workload for K3 {
    fn suite(&self) -> &'static str {
        "k3"
    }

    fn title(&self) -> String {
        format!("fsync of a directory of {} files", self.files)
    }

    fn phases(&self) -> Vec<Phase> {
        vec![
            Phase::unsettled("all new", Unit::Milliseconds, "fsync"),
            Phase::unsettled("one in 1000 removed", Unit::Milliseconds, "fsync"),
        ]
    }

    fn files(&self) -> u64 {
        self.files
    }

    fn expected_seconds(&self, _duration: Duration) -> f64 {
        1.0 + self.files as f64 / FILES_PER_SECOND
    }

    fn prepare(&self, phase: usize, directory: &Path, interrupt: &Interrupt) -> Result<(), BenchError> {
        let directory = directory.join(NAME);
        if phase == 0 {
            std::fs::create_dir(&directory).at(&directory)?;
            for number in 0..self.files {
                let path = directory.join(numbered(number));
                File::create(&path).at(&path)?;
                if number % 1024 == 0 {
                    interrupt.check()?;
                }
            }
        } else {
            for number in self.removed() {
                let path = directory.join(numbered(number));
                std::fs::remove_file(&path).at(&path)?;
            }
        }
        Ok(())
    }

    fn run(&self, _phase: usize, directory: &Path, _pace: Pace<'_>) -> Result<Sample, BenchError> {
        let path = directory.join(NAME);
        let directory = File::open(&path).at(&path)?;
        let started = Instant::now();
        directory.sync_all().at(&path)?;
        let elapsed = started.elapsed();
        let nanoseconds = u64::try_from(elapsed.as_nanos()).ok();
        let seconds = elapsed.as_secs_f64();
        Ok(Sample { operations: 1, seconds, data_bytes: 0, p50_ns: nanoseconds, p99_ns: nanoseconds })
    }
}
