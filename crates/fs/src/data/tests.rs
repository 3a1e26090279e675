//! File data over a real store on a memory device.

mod ahead;
mod allocate;
mod cached;
mod clone;
mod compress;
mod crash;
mod defragment;
mod durability;
mod effects;
mod ended;
mod faults;
mod history;
mod lookup;
mod model;
mod pages;
mod quota;
mod quota_xattrs;
mod reflink;
mod settle;
mod shift;
mod snapshot;
mod stuck;
mod sync;
mod tail;
mod threads;
mod unplaced;
mod what_fits;
mod writing;

use crate::data::memory::blocks::BlockState;
use crate::inode::Inode;
use crate::types::{Algorithm, Caller, FileType, Ino, ROOT, SetAttributes, Timestamp};
use crate::{Allocation, Filesystem, FsError, ManualClock, Options};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use syncline_device::{Background, Device, MemoryDevice, Spawn, WorkerOptions, block_on};
use syncline_format::items::preallocation::{Preallocation, decode_sum};
use syncline_format::items::shared::SharedRun;
use syncline_format::items::unplaced::{PIECES, Piece};
use syncline_format::{Key, Kind};
use syncline_store::{FormatOptions, Store, StoreError, StoreOptions, format};

const CALLER: Caller = Caller { uid: 1000, gid: 100 };

/// A mounted filesystem, and everything that is needed to mount it again.
struct Mount {
    fs: Arc<Filesystem>,
    /// The device below all wrappers.
    device: Arc<MemoryDevice>,
    spawn: Arc<dyn Spawn>,
    options: Options,
}

fn options() -> Options {
    Options { clock: Arc::new(ManualClock::at(10_000_000_000)), ..Options::default() }
}

fn background() -> Arc<dyn Spawn> {
    Arc::new(Background::start(WorkerOptions::default()).unwrap())
}

/// A spawner whose sleeps never end.
struct Timeless(Arc<dyn Spawn>);

impl Spawn for Timeless {
    fn spawn(&self, task: Pin<Box<dyn Future<Output = ()> + Send>>) {
        self.0.spawn(task);
    }
    fn sleep(&self, _: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(std::future::pending())
    }
}

impl Mount {
    fn new() -> Self {
        Self::sized(64 << 20, options())
    }

    fn sized(size_bytes: u64, options: Options) -> Self {
        Self::formatted(size_bytes, 16384, options)
    }

    fn formatted(size_bytes: u64, node_bytes: u32, options: Options) -> Self {
        Self::made(size_bytes, FormatOptions { node_bytes, ..FormatOptions::default() }, options)
    }

    /// An image as made by programs that did not count extended attributes.
    fn uncounted() -> Self {
        let format_options = FormatOptions { counted_xattrs: false, ..FormatOptions::default() };
        Self::made(64 << 20, format_options, options())
    }

    fn made(size_bytes: u64, format_options: FormatOptions, options: Options) -> Self {
        Self::made_with(background(), size_bytes, format_options, options)
    }

    /// A mount without timers: for example, an idle log gets no marker.
    fn timeless(options: Options) -> Self {
        Self::made_with(Arc::new(Timeless(background())), 64 << 20, FormatOptions::default(), options)
    }

    fn made_with(
        spawn: Arc<dyn Spawn>,
        size_bytes: u64,
        format_options: FormatOptions,
        options: Options,
    ) -> Self {
        let device = MemoryDevice::new(size_bytes);
        let root = Filesystem::initial_transaction(0, 0, 0o755, Timestamp { seconds: 1, nanoseconds: 0 });
        block_on(format(device.clone(), format_options, root, spawn.clone())).unwrap();
        Self::open(device, spawn, options)
    }

    fn open(device: Arc<MemoryDevice>, spawn: Arc<dyn Spawn>, options: Options) -> Self {
        Self::open_through(device.clone(), device, spawn, options)
    }

    /// Mounts `device` through a wrapper around it.
    fn open_through(
        wrapper: Arc<dyn Device>,
        device: Arc<MemoryDevice>,
        spawn: Arc<dyn Spawn>,
        options: Options,
    ) -> Self {
        let (store, _) = block_on(Store::open(wrapper, StoreOptions::default(), spawn.clone())).unwrap();
        let fs = block_on(Filesystem::open(store, spawn.clone(), options.clone())).unwrap();
        Self { fs, device, spawn, options }
    }

    /// Unmounts and mounts again.
    fn reopen(self) -> Self {
        block_on(self.fs.close()).unwrap();
        block_on(self.fs.store().close()).unwrap();
        Self::open(self.device, self.spawn, self.options)
    }

    /// Mounts the state after a crash at this moment, in which everything that was ever written has
    /// survived.
    fn crash(&self) -> Self {
        Self::open(self.device.snapshot(), self.spawn.clone(), self.options.clone())
    }

    fn create(&self, name: &str) -> Ino {
        block_on(self.fs.mknod(CALLER, ROOT, name.as_bytes(), FileType::Regular, 0o644, 0)).unwrap().ino
    }

    fn find(&self, name: &str) -> Ino {
        block_on(self.fs.lookup(ROOT, name.as_bytes())).unwrap().ino
    }

    fn write(&self, ino: Ino, offset: u64, data: &[u8]) {
        self.try_write(ino, offset, data).unwrap();
    }

    fn try_write(&self, ino: Ino, offset: u64, data: &[u8]) -> Result<(), FsError> {
        block_on(self.fs.write(ino, offset, Bytes::copy_from_slice(data), false))
    }

    fn read(&self, ino: Ino, offset: u64, len: usize) -> Vec<u8> {
        crate::data::calls::read::concat(&block_on(self.fs.read(ino, offset, len)).unwrap())
    }

    fn truncate(&self, ino: Ino, size: u64) -> Result<(), FsError> {
        let changes = SetAttributes { size: Some(size), ..SetAttributes::default() };
        block_on(self.fs.setattr(CALLER, ino, changes)).map(|_| ())
    }

    fn allocate(&self, ino: Ino, what: Allocation, offset: u64, len: u64) -> Result<(), FsError> {
        block_on(self.fs.allocate(ino, what, offset, len, false))
    }

    fn compress(&self, ino: Ino, compression: Option<Algorithm>) {
        block_on(self.fs.set_compression(ino, compression)).unwrap();
    }

    fn fsync(&self, ino: Ino) {
        block_on(self.fs.fsync(ino, false)).unwrap();
    }

    /// An fsync after which every block has its place.
    fn fsync_placed(&self, ino: Ino) {
        self.fsync(ino);
        let inode = block_on(self.fs.inode(ino)).unwrap();
        block_on(crate::data::flush::writeback::write_back(&self.fs, &inode)).unwrap();
        self.fsync(ino);
    }

    fn size(&self, ino: Ino) -> u64 {
        block_on(self.fs.getattr(ino)).unwrap().size
    }

    fn blocks(&self, ino: Ino) -> u64 {
        block_on(self.fs.getattr(ino)).unwrap().blocks
    }

    fn unlink(&self, name: &str) {
        block_on(self.fs.unlink(ROOT, name.as_bytes())).unwrap();
    }

    /// The blocks whose contents lie in items of their own; fails unless memory and items agree.
    fn check_unplaced(&self, inode: &Inode) -> Vec<u64> {
        let (first, last) =
            (Key::new(inode.ino, Kind::Unplaced, 0), Key::new(inode.ino, Kind::Unplaced, u64::MAX));
        let items = block_on(self.fs.store().scan(first, last, usize::MAX)).unwrap().items;
        let state = inode.state.lock();
        for (key, value) in &items {
            let piece = Piece::decode(key.offset, value).unwrap();
            assert!(state.data.logged.unplaced().contains(piece.file_block));
            if state.data.blocks.state_of(piece.file_block) == Some(BlockState::Logged) {
                let contents = state.data.blocks.get(piece.file_block).unwrap().as_slice();
                assert_eq!(piece.encode(contents), value, "the log has something else");
            }
        }
        let blocks: Vec<u64> = items.iter().map(|(key, _)| key.offset / PIECES).step_by(2).collect();
        assert_eq!(items.len(), 2 * blocks.len());
        assert_eq!(blocks, state.data.logged.unplaced().blocks().collect::<Vec<_>>());
        blocks
    }

    /// Fails unless the file's items are consistent with each other: extents are in order and
    /// disjoint, and have as many blocks as the inode item says.
    fn check_items(&self, ino: Ino) {
        let store = self.fs.store();
        let inode = block_on(self.fs.inode(ino)).unwrap();
        // Otherwise write-back could commit between the two looks.
        let _lease = block_on(inode.lease.read());
        let extents = block_on(crate::data::extents::lookup::all(store, ino, 0, u64::MAX)).unwrap();
        let blocks: u64 = extents.iter().map(|extent| extent.charged_blocks()).sum();
        let mut runs: Vec<_> =
            extents.iter().filter(|extent| !extent.shared).map(|extent| extent.run()).collect();
        runs.sort_unstable();
        assert!(runs.windows(2).all(|pair| pair[0].end() <= pair[1].start), "two extents share a block");
        let (first, last) =
            (Key::new(ino, Kind::Preallocation, 0), Key::new(ino, Kind::Preallocation, u64::MAX));
        let items = block_on(store.scan(first, last, usize::MAX)).unwrap().items;
        let items = items.iter().map(|(key, value)| Preallocation::decode(key.offset, value).unwrap());
        let preallocated: Vec<_> = items.map(|item| item.file_block..item.end()).collect();
        let sum = block_on(store.get(Key::new(0, Kind::Preallocation, ino))).unwrap();
        let sum = sum.map_or(0, |value| decode_sum(&value).unwrap());
        self.check_unplaced(&inode);
        let state = inode.state.lock();
        assert_eq!(preallocated, state.data.preallocated.ranges().iter().collect::<Vec<_>>());
        assert_eq!(sum, state.data.preallocated.blocks(), "the sum of preallocated blocks is wrong");
        for extent in &extents {
            let range = extent.file_block..extent.end();
            assert!(state.data.preallocated.ranges().within(&range).is_empty(), "an extent has room besides");
        }
        assert_eq!(state.data.logged.blocks(), blocks, "the block count is wrong");
        assert!(state.data.logged.size() <= state.attr.size);
    }
}

impl Mount {
    /// Fails unless the room that is set aside is that of the preallocated blocks of these files,
    /// which are all there are, without dirty blocks.
    fn check_room(&self, inos: &[Ino]) {
        let mut blocks = 0;
        for &ino in inos {
            let inode = block_on(self.fs.inode(ino)).unwrap();
            let _lease = block_on(inode.lease.read());
            let preallocated = &inode.state.lock().data.preallocated;
            blocks += preallocated.blocks() - preallocated.taken_blocks();
        }
        assert_eq!(self.fs.data.room.blocks(), blocks, "the room is wrong");
        self.fs.data.room.check();
    }

    /// Fails unless the reference counts agree with the extents of these files, which are all there
    /// are.
    fn check_counts(&self, inos: &[Ino]) {
        let mut references: BTreeMap<u64, (u32, bool)> = BTreeMap::new();
        for &ino in inos {
            let inode = block_on(self.fs.inode(ino)).unwrap();
            let _lease = block_on(inode.lease.read());
            for extent in
                block_on(crate::data::extents::lookup::all(self.fs.store(), ino, 0, u64::MAX)).unwrap()
            {
                for block in extent.run().start..extent.run().end() {
                    let (count, marked) = references.entry(block).or_insert((0, true));
                    *count += 1;
                    *marked &= extent.shared;
                }
            }
        }
        let mut counted = BTreeMap::new();
        let all = Key::new(0, Kind::Shared, 0)..=Key::new(0, Kind::Shared, u64::MAX);
        let items = block_on(self.fs.store().scan(*all.start(), *all.end(), usize::MAX)).unwrap().items;
        for (key, value) in items {
            let item = SharedRun::decode(key.offset, &value).unwrap();
            counted.extend((item.run.start..item.run.end()).map(|block| (block, item.count)));
        }
        for (block, (count, marked)) in references {
            assert_eq!(counted.remove(&block).unwrap_or(1), count, "references of block {block}");
            assert!(marked || count == 1, "an extent on block {block} lacks the mark");
        }
        assert!(counted.is_empty(), "counts of blocks that nothing uses: {counted:?}");
    }
}

/// Bytes that are different everywhere and for each seed.
fn pattern(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64)
        .map(|index| {
            let mixed = (seed ^ (index / 8)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            (mixed >> (8 * (index % 8))) as u8
        })
        .collect()
}

/// A program that stored into a mapping has moved on when it turns out that there is no room: the
/// next fsync reports it, once.
#[test]
fn what_a_mapping_can_not_write_back_is_told_to_the_next_fsync() {
    let mount = Mount::formatted(16 << 20, 4096, options());
    let (mapped, filler) = (mount.create("mapped"), mount.create("filler"));
    let piece = Bytes::from(vec![7; 64 << 10]);
    let write = |at: u64| block_on(mount.fs.write(filler, at, piece.clone(), false));
    let full = (0..).map(|index| write(index << 16)).find_map(Result::err).unwrap();
    assert!(matches!(full, FsError::Store(StoreError::NoSpace)), "{full}");
    let store = |at: u64| block_on(mount.fs.write_mapped(mapped, at << 12, Bytes::from(vec![8; 4096])));
    (0..1000).map(store).find_map(Result::err).expect("a full filesystem has no room for all of it");
    let sync = || block_on(mount.fs.fsync(mapped, false));
    assert!(matches!(sync(), Err(FsError::Store(StoreError::NoSpace))));
    sync().unwrap();
}
