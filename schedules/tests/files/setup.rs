//! What a seed chooses of a filesystem, and how it is made, opened and closed.

use rand::Rng;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use syncline_check::{Report, check};
use syncline_device::{Device, MemoryDevice, Spawn, block_on};
use syncline_fs::types::Timestamp;
use syncline_fs::{Clock, Filesystem, Options};
use syncline_schedules::{LateDevice, Pace};
use syncline_sim::{RecordingDevice, ThroughDevice};
use syncline_store::{Canary, FormatOptions, Store, StoreOptions, format};

const SIZE_BYTES: u64 = 32 << 20;

/// Seed of the hash of names: with this one, collisions are known.
const HASH_SEED: [u8; 16] = [7; 16];

/// What a life is like.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    pub seed: u64,
    /// Those who own files and directories.
    pub threads: u64,
    /// All who do something.
    pub hands: u64,
    pub steps: u64,
    pub cached_inodes_max: usize,
    pub node_bytes: u32,
    pub parent_pointers: bool,
    pub quotas: bool,
    pub discard: bool,
    /// The device flushes behind a write, in one request.
    pub through: bool,
    /// How the device takes its time; none of it takes any without.
    pub pace: Option<Pace>,
    /// Checkpoints and write-back all the time.
    pub busy: bool,
    /// Write-back begins as soon as anything is dirty.
    pub eager: bool,
    /// A rule that is broken on purpose.
    pub canary: Option<Canary>,
}

impl Setup {
    pub fn of(seed: u64, random: &mut impl Rng) -> Self {
        let node_bytes = if random.random() { 4096 } else { 16384 };
        let parent_pointers = random.random_range(0..4) > 0;
        let slowest = [Duration::from_millis(1), Duration::from_secs(1), Duration::from_secs(30)];
        Self {
            seed,
            threads: 1,
            hands: random.random_range(2..=4),
            steps: random.random_range(1..4),
            cached_inodes_max: [1, 1, 8, 65536][random.random_range(0..4)],
            node_bytes,
            parent_pointers,
            // Nodes of 4096 bytes have no room for both.
            quotas: random.random() && !(parent_pointers && node_bytes < 16384),
            discard: random.random_range(0..4) == 0,
            through: random.random(),
            pace: (random.random_range(0..4) > 0).then(|| Pace {
                at_once_one_in: [0, 0, 2, 8][random.random_range(0..4)],
                slow_one_in: [0, 0, 3, 12][random.random_range(0..4)],
                slowest: slowest[random.random_range(0..3)],
            }),
            busy: random.random_range(0..8) == 0,
            eager: random.random_range(0..3) > 0,
            canary: None,
        }
    }

    /// The same for whoever looks what a power cut has left: nothing gets in their way.
    pub fn after_a_power_cut(self) -> Self {
        Self { pace: None, canary: None, ..self }
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
}

/// A clock that goes on by a microsecond whenever somebody looks at it.
struct CountingClock(AtomicU64);

impl Clock for CountingClock {
    fn now(&self) -> Timestamp {
        syncline_sync::yield_point();
        let now = self.0.fetch_add(1, Ordering::Relaxed);
        Timestamp { seconds: (now / 1_000_000) as i64, nanoseconds: (now % 1_000_000) as u32 * 1000 }
    }
}

/// An empty filesystem on a device.
pub fn make(setup: Setup, spawn: &Arc<dyn Spawn>) -> Arc<MemoryDevice> {
    let device = MemoryDevice::new(SIZE_BYTES);
    let root = Filesystem::initial_transaction(0, 0, 0o755, Timestamp { seconds: 1, nanoseconds: 0 });
    let options = FormatOptions {
        node_bytes: setup.node_bytes,
        parent_pointers: setup.parent_pointers,
        uuid: [1; 16],
        hash_seed: HASH_SEED,
        epoch: Some([3; 16]),
        ..FormatOptions::default()
    };
    block_on(format(device.clone(), options, root, spawn.clone())).expect("it is formatted");
    device
}

impl Mount {
    pub fn open(setup: Setup, device: Arc<MemoryDevice>, spawn: Arc<dyn Spawn>) -> Self {
        let base = device.snapshot();
        let below: Arc<dyn Device> = match setup.pace {
            Some(pace) => LateDevice::start(device.clone(), &spawn, pace, setup.seed),
            None => device.clone(),
        };
        let recording = RecordingDevice::new(below);
        let above: Arc<dyn Device> =
            if setup.through { ThroughDevice::new(recording.clone()) } else { recording.clone() };
        // Each time that it is opened another one, of the seed.
        let mut epoch = [5; 16];
        epoch[..8].copy_from_slice(&setup.seed.to_le_bytes());
        epoch[8] = u8::from(setup.pace.is_none());
        let mut store_options = StoreOptions {
            discard: setup.discard,
            canary: setup.canary,
            epoch: Some(epoch),
            node_cache_bytes: 1 << 20,
            ..StoreOptions::default()
        };
        let mut options = Options {
            clock: Arc::new(CountingClock(AtomicU64::new(1_000_000_000))),
            cached_inodes_max: setup.cached_inodes_max,
            receipts_max: 16,
            ..Options::default()
        };
        if setup.busy {
            store_options = StoreOptions {
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
        let opened = block_on(Store::open(above, store_options, spawn.clone()));
        let (store, _) = opened.expect("the store opens");
        let recovered = store.last_op().0;
        let fs = block_on(Filesystem::open(store, spawn.clone(), options)).expect("the filesystem opens");
        Self { fs, device, recording, base, spawn, recovered }
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
