//! The filesystem under power cuts: names, attributes and file data changed by several tasks;
//! snapshots, quotas, compression.

mod actions;
mod allocations;
mod copies;
mod encrypted;
mod features;
mod fork;
mod growing;
mod history;
mod quotas;
mod snapshots;
mod tracked;
mod transactions;
mod verify;
mod workload;

pub use history::FsHistory;

use self::workload::Mix;
use crate::lab::{Opened, Subject, Work, World};
use crate::model::Tree;
use crate::rest::{Watched, WatchedFs, WatchedStore};
use crate::store::{limits, slow_options};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use syncline_device::{Device, DeviceExt, MemoryDevice, block_on};
use syncline_fs::types::{Algorithm, ROOT, Timestamp};
use syncline_fs::{AccessTime, Filesystem, FsError, Options};
use syncline_store::{FormatOptions, Lab, Store, StoreOptions};

/// Size of the image.
const IMAGE_BYTES: u64 = 24 << 20;

/// Largest size the filesystem may grow to. The space map gets another level at 127 MiB, and the
/// regions of log and data move beyond the original end.
const GROWN_BYTES: u64 = 320 << 20;

/// The compression of all files of [`FsSubject::COMPRESSED`].
const COMPRESSION: Option<Algorithm> = Some(Algorithm::Zstd);

/// The image that lives begin with, and its history.
type Base = (Arc<MemoryDevice>, Arc<FsHistory>);

/// The device of a filesystem, made from the device that loses its power.
type Layer = fn(Arc<dyn Device>) -> Work<Arc<dyn Device>>;

/// A filesystem and its history; recovery must lead back to a prefix of that.
pub struct FsSubject {
    base: fn() -> Base,
    work: fn(World, Arc<Filesystem>, Arc<FsHistory>) -> Work<()>,
    layer: Option<Layer>,
}

impl FsSubject {
    /// Names, attributes, data and snapshots, changed by several tasks.
    pub const PLAIN: Self = Self { base: plain_base, work: plain_work, layer: None };
    /// The same on an image without parent pointers.
    pub const WITHOUT_PARENT_POINTERS: Self =
        Self { base: base_without_parent_pointers, work: plain_work, layer: None };
    /// With many writes of pages, of which promise P9 says that they are never torn.
    pub const PAGES: Self = Self {
        base: plain_base,
        work: |world, fs, model| Box::pin(workload::work(world, fs, model, Mix::Pages)),
        layer: None,
    };
    /// The same where files are compressed.
    pub const COMPRESSED_PAGES: Self = Self { base: compressed_base, ..Self::PAGES };
    /// With a root directory whose files are compressed.
    pub const COMPRESSED: Self = Self { base: compressed_base, work: plain_work, layer: None };
    /// While directories get and lose quotas: whatever a crash leaves, usage must equal a recount.
    pub const WITH_QUOTAS: Self = Self {
        base: base_without_parent_pointers,
        work: |world, fs, model| Box::pin(quotas::work(world, fs, model, Mix::Plain)),
        layer: None,
    };
    /// Everything at once: snapshots come and go beside quotas, and files are compressed, rewritten
    /// and defragmented.
    pub const EVERYTHING: Self = Self {
        base: large_node_base,
        work: |world, fs, model| Box::pin(quotas::work(world, fs, model, Mix::Everything)),
        layer: None,
    };
    /// The same in a fork, whose base nobody may read but for the blocks of its snapshot.
    pub const FORK: Self =
        Self { base: fork::base, layer: Some(|own| Box::pin(fork::open(own))), ..Self::EVERYTHING };
    /// The same where fork and base are encrypted.
    pub const ENCRYPTED_FORK: Self =
        Self { base: encrypted::base, layer: Some(|own| Box::pin(encrypted::open(own))), ..Self::EVERYTHING };
    /// On a device that is larger than the filesystem at first.
    pub const GROWING: Self = Self {
        base: base_on_larger_device,
        work: |world, fs, model| Box::pin(growing::work(world, fs, model)),
        layer: None,
    };
}

impl Subject for FsSubject {
    type Model = FsHistory;
    type Handle = Arc<Filesystem>;

    fn base(&self) -> Base {
        (self.base)()
    }

    fn open(&self, world: World, model: Arc<FsHistory>, position: usize) -> Work<Opened<Self>> {
        let layer = self.layer;
        Box::pin(async move {
            let mut world = world;
            if let Some(layer) = layer {
                world.device = layer(world.device.clone()).await?;
            }
            check_image(&world, layer)?;
            let (store_options, options) = options(&world);
            let opened = Store::open(world.device.clone(), store_options, world.spawn.clone()).await;
            let (store, _) = opened.map_err(|error| format!("the image does not open: {error}"))?;
            let recovered_at = world.log.position();
            let op = store.last_op().0;
            let opened = Filesystem::open(store, world.spawn.clone(), options).await;
            let fs = opened.map_err(|error| format!("the filesystem does not open: {error}"))?;
            let came_back = verify::verify(&fs, &model, op, position).await?;
            let came_back = came_back.after(&model, snapshots::verify(&world, &fs, &model, position).await?);
            Ok(Opened { handle: fs, model: Arc::new(came_back), recovered_at })
        })
    }

    fn watch(&self, world: &World, fs: &Arc<Filesystem>, _: &Arc<FsHistory>) -> Arc<dyn Watched> {
        watch(world, fs)
    }

    fn work(&self, world: World, fs: Arc<Filesystem>, model: Arc<FsHistory>) -> Work<()> {
        (self.work)(world, fs, model)
    }
}

fn plain_work(world: World, fs: Arc<Filesystem>, model: Arc<FsHistory>) -> Work<()> {
    Box::pin(workload::work(world, fs, model, Mix::Plain))
}

/// The history of an image without files.
fn empty_history() -> Arc<FsHistory> {
    Arc::new(FsHistory::starting_with(Tree::empty(), &BTreeMap::new(), 1))
}

fn plain_base() -> Base {
    static BASE: OnceLock<Arc<MemoryDevice>> = OnceLock::new();
    (BASE.get_or_init(|| make_base(4096, true, None)).snapshot(), empty_history())
}

fn base_without_parent_pointers() -> Base {
    static BASE: OnceLock<Arc<MemoryDevice>> = OnceLock::new();
    (BASE.get_or_init(|| make_base(4096, false, None)).snapshot(), empty_history())
}

fn compressed_base() -> Base {
    static BASE: OnceLock<(Arc<MemoryDevice>, u64)> = OnceLock::new();
    let (image, op) = BASE.get_or_init(|| {
        let image = make_base(4096, true, COMPRESSION);
        let op = last_op(image.snapshot());
        (image, op)
    });
    let history = FsHistory::starting_with(Tree::compressing(COMPRESSION), &BTreeMap::new(), *op);
    (image.snapshot(), Arc::new(history))
}

/// With nodes of this size, an inode with parent pointers still has room for a quota.
fn large_node_base() -> Base {
    static BASE: OnceLock<Arc<MemoryDevice>> = OnceLock::new();
    (BASE.get_or_init(|| make_base(16384, true, None)).snapshot(), empty_history())
}

fn base_on_larger_device() -> Base {
    let (small, history) = plain_base();
    let large = MemoryDevice::new(GROWN_BYTES);
    for (at, piece) in small.image().chunks(1 << 20).enumerate() {
        let bytes = bytes::Bytes::copy_from_slice(piece);
        block_on(large.write_at((at as u64) << 20, vec![bytes])).expect("it is large enough");
    }
    (large, history)
}

/// Checks that all structures of the image agree, as the crash left it.
fn check_image(world: &World, layer: Option<Layer>) -> Result<(), String> {
    use syncline_check::check;
    // A separate view of the device: these reads are not recorded and do not wait.
    let image: Arc<dyn Device> = world.image.snapshot();
    let image = layer.map_or(Ok(image.clone()), |layer| block_on(layer(image)))?;
    let report = block_on(check(image, world.spawn.clone(), &mut |_| {}));
    let report = report.map_err(|error| format!("check: {error}"))?;
    match crate::unexplained(&report) {
        Some(finding) => Err(format!("check: {finding:?}")),
        None => Ok(()),
    }
}

/// Memory in use by syncs and write-back comes on top of the limits: twice the dirty data. Where writes
/// fail, data may be stuck in memory; half of the limit is for others then.
fn watch(world: &World, fs: &Arc<Filesystem>) -> Arc<dyn Watched> {
    let (store_options, options) = options(world);
    let mut limits = limits(&store_options);
    let stuck = if world.faulty { options.dirty_bytes_max / 2 } else { 0 };
    let dirty_bytes_max = options.dirty_bytes_max + stuck;
    limits.unflushed_bytes += 2 * dirty_bytes_max;
    // File contents are compared after each power cut.
    let verify: Box<dyn Fn() -> Work<()> + Send + Sync> = Box::new(|| Box::pin(async { Ok(()) }));
    let contents: Box<dyn Fn() -> Result<(), String> + Send + Sync> = Box::new(|| Ok(()));
    let store = WatchedStore { store: fs.store().clone(), limits, faulty: world.faulty, verify, contents };
    // A single write may exceed the remaining limit if nothing else is dirty.
    Arc::new(WatchedFs { fs: fs.clone(), store, dirty_bytes_max: dirty_bytes_max + (1 << 20) })
}

/// Limits so low that seals, flushes, write-back and checkpoints are frequent.
fn options(world: &World) -> (StoreOptions, Options) {
    let mut rng = ChaCha8Rng::seed_from_u64(world.seed);
    if world.slow {
        let store = slow_options(world, &mut rng);
        let writeback_start_bytes = 1 << rng.random_range(15..20);
        let fs = Options {
            dirty_bytes_max: if world.seed.is_multiple_of(2) { 1 << 20 } else { writeback_start_bytes },
            writeback_start_bytes,
            cached_inodes_max: if rng.random() { 4 } else { 1000 },
            clock: world.clock.clone(),
            access_time: access_time(world),
            ..portions(world, &mut rng)
        };
        return (store, fs);
    }
    let store = StoreOptions {
        node_cache_bytes: if world.load.pressure { 32 << 10 } else { 8 << 20 },
        memtable_bytes: 1 << rng.random_range(13..18),
        checkpoint_interval: Duration::from_millis(rng.random_range(2..60)),
        log_bytes: 1 << rng.random_range(16..20),
        seal_bytes: 1 << rng.random_range(9..15),
        unflushed_bytes: 1 << rng.random_range(15..21),
        lab: Lab::breaking(world.canary),
        epoch: Some(rng.random()),
        discard: rng.random(),
        patience: Duration::ZERO,
        ..StoreOptions::default()
    };
    let fs = Options {
        dirty_bytes_max: if world.load.pressure { 1 << rng.random_range(15..20) } else { 1 << 20 },
        writeback_start_bytes: 1 << rng.random_range(14..20),
        writeback_age: Duration::from_millis(rng.random_range(2..50)),
        cached_inodes_max: if rng.random() { 4 } else { 1000 },
        clock: world.clock.clone(),
        access_time: access_time(world),
        ..portions(world, &mut rng)
    };
    (store, fs)
}

fn access_time(world: &World) -> AccessTime {
    if has_access_times(world) { AccessTime::Always } else { AccessTime::Never }
}

/// Every fourth life has access times.
fn has_access_times(world: &World) -> bool {
    world.seed % 4 == 1
}

/// Sizes of the portions of work: mostly so small that even such short lives have several of each.
fn portions(world: &World, rng: &mut ChaCha8Rng) -> Options {
    let options = Options {
        place_ahead_blocks: [1, 2, 4, 16][rng.random_range(0..4)],
        round_blocks: [1, 2, 5, 4096][rng.random_range(0..4)],
        parallel_blocks: [1, 2, 256][rng.random_range(0..3)],
        extents_at_once: [1, 2, 5, 8192][rng.random_range(0..4)],
        ..Options::default()
    };
    // Filling a large filesystem block by block would take a whole life.
    match world.device.size_bytes() > IMAGE_BYTES {
        true => Options { place_ahead_blocks: options.place_ahead_blocks, ..Options::default() },
        false => options,
    }
}

fn make_base(node_bytes: u32, parent_pointers: bool, compression: Option<Algorithm>) -> Arc<MemoryDevice> {
    let device = MemoryDevice::new(IMAGE_BYTES);
    let root = Filesystem::initial_transaction(0, 0, 0o755, Timestamp { seconds: 1, nanoseconds: 0 });
    let options = FormatOptions {
        node_bytes,
        uuid: [1; 16],
        hash_seed: [2; 16],
        epoch: Some([3; 16]),
        parent_pointers,
        ..FormatOptions::default()
    };
    let simulation = crate::Simulation::new(0);
    let formatting = syncline_store::format(device.clone(), options, root, simulation.spawner());
    simulation.run(formatting).expect("a memory device stalls nobody").expect("the image is large enough");
    if compression.is_some() {
        let simulation = crate::Simulation::new(1);
        let (device, spawn) = (device.clone(), simulation.spawner());
        let (store_options, options) = (StoreOptions::default(), Options::default());
        let setting = async move {
            let store_options = StoreOptions { epoch: Some([4; 16]), ..store_options };
            let (store, _) = Store::open(device, store_options, spawn.clone()).await?;
            let fs = Filesystem::open(store, spawn, options).await?;
            fs.set_compression(ROOT, compression).await?;
            fs.close().await?;
            Ok::<(), FsError>(fs.store().close().await?)
        };
        simulation.run(setting).expect("a memory device stalls nobody").expect("an empty image opens");
    }
    device
}

/// The newest transaction of a cleanly closed image.
fn last_op(device: Arc<MemoryDevice>) -> u64 {
    let superblocks: Arc<dyn syncline_device::Device> = device;
    let found = block_on(syncline_store::read_superblocks(&superblocks)).expect("it was just made");
    found.superblock.op_seq
}

#[cfg(test)]
mod tests {
    use super::*;
    use syncline_fs::types::{Caller, FileType};

    /// Otherwise the lives of [`FsSubject::COMPRESSED`] would be those of any other filesystem.
    #[test]
    fn what_the_compressed_workload_writes_is_compressed() {
        let (device, history) = FsSubject::COMPRESSED.base();
        let simulation = crate::Simulation::new(0);
        let spawn = simulation.spawner();
        let written = async move {
            let (store, _) = Store::open(device, StoreOptions::default(), spawn.clone()).await?;
            let fs = Filesystem::open(store, spawn, Options::default()).await?;
            let caller = Caller { uid: 0, gid: 0 };
            let ino = fs.mknod(caller, ROOT, b"file", FileType::Regular, 0o644, 0).await?.ino;
            for index in 0..4 {
                let data = crate::content::contents_of(history.new_tag(), 50_000);
                fs.write(ino, index * 131_072, data.into(), false).await?;
            }
            fs.syncfs().await?;
            Ok::<_, FsError>(fs.counters())
        };
        let counters = simulation.run(written).expect("nothing stalls").expect("there is room");
        assert_eq!((counters.units_packed, counters.units_unshrunk), (2, 2));
    }
}
