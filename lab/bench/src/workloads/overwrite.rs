//! 4 KiB random overwrites of written files, each followed by an fdatasync: a database's page
//! writes.

use super::Scale;
use crate::error::During;
use crate::files::{BuiltIn, FileLoad, Files, write_whole};
use crate::synced::{Pattern, SyncedWrites};
use crate::workload::{Pace, Sample, Unit};
use crate::{BenchError, Interrupt};

/// Bytes of a write.
const WRITE_BYTES: u64 = 4 << 10;
/// Total length of all files, on a device that is large enough for it.
const FILE_BYTES: u64 = 256 << 20;
const FILE_BYTES_QUICK: u64 = 64 << 20;

/// The workload.
pub struct Overwrite {
    jobs: usize,
    files: usize,
    /// Length of each file.
    file_bytes: u64,
}

impl Overwrite {
    /// For this many jobs on this many files, in turn. FUSE lets one cached write or fsync of a
    /// file at a time into the daemon, so jobs on one file can't share a flush there.
    pub fn new(scale: &Scale, jobs: usize, files: usize) -> Self {
        let bytes = if scale.quick { FILE_BYTES_QUICK } else { FILE_BYTES };
        let each = bytes.min(scale.file_bytes(1)) / files as u64;
        Self { jobs, files, file_bytes: each - each % WRITE_BYTES }
    }

    fn name(&self, job: usize) -> String {
        format!("pages-{}", job % self.files)
    }
}

impl BuiltIn for Overwrite {
    fn suite(&self) -> &'static str {
        "overwrite"
    }

    fn title(&self) -> String {
        "4 KiB random overwrite + fdatasync".into()
    }

    fn variant(&self) -> String {
        match (self.jobs, self.files) {
            (1, _) => "1 job".into(),
            (jobs, 1) => format!("{jobs} jobs, one file"),
            (jobs, _) => format!("{jobs} jobs, a file each"),
        }
    }

    fn measure(&self) -> (Unit, &'static str) {
        (Unit::PerSecond("fdatasyncs"), "fdatasync")
    }
}

impl FileLoad for Overwrite {
    fn make(&self, files: &dyn Files, interrupt: &Interrupt) -> Result<(), BenchError> {
        (0..self.files).try_for_each(|file| write_whole(files, &self.name(file), self.file_bytes, interrupt))
    }

    fn load(&self, files: &dyn Files, pace: Pace<'_>) -> Result<Sample, BenchError> {
        let open = (0..self.jobs).map(|job| files.open(&self.name(job)));
        let open = open.collect::<Result<Vec<_>, _>>().during(|| "opening the files".into())?;
        let (pattern, file_bytes) = (Pattern::Random, self.file_bytes);
        SyncedWrites { pattern, write_bytes: WRITE_BYTES, file_bytes, data_only: true }.run(open, pace)
    }
}
