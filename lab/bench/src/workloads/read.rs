//! Reading a file, sequentially and at random, with empty and with full caches; and writing one
//! without syncing in between. Nobody looks at what is read, so filesystems that keep nothing take
//! part: null answers zeros, null-flush what lies on the device.

use super::Scale;
use crate::error::During;
use crate::files::{Directory, write_whole};
use crate::jobs::drive;
use crate::workload::{Pace, Phase, Sample, Unit, Workload};
use crate::{BenchError, Interrupt};
use rand::RngCore;
use rand::seq::SliceRandom;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Length of the file that is read, on a device that is large enough for it.
const FILE_BYTES: u64 = 1 << 30;
const FILE_BYTES_QUICK: u64 = 256 << 20;
/// Bytes of a sequential read, and of a streaming write.
const PIECE_BYTES: usize = 1 << 20;
/// Bytes of a random read.
const PAGE_BYTES: u64 = 4 << 10;
const NAME: &str = "data";

const SEQUENTIAL_COLD: usize = 0;
const SEQUENTIAL_WARM: usize = 1;
const RANDOM_COLD: usize = 2;
const RANDOM_WARM: usize = 3;

fn file_bytes(scale: &Scale) -> u64 {
    let bytes = if scale.quick { FILE_BYTES_QUICK } else { FILE_BYTES };
    bytes.min(scale.file_bytes(1))
}

/// The reading workload.
pub struct Read {
    file_bytes: u64,
}

impl Read {
    /// As large as the device allows.
    pub fn new(scale: &Scale) -> Self {
        Self { file_bytes: file_bytes(scale) }
    }

    /// Reads the file once, or as far as time allows.
    fn in_order(&self, path: &Path, pace: Pace<'_>) -> Result<Sample, BenchError> {
        drive(vec![File::open(path).at(path)?], pace, |mut file, job| {
            let mut buffer = vec![0; PIECE_BYTES];
            while job.goes_on() {
                let read = job.time(|| file.read(&mut buffer))?;
                if read == 0 {
                    break;
                }
                job.done(read as u64);
            }
            Ok(())
        })
    }

    /// Reads each page at most once: with empty caches no page may be found there.
    fn at_random(&self, path: &Path, pace: Pace<'_>) -> Result<Sample, BenchError> {
        let mut pages: Vec<u64> = (0..self.file_bytes / PAGE_BYTES).collect();
        pages.shuffle(&mut rand::rng());
        drive(vec![File::open(path).at(path)?], pace, |file, job| {
            let mut buffer = vec![0; PAGE_BYTES as usize];
            for page in &pages {
                if !job.goes_on() {
                    break;
                }
                job.time(|| file.read_exact_at(&mut buffer, page * PAGE_BYTES))?;
                job.done(PAGE_BYTES);
            }
            Ok(())
        })
    }
}

impl Workload for Read {
    fn suite(&self) -> &'static str {
        "read"
    }

    fn title(&self) -> String {
        format!("reading a file of {} MiB", self.file_bytes >> 20)
    }

    fn phases(&self) -> Vec<Phase> {
        vec![
            Phase::cold("in order, cold", Unit::MebibytesPerSecond, "read of 1 MiB"),
            Phase::warm("in order, warm", Unit::MebibytesPerSecond, "read of 1 MiB"),
            Phase::cold("4 KiB at random, cold", Unit::PerSecond("reads"), "read"),
            Phase::warm("4 KiB at random, warm", Unit::PerSecond("reads"), "read"),
        ]
    }

    fn prepare(&self, phase: usize, directory: &Path, interrupt: &Interrupt) -> Result<(), BenchError> {
        let path = directory.join(NAME);
        match phase {
            SEQUENTIAL_COLD => write_whole(&Directory(directory), NAME, self.file_bytes, interrupt),
            SEQUENTIAL_WARM | RANDOM_WARM => {
                let mut file = File::open(&path).at(&path)?;
                io::copy(&mut file, &mut io::sink()).at(&path).map(|_| ())
            }
            _ => Ok(()),
        }
    }

    fn run(&self, phase: usize, directory: &Path, pace: Pace<'_>) -> Result<Sample, BenchError> {
        let path = directory.join(NAME);
        match phase {
            RANDOM_COLD | RANDOM_WARM => self.at_random(&path, pace),
            _ => self.in_order(&path, pace),
        }
    }
}

/// The streaming write workload.
pub struct Stream {
    file_bytes: u64,
}

impl Stream {
    /// As large as the device allows.
    pub fn new(scale: &Scale) -> Self {
        Self { file_bytes: file_bytes(scale) }
    }
}

impl Workload for Stream {
    fn suite(&self) -> &'static str {
        "read"
    }

    fn title(&self) -> String {
        format!("writing a file of {} MiB, one fsync at its end", self.file_bytes >> 20)
    }

    fn phases(&self) -> Vec<Phase> {
        // Includes the time up to the end of the fsync; otherwise the speed of memory would be
        // measured.
        vec![Phase::warm("", Unit::MebibytesPerSecond, "write of 1 MiB")]
    }

    fn prepare(&self, _phase: usize, _directory: &Path, _interrupt: &Interrupt) -> Result<(), BenchError> {
        Ok(())
    }

    fn run(&self, _phase: usize, directory: &Path, pace: Pace<'_>) -> Result<Sample, BenchError> {
        let path = directory.join(NAME);
        let file = File::create(&path).at(&path)?;
        drive(vec![file], pace.without_limit(), |mut file, job| {
            let mut piece = vec![0; PIECE_BYTES];
            rand::rng().fill_bytes(&mut piece);
            let mut left = self.file_bytes;
            while left > 0 && job.goes_on() {
                let len = left.min(PIECE_BYTES as u64);
                job.time(|| file.write_all(&piece[..len as usize]))?;
                job.done(len);
                left -= len;
            }
            file.sync_all()
        })
    }
}
