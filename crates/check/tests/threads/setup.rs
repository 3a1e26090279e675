//! What a seed chooses of a filesystem, and how it is made, opened and closed.

use crate::pauses::{LateDevice, PausingClock, giving_way};
use crate::stops::Background as Stops;
use rand::Rng;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use syncline_check::{Report, check};
use syncline_device::{Background, Device, MemoryDevice, Spawn, WorkerOptions, block_on};
use syncline_fs::types::Timestamp;
use syncline_fs::{Filesystem, Options};
use syncline_sim::RecordingDevice;
use syncline_store::{Canary, FormatOptions, GiveWay, Store, StoreOptions, format};

pub const SIZE_BYTES: u64 = 64 << 20;

/// Seed of the hash of names: with this one, collisions are known.
pub const HASH_SEED: [u8; 16] = [7; 16];

#[derive(Clone, Copy, Debug)]
pub struct Setup {
    pub seed: u64,
    pub threads: u64,
    pub steps: u64,
    pub cached_inodes_max: usize,
    pub node_bytes: u32,
    pub parent_pointers: bool,
    pub quotas: bool,
    pub late: bool,
    pub pauses: bool,
    pub discard: bool,
    /// Checkpoints and write-back all the time.
    pub busy: bool,
    /// Write-back begins as soon as anything is dirty.
    pub eager: bool,
    /// Whether the program lets others go first between steps that follow each other closely.
    pub gives_way: GivesWay,
    /// A rule that is broken on purpose.
    pub canary: Option<Canary>,
}

/// When the program lets others go first where it may.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GivesWay {
    Never,
    /// Now and then, for a moment.
    ByChance,
    /// Where an operation is to be stopped.
    WhereStopped,
}

impl Setup {
    pub fn of(seed: u64, random: &mut impl Rng) -> Self {
        let node_bytes = if random.random() { 4096 } else { 16384 };
        let parent_pointers = random.random_range(0..4) > 0;
        Self {
            seed,
            threads: random.random_range(4..=8),
            steps: 200,
            cached_inodes_max: [1, 1, 8, 65536][random.random_range(0..4)],
            node_bytes,
            parent_pointers,
            // Nodes of 4096 bytes have no room for both.
            quotas: random.random() && !(parent_pointers && node_bytes < 16384),
            late: random.random(),
            pauses: random.random(),
            discard: random.random_range(0..4) == 0,
            busy: random.random_range(0..4) > 0,
            eager: random.random_range(0..4) == 0,
            gives_way: [GivesWay::Never, GivesWay::ByChance][random.random_range(0..2)],
            canary: None,
        }
    }

    /// The same for whoever looks what a power cut has left: nothing gets in their way.
    pub fn after_a_power_cut(self) -> Self {
        Self { late: false, pauses: false, gives_way: GivesWay::Never, canary: None, ..self }
    }
}

/// Two threads for background tasks, which would never meet on one.
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

/// A filesystem in use, and what is below it.
pub struct Mount {
    pub fs: Arc<Filesystem>,
    pub device: Arc<MemoryDevice>,
    pub recording: Arc<RecordingDevice>,
    /// What the device held when the recording began.
    pub base: Arc<MemoryDevice>,
    pub spawn: Arc<dyn Spawn>,
    /// The newest transaction when it was opened: what recovery found.
    pub recovered: u64,
    /// Where what goes on in the background is to be stopped.
    pub stops: Stops,
}

/// An empty filesystem on a device.
pub fn make(setup: Setup, spawn: &Arc<dyn Spawn>) -> Arc<MemoryDevice> {
    let device = MemoryDevice::new(SIZE_BYTES);
    let root = Filesystem::initial_transaction(0, 0, 0o755, Timestamp { seconds: 1, nanoseconds: 0 });
    let options = FormatOptions {
        node_bytes: setup.node_bytes,
        parent_pointers: setup.parent_pointers,
        hash_seed: HASH_SEED,
        ..FormatOptions::default()
    };
    block_on(format(device.clone(), options, root, spawn.clone())).expect("it is formatted");
    device
}

impl Mount {
    pub fn open(setup: Setup, device: Arc<MemoryDevice>, spawn: Arc<dyn Spawn>) -> Self {
        let (base, stops) = (device.snapshot(), Stops::default());
        let below: Arc<dyn Device> =
            if setup.late { LateDevice::new(device.clone(), setup.seed) } else { device.clone() };
        let recording = RecordingDevice::new(below);
        let mut store_options =
            StoreOptions { discard: setup.discard, canary: setup.canary, ..StoreOptions::default() };
        let mut options = Options {
            clock: PausingClock::new(setup.seed, setup.pauses),
            cached_inodes_max: setup.cached_inodes_max,
            ..Options::default()
        };
        store_options.give_way = match setup.gives_way {
            GivesWay::Never => GiveWay::default(),
            GivesWay::ByChance => giving_way(setup.seed),
            GivesWay::WhereStopped => stops.stopping(),
        };
        if setup.busy {
            store_options = StoreOptions {
                node_cache_bytes: 256 << 10,
                memtable_bytes: 64 << 10,
                checkpoint_interval: Duration::from_millis(20),
                log_bytes: 1 << 20,
                seal_bytes: 16 << 10,
                unflushed_bytes: 256 << 10,
                ..store_options
            };
            options.writeback_age = Duration::from_millis(5);
            options.writeback_start_bytes = 128 << 10;
            options.dirty_bytes_max = 1 << 20;
        }
        if setup.eager {
            options.writeback_start_bytes = 1;
        }
        let opened = block_on(Store::open(recording.clone(), store_options, spawn.clone()));
        let (store, _) = opened.expect("the store opens");
        let recovered = store.last_op().0;
        let fs = block_on(Filesystem::open(store, spawn.clone(), options)).expect("the filesystem opens");
        Self { fs, device, recording, base, spawn, recovered, stops }
    }

    /// Fails if a submission ended with a logged size that was behind, though nobody has seen yet what that leads to.
    pub fn require_sizes_logged(&self, moment: &str) {
        let short = self.fs.counters().submissions_short;
        assert_eq!(short, 0, "{moment}: submissions that left the logged size behind");
    }

    /// Closes it, which waits for all that goes on in the background.
    pub fn close(&self) -> (Arc<MemoryDevice>, Arc<dyn Spawn>) {
        block_on(self.fs.close()).expect("the filesystem closes");
        block_on(self.fs.store().close()).expect("the store closes");
        (self.device.clone(), self.spawn.clone())
    }
}

/// Fails unless `check` finds nothing wrong.
pub fn require_clean(device: Arc<MemoryDevice>, spawn: &Arc<dyn Spawn>, moment: &str) -> Report {
    let report = block_on(check(device, spawn.clone(), &mut |_| {})).expect("there is an image");
    assert!(report.is_clean() && !report.incomplete, "{moment}: {:#?}", report.findings);
    report
}

#[test]
fn two_pairs_of_the_names_collide() {
    use crate::names::NAMES;
    use crate::world::CALLER;
    use rand::SeedableRng;
    use rand::rngs::StdRng;
    use syncline_format::items::SLOT_BITS;
    use syncline_format::{Key, Kind};
    use syncline_fs::types::FileType;

    let setup = Setup::of(1, &mut StdRng::seed_from_u64(1));
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
