//! The setup that a seed chooses for a life of the store, and the devices below it.

use super::base;
use crate::device::{LateDevice, Pace};
use crate::time::{Spawner, Time};
use rand::{Rng, RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use syncline_device::{Device, MemoryDevice, Operation, Spawn};
use syncline_sim::{Effect, Fault, FaultDevice, RecordingDevice, ThroughDevice};
use syncline_store::{Canary, Lab, Store, StoreOptions};

/// The range of the first superblock copies.
const SUPERBLOCKS: Range<u64> = 0..64 << 12;

/// The parameters of a life.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// Number of tasks.
    pub tasks: u64,
    /// Steps of each task.
    pub steps: u64,
    /// The device offers write-through.
    pub through: bool,
    /// Device operations may fail.
    pub faulty: bool,
    /// How long the device takes.
    pub pace: Pace,
    /// Freed blocks are discarded.
    pub discard: bool,
    /// Seals, flushes and checkpoints happen constantly.
    pub busy: bool,
    /// Little happens but rewriting the same few blocks, beside syncs and checkpoints.
    pub narrow: bool,
    /// Much is logged at once, and the log finds no room for a while.
    pub cramped: bool,
    /// The store tolerates device errors for a while before it gives up; otherwise it gives up at
    /// the third error.
    pub patient: bool,
    /// A rule that is deliberately broken.
    pub canary: Option<Canary>,
}

impl Setup {
    /// The setup for a seed.
    pub fn of(rng: &mut ChaCha8Rng) -> Self {
        let slowest = [Duration::from_millis(1), Duration::from_secs(1), Duration::from_secs(30)];
        let narrow = rng.random_range(0..4) == 0;
        Self {
            tasks: rng.random_range(2..=base::TASKS_MAX),
            steps: if narrow { rng.random_range(4..9) } else { rng.random_range(2..7) },
            through: rng.random(),
            faulty: rng.random_range(0..3) == 0,
            pace: Pace {
                at_once_one_in: [0, 0, 2, 8][rng.random_range(0..4)],
                slow_one_in: [0, 0, 3, 12][rng.random_range(0..4)],
                slowest: slowest[rng.random_range(0..3)],
            },
            discard: rng.random_range(0..4) == 0,
            busy: rng.random_range(0..3) == 0,
            narrow,
            cramped: rng.random_range(0..12) == 0,
            patient: rng.random(),
            canary: None,
        }
    }
}

/// A store in use, and the layers below it.
pub(super) struct Laboratory {
    pub(super) setup: Setup,
    pub(super) store: Arc<Store>,
    pub(super) recording: Arc<RecordingDevice>,
    pub(super) faults: Arc<FaultDevice>,
    /// The contents of the device when the record began.
    pub(super) before: Arc<MemoryDevice>,
    pub(super) spawn: Arc<dyn Spawn>,
}

impl Laboratory {
    pub(super) async fn open(setup: Setup, time: &Arc<Time>, rng: &mut ChaCha8Rng) -> Arc<Self> {
        let memory = base::get().image.snapshot();
        let before = memory.snapshot();
        let faults = FaultDevice::seeded(memory, rng.next_u64());
        let spawn: Arc<dyn Spawn> = Arc::new(Spawner(time.clone()));
        let late = LateDevice::start(faults.clone(), &spawn, setup.pace, rng.next_u64());
        let recording = RecordingDevice::new(late);
        let device: Arc<dyn Device> =
            if setup.through { ThroughDevice::new(recording.clone()) } else { recording.clone() };
        let opened = Store::open(device, options(setup, rng), spawn.clone()).await;
        let (store, _) = opened.expect("the image is sound");
        if setup.faulty {
            some_faults(setup, rng).into_iter().for_each(|fault| faults.add(fault));
        }
        if setup.cramped {
            store.refuse_allocations(rng.random_range(0..6), rng.random_range(1..4));
        }
        Arc::new(Self { setup, store, recording, faults, before, spawn })
    }
}

/// Limits so low that much happens in a short life.
pub(super) fn options(setup: Setup, rng: &mut ChaCha8Rng) -> StoreOptions {
    let epoch = Some(rng.random());
    let options = StoreOptions {
        lab: Lab::breaking(setup.canary),
        epoch,
        discard: setup.discard,
        node_cache_bytes: 1 << 20,
        ..StoreOptions::default()
    };
    let options = if setup.patient { options } else { StoreOptions { patience: Duration::ZERO, ..options } };
    if !setup.busy {
        return options;
    }
    StoreOptions {
        memtable_bytes: 1 << rng.random_range(10..16),
        checkpoint_interval: Duration::from_millis(rng.random_range(1..400)),
        log_bytes: 1 << rng.random_range(13..18),
        seal_bytes: 1 << rng.random_range(8..12),
        unflushed_bytes: 1 << rng.random_range(13..17),
        ..options
    }
}

fn some_faults(setup: Setup, rng: &mut ChaCha8Rng) -> Vec<Fault> {
    let effect = |rng: &mut ChaCha8Rng| if rng.random() { Effect::Error } else { Effect::Partial };
    if setup.narrow {
        // One write, of a block that other tasks wait for.
        return vec![Fault {
            after: rng.random_range(0..8),
            effect: effect(rng),
            ..Fault::next(Operation::Write, 1)
        }];
    }
    let fault = |rng: &mut ChaCha8Rng| match rng.random_range(0..4) {
        0 => Fault {
            bytes: SUPERBLOCKS,
            after: rng.random_range(0..2),
            effect: effect(rng),
            ..Fault::next(Operation::Write, rng.random_range(1..8))
        },
        _ => Fault {
            after: rng.random_range(0..12),
            effect: effect(rng),
            ..Fault::next(
                [Operation::Write, Operation::Write, Operation::Flush][rng.random_range(0..3)],
                [1, 1, 2, 4][rng.random_range(0..4)],
            )
        },
    };
    (0..rng.random_range(1..4)).map(|_| fault(rng)).collect()
}

/// A separate random source.
pub(super) fn seeded(seed: u64) -> ChaCha8Rng {
    ChaCha8Rng::seed_from_u64(seed)
}
