//! The part of a setup that only the search over schedules has: a device that is late, fails and
//! offers write-through, with nothing left to chance.

use crate::shared::setup::{SearchOwn, Setup};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use syncline_device::{Device, MemoryDevice, Operation, Spawn};
use syncline_fs::types::Timestamp;
use syncline_fs::{Clock, Options};
use syncline_schedules::{LateDevice, Pace};
use syncline_sim::{Effect, Fault, FaultDevice, RecordingDevice, ThroughDevice};
use syncline_store::{FormatOptions, StoreOptions};

/// The choices of the search over schedules.
#[derive(Clone, Copy, Debug)]
pub struct Own {
    /// Number of hands.
    pub hands: u64,
    /// The device offers write-through.
    pub through: bool,
    /// How long the device takes; `None`: operations complete at once.
    pub pace: Option<Pace>,
    /// One write among the first this many fails. Nothing above may fail because of that.
    pub one_fails_in: Option<u64>,
}

/// A life of a few steps of a few hands.
pub fn few_hands(seed: u64, random: &mut impl Rng) -> Setup {
    let slowest = [Duration::from_millis(1), Duration::from_secs(1), Duration::from_secs(30)];
    let own = Own {
        hands: random.random_range(2..=4),
        through: random.random(),
        pace: (random.random_range(0..4) > 0).then(|| Pace {
            at_once_one_in: [0, 0, 2, 8][random.random_range(0..4)],
            slow_one_in: [0, 0, 3, 12][random.random_range(0..4)],
            slowest: slowest[random.random_range(0..3)],
        }),
        one_fails_in: [None, None, None, None, Some(8), Some(60)][random.random_range(0..6)],
    };
    Setup {
        steps: random.random_range(1..4),
        busy: random.random_range(0..8) == 0,
        eager: random.random_range(0..3) > 0,
        ..Setup::with(own, seed, random)
    }
}

impl SearchOwn for Own {
    type Kept = ();
    const IMAGE_BYTES: u64 = 32 << 20;

    fn after_a_power_cut(self) -> Self {
        Self { pace: None, one_fails_in: None, ..self }
    }

    fn device_fails(self) -> bool {
        self.one_fails_in.is_some()
    }

    fn format_options(self, options: FormatOptions) -> FormatOptions {
        FormatOptions { uuid: [1; 16], epoch: Some([3; 16]), ..options }
    }

    fn devices(
        self,
        seed: u64,
        image: Arc<MemoryDevice>,
        spawn: &Arc<dyn Spawn>,
    ) -> (Arc<RecordingDevice>, Arc<dyn Device>) {
        let failing: Arc<dyn Device> = match self.one_fails_in {
            Some(writes) => one_fails(writes, image, seed),
            None => image,
        };
        let below: Arc<dyn Device> = match self.pace {
            Some(pace) => LateDevice::start(failing, spawn, pace, seed),
            None => failing,
        };
        let recording = RecordingDevice::new(below);
        match self.through {
            true => (recording.clone(), ThroughDevice::new(recording)),
            false => (recording.clone(), recording),
        }
    }

    fn open_options(self, setup: &Setup, _: &(), store: &mut StoreOptions, fs: &mut Options) {
        // A different epoch at each opening, derived from the seed.
        let mut epoch = [5; 16];
        epoch[..8].copy_from_slice(&setup.seed.to_le_bytes());
        epoch[8] = u8::from(self.pace.is_none());
        store.epoch = Some(epoch);
        store.node_cache_bytes = 1 << 20;
        fs.clock = Arc::new(CountingClock(AtomicU64::new(1_000_000_000)));
        fs.receipts_max = 16;
    }
}

/// The image, with a fault: one of its first `writes` writes fails or takes place only in part.
fn one_fails(writes: u64, image: Arc<MemoryDevice>, seed: u64) -> Arc<FaultDevice> {
    let device = FaultDevice::seeded(image, seed);
    let mut random = StdRng::seed_from_u64(seed);
    device.add(Fault {
        after: random.random_range(0..writes),
        effect: if random.random() { Effect::Error } else { Effect::Partial },
        ..Fault::next(Operation::Write, 1)
    });
    device
}

/// A clock that advances by a microsecond each time it is read.
struct CountingClock(AtomicU64);

impl Clock for CountingClock {
    fn now(&self) -> Timestamp {
        syncline_sync::yield_point();
        let now = self.0.fetch_add(1, Ordering::Relaxed);
        Timestamp { seconds: (now / 1_000_000) as i64, nanoseconds: (now % 1_000_000) as u32 * 1000 }
    }

    fn uptime(&self) -> Duration {
        syncline_sync::yield_point();
        Duration::from_micros(self.0.fetch_add(1, Ordering::Relaxed))
    }
}
