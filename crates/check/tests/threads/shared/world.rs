//! A filesystem in use, and what its users know of it.

use super::directories::OwnedDirectory;
use super::ledger::Ledger;
use super::mount::{Mount, make};
use super::owner::OwnedFile;
use super::setup::Setup;
use super::watchdog::Watchdog;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use syncline_device::{Spawn, block_on};
use syncline_fs::types::{Caller, FileType, Ino, ROOT};
use syncline_fs::{Durability, FsError};

pub const CALLER: Caller = Caller { uid: 1000, gid: 100 };
/// Files that each thread owns.
const OWNED_EACH: u64 = 2;
/// Most operations that meet, including the sync.
pub const HANDS: u64 = 10;

/// A filesystem in use, and what its users know of it.
pub struct World {
    pub setup: Setup,
    pub mount: Mount,
    /// Directories in which all threads change names.
    pub shared: Vec<Ino>,
    /// The directory of the files that have owners.
    pub keep: Ino,
    pub owned: Vec<OwnedFile>,
    /// One for each thread.
    pub directories: Vec<OwnedDirectory>,
    pub ledger: Ledger,
    writes: AtomicU64,
    pub watchdog: Watchdog,
}

impl World {
    pub fn new(setup: Setup, spawn: Arc<dyn Spawn>) -> Self {
        let mount = Mount::open(setup, make(setup, &spawn), spawn);
        let fs = &mount.fs;
        let made = |name: &str| {
            let ino = block_on(fs.mkdir(CALLER, ROOT, name.as_bytes(), 0o755))
                .expect("an empty image has room")
                .ino;
            fs.forget(ino, 1);
            ino
        };
        let (shared, keep) = (["a", "b", "c"].map(made).to_vec(), made("keep"));
        let directories: Vec<_> =
            (0..setup.threads).map(|thread| OwnedDirectory::new(made(&format!("of{thread}")))).collect();
        let own = |index: u64| {
            let name = format!("{index}a");
            let file = block_on(fs.mknod(CALLER, keep, name.as_bytes(), FileType::Regular, 0o644, 0));
            OwnedFile::new(file.expect("an empty image has room").ino, index / OWNED_EACH)
        };
        let owned: Vec<_> = (0..setup.threads * OWNED_EACH).map(own).collect();
        for file in owned.iter().filter(|_| setup.ordered) {
            let ordered = Some(Durability::Ordered(u8::MAX));
            block_on(fs.set_durability(file.ino, ordered)).expect("an empty image has room");
        }
        block_on(fs.syncfs()).expect("a sound device");
        let (ledger, writes) = (Ledger::default(), AtomicU64::new(1));
        let watchdog = Watchdog::over(setup.threads.max(HANDS));
        Self { setup, mount, shared, keep, owned, directories, ledger, writes, watchdog }
    }

    /// Makes a sync of files with an owner durable that only fixed an order.
    pub fn follow_up(&self) {
        if self.setup.ordered {
            self.must(block_on(self.mount.fs.fsync(self.keep, false)));
        }
    }

    /// A number for a write.
    pub fn next_write(&self) -> u64 {
        self.writes.fetch_add(1, Ordering::Relaxed)
    }

    /// Records what a thread begins to do.
    pub fn note(&self, thread: u64, what: impl FnOnce() -> String) {
        self.watchdog.note(thread, self.mount.recording.position(), what());
    }

    /// The result of an operation; `None` if it was refused with one of these errors.
    pub fn expect<T>(&self, result: Result<T, FsError>, errnos: &[i32]) -> Option<T> {
        match result {
            Ok(given) => Some(given),
            Err(error) if errnos.contains(&error.errno()) => None,
            Err(error) => panic!("seed {}: {error:?}", self.setup.seed),
        }
    }

    /// The result of an operation that must succeed.
    pub fn must<T>(&self, result: Result<T, FsError>) -> T {
        result.unwrap_or_else(|error| panic!("seed {}: {error:?}", self.setup.seed))
    }

    /// The result of a judge that must accept.
    pub fn judged<T>(&self, result: Result<T, String>) -> T {
        result.unwrap_or_else(|what| panic!("seed {}: {what}", self.setup.seed))
    }
}
