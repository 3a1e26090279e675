//! A small image with all kinds of content, its expected contents and their places.

use crate::rot::seen::Survey;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};
use syncline::{
    Allocation, Filesystem, FormatOptions, ImageOptions, OpenOptions, QuotaLimits, format_device,
};
use syncline_check::Flaw;
use syncline_device::{Background, Device, FlushTracker, MemoryDevice, Spawn, WorkerOptions, block_on};
use syncline_format::batch::{BatchHeader, lead_copy_addr};
use syncline_format::node::Node;
use syncline_format::superblock::Pointer;
use syncline_format::{BlockAddr, Metadata};
use syncline_fs::types::Algorithm;
use syncline_sim::rot::Versions;
use syncline_space::Space;
use syncline_store::{Canary, PageReader, Store, read_snapshots, read_superblocks, table_of_snapshots};
use syncline_tree::{Tree, TreeError};

/// The smallest legal image.
pub const SIZE_BYTES: u64 = 16 << 20;
pub const SNAPSHOTS: [&str; 2] = ["first", "second"];

/// An image after its life.
pub struct Subject {
    pub seed: u64,
    pub image: Arc<MemoryDevice>,
    pub versions: Arc<Versions>,
    /// The device's contents at some moments of the life.
    pub earlier: Vec<Arc<MemoryDevice>>,
    /// The contents; all of them were acknowledged.
    pub expected: Survey,
    /// All blocks that the image leads to, copies included.
    pub in_use: Vec<BlockAddr>,
    pub free: Vec<BlockAddr>,
    /// The log at the end of the life.
    pub log: Vec<BatchHeader>,
    pub metadata: Metadata,
    /// Blocks of the tree's leaves.
    pub leaves: BTreeSet<BlockAddr>,
    /// Blocks that hold metadata of which there is a second copy: nodes, pages, the table of snapshots
    /// and superblocks.
    pub copied: BTreeSet<BlockAddr>,
    canary: Option<Canary>,
    /// A rule for repairs to break.
    pub flaw: Option<Flaw>,
}

pub fn spawn() -> Arc<dyn Spawn> {
    Arc::new(Background::start(WorkerOptions::default()).expect("a thread can be started"))
}

fn pattern(rng: &mut ChaCha8Rng, len: usize) -> Vec<u8> {
    let seed: u8 = rng.random();
    (0..len).map(|index| (index % 251) as u8 ^ seed ^ (index / 4096) as u8).collect()
}

impl Subject {
    /// The life determined by `seed`: even seeds end with a crash, odd ones with a clean unmount.
    /// With a canary, a rule is broken during the life and whenever the image is opened later.
    pub fn live(seed: u64, canary: Option<Canary>) -> Self {
        Self::with(metadata_of(seed), seed, canary)
    }

    /// The same life in an image with one or two copies of the metadata.
    pub fn with(metadata: Metadata, seed: u64, canary: Option<Canary>) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let versions = Versions::of(MemoryDevice::new(SIZE_BYTES));
        let node_bytes = if rng.random() { 4096 } else { 16384 };
        let parent_pointers = rng.random();
        let format = FormatOptions::new()
            .node_bytes(node_bytes)
            .parent_pointers(parent_pointers)
            .duplicate_metadata(metadata == Metadata::Dup);
        format_device(versions.clone(), &format).unwrap();
        let fs = Filesystem::open_device(versions.clone(), options(false, canary)).unwrap();
        let mut earlier = vec![versions.snapshot()];
        fill(&fs, &mut rng);
        // Small nodes have no room for parent pointers and quotas together.
        if node_bytes > 4096 || !parent_pointers {
            set_quotas(&fs, &mut rng);
        }
        fs.create_snapshot(SNAPSHOTS[0]).unwrap();
        earlier.push(versions.snapshot());
        change(&fs, &mut rng);
        fs.create_snapshot(SNAPSHOTS[1]).unwrap();
        earlier.push(versions.snapshot());
        log_much(&fs, &mut rng);
        earlier.push(versions.snapshot());
        log_much(&fs, &mut rng);
        // Acknowledges all names and attributes before it.
        sync_little(&fs, &mut rng);
        idle(&versions);
        let mut expected = Survey::of(&fs);
        let image = match seed % 2 {
            0 => versions.snapshot(),
            _ => {
                fs.close().unwrap();
                versions.snapshot()
            }
        };
        add_snapshots(&mut expected, &image, canary);
        let (in_use, log) = used(&image);
        let free = (0..SIZE_BYTES / 4096).filter(|addr| !in_use.contains(addr)).collect();
        let (leaves, copied) = (leaves_of(&image), copied(&image));
        Self {
            seed,
            image,
            versions,
            earlier,
            expected,
            in_use: in_use.into_iter().collect(),
            free,
            log,
            metadata,
            leaves,
            copied,
            canary,
            flaw: None,
        }
    }

    /// True if only one block has rotted, of which there is a second copy.
    pub fn has_lost_one_copy(&self, rotten: &MemoryDevice) -> bool {
        let (was, is) = (self.image.image(), rotten.image());
        let blocks = was.chunks(4096).zip(is.chunks(4096)).enumerate();
        let changed: Vec<u64> =
            blocks.filter(|(_, (was, is))| was != is).map(|(addr, _)| addr as u64).collect();
        changed.len() == 1 && self.copied.contains(&changed[0])
    }

    /// An even sample of the blocks in use, and a few of the free ones.
    pub fn sample(&self, count: usize) -> Vec<BlockAddr> {
        let mut rng = ChaCha8Rng::seed_from_u64(self.seed);
        let mut used = self.in_use.clone();
        used.shuffle(&mut rng);
        used.truncate(count);
        used.extend((0..count.div_ceil(10)).map(|_| self.free[rng.random_range(0..self.free.len())]));
        used
    }

    /// Surveys an image, snapshots included. `fs` is the image, opened.
    pub fn survey(&self, fs: &Filesystem, image: &Arc<MemoryDevice>) -> Survey {
        let mut survey = Survey::of(fs);
        add_snapshots(&mut survey, image, self.canary);
        survey
    }

    /// True if the damage to `changed` blocks is indistinguishable from a log that was never
    /// longer: the batch that calls the first lost one durable is lost too, or is in a segment that
    /// is no longer reachable.
    pub fn is_rolled_back(&self, changed: &BTreeSet<BlockAddr>) -> bool {
        let lost = |batch: &BatchHeader| {
            let copy = batch.leads_on().then(|| lead_copy_addr(batch.segment));
            let run = batch.run();
            (run.start..run.end()).any(|addr| changed.contains(&addr))
                && copy.is_none_or(|copy| changed.contains(&copy))
        };
        let Some(first) = self.log.iter().position(lost) else { return false };
        let (seq, rest) = (self.log[first].seq, &self.log[first..]);
        if rest.iter().all(|batch| batch.payload_bytes == 0) {
            // The lost batches and those after them are all empty.
            return false;
        }
        let end = rest.iter().position(|batch| batch.leads_on() && lost(batch)).unwrap_or(rest.len());
        let witness = |batch: &BatchHeader| batch.durable_seq >= seq && !changed.contains(&batch.addr);
        !rest[..end].iter().any(witness)
    }

    /// Segments of the log.
    pub fn segments(&self) -> usize {
        self.log.iter().map(|batch| batch.segment.start).collect::<BTreeSet<_>>().len()
    }

    /// Options for opening the image.
    pub fn options(&self, read_only: bool) -> ImageOptions {
        options(read_only, self.canary)
    }
}

fn options(read_only: bool, canary: Option<Canary>) -> ImageOptions {
    ImageOptions::new().laboratory(|store, _| (store.read_only, store.lab.canary) = (read_only, canary))
}

/// Adds the snapshots of an image that can be opened.
fn add_snapshots(survey: &mut Survey, image: &Arc<MemoryDevice>, canary: Option<Canary>) {
    for name in SNAPSHOTS {
        match Filesystem::open_snapshot_device(image.snapshot(), name, options(true, canary)) {
            Ok(fs) => survey.add_snapshot(name, &fs),
            Err(error) => survey.add_lost_snapshot(name, error.errno()),
        }
    }
}

/// How often the image of a life holds its metadata.
pub fn metadata_of(seed: u64) -> Metadata {
    if seed % 4 < 2 { Metadata::Single } else { Metadata::Dup }
}

/// The blocks with metadata of which there is a second copy.
fn copied(image: &Arc<MemoryDevice>) -> BTreeSet<BlockAddr> {
    let any: Arc<dyn Device> = image.clone();
    let superblock = block_on(read_superblocks(&any)).unwrap().superblock;
    let geometry = superblock.geometry;
    let mut copied: BTreeSet<_> = (0..2).flat_map(|slot| geometry.superblock_copies(slot)).collect();
    if geometry.metadata == Metadata::Single {
        return copied;
    }
    let tracker = FlushTracker::new(any.clone());
    let pages = PageReader::new(tracker.clone());
    let map = block_on(Space::load(&pages, geometry, superblock.space)).unwrap();
    let table = block_on(table_of_snapshots(&pages, &superblock)).unwrap();
    let runs = map.map_runs().into_iter().chain(table);
    copied.extend(runs.flat_map(|run| run.start..run.end()));
    let (_, snapshots) = block_on(read_snapshots(&any)).unwrap();
    let tree = Tree::new(tracker, geometry, 1 << 20);
    for root in snapshots.iter().map(|entry| entry.tree).chain([superblock.tree]) {
        let mut visit = |_: u8, pointer: Pointer, _: Result<&Node, &TreeError>| {
            copied.extend(pointer.places().flat_map(|addr| addr..addr + geometry.node_blocks()));
        };
        block_on(tree.walk(root, &mut visit));
    }
    copied
}

/// The blocks of the tree's leaves.
fn leaves_of(image: &Arc<MemoryDevice>) -> BTreeSet<BlockAddr> {
    let any: Arc<dyn Device> = image.clone();
    let superblock = block_on(read_superblocks(&any)).unwrap().superblock;
    let tree = Tree::new(FlushTracker::new(any), superblock.geometry, 1 << 20);
    let mut leaves = BTreeSet::new();
    let mut visit = |level: u8, pointer: Pointer, _: Result<&Node, &TreeError>| {
        let blocks = pointer.addr..pointer.addr + superblock.geometry.node_blocks();
        leaves.extend(blocks.filter(|_| level == 0));
    };
    block_on(tree.walk(superblock.tree, &mut visit));
    leaves
}

fn fill(fs: &Filesystem, rng: &mut ChaCha8Rng) {
    fs.create_dir_all("directory/below").unwrap();
    fs.write("empty", "").unwrap();
    fs.write("small", "fits the inode").unwrap();
    fs.write("large", pattern(rng, 200_001)).unwrap();
    fs.write("directory/changing", pattern(rng, 70_000)).unwrap();
    fs.hard_link("small", "directory/second name").unwrap();
    fs.symlink("small", "short link").unwrap();
    fs.symlink("./".repeat(2000), "long link").unwrap();
    fs.set_xattr("small", "user.tiny", b"1").unwrap();
    fs.set_xattr("small", "user.middle", &pattern(rng, 900)).unwrap();
    fs.set_xattr("large", "user.long", &pattern(rng, 20_000)).unwrap();
    fs.create_file("sparse").unwrap().write_all_at(&pattern(rng, 5_000), 1 << 33).unwrap();
    for index in 0..60 {
        fs.write(format!("directory/{index}"), format!("{index}").repeat(1 + index % 9)).unwrap();
    }
    let preallocated = fs.create_file("preallocated").unwrap();
    preallocated.allocate(Allocation::Preallocate { keep_size: false }, 0, 100_000).unwrap();
    preallocated.write_all_at(&pattern(rng, 9_000), 40_960).unwrap();
    fs.create_dir("packed").unwrap();
    let packed = fs.metadata("packed").unwrap().ino();
    block_on(fs.engine().set_compression(packed, Some(Algorithm::Lz4))).unwrap();
    fs.write("packed/units", "compresses well ".repeat(20_000)).unwrap();
    fs.sync().unwrap();
    let copy = fs.create_file("copy").unwrap();
    fs.open_file("large").unwrap().copy_range_to(0, &copy, 0, 200_001).unwrap();
    fs.sync().unwrap();
}

fn set_quotas(fs: &Filesystem, rng: &mut ChaCha8Rng) {
    fs.set_quota("directory", QuotaLimits { bytes: 8 << 20, inodes: 1000 }).unwrap();
    fs.create_dir("quota").unwrap();
    fs.set_quota("quota", QuotaLimits { bytes: 1 << 20, inodes: 0 }).unwrap();
    fs.write("quota/counted", pattern(rng, 30_000)).unwrap();
}

fn change(fs: &Filesystem, rng: &mut ChaCha8Rng) {
    fs.write("directory/changing", pattern(rng, 50_000)).unwrap();
    fs.remove_file("directory/7").unwrap();
    fs.rename("directory/8", "directory/below/moved").unwrap();
    let copy = OpenOptions::new().write(true).open(fs, "copy").unwrap();
    copy.write_all_at(&pattern(rng, 10_000), 50_000).unwrap();
    let units = OpenOptions::new().write(true).open(fs, "packed/units").unwrap();
    units.write_all_at(b"not so well", 40_000).unwrap();
    fs.sync().unwrap();
}

/// Logs more than one segment, with all kinds of batches.
fn log_much(fs: &Filesystem, rng: &mut ChaCha8Rng) {
    let logged = fs.create_file("logged").or_else(|_| fs.open_file("logged")).unwrap();
    logged.set_len(40_000).unwrap();
    for step in 0..40 {
        match rng.random_range(0..4) {
            0 => {
                let at = 4096 * rng.random_range(0..9) + 100;
                logged.write_all_at(&pattern(rng, 50), at).unwrap();
                logged.sync_all().unwrap();
            }
            1 => {
                let name = format!("directory/below/{step} {}", rng.random::<u16>());
                fs.write(&name, pattern(rng, 300)).unwrap();
                fs.open_file(&name).unwrap().sync_all().unwrap();
            }
            2 => {
                let name = format!("data {}", rng.random_range(0..4));
                let len = rng.random_range(5_000..40_000);
                fs.write(&name, pattern(rng, len)).unwrap();
                fs.open_file(&name).unwrap().sync_data().unwrap();
            }
            _ => sync_little(fs, rng),
        }
    }
}

fn sync_little(fs: &Filesystem, rng: &mut ChaCha8Rng) {
    fs.set_xattr("small", "user.tiny", &pattern(rng, 3)).unwrap();
    fs.open_file("small").unwrap().sync_all().unwrap();
}

/// Waits until the engine is idle and the log has called everything durable, so that its end does
/// not depend on one block.
fn idle(versions: &Versions) {
    let begun = Instant::now();
    loop {
        let log = log_of(&versions.snapshot());
        if log.last().is_some_and(|last| last.durable_seq + 1 >= last.seq) {
            return;
        }
        assert!(begun.elapsed() < Duration::from_secs(600), "an idle store writes a marker");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn log_of(image: &Arc<MemoryDevice>) -> Vec<BatchHeader> {
    let any: Arc<dyn Device> = image.clone();
    let superblock = block_on(read_superblocks(&any)).unwrap().superblock;
    let scan =
        syncline_log::scan(&any, superblock.geometry, superblock.epoch, superblock.log, superblock.clean);
    block_on(scan).unwrap().batches
}

/// Everything that an image leads to, and its log.
fn used(image: &Arc<MemoryDevice>) -> (BTreeSet<BlockAddr>, Vec<BatchHeader>) {
    let any: Arc<dyn Device> = image.clone();
    let superblock = block_on(read_superblocks(&any)).unwrap().superblock;
    let (store, salvaged) = block_on(Store::open_to_salvage(any, spawn())).unwrap();
    let saved = salvaged.snapshots.unwrap();
    let snapshots = saved.kept.into_iter().chain(saved.table);
    let runs = store.named_runs().into_iter().chain(salvaged.segments).chain(snapshots);
    let mut used: BTreeSet<BlockAddr> = runs.flat_map(|run| run.start..run.end()).collect();
    used.extend((0..2).flat_map(|slot| superblock.geometry.superblock_copies(slot)));
    (used, log_of(image))
}
