//! K2: the ffsb profile: many threads read, create, append to, overwrite and remove files of many
//! sizes, and sync some of them.

use super::Scale;
use super::names::numbered;
use super::profile::{self, APPEND_BYTES, FILES_PER_DIRECTORY, Operation, PIECE_BYTES};
use crate::error::During;
use crate::jobs::{Job, drive};
use crate::workload::{Pace, Phase, Sample, Unit, Workload};
use crate::{BenchError, Interrupt};
use rand::rngs::StdRng;
use rand::{Rng, RngCore, SeedableRng};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Threads and files of the published table; fewer in a quick run and on a small device.
const THREADS: usize = 64;
const THREADS_QUICK: usize = 16;
const FILES: u64 = 100_000;
const FILES_QUICK: u64 = 2000;
/// The device's size divided by these is the space of the files initially, and at most.
const FIRST_PART: u64 = 4;
const MOST_PART: u64 = 2;
/// Bytes per second that the slowest writes, for estimating the time.
const BYTES_PER_SECOND: f64 = 200e6;

/// The workload.
pub struct K2 {
    threads: usize,
    files: u64,
    bytes_max: u64,
    /// The files made by `prepare`, for `run`.
    set: Mutex<Option<FileSet>>,
}

/// A file of the set.
#[derive(Clone, Debug)]
struct Entry {
    path: PathBuf,
    bytes: u64,
}

/// The existing files. An operation borrows a file (takes it out and puts it back), so that no two
/// work on the same one.
#[derive(Default)]
struct FileSet {
    idle: Mutex<Vec<Entry>>,
    bytes: AtomicU64,
    next: AtomicU64,
    directories: u64,
}

impl FileSet {
    fn borrow(&self, rng: &mut impl Rng) -> Option<Entry> {
        let mut idle = self.idle.lock().expect("nobody panics while holding it");
        if idle.is_empty() {
            return None;
        }
        let at = rng.random_range(0..idle.len());
        Some(idle.swap_remove(at))
    }

    fn put_back(&self, entry: Entry) {
        self.idle.lock().expect("nobody panics while holding it").push(entry);
    }

    fn new_path(&self, root: &Path) -> PathBuf {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        root.join(format!("dir-{}", number % self.directories)).join(numbered(number))
    }

    fn resize(&self, entry: &mut Entry, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.bytes.fetch_sub(entry.bytes, Ordering::Relaxed);
        entry.bytes = bytes;
    }

    fn remove(&self, mut entry: Entry) -> io::Result<()> {
        fs::remove_file(&entry.path)?;
        self.resize(&mut entry, 0);
        Ok(())
    }
}

impl K2 {
    /// As large as the device allows.
    pub fn new(scale: &Scale) -> Self {
        let fitting = scale.device_bytes / FIRST_PART / profile::mean_bytes();
        let (threads, files) = if scale.quick { (THREADS_QUICK, FILES_QUICK) } else { (THREADS, FILES) };
        let bytes_max = scale.device_bytes / MOST_PART;
        Self { threads, files: files.min(fitting).max(1), bytes_max, set: Mutex::new(None) }
    }
}

/// The state of one thread.
struct Actor<'a> {
    root: &'a Path,
    set: &'a FileSet,
    bytes_max: u64,
    rng: StdRng,
    buffer: Vec<u8>,
}

impl Actor<'_> {
    fn act(&mut self, job: &mut Job<'_>) -> io::Result<()> {
        // More files are created than removed. The surplus is removed, uncounted, so that a fast
        // filesystem does not fill up.
        while self.set.bytes.load(Ordering::Relaxed) > self.bytes_max {
            let Some(entry) = self.set.borrow(&mut self.rng) else { break };
            self.set.remove(entry)?;
        }
        let operation = profile::operation(&mut self.rng);
        let bytes = match operation {
            Operation::Create | Operation::CreateFsync => {
                self.create(operation == Operation::CreateFsync, job)?
            }
            _ => {
                let Some(mut entry) = self.set.borrow(&mut self.rng) else { return Ok(()) };
                if operation == Operation::Delete {
                    self.set.remove(entry)?;
                    0
                } else {
                    let bytes = self.on_file(operation, &mut entry, job)?;
                    self.set.put_back(entry);
                    bytes
                }
            }
        };
        job.done(bytes);
        Ok(())
    }

    fn create(&mut self, sync: bool, job: &mut Job<'_>) -> io::Result<u64> {
        let mut entry = Entry { path: self.set.new_path(self.root), bytes: 0 };
        let bytes = profile::size_bytes(&mut self.rng);
        let mut file = File::create_new(&entry.path)?;
        self.write(&mut file, bytes, sync, job)?;
        self.set.resize(&mut entry, bytes);
        self.set.put_back(entry);
        Ok(bytes)
    }

    /// Carries out the operation and returns the bytes written; bytes read do not count, since they
    /// are not written to the device.
    fn on_file(&mut self, operation: Operation, entry: &mut Entry, job: &mut Job<'_>) -> io::Result<u64> {
        match operation {
            Operation::ReadAll => {
                let mut file = File::open(&entry.path)?;
                while file.read(&mut self.buffer)? > 0 {}
                Ok(0)
            }
            Operation::Append | Operation::AppendFsync => {
                let mut file = File::options().append(true).open(&entry.path)?;
                self.write(&mut file, APPEND_BYTES, operation == Operation::AppendFsync, job)?;
                self.set.resize(entry, entry.bytes + APPEND_BYTES);
                Ok(APPEND_BYTES)
            }
            Operation::WriteAll | Operation::WriteAllFsync => {
                let mut file = File::options().write(true).open(&entry.path)?;
                self.write(&mut file, entry.bytes, operation == Operation::WriteAllFsync, job)?;
                Ok(entry.bytes)
            }
            Operation::Stat => fs::metadata(&entry.path).map(|_| 0),
            _ => File::open(&entry.path).map(|_| 0),
        }
    }

    fn write(&self, file: &mut File, bytes: u64, sync: bool, job: &mut Job<'_>) -> io::Result<()> {
        let mut left = bytes;
        while left > 0 {
            let len = left.min(self.buffer.len() as u64);
            file.write_all(&self.buffer[..len as usize])?;
            left -= len;
        }
        if sync { job.time(|| file.sync_all()) } else { Ok(()) }
    }
}

impl Workload for K2 {
    fn suite(&self) -> &'static str {
        "k2"
    }

    fn title(&self) -> String {
        format!("ffsb profile, {} threads, {} files", self.threads, self.files)
    }

    fn phases(&self) -> Vec<Phase> {
        vec![Phase::warm("", Unit::PerSecond("transactions"), "fsync")]
    }

    fn files(&self) -> u64 {
        // The set grows while the load runs.
        self.bytes_max / profile::mean_bytes() * 2
    }

    fn expected_seconds(&self, duration: Duration) -> f64 {
        1.0 + (self.files * profile::mean_bytes()) as f64 / BYTES_PER_SECOND + duration.as_secs_f64()
    }

    fn prepare(&self, _phase: usize, directory: &Path, interrupt: &Interrupt) -> Result<(), BenchError> {
        let directories = self.files.div_ceil(FILES_PER_DIRECTORY);
        for number in 0..directories {
            let path = directory.join(format!("dir-{number}"));
            fs::create_dir(&path).at(&path)?;
        }
        // The same files for all contestants.
        let mut rng = StdRng::seed_from_u64(self.files);
        let mut buffer = vec![0; PIECE_BYTES * 2];
        rng.fill_bytes(&mut buffer);
        let set = FileSet { directories, ..FileSet::default() };
        for _ in 0..self.files {
            interrupt.check()?;
            let mut entry = Entry { path: set.new_path(directory), bytes: 0 };
            let bytes = profile::size_bytes(&mut rng);
            fs::write(&entry.path, &buffer[..bytes as usize]).at(&entry.path)?;
            set.resize(&mut entry, bytes);
            set.put_back(entry);
        }
        *self.set.lock().expect("nobody panics while holding it") = Some(set);
        Ok(())
    }

    fn run(&self, _phase: usize, directory: &Path, pace: Pace<'_>) -> Result<Sample, BenchError> {
        let set = self.set.lock().expect("nobody panics while holding it").take();
        let set = set.ok_or_else(|| BenchError::Usage("K2 was not prepared".into()))?;
        let mut actors = Vec::with_capacity(self.threads);
        for thread in 0..self.threads {
            let mut rng = StdRng::seed_from_u64(thread as u64);
            let mut buffer = vec![0; PIECE_BYTES];
            rng.fill_bytes(&mut buffer);
            actors.push(Actor { root: directory, set: &set, bytes_max: self.bytes_max, rng, buffer });
        }
        drive(actors, pace, |mut actor, job| {
            while job.goes_on() {
                actor.act(job)?;
            }
            Ok(())
        })
    }
}
