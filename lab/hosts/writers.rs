//! Writers on a mount: each writes a record, syncs it, and notes the answer.

use super::journal::{Id, Journal, Place, contents};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::fs;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// The longest of most records: a record of this length goes with its flush in one request.
const SHORT_MAX: usize = 9000;
/// The longest record: its data are writes of their own, which a flush has to cover.
const RECORD_MAX: usize = 100_000;
/// Bytes of a record in the cell: a block, of which never half may be there.
pub const CELL_BYTES: usize = 4096;
/// A writer on a fenced host makes so many more attempts.
const TRIES: u32 = 25;

/// The writers of a mount.
pub struct Writers {
    pub journal: Arc<Journal>,
    ends: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Writers {
    pub fn start(mount: u64, directory: &Path, seed: u64) -> Self {
        let (journal, ends) = (Arc::<Journal>::default(), Arc::<AtomicBool>::default());
        let threads = Place::ALL.map(|place| {
            let seed = seed ^ (place as u64) << 60;
            let writer = Writer {
                mount,
                place,
                directory: directory.to_owned(),
                journal: journal.clone(),
                ends: ends.clone(),
                rng: ChaCha8Rng::seed_from_u64(seed),
            };
            std::thread::spawn(move || writer.run())
        });
        Self { journal, ends, threads: threads.into() }
    }

    /// Lets the writers end. A writer that waits for an answer ends when the answer comes.
    pub fn end(&self) {
        self.ends.store(true, Ordering::SeqCst);
    }

    /// True when all have ended.
    pub fn have_ended(&self) -> bool {
        self.threads.iter().all(JoinHandle::is_finished)
    }
}

struct Writer {
    mount: u64,
    place: Place,
    directory: PathBuf,
    journal: Arc<Journal>,
    ends: Arc<AtomicBool>,
    rng: ChaCha8Rng,
}

/// The files of a mount's own.
pub fn log_of(directory: &Path, mount: u64) -> PathBuf {
    directory.join(format!("{mount}.log"))
}

pub fn files_of(directory: &Path, mount: u64) -> PathBuf {
    directory.join(format!("{mount}.files"))
}

pub fn cell_of(directory: &Path) -> PathBuf {
    directory.join("cell")
}

impl Writer {
    fn run(mut self) {
        let Ok(file) = self.open() else { return };
        let (mut number, mut offset, mut failed) = (0, 0, 0);
        while !self.ends.load(Ordering::SeqCst) && failed < TRIES {
            let len = match self.place {
                Place::Cell => CELL_BYTES,
                _ if self.rng.random_bool(0.7) => self.rng.random_range(16..SHORT_MAX),
                _ => self.rng.random_range(SHORT_MAX..RECORD_MAX),
            };
            let id = (self.place, number);
            self.journal.ask(id, offset, len);
            match self.write(&file, id, offset, len) {
                Ok(()) => self.journal.acknowledge(id),
                Err(_) => failed += 1,
            }
            number += 1;
            if self.place == Place::Log {
                offset += len as u64;
            }
            let pause = if failed > 0 { 100 } else { self.rng.random_range(0..80) };
            std::thread::sleep(Duration::from_millis(pause));
        }
    }

    fn open(&self) -> io::Result<fs::File> {
        let path = match self.place {
            Place::Log => log_of(&self.directory, self.mount),
            Place::Cell => cell_of(&self.directory),
            Place::Files => {
                let path = files_of(&self.directory, self.mount);
                fs::create_dir(&path)?;
                return fs::File::open(path);
            }
        };
        fs::File::options().create(true).truncate(false).write(true).open(path)
    }

    /// Writes a record and syncs it. A file of its own is made in `file`, a directory.
    fn write(&mut self, file: &fs::File, id: Id, offset: u64, len: usize) -> io::Result<()> {
        let bytes = contents(self.mount, id, len);
        if self.place == Place::Files {
            let path = files_of(&self.directory, self.mount).join(id.1.to_string());
            let file = fs::File::create_new(path)?;
            file.write_all_at(&bytes, 0)?;
            return file.sync_all();
        }
        file.write_all_at(&bytes, offset)?;
        if self.rng.random_bool(0.5) { file.sync_all() } else { file.sync_data() }
    }
}
