//! Making, opening and closing a filesystem.

use super::super::own::Own;
use super::setup::{SearchOwn, Setup};
use std::sync::Arc;
use std::time::Duration;
use syncline_check::{Report, check};
use syncline_device::{MemoryDevice, Spawn, block_on};
use syncline_fs::types::Timestamp;
use syncline_fs::{Filesystem, Options};
use syncline_sim::RecordingDevice;
use syncline_store::{FormatOptions, Lab, Store, StoreOptions, format};

/// Seed of the name hash, with known collisions.
const HASH_SEED: [u8; 16] = [7; 16];

/// A filesystem in use, and the layers below it.
pub struct Mount {
    pub fs: Arc<Filesystem>,
    pub device: Arc<MemoryDevice>,
    pub recording: Arc<RecordingDevice>,
    /// The contents of the device when the recording began.
    pub base: Arc<MemoryDevice>,
    pub spawn: Arc<dyn Spawn>,
    /// The newest transaction when it was opened, as recovery found it.
    pub recovered: u64,
    /// The search's own state for this mount.
    pub kept: <Own as SearchOwn>::Kept,
}

/// An empty filesystem on a device.
pub fn make(setup: Setup, spawn: &Arc<dyn Spawn>) -> Arc<MemoryDevice> {
    let device = MemoryDevice::new(Own::IMAGE_BYTES);
    let root = Filesystem::initial_transaction(0, 0, 0o755, Timestamp { seconds: 1, nanoseconds: 0 });
    let options = setup.own.format_options(FormatOptions {
        node_bytes: setup.node_bytes,
        parent_pointers: setup.parent_pointers,
        hash_seed: HASH_SEED,
        ..FormatOptions::default()
    });
    block_on(format(device.clone(), options, root, spawn.clone())).expect("it is formatted");
    device
}

impl Mount {
    pub fn open(setup: Setup, device: Arc<MemoryDevice>, spawn: Arc<dyn Spawn>) -> Self {
        let (base, kept) = (device.snapshot(), Default::default());
        let (recording, above) = setup.own.devices(setup.seed, device.clone(), &spawn);
        let mut store_options = StoreOptions {
            discard: setup.discard,
            lab: Lab::breaking(setup.canary),
            ..StoreOptions::default()
        };
        let mut options = Options {
            cached_inodes_max: setup.cached_inodes_max,
            // Mostly as few as such short lives log.
            place_ahead_blocks: [1, 2, 4, 16][setup.seed as usize % 4],
            // Mostly so few that a write takes several rounds.
            round_blocks: [1, 2, 3, 4096][setup.seed as usize / 4 % 4],
            parallel_blocks: [1, 2, 256][setup.seed as usize / 16 % 3],
            ..Options::default()
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
        setup.own.open_options(&setup, &kept, &mut store_options, &mut options);
        let opened = block_on(Store::open(above, store_options, spawn.clone()));
        let (store, _) = opened.expect("the store opens");
        let recovered = store.last_op().0;
        let fs = block_on(Filesystem::open(store, spawn.clone(), options)).expect("the filesystem opens");
        Self { fs, device, recording, base, spawn, recovered, kept }
    }

    /// Fails if a submission ended with a logged size that was behind, even if that had no visible
    /// effect yet.
    pub fn require_sizes_logged(&self, moment: &str) {
        let short = self.fs.counters().submissions_short;
        assert_eq!(short, 0, "{moment}: submissions that left the logged size behind");
    }

    /// Closes the filesystem, which waits for all background work.
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
