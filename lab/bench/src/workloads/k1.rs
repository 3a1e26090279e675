//! K1: random 64 KiB writes, each followed by an fsync, to sparse files, with a small extended
//! attribute and without.

use super::{Scale, WRITE_BYTES};
use crate::error::During;
use crate::files::{Directory, Files};
use crate::fio::{Fio, Load, file_name};
use crate::synced::{Pattern, SyncedWrites, set_xattr};
use crate::workload::{Pace, Phase, Sample, Unit, Workload};
use crate::{BenchError, Interrupt};
use std::fs::File;
use std::path::Path;

/// Number of files, and of threads that write to them.
const JOBS: usize = 8;

/// The workload.
pub struct K1 {
    xattr: bool,
    file_bytes: u64,
    fio: Option<Fio>,
}

impl K1 {
    /// With the attribute or without.
    pub fn new(scale: &Scale, xattr: bool) -> Self {
        Self { xattr, file_bytes: scale.file_bytes(JOBS), fio: scale.fio.clone() }
    }
}

impl Workload for K1 {
    fn suite(&self) -> &'static str {
        "k1"
    }

    fn title(&self) -> String {
        format!("64 KiB random write + fsync, {JOBS} jobs")
    }

    fn variant(&self) -> String {
        if self.xattr { "one xattr".into() } else { "no xattr".into() }
    }

    fn reads_back(&self) -> bool {
        self.xattr
    }

    fn phases(&self) -> Vec<Phase> {
        vec![Phase::warm("", Unit::PerSecond("fsyncs"), "fsync")]
    }

    fn engine(&self) -> String {
        self.fio.as_ref().map_or("built in".into(), |fio| fio.version().to_owned())
    }

    fn prepare(&self, _phase: usize, directory: &Path, _interrupt: &Interrupt) -> Result<(), BenchError> {
        for job in 0..JOBS {
            let path = directory.join(file_name(job));
            let file = File::create(&path).at(&path)?;
            file.set_len(self.file_bytes).at(&path)?;
            if self.xattr {
                set_xattr(&file).during(|| format!("setting an attribute of {}", path.display()))?;
            }
            file.sync_all().at(&path)?;
        }
        Ok(())
    }

    fn run(&self, _phase: usize, directory: &Path, pace: Pace<'_>) -> Result<Sample, BenchError> {
        if let Some(fio) = &self.fio {
            let load = Load { pattern: "randwrite", jobs: JOBS, file_bytes: self.file_bytes };
            return fio.run(load, directory, pace);
        }
        let open = (0..JOBS).map(|job| Directory(directory).open(&file_name(job)));
        let files = open.collect::<Result<Vec<_>, _>>().during(|| "opening the files".into())?;
        let (pattern, file_bytes) = (Pattern::Random, self.file_bytes);
        SyncedWrites { pattern, write_bytes: WRITE_BYTES, file_bytes, data_only: false }.run(files, pace)
    }
}
