//! A sample image with all kinds of content, and tools to damage it with correct checksums.
#![allow(dead_code)] // Each test program uses another part.

pub mod damages;
pub mod survey;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use syncline::{Allocation, Filesystem, FormatOptions, ImageOptions, OpenOptions, format_device};
use syncline_check::{FindingKind, Report, check};
use syncline_device::{
    AlignedBuf, Background, Completion, Device, DeviceError, DeviceExt, MemoryDevice, Operation, Spawn,
    WorkerOptions, block_on,
};
use syncline_format::items::extent::Extent;
use syncline_format::items::inode::InodeItem;
use syncline_format::node::Node;
use syncline_format::superblock::{Pointer, Superblock, TreeRoot};
use syncline_format::{BLOCK_BYTES, Key, Kind};
use syncline_store::{Store, StoreOptions, Transaction, read_superblocks};
use syncline_tree::{Tree, TreeError};

pub const SIZE: u64 = 64 << 20;

pub fn spawn() -> Arc<dyn Spawn> {
    Arc::new(Background::start(WorkerOptions::default()).unwrap())
}

/// Checks a device.
pub fn examine(device: Arc<dyn Device>) -> Report {
    block_on(check(device, spawn(), &mut |_| {})).unwrap()
}

/// Numbers of the inodes of a sample.
#[derive(Clone, Copy, Debug)]
pub struct Inodes {
    pub directory: u64,
    pub below: u64,
    pub small: u64,
    pub large: u64,
    pub second: u64,
    pub linked: u64,
    pub long_link: u64,
}

/// Options of an image in which the loss of a block of metadata loses something.
pub fn single() -> FormatOptions {
    FormatOptions::new().duplicate_metadata(false)
}

pub fn empty() -> Arc<MemoryDevice> {
    let device = MemoryDevice::new(SIZE);
    format_device(device.clone(), &single()).unwrap();
    device
}

/// Fills a filesystem with all kinds of content.
pub fn fill(fs: &Filesystem) -> Inodes {
    fs.create_dir_all("directory/below").unwrap();
    fs.write("small", "fits the inode").unwrap();
    fs.write("large", vec![1; 300_000]).unwrap();
    fs.write("second", vec![2; 100_000]).unwrap();
    let second = OpenOptions::new().write(true).open(fs, "second").unwrap();
    second.allocate(Allocation::Preallocate { keep_size: true }, 0, 200_000).unwrap();
    fs.write("directory/linked", "twice").unwrap();
    fs.hard_link("directory/linked", "directory/below/again").unwrap();
    fs.symlink("short", "short link").unwrap();
    fs.symlink("x".repeat(4000), "long link").unwrap();
    fs.set_xattr("small", "user.tiny", b"1").unwrap();
    fs.set_xattr("small", "user.middle", &[2; 2000]).unwrap();
    fs.set_xattr("small", "user.long", &[3; 60_000]).unwrap();
    for index in 0..500 {
        fs.write(format!("directory/file {index}"), format!("{index}")).unwrap();
    }
    fs.create_file("sparse").unwrap().write_all_at(&[4; 5000], 1 << 33).unwrap();
    let number = |path: &str| fs.symlink_metadata(path).unwrap().ino();
    Inodes {
        directory: number("directory"),
        below: number("directory/below"),
        small: number("small"),
        large: number("large"),
        second: number("second"),
        linked: number("directory/linked"),
        long_link: number("long link"),
    }
}

/// A sample image, cleanly closed.
pub fn sample() -> (Arc<MemoryDevice>, Inodes) {
    sample_of(&single())
}

/// A sample image made with these options. All samples list their directories in the same order.
pub fn sample_of(format: &FormatOptions) -> (Arc<MemoryDevice>, Inodes) {
    let device = MemoryDevice::new(SIZE);
    format_device(device.clone(), &format.clone().hash_seed([7; 16])).unwrap();
    let fs = Filesystem::open_device(device.clone(), ImageOptions::default()).unwrap();
    let inodes = fill(&fs);
    fs.close().unwrap();
    (device, inodes)
}

/// Commits a transaction to an unopened image, below the filesystem.
pub fn plant(device: &Arc<MemoryDevice>, make: impl FnOnce(&Arc<Store>, &mut Transaction)) {
    let (store, _) = block_on(Store::open(device.clone(), StoreOptions::default(), spawn())).unwrap();
    let mut transaction = Transaction::new();
    make(&store, &mut transaction);
    store.commit(transaction).unwrap();
    block_on(store.close()).unwrap();
}

/// Changes an inode item.
pub fn edit_inode(device: &Arc<MemoryDevice>, ino: u64, edit: impl FnOnce(&mut InodeItem<'_>)) {
    plant(device, |store, transaction| {
        let key = Key::new(ino, Kind::Inode, 0);
        let value = block_on(store.get(key)).unwrap().unwrap();
        let mut item = InodeItem::decode(&value).unwrap();
        edit(&mut item);
        transaction.put(key, item.encode());
    });
}

/// All items of an object of one kind.
pub fn items(store: &Store, object: u64, kind: Kind) -> Vec<(Key, bytes::Bytes)> {
    let (from, to) = (Key::new(object, kind, 0), Key::new(object, kind, u64::MAX));
    block_on(store.scan(from, to, 100_000)).unwrap().items
}

/// The extents of a file.
pub fn extents(store: &Store, ino: u64) -> Vec<Extent> {
    let extents = items(store, ino, Kind::Extent);
    extents.iter().map(|(key, value)| Extent::decode(key.offset, value).unwrap()).collect()
}

/// Changes the newest superblock in both copies, with a correct checksum.
pub fn edit_superblock(device: &Arc<MemoryDevice>, edit: impl FnOnce(&mut Superblock)) {
    let any: Arc<dyn Device> = device.clone();
    let slots = block_on(read_superblocks(&any)).unwrap();
    let mut superblock = slots.superblock;
    edit(&mut superblock);
    let block = AlignedBuf::copy_from(&superblock.encode()).into_bytes();
    for addr in superblock.geometry.superblock_copies(slots.slot) {
        block_on(device.write_at(addr * BLOCK_BYTES as u64, vec![block.clone()])).unwrap();
    }
}

/// Address of a leaf of a tree in the image.
pub fn leaf_of(device: &Arc<MemoryDevice>, root: TreeRoot) -> u64 {
    let any: Arc<dyn Device> = device.clone();
    let geometry = block_on(read_superblocks(&any)).unwrap().superblock.geometry;
    let tree = Tree::new(syncline_device::FlushTracker::new(any), geometry, 1 << 20);
    let mut leaf = None;
    let mut visit = |_: u8, pointer: Pointer, node: Result<&Node, &TreeError>| {
        leaf = leaf.or((node.unwrap().level() == 0).then_some(pointer.addr));
    };
    block_on(tree.walk(root, &mut visit));
    leaf.expect("every tree has one")
}

/// Flips a bit of a block.
pub fn rot(device: &Arc<MemoryDevice>, block: u64) {
    let offset = block * BLOCK_BYTES as u64;
    let mut bytes = block_on(device.read_at(offset, BLOCK_BYTES)).unwrap();
    bytes[100] ^= 4;
    block_on(device.write_at(offset, vec![bytes.into_bytes()])).unwrap();
}

/// A device with a block that can't be read until it is written; then the drive remaps it, unless it is
/// bad for good.
pub struct BadBlock {
    device: Arc<MemoryDevice>,
    block: u64,
    for_good: bool,
    replaced: AtomicBool,
}

impl BadBlock {
    pub fn new(device: Arc<MemoryDevice>, block: u64) -> Arc<Self> {
        Arc::new(Self { device, block, for_good: false, replaced: AtomicBool::new(false) })
    }

    pub fn for_good(device: Arc<MemoryDevice>, block: u64) -> Arc<Self> {
        Arc::new(Self { device, block, for_good: true, replaced: AtomicBool::new(false) })
    }
}

impl Device for BadBlock {
    fn size_bytes(&self) -> u64 {
        self.device.size_bytes()
    }

    fn read(&self, offset: u64, buf: AlignedBuf, done: Completion<AlignedBuf>) {
        let bad = self.block * BLOCK_BYTES as u64;
        let read = offset..offset + buf.len() as u64;
        if read.contains(&bad) && !self.replaced.load(Ordering::SeqCst) {
            let source = std::io::Error::from_raw_os_error(5);
            return done(Err(DeviceError::io(Operation::Read, offset, buf.len() as u64, source)));
        }
        self.device.read(offset, buf, done);
    }

    fn write(&self, offset: u64, bufs: Vec<bytes::Bytes>, done: Completion<()>) {
        let len: usize = bufs.iter().map(bytes::Bytes::len).sum();
        let hit = (offset..offset + len as u64).contains(&(self.block * BLOCK_BYTES as u64));
        if hit && self.for_good {
            let source = std::io::Error::from_raw_os_error(5);
            return done(Err(DeviceError::io(Operation::Write, offset, len as u64, source)));
        }
        self.replaced.fetch_or(hit, Ordering::SeqCst);
        self.device.write(offset, bufs, done);
    }

    fn flush(&self, done: Completion<()>) {
        self.device.flush(done);
    }

    fn discard(&self, offset: u64, len_bytes: u64, done: Completion<()>) {
        self.device.discard(offset, len_bytes, done);
    }
}

/// Fails unless the report has a finding of this kind.
pub fn expect(report: &Report, kind: FindingKind) {
    assert!(report.of(kind).next().is_some(), "no {} in {:#?}", kind.name(), report.findings);
}
