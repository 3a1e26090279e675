//! One life: threads at one filesystem, and then the judges.

use crate::directories::{self, OwnedDirectory};
use crate::ledger::Ledger;
use crate::meetings::HANDS;
use crate::owner::{self, OwnedFile};
use crate::setup::{Mount, Setup, Spread, make};
use crate::watchdog::{Guard, Watchdog};
use crate::{crash, end, files, names, whole};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use syncline_device::{Spawn, block_on};
use syncline_fs::FsError;
use syncline_fs::types::{Caller, FileType, Ino, ROOT};

pub const CALLER: Caller = Caller { uid: 1000, gid: 100 };
/// Files that each thread owns.
const OWNED_EACH: u64 = 2;

/// A filesystem in use, and what its users know.
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
        block_on(fs.syncfs()).expect("a sound device");
        let (ledger, writes) = (Ledger::default(), AtomicU64::new(1));
        let watchdog = Watchdog::over(setup.threads.max(HANDS));
        Self { setup, mount, shared, keep, owned, directories, ledger, writes, watchdog }
    }

    /// A number for a write.
    pub fn next_write(&self) -> u64 {
        self.writes.fetch_add(1, Ordering::Relaxed)
    }

    /// Notes what a thread begins to do.
    pub fn note(&self, thread: u64, what: impl FnOnce() -> String) {
        self.watchdog.note(thread, self.mount.recording.position(), what());
    }

    /// What an operation gave, or nothing if it was refused in one of these ways.
    pub fn expect<T>(&self, result: Result<T, FsError>, errnos: &[i32]) -> Option<T> {
        match result {
            Ok(given) => Some(given),
            Err(error) if errnos.contains(&error.errno()) => None,
            Err(error) => panic!("seed {}: {error:?}", self.setup.seed),
        }
    }

    /// What an operation that nothing forbids gave.
    pub fn must<T>(&self, result: Result<T, FsError>) -> T {
        result.unwrap_or_else(|error| panic!("seed {}: {error:?}", self.setup.seed))
    }

    /// What a judge let pass.
    pub fn judged<T>(&self, result: Result<T, String>) -> T {
        result.unwrap_or_else(|what| panic!("seed {}: {what}", self.setup.seed))
    }
}

/// What a life was made of.
pub struct Figures {
    pub setup: Setup,
    pub events: usize,
    pub acknowledged: usize,
    pub images: usize,
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { setup, events, acknowledged, images } = self;
        write!(
            f,
            "{events} device events, {acknowledged} syncs with a promise, {images} power cuts, {setup:?}"
        )
    }
}

/// Lives one life, as the seed says and then as `changed`.
pub fn live(seed: u64, changed: impl FnOnce(Setup) -> Setup) -> Figures {
    let mut random = StdRng::seed_from_u64(seed);
    let setup = changed(Setup::of(seed, &mut random));
    println!("seed {seed}: {setup:?}");
    let world = World::new(setup, Spread::start());
    let begun = world.mount.recording.position();
    std::thread::scope(|scope| {
        let watch = scope.spawn(|| world.watchdog.watch(&format!("{setup:?}")));
        let threads = (0..setup.threads).map(|thread| {
            let (world, random) = (&world, StdRng::seed_from_u64(random.random()));
            scope.spawn(move || run(world, thread, random))
        });
        let threads: Vec<_> = threads.collect();
        let ended: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
        world.watchdog.end();
        let _ = watch.join();
        ended.into_iter().for_each(|ended| ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
    });
    let acknowledged = world.ledger.positions().len();
    let images = crash::judge(&world, begun, &mut random);
    let events = world.mount.recording.position();
    end::judge(world);
    Figures { setup, events, acknowledged, images }
}

fn run(world: &World, thread: u64, mut random: StdRng) {
    let _guard = Guard { watchdog: &world.watchdog, thread };
    for _ in 0..world.setup.steps {
        if world.watchdog.has_failed() {
            return;
        }
        match random.random_range(0..20) {
            0..6 => owner::step(world, thread, &mut random),
            6..8 => directories::step(world, thread, &mut random),
            8..13 => files::step(world, thread, &mut random),
            13..17 => names::step(world, thread, &mut random),
            17..19 => whole::poke(world, thread, &mut random),
            _ => whole::step(world, thread, &mut random),
        }
    }
}
