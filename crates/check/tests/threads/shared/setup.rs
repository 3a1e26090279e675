//! The choices of a seed for a filesystem.

use super::super::own::Own;
use rand::Rng;
use std::fmt::Debug;
use std::sync::Arc;
use syncline_device::{Device, MemoryDevice, Spawn};
use syncline_fs::Options;
use syncline_sim::RecordingDevice;
use syncline_store::{Canary, FormatOptions, StoreOptions};

/// The part of a setup that each search has for itself.
pub trait SearchOwn: Copy + Debug + Sized {
    /// State kept for each mount.
    type Kept: Default;
    /// Size of an image.
    const IMAGE_BYTES: u64;

    /// The variant for examining the result of a power cut, with nothing in the way.
    fn after_a_power_cut(self) -> Self;

    /// True if single writes of the device fail.
    fn device_fails(self) -> bool {
        false
    }

    /// Changes the format options, for a search that leaves less to chance.
    fn format_options(self, options: FormatOptions) -> FormatOptions {
        options
    }

    /// The device that records operations on the image, and the device for the store, which may be
    /// the same.
    fn devices(
        self,
        seed: u64,
        image: Arc<MemoryDevice>,
        spawn: &Arc<dyn Spawn>,
    ) -> (Arc<RecordingDevice>, Arc<dyn Device>);

    /// Changes the options with which all mounts are opened.
    fn open_options(self, setup: &Setup, kept: &Self::Kept, store: &mut StoreOptions, fs: &mut Options);
}

/// The parameters of a life.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    pub seed: u64,
    /// Number of threads, which own files and directories.
    pub threads: u64,
    pub steps: u64,
    pub cached_inodes_max: usize,
    pub node_bytes: u32,
    pub parent_pointers: bool,
    pub quotas: bool,
    pub discard: bool,
    /// Checkpoints and write-back are constant.
    pub busy: bool,
    /// Write-back begins as soon as anything is dirty.
    pub eager: bool,
    /// The files with an owner are of durability class `ordered`: a sync promises nothing before one
    /// of something else.
    pub ordered: bool,
    /// A rule that is deliberately broken.
    pub canary: Option<Canary>,
    /// The part that the other search does not have.
    pub own: Own,
}

impl Setup {
    /// The choices that both searches make in the same way: one owner, a few steps, neither busy
    /// nor eager.
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
            ordered: seed.is_multiple_of(3),
            canary: None,
            own,
        }
    }

    /// The variant for examining the result of a power cut.
    pub fn after_a_power_cut(self) -> Self {
        Self { canary: None, own: self.own.after_a_power_cut(), ..self }
    }
}
