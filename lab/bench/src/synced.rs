//! Writes that are each followed by an fsync: the load of most measurements.

use crate::BenchError;
use crate::files::OpenFile;
use crate::jobs::{Job, drive};
use crate::workload::{Pace, Sample};
use rand::{Rng, RngCore};
use std::fs::File;
use std::io;

/// The attribute that is set.
const XATTR: &str = "user.bench";
/// Its length.
const XATTR_BYTES: usize = 50;

/// Gives a file the 50-byte attribute of K1.
pub fn set_xattr(file: &File) -> io::Result<()> {
    Ok(rustix::fs::fsetxattr(file, XATTR, &[b'x'; XATTR_BYTES], rustix::fs::XattrFlags::empty())?)
}

/// The place of the next write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pattern {
    /// In order; a full file is overwritten from its start, as with fio's time_based.
    Sequential,
    /// At random.
    Random,
}

/// The load.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SyncedWrites {
    /// The order of writes.
    pub pattern: Pattern,
    /// Bytes of each write.
    pub write_bytes: u64,
    /// Length of each file.
    pub file_bytes: u64,
    /// fdatasync instead of fsync.
    pub data_only: bool,
}

impl SyncedWrites {
    /// Runs on all files at once, one thread each. The latency is that of the fsync.
    pub fn run(&self, files: Vec<Box<dyn OpenFile>>, pace: Pace<'_>) -> Result<Sample, BenchError> {
        drive(files, pace, |file, job| self.write(&*file, job))
    }

    fn write(&self, file: &dyn OpenFile, job: &mut Job<'_>) -> io::Result<()> {
        let mut rng = rand::rng();
        let mut data = vec![0; self.write_bytes as usize];
        rng.fill_bytes(&mut data);
        let places = (self.file_bytes / self.write_bytes).max(1);
        let mut next = 0;
        while job.goes_on() {
            let place = match self.pattern {
                Pattern::Random => rng.random_range(0..places),
                Pattern::Sequential => next % places,
            };
            file.write_all_at(&data, place * self.write_bytes)?;
            job.time(|| if self.data_only { file.sync_data() } else { file.sync_all() })?;
            next = place + 1;
            job.done(self.write_bytes);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Interrupt;
    use std::time::Duration;

    fn length_after(pattern: Pattern) -> u64 {
        let file = tempfile::tempfile().unwrap();
        let interrupt = Interrupt::default();
        let load = SyncedWrites { pattern, write_bytes: 4096, file_bytes: 8192, data_only: true };
        let pace = Pace::new(Duration::from_millis(5), &interrupt);
        let sample = load.run(vec![Box::new(file.try_clone().unwrap())], pace).unwrap();
        assert_eq!(sample.data_bytes, sample.operations * 4096);
        assert!(sample.operations > 0 && sample.p99_ns >= sample.p50_ns);
        file.metadata().unwrap().len()
    }

    #[test]
    fn files_keep_their_length() {
        for pattern in [Pattern::Sequential, Pattern::Random] {
            assert!((4096..=8192).contains(&length_after(pattern)), "{pattern:?}");
        }
    }
}
