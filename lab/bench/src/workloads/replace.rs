//! Replacing a file: the new contents are written beside it and synced, then renamed over it.

use crate::files::{BuiltIn, FileLoad, Files};
use crate::jobs::{Job, drive};
use crate::workload::{Pace, Sample, Unit};
use crate::{BenchError, Interrupt};
use std::io;

/// Bytes of the file.
const FILE_BYTES: usize = 16 << 10;

/// The workload.
pub struct Replace;

fn replace(files: &dyn Files, job: &mut Job<'_>) -> io::Result<()> {
    let contents = [b'r'; FILE_BYTES];
    while job.goes_on() {
        job.time(|| {
            let file = files.create("settings.tmp")?;
            file.write_all_at(&contents, 0)?;
            file.sync_all()?;
            files.rename("settings.tmp", "settings")
        })?;
        job.done(FILE_BYTES as u64);
    }
    Ok(())
}

impl BuiltIn for Replace {
    fn suite(&self) -> &'static str {
        "replace"
    }

    fn title(&self) -> String {
        "replacing a file of 16 KiB: write, fsync, rename".into()
    }

    fn measure(&self) -> (Unit, &'static str) {
        (Unit::PerSecond("replacements"), "replacement")
    }
}

impl FileLoad for Replace {
    fn make(&self, _files: &dyn Files, _interrupt: &Interrupt) -> Result<(), BenchError> {
        Ok(())
    }

    fn load(&self, files: &dyn Files, pace: Pace<'_>) -> Result<Sample, BenchError> {
        drive(vec![()], pace, |(), job| replace(files, job))
    }
}
