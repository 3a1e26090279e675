//! The two workloads of the measurements: append and fsync, and random overwrite and fsync of files with an attribute.

use super::Interrupt;
use super::target::{Figures, Target, WorkFile};
use crate::failure::Failure;
use rand::{Rng, RngCore};
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Bytes of each write.
const WRITE_BYTES: u64 = 64 << 10;
/// A job's file starts over at this length, or at this part of a small image.
const FILE_BYTES_MAX: u64 = 48 << 20;
const FILE_PART: u64 = 24;
/// Length of the attribute.
const XATTR_BYTES: usize = 50;

/// How a workload writes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pattern {
    Append,
    Overwrite,
}

/// A workload.
pub struct Workload {
    name: &'static str,
    jobs: usize,
    pattern: Pattern,
}

/// All of them.
pub const WORKLOADS: &[Workload] = &[
    Workload { name: "64 KiB append + fsync", jobs: 1, pattern: Pattern::Append },
    Workload { name: "64 KiB append + fsync", jobs: 8, pattern: Pattern::Append },
    Workload { name: "64 KiB random overwrite + fsync, one xattr", jobs: 8, pattern: Pattern::Overwrite },
];

/// What came out.
pub struct Row {
    name: &'static str,
    jobs: usize,
    /// fsyncs that were acknowledged.
    pub fsyncs: u64,
    seconds: f64,
    figures: Figures,
}

impl Row {
    /// The line above the rows.
    pub const HEADING: &'static str = "workload                                     jobs  fsyncs/s  flushes/fsync  writes/fsync  bytes written/byte";
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fsyncs = self.fsyncs.max(1) as f64;
        write!(
            f,
            "{:44} {:>4} {:>9.0} {:>14.2} {:>13.2} {:>19.2}",
            self.name,
            self.jobs,
            self.fsyncs as f64 / self.seconds,
            self.figures.flushes as f64 / fsyncs,
            self.figures.writes as f64 / fsyncs,
            self.figures.write_bytes as f64 / (fsyncs * WRITE_BYTES as f64),
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
        let before = target.figures()?;
        let (fsyncs, elapsed) = self.drive(files, file_bytes, Duration::from_secs(seconds), interrupt)?;
        let after = target.figures()?;
        let figures = Figures {
            flushes: after.flushes - before.flushes,
            writes: after.writes - before.writes,
            write_bytes: after.write_bytes - before.write_bytes,
        };
        Ok(Row { name: self.name, jobs: self.jobs, fsyncs, seconds: elapsed.as_secs_f64(), figures })
    }

    fn prepare(&self, target: &Target, name: &str, file_bytes: u64) -> Result<Box<dyn WorkFile>, Failure> {
        let file = target.create(name)?;
        if self.pattern == Pattern::Overwrite {
            file.set_len(file_bytes)?;
            file.set_xattr(&[b'x'; XATTR_BYTES])?;
        }
        file.sync()?;
        Ok(file)
    }

    /// All jobs at once; the fsyncs that returned, and the time.
    fn drive(
        &self,
        files: Vec<Box<dyn WorkFile>>,
        file_bytes: u64,
        limit: Duration,
        interrupt: &Interrupt,
    ) -> Result<(u64, Duration), Failure> {
        let (stop, fsyncs) = (AtomicBool::new(false), AtomicU64::new(0));
        let bar = super::bar(limit.as_secs(), "s");
        let started = Instant::now();
        let outcomes = std::thread::scope(|scope| {
            let (stop, fsyncs) = (&stop, &fsyncs);
            let job = |file: Box<dyn WorkFile>| job(&*file, file_bytes, self.pattern, stop, fsyncs);
            let jobs: Vec<_> = files.into_iter().map(|file| scope.spawn(move || job(file))).collect();
            while started.elapsed() < limit
                && !interrupt.raised()
                && !jobs.iter().any(|job| job.is_finished())
            {
                std::thread::sleep(Duration::from_millis(20));
                bar.set_position(started.elapsed().as_secs());
            }
            stop.store(true, Ordering::Relaxed);
            jobs.into_iter().map(|job| job.join()).collect::<Vec<_>>()
        });
        let elapsed = started.elapsed();
        bar.finish_and_clear();
        for outcome in outcomes {
            outcome.map_err(|_| Failure::new("a job of the workload panicked"))??;
        }
        Ok((fsyncs.load(Ordering::Relaxed), elapsed))
    }
}

fn job(
    file: &dyn WorkFile,
    file_bytes: u64,
    pattern: Pattern,
    stop: &AtomicBool,
    fsyncs: &AtomicU64,
) -> io::Result<()> {
    let mut rng = rand::rng();
    let mut data = vec![0; WRITE_BYTES as usize];
    rng.fill_bytes(&mut data);
    let mut next = 0;
    while !stop.load(Ordering::Relaxed) {
        let offset = match pattern {
            Pattern::Append if next == file_bytes => {
                file.set_len(0)?;
                0
            }
            Pattern::Append => next,
            Pattern::Overwrite => rng.random_range(0..file_bytes / WRITE_BYTES) * WRITE_BYTES,
        };
        file.write_at(&data, offset)?;
        file.sync()?;
        next = offset + WRITE_BYTES;
        fsyncs.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}
