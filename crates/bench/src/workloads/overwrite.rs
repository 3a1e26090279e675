//! 4 KiB random overwrites of one written file, each followed by an fdatasync: what a database does to its pages.

use super::{Scale, write_file};
use crate::error::During;
use crate::synced::{Pattern, SyncedWrites, WorkFile};
use crate::workload::{Pace, Phase, Sample, Unit, Workload};
use crate::{BenchError, Interrupt};
use std::fs::File;
use std::path::Path;

/// Bytes of a write.
const WRITE_BYTES: u64 = 4 << 10;
/// Length of the file, on a device that is large enough for it.
const FILE_BYTES: u64 = 256 << 20;
const FILE_BYTES_QUICK: u64 = 64 << 20;
const NAME: &str = "pages";

/// The workload.
pub struct Overwrite {
    jobs: usize,
    file_bytes: u64,
}

impl Overwrite {
    /// For so many jobs on the one file.
    pub fn new(scale: &Scale, jobs: usize) -> Self {
        let bytes = if scale.quick { FILE_BYTES_QUICK } else { FILE_BYTES };
        Self { jobs, file_bytes: bytes.min(scale.file_bytes(1)) }
    }
}

impl Workload for Overwrite {
    fn suite(&self) -> &'static str {
        "overwrite"
    }

    fn title(&self) -> String {
        "4 KiB random overwrite of one file + fdatasync".into()
    }

    fn variant(&self) -> String {
        if self.jobs == 1 { "1 job".into() } else { format!("{} jobs", self.jobs) }
    }

    fn phases(&self) -> Vec<Phase> {
        vec![Phase::warm("", Unit::PerSecond("fdatasyncs"), "fdatasync")]
    }

    fn prepare(&self, _phase: usize, directory: &Path, interrupt: &Interrupt) -> Result<(), BenchError> {
        write_file(&directory.join(NAME), self.file_bytes, interrupt)
    }

    fn run(&self, _phase: usize, directory: &Path, pace: Pace<'_>) -> Result<Sample, BenchError> {
        let path = directory.join(NAME);
        let mut files: Vec<Box<dyn WorkFile>> = Vec::with_capacity(self.jobs);
        for _ in 0..self.jobs {
            files.push(Box::new(File::options().write(true).open(&path).at(&path)?));
        }
        let (pattern, file_bytes) = (Pattern::Random, self.file_bytes);
        SyncedWrites { pattern, write_bytes: WRITE_BYTES, file_bytes, data_only: true }.run(files, pace)
    }
}
