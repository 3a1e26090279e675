//! The image that every workload starts from: two directories with small and large files, an empty
//! directory, and xattrs.

use super::disk::Image;
use super::run::{Runner, options};
use super::state::State;
use super::step::Workload;
use crate::{RecordingDevice, Simulation};
use std::sync::Arc;
use syncline_device::{Device, MemoryDevice};
use syncline_fs::Filesystem;
use syncline_fs::types::Timestamp;
use syncline_store::{FormatOptions, Store};

/// The smallest legal image.
const IMAGE_BYTES: u64 = 16 << 20;
/// Tags that distinguish the contents of the base from the contents of workloads.
const TAGS: u64 = 1000;

/// The contents of the base. `A/foo` is inline in its inode, the others are in blocks; `foo` ends
/// at the end of a block.
const TREE: &str = "mkdir A; -; mkdir B; -; mkdir C; -; \
    write A/foo 0 100; -; setxattr A/foo user.small 20; -; \
    write A/bar 0 12788; -; setxattr A/bar user.large 5000; -; \
    write B/bar 0 5000; -; write foo 0 4096; syncfs";

/// An image, cleanly unmounted, and its contents.
pub struct Base {
    pub(super) image: Image,
    pub(super) state: State,
}

impl Base {
    /// Makes the image, which is the same every time.
    pub fn make() -> Result<Self, String> {
        let memory = MemoryDevice::new(IMAGE_BYTES);
        let root = Filesystem::initial_transaction(0, 0, 0o755, Timestamp { seconds: 1, nanoseconds: 0 });
        let format = FormatOptions {
            // The smallest size at which an inode with parent pointers has room for a quota.
            node_bytes: 16384,
            uuid: [1; 16],
            hash_seed: [2; 16],
            epoch: Some([3; 16]),
            ..FormatOptions::default()
        };
        let simulation = Simulation::new(0);
        let formatting = syncline_store::format(memory.clone(), format, root, simulation.spawner());
        let formatted = simulation.run(formatting).map_err(|_| "mkfs stalled".to_owned())?;
        formatted.map_err(|error| format!("mkfs: {error}"))?;
        let state = Self::fill(&simulation, &memory)?;
        Ok(Self { image: Image::of(&memory), state })
    }

    fn fill(simulation: &Simulation, memory: &Arc<MemoryDevice>) -> Result<State, String> {
        let log = RecordingDevice::new(memory.clone());
        let (spawn, tree) = (simulation.spawner(), TREE.parse::<Workload>()?);
        let (store_options, options) = options(simulation.clock(), None, *b"the base's epoch");
        let device: Arc<dyn Device> = log.clone();
        let filling = async move {
            let opened = Store::open(device, store_options, spawn.clone()).await;
            let (store, _) = opened.map_err(|error| error.to_string())?;
            let opened = Filesystem::open(store.clone(), spawn.clone(), options).await;
            let fs = opened.map_err(|error| error.to_string())?;
            let mut empty = State::empty();
            super::run::stamp(&fs, &mut empty).await?;
            let mut runner = Runner::new(fs.clone(), log, spawn, empty, TAGS);
            runner.all(&tree).await?;
            runner.compare_live().await?;
            fs.close().await.map_err(|error| error.to_string())?;
            store.close().await.map_err(|error| error.to_string())?;
            Ok::<_, String>(runner.now().clone())
        };
        simulation.run(filling).map_err(|_| "making the base stalled".to_owned())?
    }
}
