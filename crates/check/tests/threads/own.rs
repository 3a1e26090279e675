//! The part of a setup that only the search with threads has: pauses, a late device, threads for
//! background work.

use crate::threads::pauses::{LateDevice, PausingClock, giving_way};
use crate::threads::shared::setup::{SearchOwn, Setup};
use crate::threads::stops::Background as Stops;
use rand::Rng;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use syncline_device::{Background, Device, MemoryDevice, Spawn, WorkerOptions};
use syncline_fs::Options;
use syncline_sim::RecordingDevice;
use syncline_store::{GiveWay, StoreOptions};

/// The choices of the search with threads.
#[derive(Clone, Copy, Debug)]
pub struct Own {
    pub late: bool,
    pub pauses: bool,
    /// Whether the program yields to others between steps that follow each other closely.
    pub gives_way: GivesWay,
}

/// When the program yields, at the places where it may.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GivesWay {
    Never,
    /// At random, for a moment.
    ByChance,
    /// Where an operation is to be stopped.
    WhereStopped,
}

/// A life of many threads with `steps` steps each.
pub fn many_threads(seed: u64, steps: u64, random: &mut impl Rng) -> Setup {
    let own = Own {
        late: random.random(),
        pauses: random.random(),
        gives_way: [GivesWay::Never, GivesWay::ByChance][random.random_range(0..2)],
    };
    Setup {
        threads: random.random_range(4..=8),
        steps,
        busy: random.random_range(0..4) > 0,
        eager: random.random_range(0..4) == 0,
        ..Setup::with(own, seed, random)
    }
}

/// A life in which operations are stopped where they may yield, and nothing else delays them.
pub fn stopped(seed: u64, random: &mut impl Rng) -> Setup {
    let own = Own { late: false, pauses: false, gives_way: GivesWay::WhereStopped };
    Setup {
        busy: random.random_range(0..8) == 0,
        eager: random.random_range(0..3) > 0,
        ..Setup::with(own, seed, random)
    }
}

impl SearchOwn for Own {
    /// Where background work is stopped.
    type Kept = Stops;
    const IMAGE_BYTES: u64 = 64 << 20;

    fn after_a_power_cut(self) -> Self {
        Self { late: false, pauses: false, gives_way: GivesWay::Never }
    }

    fn devices(
        self,
        seed: u64,
        image: Arc<MemoryDevice>,
        _: &Arc<dyn Spawn>,
    ) -> (Arc<RecordingDevice>, Arc<dyn Device>) {
        let below: Arc<dyn Device> = if self.late { LateDevice::new(image, seed) } else { image };
        let recording = RecordingDevice::new(below);
        (recording.clone(), recording)
    }

    fn open_options(self, setup: &Setup, stops: &Stops, store: &mut StoreOptions, fs: &mut Options) {
        fs.clock = PausingClock::new(setup.seed, self.pauses);
        store.lab.give_way = match self.gives_way {
            GivesWay::Never => GiveWay::default(),
            GivesWay::ByChance => giving_way(setup.seed),
            GivesWay::WhereStopped => stops.stopping(),
        };
    }
}

/// Two threads for background tasks, which could never meet on one.
pub struct Spread {
    backgrounds: [Background; 2],
    next: AtomicUsize,
}

impl Spread {
    pub fn start() -> Arc<dyn Spawn> {
        let start = || Background::start(WorkerOptions::default()).expect("a thread starts");
        Arc::new(Self { backgrounds: [start(), start()], next: AtomicUsize::new(0) })
    }
}

impl Spawn for Spread {
    fn spawn(&self, task: Pin<Box<dyn Future<Output = ()> + Send>>) {
        self.backgrounds[self.next.fetch_add(1, Ordering::Relaxed) % 2].spawn(task);
    }

    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        self.backgrounds[0].sleep(duration)
    }
}

#[test]
fn two_pairs_of_the_names_collide() {
    use crate::threads::shared::mount::{Mount, make};
    use crate::threads::shared::names::NAMES;
    use crate::threads::shared::world::CALLER;
    use rand::SeedableRng;
    use rand::rngs::StdRng;
    use syncline_device::block_on;
    use syncline_format::items::SLOT_BITS;
    use syncline_format::{Key, Kind};
    use syncline_fs::types::FileType;

    let setup = many_threads(1, 1, &mut StdRng::seed_from_u64(1));
    let spawn = Spread::start();
    let mount = Mount::open(setup, make(setup, &spawn), spawn);
    let fs = &mount.fs;
    let dir = block_on(fs.mkdir(CALLER, syncline_fs::types::ROOT, b"dir", 0o755)).unwrap().ino;
    for name in NAMES {
        block_on(fs.mknod(CALLER, dir, name.as_bytes(), FileType::Regular, 0o644, 0)).unwrap();
    }
    let (first, last) = (Key::new(dir, Kind::Dirent, 0), Key::new(dir, Kind::Dirent, u64::MAX));
    let entries = block_on(fs.store().scan(first, last, 100)).unwrap().items;
    let mut hashes: Vec<u64> = entries.iter().map(|(key, _)| key.offset >> SLOT_BITS).collect();
    hashes.dedup();
    assert_eq!((entries.len(), hashes.len()), (6, 4));
}
