//! Sectors that can't be written, and a device that is away for a while.

use crate::troubles::support::{Unruly, allocate, bench, key, name, put, quiet, write};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use syncline_device::{Spawn, block_on};
use syncline_store::{Store, StoreError, StoreOptions};

/// Makes a change and syncs it.
fn change(store: &Store, n: u64) -> Result<(), StoreError> {
    block_on(store.sync(put(store, 100 + n, n.to_le_bytes().to_vec())))
}

/// Asserts that every acknowledged change is there after a crash.
fn assert_durable(spawn: &Arc<dyn Spawn>, device: &Unruly, changes: impl Iterator<Item = u64>) {
    let (crashed, _) =
        block_on(Store::open(device.inner.snapshot(), StoreOptions::default(), spawn.clone())).unwrap();
    for n in changes {
        assert_eq!(
            block_on(crashed.get(key(100 + n))).unwrap().as_deref(),
            Some(&n.to_le_bytes()[..]),
            "{n}"
        );
    }
}

#[test]
fn a_log_with_a_bad_sector_is_left_for_another() {
    let (spawn, device, store) = bench(StoreOptions::default());
    (0..10).for_each(|n| change(&store, n).unwrap());
    // The whole rest of the current segment can't be written.
    let segment = store.superblock().log.segment;
    device.spoil(segment.start..segment.end());
    for n in 10..40 {
        change(&store, n).unwrap();
        assert_durable(&spawn, &device, 0..=n);
    }
    assert_eq!(store.counters().logs_left, 1);
    assert_eq!(store.read_only_reason(), None);
    block_on(store.close()).unwrap();
    assert_durable(&spawn, &device, 0..40);
}

#[test]
fn a_checkpoint_and_an_unmount_leave_such_a_log_too() {
    let (spawn, device, store) = bench(StoreOptions::default());
    for (n, close) in [(0, false), (1, true)] {
        let segment = store.superblock().log.segment;
        device.spoil(segment.start..segment.end());
        put(&store, 100 + n, n.to_le_bytes().to_vec());
        block_on(async { if close { store.close().await } else { store.checkpoint().await } }).unwrap();
        assert_durable(&spawn, &device, 0..=n);
    }
}

#[test]
fn a_device_that_is_away_for_a_while_is_no_end() {
    let (spawn, device, store) = bench(StoreOptions::default());
    change(&store, 0).unwrap();
    device.gone.store(true, Ordering::SeqCst);
    for n in 1..10 {
        assert!(change(&store, n).is_err(), "nothing is acknowledged");
    }
    assert!(block_on(store.checkpoint()).is_err());
    device.gone.store(false, Ordering::SeqCst);
    change(&store, 10).unwrap();
    assert_eq!(store.read_only_reason(), None);
    assert_durable(&spawn, &device, 0..=10);
}

#[test]
fn a_superblock_is_tried_again() {
    let (spawn, device, store) = bench(StoreOptions::default());
    change(&store, 0).unwrap();
    device.spoil(16..48);
    let back = {
        let device = device.clone();
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(300));
            device.spoil(0..0);
        })
    };
    block_on(store.checkpoint()).unwrap();
    back.join().unwrap();
    change(&store, 1).unwrap();
    assert_durable(&spawn, &device, 0..2);
}

/// The write and the flush behind it fail together, and lose earlier writes too: data of the same
/// batch, and data that a later batch names.
#[test]
fn a_write_through_that_fails_once_is_repeated_with_all_that_was_lost_with_it() {
    let (spawn, device, store) = bench(quiet());
    device.writes_through.store(true, Ordering::SeqCst);
    let runs = [allocate(&store, 1), allocate(&store, 1)];
    let data = runs.map(|run| write(&store, run, 7));
    data.iter().for_each(|data| block_on(data.wait()).unwrap());
    let first = name(&store, 100, runs[0], &data[0]);
    let writes_before = store.device_counters().writes;
    device.fail_next.store(true, Ordering::SeqCst);
    block_on(store.sync(first)).unwrap();
    block_on(store.sync(name(&store, 101, runs[1], &data[1]))).unwrap();
    // Both batches, the first one twice, and both data writes.
    assert_eq!(store.device_counters().writes - writes_before, 5);
    let (crashed, _) =
        block_on(Store::open(device.inner.snapshot(), StoreOptions::default(), spawn.clone())).unwrap();
    for object in [100, 101] {
        assert!(block_on(crashed.get(key(object))).unwrap().is_some());
    }
}

/// Each takes one checkpoint, which is retried elsewhere like any other.
#[test]
fn a_snapshot_is_made_and_deleted_although_a_write_fails() {
    let (spawn, device, store) = bench(StoreOptions::default());
    change(&store, 0).unwrap();
    device.fail_next.store(true, Ordering::SeqCst);
    block_on(store.create_snapshot("now", 1)).unwrap();
    assert!(!device.fail_next.load(Ordering::SeqCst), "a write failed");
    change(&store, 1).unwrap();
    device.fail_next.store(true, Ordering::SeqCst);
    block_on(store.delete_snapshot("now")).unwrap();
    assert!(!device.fail_next.load(Ordering::SeqCst), "a write failed");
    assert!(block_on(store.snapshots()).is_empty());
    assert_durable(&spawn, &device, 0..2);
}
