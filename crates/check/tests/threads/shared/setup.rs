//! What a seed chooses of a filesystem.

use crate::own::Own;
use rand::Rng;
use std::fmt::Debug;
use std::sync::Arc;
use syncline_device::{Device, MemoryDevice, Spawn};
use syncline_fs::Options;
use syncline_sim::RecordingDevice;
use syncline_store::{Canary, FormatOptions, StoreOptions};

/// What a search has for itself of a setup, and makes of it.
pub trait SearchOwn: Copy + Debug + Sized {
    /// What it keeps of each mount.
    type Kept: Default;
    /// Size of an image.
    const IMAGE_BYTES: u64;

    /// The same for whoever looks what a power cut has left: nothing gets in their way.
    fn after_a_power_cut(self) -> Self;

    /// Single writes of the device fail.
    fn device_fails(self) -> bool {
        false
    }

    /// What is formatted, for a search that leaves less to chance.
    fn format_options(self, options: FormatOptions) -> FormatOptions {
        options
    }

    /// What records what the image is asked for, and what the store is to use, which may be the same.
    fn devices(
        self,
        seed: u64,
        image: Arc<MemoryDevice>,
        spawn: &Arc<dyn Spawn>,
    ) -> (Arc<RecordingDevice>, Arc<dyn Device>);

    /// Changes of what all mounts are opened with.
    fn open_options(self, setup: &Setup, kept: &Self::Kept, store: &mut StoreOptions, fs: &mut Options);
}

/// What a life is like.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    pub seed: u64,
    /// Those who own files and directories.
    pub threads: u64,
    pub steps: u64,
    pub cached_inodes_max: usize,
    pub node_bytes: u32,
    pub parent_pointers: bool,
    pub quotas: bool,
    pub discard: bool,
    /// Checkpoints and write-back all the time.
    pub busy: bool,
    /// Write-back begins as soon as anything is dirty.
    pub eager: bool,
    /// A rule that is broken on purpose.
    pub canary: Option<Canary>,
    /// What the other search has not.
    pub own: Own,
}

impl Setup {
    /// What both searches choose in the same way. One owner, a few steps, and neither busy nor eager.
    pub fn with(own: Own, seed: u64, random: &mut impl Rng) -> Self {
        let node_bytes = if random.random() { 4096 } else { 16384 };
        let parent_pointers = random.random_range(0..4) > 0;
        Self {
            seed,
            threads: 1,
            steps: 3,
            cached_inodes_max: [1, 1, 8, 65536][random.random_range(0..4)],
            node_bytes,
            parent_pointers,
            // Nodes of 4096 bytes have no room for both.
            quotas: random.random() && !(parent_pointers && node_bytes < 16384),
            discard: random.random_range(0..4) == 0,
            busy: false,
            eager: false,
            canary: None,
            own,
        }
    }

    /// The same for whoever looks what a power cut has left.
    pub fn after_a_power_cut(self) -> Self {
        Self { canary: None, own: self.own.after_a_power_cut(), ..self }
    }
}
