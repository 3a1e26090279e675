//! K4: creating empty files and removing them, a directory for each thread.

use super::Scale;
use super::names::numbered;
use crate::error::During;
use crate::jobs::{Job, drive};
use crate::workload::{Pace, Phase, Sample, Unit, Workload};
use crate::{BenchError, Interrupt, command};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Number of files of a thread.
const FILES: u64 = 50_000;
const FILES_QUICK: u64 = 10_000;
/// Space on the device that a file may take.
const BYTES_PER_FILE: u64 = 4 << 10;
/// Files per second that the slowest creates and removes, for estimating the time.
const FILES_PER_SECOND: f64 = 15_000.0;

/// The workload.
pub struct K4 {
    threads: usize,
    files_each: u64,
    fs_mark: Option<PathBuf>,
}

impl K4 {
    /// One thread for each CPU, at most the forty of the published table.
    pub fn new(scale: &Scale) -> Self {
        let threads = scale.cpus.clamp(2, 40);
        let wanted = if scale.quick { FILES_QUICK } else { FILES };
        let files_each = wanted.min(scale.device_bytes / BYTES_PER_FILE / threads as u64);
        Self { threads, files_each, fs_mark: scale.fs_mark.clone() }
    }

    fn directories(&self, directory: &Path) -> Vec<PathBuf> {
        (0..self.threads).map(|thread| directory.join(format!("thread-{thread}"))).collect()
    }

    fn create(&self, directory: &Path, job: &mut Job<'_>) -> io::Result<()> {
        for number in 0..self.files_each {
            if !job.goes_on() {
                break;
            }
            job.time(|| File::create(directory.join(numbered(number))))?;
            job.done(0);
        }
        Ok(())
    }

    fn create_by(&self, fs_mark: &Path, directory: &Path, pace: Pace<'_>) -> Result<Sample, BenchError> {
        let mut command = Command::new(fs_mark);
        let log = tempfile::NamedTempFile::new()?;
        // fs_mark changes subdirectories every three minutes: all files of a thread are in one, as
        // in the built-in load.
        command.args(["-D", "10000", "-S", "0", "-s", "0", "-L", "1", "-k"]);
        command.arg("-n").arg(self.files_each.to_string());
        command.arg("-l").arg(log.path());
        // fs_mark takes no path of forty bytes or more.
        command.current_dir(directory);
        for directory in self.directories(Path::new("")) {
            command.arg("-d").arg(directory);
        }
        let rate = files_per_second(&command::succeed(&mut command, Some(pace.interrupt))?)?;
        let operations = self.files_each * self.threads as u64;
        Ok(Sample { operations, seconds: operations as f64 / rate, ..Sample::default() })
    }
}

/// The fourth number of fs_mark's line.
fn files_per_second(text: &str) -> Result<f64, BenchError> {
    let line = text.lines().rev().find_map(|line| {
        let numbers: Option<Vec<f64>> = line.split_whitespace().map(|word| word.parse().ok()).collect();
        numbers.filter(|numbers| numbers.len() >= 4)
    });
    let rate = line.map(|numbers| numbers[3]).filter(|rate| *rate > 0.0);
    rate.ok_or_else(|| BenchError::Answer { what: "fs_mark's report".into(), said: text.trim().to_owned() })
}

/// Removes everything in a directory, and the directory.
fn remove(directory: &Path, job: &mut Job<'_>) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        if !job.goes_on() {
            return Ok(());
        }
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove(&entry.path(), job)?;
        } else {
            job.time(|| fs::remove_file(entry.path()))?;
            job.done(0);
        }
    }
    if job.goes_on() { fs::remove_dir(directory) } else { Ok(()) }
}

impl Workload for K4 {
    fn suite(&self) -> &'static str {
        "k4"
    }

    fn title(&self) -> String {
        format!("{} threads, {} empty files each", self.threads, self.files_each)
    }

    fn phases(&self) -> Vec<Phase> {
        vec![
            Phase::warm("create", Unit::PerSecond("files"), "creating"),
            Phase::warm("remove", Unit::PerSecond("files"), "unlink"),
        ]
    }

    fn files(&self) -> u64 {
        self.files_each * self.threads as u64
    }

    fn engine(&self) -> String {
        if self.fs_mark.is_some() { "fs_mark creates, built in removes".into() } else { "built in".into() }
    }

    fn expected_seconds(&self, _duration: Duration) -> f64 {
        1.0 + (self.files_each * self.threads as u64) as f64 / FILES_PER_SECOND
    }

    fn prepare(&self, phase: usize, directory: &Path, _interrupt: &Interrupt) -> Result<(), BenchError> {
        for directory in self.directories(directory).iter().filter(|_| phase == 0) {
            fs::create_dir(directory).at(directory)?;
        }
        Ok(())
    }

    fn run(&self, phase: usize, directory: &Path, pace: Pace<'_>) -> Result<Sample, BenchError> {
        let pace = pace.without_limit();
        let directories = self.directories(directory);
        match (&self.fs_mark, phase) {
            (Some(fs_mark), 0) => self.create_by(fs_mark, directory, pace),
            (None, 0) => drive(directories, pace, |directory, job| self.create(&directory, job)),
            _ => drive(directories, pace, |directory, job| remove(&directory, job)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fs_marks_report_is_read() {
        let text = "#\tVersion 3.3, 2 thread(s)\n\nFSUse%        Count         Size    Files/sec     App Overhead\n    20         2000            0      53267.2            11423\n";
        assert_eq!(files_per_second(text).unwrap(), 53267.2);
        assert!(files_per_second("fs_mark: no room").is_err());
    }
}
