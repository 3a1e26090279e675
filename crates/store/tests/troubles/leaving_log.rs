//! A log that the device refuses, met by others than the fsync that finds it first.

use crate::troubles::support::{
    Unruly, allocate, background, bench, give_up, image, key, name, open, place_elsewhere, put, quiet, write,
};
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;
use syncline_device::block_on;
use syncline_store::{Admission, Store, StoreError, StoreOptions, Transaction};

/// The fsync that meets the bad sector waits until the log was left, and succeeds.
fn sync_meets_a_bad_log(through: bool) {
    let spawn = background();
    let device = Unruly::new(image(64, &spawn));
    device.writes_through.store(through, Ordering::SeqCst);
    let store = open(device.clone(), StoreOptions::default(), &spawn);
    // As in write-back, the data is written before it is named.
    let run = allocate(&store, 1);
    let data = write(&store, run, 1);
    block_on(data.wait()).unwrap();
    let op = name(&store, 100, run, &data);
    let segment = store.superblock().log.segment;
    device.spoil(segment.start..segment.end());
    block_on(store.sync(op)).unwrap();
}

#[test]
fn a_sync_survives_a_bad_log_sector() {
    sync_meets_a_bad_log(false);
}

#[test]
fn a_sync_survives_a_bad_log_sector_on_a_disk_that_writes_through() {
    sync_meets_a_bad_log(true);
}

/// Nothing more is sent to a device that another host has, and nothing is tried again: who told that
/// has told all.
#[test]
fn nothing_is_placed_anew_on_a_device_that_another_host_has() {
    let (_spawn, device, store) = bench(quiet());
    let (begun, go) = place_elsewhere(&store);
    drop(go);
    let run = allocate(&store, 1);
    device.lost.store(true, Ordering::SeqCst);
    let data = write(&store, run, 1);
    let op = name(&store, 100, run, &data);
    block_on(store.sync(op)).unwrap_err();
    block_on(store.checkpoint()).unwrap_err();
    assert!(begun.try_recv().is_err(), "its data was to be placed anew");
}

/// There is no room for a log segment (free space is scattered), and one sector of the data is bad.
#[test]
fn data_that_found_no_room_in_the_log_is_placed_anew_too() {
    let options = StoreOptions { seal_bytes: 64 << 20, patience: Duration::from_millis(500), ..quiet() };
    let (_spawn, device, store) = bench(options);
    drop(place_elsewhere(&store));
    let run = allocate(&store, 1);
    device.spoil(run.start..run.end());
    let data = write(&store, run, 1);
    let mut names = Transaction::new();
    names.name_data(&data, run);
    // More than the rest of the segment of 256 blocks can hold.
    for n in 0..400 {
        names.put(key(100 + n), vec![n as u8; 4000]);
    }
    let op = store.commit(names).unwrap();
    let mut errors = Vec::new();
    for _ in 0..8 {
        // Refuse once when the batch is sealed, and once in each of the two freezes.
        store.refuse_allocations(0, 3);
        match block_on(store.sync(op)) {
            Ok(()) => return,
            Err(error) => errors.push(error.to_string()),
        }
        store.refuse_allocations(0, 0);
        std::thread::sleep(Duration::from_millis(150));
    }
    panic!(
        "{errors:#?}; read-only: {:?}; logs left: {}",
        store.read_only_reason(),
        store.counters().logs_left
    );
}

/// Starts a sync of data that is being relocated when this returns, beside blocks that become
/// free with the next checkpoint.
fn meet_a_bad_sector(
    store: &Arc<Store>,
    device: &Unruly,
    begun: &mpsc::Receiver<()>,
) -> JoinHandle<Result<(), StoreError>> {
    let large = allocate(store, 4096);
    let op = name(store, 99, large, &write(store, large, 1));
    block_on(store.sync(op)).unwrap();
    give_up(store, 99, large);
    let run = allocate(store, 1);
    device.spoil(run.start..run.end());
    let op = name(store, 100, run, &write(store, run, 1));
    let syncing = {
        let store = store.clone();
        std::thread::spawn(move || block_on(store.sync(op)))
    };
    begun.recv().unwrap();
    syncing
}

/// Data of one file is relocated, while an unrelated writer needs the room that a checkpoint
/// makes.
#[test]
fn a_writer_that_needs_room_is_not_told_of_the_sector_of_another() {
    let (_spawn, device, store) = bench(quiet());
    let (begun, go) = place_elsewhere(&store);
    let syncing = meet_a_bad_sector(&store, &device, &begun);
    let wanted = store.available_data_blocks() - 64;
    let other = {
        let store = store.clone();
        std::thread::spawn(move || block_on(store.reserve(wanted)).map(drop))
    };
    std::thread::sleep(Duration::from_millis(500));
    drop(go);
    syncing.join().unwrap().unwrap();
    let other = other.join().unwrap();
    let later = block_on(store.reserve(wanted)).map(drop);
    assert!(later.is_ok(), "there is room for {wanted} blocks: {later:?}");
    assert!(other.is_ok(), "write(2) of another file: {other:?}; a moment later: {later:?}");
}

/// Data of one file is relocated, while a rename needs as much of the reserve as a checkpoint
/// gives back.
#[test]
fn a_change_that_needs_the_reserve_is_not_told_of_the_sector_of_another() {
    let (_spawn, device, store) = bench(quiet());
    let (begun, go) = place_elsewhere(&store);
    let syncing = meet_a_bad_sector(&store, &device, &begun);
    // All remaining blocks.
    let _full = store.reserve_again(store.space().free - 500);
    let other = {
        let store = store.clone();
        std::thread::spawn(move || block_on(store.admit(Admission::Change)).map(drop))
    };
    std::thread::sleep(Duration::from_millis(500));
    drop(go);
    syncing.join().unwrap().unwrap();
    let other = other.join().unwrap();
    let later = block_on(store.admit(Admission::Change)).map(drop);
    assert!(later.is_ok() && other.is_ok(), "rename of another file: {other:?}; a moment later: {later:?}");
}

/// There is no room for another log at the moment. Room can be made as long as the filesystem is
/// writable.
#[test]
fn a_bad_log_for_which_there_is_no_other_yet_does_not_turn_it_read_only() {
    let (_spawn, device, store) = bench(StoreOptions { patience: Duration::from_millis(10), ..quiet() });
    let segment = store.superblock().log.segment;
    device.spoil(segment.start..segment.end());
    let op = put(&store, 100, "value");
    store.refuse_allocations(0, u64::MAX);
    for _ in 0..5 {
        assert!(block_on(store.sync(op)).is_err());
        std::thread::sleep(Duration::from_millis(20));
    }
    store.refuse_allocations(0, 0);
    let synced = block_on(store.sync(op));
    assert!(synced.is_ok(), "there is room again: {synced:?}; {:?}", store.read_only_reason());
}

/// A snapshot is requested while the log has a bad sector.
#[test]
fn a_snapshot_leaves_a_bad_log_too() {
    let (_spawn, device, store) = bench(StoreOptions::default());
    put(&store, 100, "value");
    let segment = store.superblock().log.segment;
    device.spoil(segment.start..segment.end());
    let made = block_on(store.create_snapshot("now", 1)).map(drop);
    let trimmed = block_on(store.trim(0..u64::MAX, 0)).map(drop);
    assert!(made.is_ok() && trimmed.is_ok(), "snapshot: {made:?}, trim: {trimmed:?}");
}
