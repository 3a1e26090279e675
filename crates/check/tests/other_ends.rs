//! Superblock copies at the end of another size, left by a shrink, a growth or an older image.

use crate::common::{rot, single, spawn};
use std::sync::Arc;
use syncline::format_device;
use syncline_device::{
    AlignedBuf, Completion, Device, DeviceError, DeviceExt, MemoryDevice, Operation, block_on,
};
use syncline_format::Geometry;
use syncline_store::{ReadSlots, Store, StoreOptions, read_superblocks};

const SMALL: u64 = 24 << 20;
const LARGE: u64 = 64 << 20;
/// Distance from the end of the device to its last allocatable block.
const TAIL: u64 = 64 << 10;

fn put_at(device: &Arc<MemoryDevice>, at: u64, bytes: Vec<u8>) {
    block_on((**device).write_at(at, vec![bytes.into()])).unwrap();
}

fn read(device: &Arc<MemoryDevice>) -> ReadSlots {
    let any: Arc<dyn Device> = device.clone();
    block_on(read_superblocks(&any)).unwrap()
}

/// Generation and size in the newest superblock.
fn newest(device: &Arc<MemoryDevice>) -> (u64, u64) {
    let superblock = read(device).superblock;
    (superblock.generation, superblock.geometry.total_blocks * 4096)
}

/// A filesystem of this size on a device of the large one.
fn made(size: u64) -> Arc<MemoryDevice> {
    let small = MemoryDevice::new(size);
    format_device(small.clone(), &single()).unwrap();
    let large = MemoryDevice::new(LARGE);
    put_at(&large, 0, small.image());
    large
}

/// An older, smaller image was copied over a filesystem that had grown.
fn copied_over(older: Arc<MemoryDevice>) -> Arc<MemoryDevice> {
    let image = older.image()[..SMALL as usize].to_vec();
    let grown = Store::grow(older.clone(), StoreOptions::default(), spawn(), LARGE / 4096);
    block_on(block_on(grown).unwrap().0.close()).unwrap();
    put_at(&older, 0, image);
    older
}

fn first_copy(slot: usize) -> u64 {
    Geometry::superblock_copies_for(SMALL / 4096, slot)[0]
}

/// The fate of a write.
enum Fate {
    Written,
    Lost,
    Failed,
}

/// A device whose function decides the fate of a write at an offset.
struct Fated<F>(Arc<MemoryDevice>, F);

impl<F: Fn(&Arc<MemoryDevice>, u64) -> Fate + Send + Sync + 'static> Device for Fated<F> {
    fn size_bytes(&self) -> u64 {
        self.0.size_bytes()
    }
    fn read(&self, offset: u64, buf: AlignedBuf, done: Completion<AlignedBuf>) {
        self.0.read(offset, buf, done);
    }
    fn write(&self, offset: u64, bufs: Vec<bytes::Bytes>, done: Completion<()>) {
        match self.1(&self.0, offset) {
            Fate::Written => self.0.write(offset, bufs, done),
            Fate::Lost => done(Ok(())),
            Fate::Failed => done(Err(DeviceError::Abandoned { operation: Operation::Write })),
        }
    }
    fn flush(&self, done: Completion<()>) {
        self.0.flush(done);
    }
    fn discard(&self, _: u64, _: u64, done: Completion<()>) {
        done(Ok(()));
    }
}

/// Loses all writes once a first copy says that the filesystem has the small size.
fn cut_off(device: &Arc<MemoryDevice>, _: u64) -> Fate {
    if newest(device).1 == SMALL { Fate::Lost } else { Fate::Written }
}

/// Fails writes near the end of the device.
fn stiff_end(_: &Arc<MemoryDevice>, offset: u64) -> Fate {
    if offset >= LARGE - TAIL { Fate::Failed } else { Fate::Written }
}

/// The power fails between the two superblocks of a shrink. The next mount zeros the copies beyond
/// the new end, since they would count if the first copies were lost.
#[test]
fn nothing_is_left_behind_the_end_of_a_shrink_that_was_cut_off() {
    let device = made(LARGE);
    let fewer = SMALL / 4096;
    let cut = Arc::new(Fated(device.clone(), cut_off));
    let (store, _) = block_on(Store::open_to_shrink(cut, StoreOptions::default(), spawn(), fewer)).unwrap();
    block_on(store.shrink(fewer)).unwrap();
    drop(store);
    let left = || device.image()[(LARGE - TAIL) as usize..].iter().any(|byte| *byte != 0);
    assert_eq!((newest(&device).1, left()), (SMALL, true));
    let (store, _) = block_on(Store::open(device.clone(), StoreOptions::default(), spawn())).unwrap();
    block_on(store.close()).unwrap();
    assert_eq!((newest(&device).1, left()), (SMALL, false));
    put_at(&device, 0, vec![0; 64 * 4096]);
    let any: Arc<dyn Device> = device.clone();
    assert!(block_on(read_superblocks(&any)).is_err(), "an older state would have been gone on from");
}

#[test]
fn a_rotten_first_copy_does_not_bring_back_what_was_copied_over() {
    let older = made(SMALL);
    let before = newest(&older);
    let device = copied_over(older);
    rot(&device, first_copy(read(&device).slot));
    assert_eq!(newest(&device), before, "its second copy is whole");
}

/// The next superblocks get a newer generation than that one, so it does not count even if a first
/// copy rots.
#[test]
fn what_can_not_be_made_zeros_does_not_come_back_later() {
    let older = made(SMALL);
    // The image that is copied over has seen more checkpoints.
    let image = older.image()[..SMALL as usize].to_vec();
    for _ in 0..9 {
        let (store, _) = block_on(Store::open(older.clone(), StoreOptions::default(), spawn())).unwrap();
        block_on(store.close()).unwrap();
    }
    let device = copied_over(older);
    put_at(&device, 0, image);
    for _ in 0..2 {
        let stiff = Arc::new(Fated(device.clone(), stiff_end));
        let (store, _) = block_on(Store::open(stiff, StoreOptions::default(), spawn())).unwrap();
        block_on(store.close()).unwrap();
        let after = newest(&device);
        for slot in 0..2 {
            let device = device.snapshot();
            rot(&device, first_copy(slot));
            let rotten = newest(&device);
            assert_eq!(rotten.1, SMALL, "slot {slot}: the filesystem that was copied over, {after:?}");
        }
    }
}

/// A rollback may be the first write to such an image, and its first copy may be torn.
#[test]
fn a_rollback_leaves_nothing_of_what_was_copied_over() {
    let older = made(SMALL);
    let (store, _) = block_on(Store::open(older.clone(), StoreOptions::default(), spawn())).unwrap();
    block_on(store.create_snapshot("then", 0)).unwrap();
    block_on(store.close()).unwrap();
    let device = copied_over(older);
    block_on(syncline_store::roll_back(device.clone(), "then")).unwrap();
    let after = newest(&device);
    assert!(device.image()[(LARGE - TAIL) as usize..].iter().all(|byte| *byte == 0));
    for slot in 0..2 {
        let device = device.snapshot();
        rot(&device, first_copy(slot));
        assert_eq!(newest(&device), after, "slot {slot}");
    }
}
