//! K5: sequential 64 KiB writes, each followed by an fsync; a file for each job.

use super::{Scale, WRITE_BYTES};
use crate::error::During;
use crate::files::{Directory, Embedded, FileLoad, Files};
use crate::fio::{Fio, Load, file_name};
use crate::synced::{Pattern, SyncedWrites};
use crate::workload::{Pace, Phase, Sample, Unit, Workload};
use crate::{BenchError, Interrupt};
use std::path::Path;

/// The workload.
pub struct K5 {
    jobs: usize,
    file_bytes: u64,
    fio: Option<Fio>,
}

impl K5 {
    /// For this many jobs.
    pub fn new(scale: &Scale, jobs: usize) -> Self {
        Self { jobs, file_bytes: scale.file_bytes(jobs), fio: scale.fio.clone() }
    }
}

impl Workload for K5 {
    fn suite(&self) -> &'static str {
        "k5"
    }

    fn title(&self) -> String {
        "64 KiB sequential write + fsync".into()
    }

    fn variant(&self) -> String {
        if self.jobs == 1 { "1 job".into() } else { format!("{} jobs", self.jobs) }
    }

    fn phases(&self) -> Vec<Phase> {
        vec![Phase::warm("", Unit::PerSecond("fsyncs"), "fsync")]
    }

    fn engine(&self) -> String {
        self.fio.as_ref().map_or("built in".into(), |fio| fio.version().to_owned())
    }

    fn prepare(&self, _phase: usize, _directory: &Path, _interrupt: &Interrupt) -> Result<(), BenchError> {
        Ok(())
    }

    fn run(&self, _phase: usize, directory: &Path, pace: Pace<'_>) -> Result<Sample, BenchError> {
        if let Some(fio) = &self.fio {
            let load = Load { pattern: "write", jobs: self.jobs, file_bytes: self.file_bytes };
            return fio.run(load, directory, pace);
        }
        self.load(&Directory(directory), pace)
    }

    fn embedded(&self) -> Option<&dyn Embedded> {
        Some(self)
    }
}

impl FileLoad for K5 {
    fn make(&self, _files: &dyn Files, _interrupt: &Interrupt) -> Result<(), BenchError> {
        Ok(())
    }

    fn load(&self, files: &dyn Files, pace: Pace<'_>) -> Result<Sample, BenchError> {
        let open = (0..self.jobs).map(|job| files.create(&file_name(job)));
        let open = open.collect::<Result<Vec<_>, _>>().during(|| "creating the files".into())?;
        let (pattern, file_bytes) = (Pattern::Sequential, self.file_bytes);
        SyncedWrites { pattern, write_bytes: WRITE_BYTES, file_bytes, data_only: false }.run(open, pace)
    }
}
