//! The images that everything starts from: small, made once by the program itself, each with a
//! different kind of content.

use crate::image::Image;
use crate::run::World;
use bytes::Bytes;
use std::sync::{Arc, LazyLock};
use syncline_device::{Device, MemoryDevice};
use syncline_format::Metadata;
use syncline_fs::types::{Algorithm, Caller, FileType, ROOT, SetAttributes, Timestamp, XattrMode};
use syncline_fs::{AccessTime, Allocation, Filesystem, FsError, Options, QuotaLimits};
use syncline_sim::Simulation;
use syncline_store::{FormatOptions, Store, StoreOptions};

/// The caller of all operations.
pub const CALLER: Caller = Caller { uid: 0, gid: 0 };
/// Smallest legal size.
const SMALL_BYTES: u64 = 16 << 20;
/// Large enough that the space map has an index page.
const WIDE_BYTES: u64 = 160 << 20;

/// All base images.
pub static IMAGES: LazyLock<Vec<Image>> = LazyLock::new(|| {
    let mut images: Vec<_> = BASES.iter().map(|base| Image::new(base.make(Metadata::Single))).collect();
    images.push(Image::new(BASES[EVERYTHING].make(Metadata::Dup)));
    images
});

/// The image for a number from an input. Images added later have numbers of their own, so that
/// existing inputs keep their meaning.
pub fn image(number: u8) -> &'static Image {
    let number = usize::from(number);
    let index = match number {
        128..192 => 8 + number % 2,
        192..208 => DUP,
        208..224 => 13 + number % 2,
        224..240 => 12,
        240.. => 10 + number % 2,
        _ => number % 8,
    };
    &IMAGES[index]
}

/// The recipe of an image.
struct Base {
    size_bytes: u64,
    node_bytes: u32,
    /// Content of the tree.
    fill: Content,
    /// Content only in the log: the power failed after it was synced.
    logged: Option<Content>,
}

#[derive(Clone, Copy)]
enum Content {
    Nothing,
    Names,
    Data,
    Xattrs,
    Changes,
    Orphans,
    Shared,
    Snapshots,
    Compressed,
    Quotas,
    /// All of the above in one image.
    Everything,
    /// Changes to `Everything`, among them blocks of data in the log.
    Unplaced,
}

const BASES: [Base; 16] = [
    Base { size_bytes: SMALL_BYTES, node_bytes: 4096, fill: Content::Nothing, logged: None },
    Base { size_bytes: SMALL_BYTES, node_bytes: 4096, fill: Content::Names, logged: None },
    Base { size_bytes: SMALL_BYTES, node_bytes: 16384, fill: Content::Data, logged: None },
    Base { size_bytes: SMALL_BYTES, node_bytes: 4096, fill: Content::Xattrs, logged: None },
    Base { size_bytes: SMALL_BYTES, node_bytes: 4096, fill: Content::Names, logged: Some(Content::Changes) },
    Base { size_bytes: SMALL_BYTES, node_bytes: 4096, fill: Content::Data, logged: Some(Content::Orphans) },
    Base { size_bytes: SMALL_BYTES, node_bytes: 8192, fill: Content::Orphans, logged: Some(Content::Names) },
    Base { size_bytes: WIDE_BYTES, node_bytes: 65536, fill: Content::Data, logged: None },
    Base { size_bytes: SMALL_BYTES, node_bytes: 4096, fill: Content::Shared, logged: None },
    Base { size_bytes: SMALL_BYTES, node_bytes: 4096, fill: Content::Data, logged: Some(Content::Shared) },
    Base { size_bytes: SMALL_BYTES, node_bytes: 4096, fill: Content::Compressed, logged: None },
    Base {
        size_bytes: SMALL_BYTES,
        node_bytes: 4096,
        fill: Content::Data,
        logged: Some(Content::Compressed),
    },
    Base { size_bytes: SMALL_BYTES, node_bytes: 4096, fill: Content::Snapshots, logged: None },
    // In smaller nodes an inode has no room for a quota beside its parent pointers.
    Base { size_bytes: SMALL_BYTES, node_bytes: 16384, fill: Content::Quotas, logged: None },
    Base { size_bytes: SMALL_BYTES, node_bytes: 16384, fill: Content::Names, logged: Some(Content::Quotas) },
    Base {
        size_bytes: SMALL_BYTES,
        node_bytes: 16384,
        fill: Content::Everything,
        logged: Some(Content::Unplaced),
    },
];

/// The image with everything; no input's number leads to it.
pub const EVERYTHING: usize = BASES.len() - 1;
/// The same image with its metadata twice.
pub const DUP: usize = BASES.len();

impl Base {
    fn make(&self, metadata: Metadata) -> Arc<MemoryDevice> {
        let device = MemoryDevice::new(self.size_bytes);
        make(&device, self.node_bytes, metadata);
        fill(&device, self.fill, true);
        if let Some(content) = self.logged {
            fill(&device, content, false);
        }
        device
    }
}

fn make(device: &Arc<MemoryDevice>, node_bytes: u32, metadata: Metadata) {
    let root = Filesystem::initial_transaction(0, 0, 0o755, Timestamp { seconds: 1, nanoseconds: 0 });
    let options = FormatOptions {
        node_bytes,
        metadata,
        uuid: [1; 16],
        hash_seed: [2; 16],
        epoch: Some([3; 16]),
        ..FormatOptions::default()
    };
    let device: Arc<dyn Device> = device.clone();
    crate::run::run(|world| syncline_store::format(device, options, root, world.spawn))
        .expect("a device in memory can be formatted");
}

/// Options of the store: small caches, a fixed epoch, and nothing that time or size triggers.
pub fn store_options(epoch: u8, read_only: bool) -> StoreOptions {
    StoreOptions {
        read_only,
        node_cache_bytes: 1 << 20,
        memtable_bytes: 1 << 20,
        epoch: Some([epoch; 16]),
        ..StoreOptions::default()
    }
}

/// Opens the filesystem on `device`.
pub async fn open(
    device: Arc<MemoryDevice>,
    world: &World,
    options: StoreOptions,
) -> Result<Arc<Filesystem>, FsError> {
    let (store, _) = Store::open(device, options, world.spawn.clone()).await?;
    let options = Options {
        dirty_bytes_max: 1 << 20,
        writeback_start_bytes: 256 << 10,
        cached_inodes_max: 64,
        clock: world.clock.clone(),
        access_time: AccessTime::Relative,
        ..Options::default()
    };
    Filesystem::open(store, world.spawn.clone(), options).await
}

/// Adds content to an image, then either closes it, or syncs it and cuts the power.
fn fill(device: &Arc<MemoryDevice>, content: Content, close: bool) {
    let simulation = Simulation::new(1);
    let world = World { spawn: simulation.spawner(), clock: simulation.clock() };
    let device = device.clone();
    let epoch = if close { 4 } else { 5 };
    let filled = simulation.run(async move {
        let fs = open(device, &world, store_options(epoch, false)).await?;
        match content {
            Content::Nothing => {}
            Content::Names => names(&fs).await?,
            Content::Data => data(&fs).await?,
            Content::Xattrs => xattrs(&fs).await?,
            Content::Changes => changes(&fs).await?,
            Content::Orphans => orphans(&fs, close).await?,
            Content::Shared => shared(&fs).await?,
            Content::Snapshots => snapshots(&fs).await?,
            Content::Compressed => compressed(&fs).await?,
            Content::Quotas => quotas(&fs).await?,
            Content::Everything => everything(&fs).await?,
            Content::Unplaced => unplaced(&fs).await?,
        }
        if close && !matches!(content, Content::Orphans) {
            fs.close().await?;
            fs.store().close().await?;
        } else {
            fs.fsync(ROOT, false).await?;
        }
        Ok::<_, FsError>(())
    });
    filled.expect("nothing stalls").expect("there is room for the content");
    simulation.kill();
}

async fn file(fs: &Filesystem, parent: u64, name: &str) -> Result<u64, FsError> {
    let made = fs.mknod(CALLER, parent, name.as_bytes(), FileType::Regular, 0o644, 0).await?;
    Ok(made.ino)
}

/// Names of every kind, across several leaves.
async fn names(fs: &Filesystem) -> Result<(), FsError> {
    let directory = fs.mkdir(CALLER, ROOT, b"directory", 0o755).await?.ino;
    let below = fs.mkdir(CALLER, directory, b"below", 0o700).await?.ino;
    for index in 0..40 {
        let ino = file(fs, directory, &format!("file {index}")).await?;
        fs.write(ino, 0, Bytes::from(vec![index; usize::from(index)]), false).await?;
    }
    let linked = fs.lookup(directory, b"file 7").await?.ino;
    fs.link(linked, below, b"again").await?;
    fs.link(linked, ROOT, &[b'n'; 255]).await?;
    fs.symlink(CALLER, ROOT, b"short", b"directory/file 1").await?;
    fs.symlink(CALLER, below, b"long", &[b'x'; 4000]).await?;
    for (name, kind) in
        [("pipe", FileType::Fifo), ("device", FileType::BlockDevice), ("socket", FileType::Socket)]
    {
        fs.mknod(CALLER, below, name.as_bytes(), kind, 0o600, 0x801).await?;
    }
    Ok(())
}

/// Files with extents: a single run, holes, a part at the far end, an end inside a block, and a
/// file inline in its inode.
async fn data(fs: &Filesystem) -> Result<(), FsError> {
    let large = file(fs, ROOT, "large").await?;
    fs.write(large, 0, Bytes::from(vec![1; 200_000]), false).await?;
    let sparse = file(fs, ROOT, "sparse").await?;
    for at in [0, 40_960, 1 << 20, 1 << 40] {
        fs.write(sparse, at, Bytes::from(vec![2; 5000]), false).await?;
    }
    fs.fsync(sparse, false).await?;
    fs.write(large, 50_000, Bytes::from(vec![3; 9000]), false).await?;
    let cut = file(fs, ROOT, "cut").await?;
    fs.write(cut, 0, Bytes::from(vec![4; 30_000]), false).await?;
    fs.setattr(CALLER, cut, SetAttributes { size: Some(10_001), ..SetAttributes::default() }).await?;
    let small = file(fs, ROOT, "small").await?;
    fs.write(small, 0, Bytes::from_static(b"fits the inode"), false).await?;
    fs.syncfs().await
}

/// Files that share blocks: a pair of which one file has changed since, a range within one file,
/// three files on one block.
async fn shared(fs: &Filesystem) -> Result<(), FsError> {
    let origin = file(fs, ROOT, "origin").await?;
    fs.write(origin, 0, Bytes::from(vec![5; 150_001]), false).await?;
    let clone = file(fs, ROOT, "clone").await?;
    fs.copy_range((origin, 0), (clone, 0), u64::MAX >> 1, false).await?;
    fs.fsync(clone, false).await?;
    fs.write(clone, 40_960, Bytes::from(vec![6; 9000]), false).await?;
    fs.copy_range((origin, 8192), (origin, 1 << 20), 20_480, false).await?;
    let third = file(fs, ROOT, "third").await?;
    fs.copy_range((origin, 0), (third, 4096), 12_288, false).await?;
    fs.fsync(third, false).await?;
    fs.setattr(CALLER, third, SetAttributes { size: Some(10_000), ..SetAttributes::default() }).await?;
    fs.fsync(clone, false).await
}

/// Two snapshots, each of which keeps something deleted since.
async fn snapshots(fs: &Filesystem) -> Result<(), FsError> {
    data(fs).await?;
    fs.create_snapshot("first").await?;
    let large = fs.lookup(ROOT, b"large").await?.ino;
    fs.write(large, 100_000, Bytes::from(vec![8; 60_000]), false).await?;
    fs.unlink(ROOT, b"sparse").await?;
    fs.create_snapshot("second").await?;
    fs.unlink(ROOT, b"cut").await?;
    names(fs).await
}

/// Files compressed with both algorithms: whole units, a unit in two parts, a part shared with
/// another file.
async fn compressed(fs: &Filesystem) -> Result<(), FsError> {
    for (name, algorithm) in [("lz4", Algorithm::Lz4), ("zstd", Algorithm::Zstd)] {
        let ino = file(fs, ROOT, name).await?;
        fs.set_compression(ino, Some(algorithm)).await?;
        let lines =
            (0..8000).map(|line| format!("{name} {line} of a text that shrinks, if not to nothing\n"));
        let text: String = lines.collect();
        fs.write(ino, 0, Bytes::from(text), false).await?;
        fs.fsync(ino, false).await?;
        fs.write(ino, 50_000, Bytes::from(vec![7; 9000]), false).await?;
        fs.fsync(ino, false).await?;
        let part = file(fs, ROOT, &format!("part of {name}")).await?;
        fs.copy_range((ino, 131_072), (part, 0), 40_960, false).await?;
        fs.fsync(part, false).await?;
    }
    Ok(())
}

/// Trees with quotas: one filled before it got limits, one with almost nothing left, one that lost
/// its quota.
async fn quotas(fs: &Filesystem) -> Result<(), FsError> {
    let limits = |bytes, inodes| QuotaLimits { bytes, inodes };
    let filled = fs.mkdir(CALLER, ROOT, b"filled", 0o755).await?.ino;
    let below = fs.mkdir(CALLER, filled, b"below", 0o755).await?.ino;
    let large = file(fs, below, "large").await?;
    fs.write(large, 0, Bytes::from(vec![1; 90_000]), false).await?;
    fs.link(large, filled, b"again").await?;
    let small = file(fs, filled, "small").await?;
    fs.write(small, 0, Bytes::from_static(b"fits the inode"), false).await?;
    fs.set_quota(filled, limits(1 << 20, 100)).await?;
    let tight = fs.mkdir(CALLER, ROOT, b"tight", 0o755).await?.ino;
    fs.set_quota(tight, limits(40_960, 3)).await?;
    let room = file(fs, tight, "room").await?;
    fs.allocate(room, Allocation::Preallocate { keep_size: true }, 0, 20_480, false).await?;
    fs.write(room, 4096, Bytes::from(vec![2; 12_000]), false).await?;
    fs.fsync(room, false).await?;
    fs.write(large, 200_000, Bytes::from(vec![3; 9000]), false).await?;
    fs.fsync(large, false).await?;
    let free = fs.mkdir(CALLER, ROOT, b"free", 0o755).await?.ino;
    fs.set_quota(free, limits(0, 5)).await?;
    file(fs, free, "stays").await?;
    fs.remove_quota(free).await
}

/// Two snapshots, and some of each kind of content since.
async fn everything(fs: &Filesystem) -> Result<(), FsError> {
    snapshots(fs).await?;
    shared(fs).await?;
    compressed(fs).await?;
    quotas(fs).await?;
    striped(fs).await?;
    xattrs(fs).await
}

/// A file with more extents than fit in a leaf.
async fn striped(fs: &Filesystem) -> Result<(), FsError> {
    let striped = file(fs, ROOT, "striped").await?;
    for stripe in 0..500_u64 {
        fs.write(striped, 2 * stripe * 4096, Bytes::from(vec![1 + stripe as u8 % 200; 4096]), false).await?;
    }
    fs.syncfs().await
}

/// Changes to an image with [`everything`]: of names, and blocks that a sync puts whole into the
/// log.
async fn unplaced(fs: &Filesystem) -> Result<(), FsError> {
    changes(fs).await?;
    let large = fs.lookup(ROOT, b"large").await?.ino;
    for block in [3, 7, 20] {
        fs.write(large, block * 4096 + 100, Bytes::from(vec![9; 5000]), false).await?;
        fs.fsync(large, true).await?;
    }
    Ok(())
}

/// Xattrs of all sizes, which make a tree of three levels.
async fn xattrs(fs: &Filesystem) -> Result<(), FsError> {
    for index in 0..6 {
        let ino = file(fs, ROOT, &format!("file {index}")).await?;
        for (name, len) in
            [("user.tiny", 3), ("user.middle", 700), ("user.large", 30_000), ("user.full", 65_536)]
        {
            fs.setxattr(ino, name.as_bytes(), &vec![index; len], XattrMode::Set).await?;
        }
    }
    Ok(())
}

/// Changes to an image with [`names`], one batch each.
async fn changes(fs: &Filesystem) -> Result<(), FsError> {
    let directory = fs.lookup(ROOT, b"directory").await?.ino;
    let below = fs.lookup(directory, b"below").await?.ino;
    let new = file(fs, below, "new").await?;
    fs.write(new, 0, Bytes::from(vec![7; 50_000]), false).await?;
    fs.fsync(new, false).await?;
    fs.unlink(directory, b"file 3").await?;
    fs.rename(directory, b"file 4", below, b"file 5", Default::default()).await?;
    fs.write(new, 8192, Bytes::from(vec![8; 8192]), false).await?;
    fs.fsync(new, false).await?;
    fs.setxattr(new, b"user.large", &[9; 20_000], XattrMode::Set).await?;
    fs.symlink(CALLER, below, b"another", &[b'y'; 3000]).await?;
    fs.fsync(below, false).await?;
    fs.setattr(CALLER, new, SetAttributes { size: Some(20_000), ..SetAttributes::default() }).await?;
    fs.removexattr(new, b"user.large").await?;
    fs.fsync(new, true).await
}

/// Files without names that are still open; after a power failure they wait for removal.
async fn orphans(fs: &Arc<Filesystem>, checkpoint: bool) -> Result<(), FsError> {
    for index in 0..3 {
        let name = format!("orphan {index}");
        let ino = file(fs, ROOT, &name).await?;
        fs.write(ino, 0, Bytes::from(vec![index; 70_000]), false).await?;
        fs.setxattr(ino, b"user.large", &[index; 9000], XattrMode::Set).await?;
        fs.open_file(ino).await?;
        fs.fsync(ino, false).await?;
        fs.unlink(ROOT, name.as_bytes()).await?;
    }
    if checkpoint { fs.syncfs().await } else { Ok(()) }
}
