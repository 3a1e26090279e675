//! The marker of an idle log, which calls what was acknowledged durable.

use crate::support::{background, block, image, key, open};
use std::time::Duration;
use syncline_device::{DeviceExt, block_on};
use syncline_store::{Store, StoreOptions, Transaction};

/// The first one of a mount is like any other.
#[test]
fn the_first_acknowledged_batch_of_a_mount_is_marked() {
    let spawn = background();
    let store = open(image(64, &spawn), StoreOptions::default(), &spawn);
    let mut transaction = Transaction::new();
    transaction.put(key(100), "value");
    let op = store.commit(transaction).unwrap();
    block_on(store.sync(op)).unwrap();
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(store.counters().markers, 1, "idle for 1.5 s after an acknowledgement");
}

/// What it is for: one rotten block, and what was acknowledged would be gone without a word.
#[test]
fn rot_in_the_first_batch_of_a_mount_is_told() {
    let spawn = background();
    let device = image(64, &spawn);
    let store = open(device.clone(), StoreOptions::default(), &spawn);
    let mut transaction = Transaction::new();
    transaction.put(key(100), "value");
    let op = store.commit(transaction).unwrap();
    block_on(store.sync(op)).unwrap();
    std::thread::sleep(Duration::from_millis(1500));
    let crashed = device.snapshot();
    let batch = store.superblock().log.addr;
    block_on(crashed.write_at(batch * 4096, vec![block(7)])).unwrap();
    match block_on(Store::open(crashed, StoreOptions::default(), spawn.clone())) {
        Err(error) => println!("told: {error}"),
        Ok((store, report)) => {
            let found = block_on(store.get(key(100))).unwrap();
            assert!(found.is_some() || !report.notes.is_empty(), "lost silently: {found:?}, {report:?}");
        }
    }
}
