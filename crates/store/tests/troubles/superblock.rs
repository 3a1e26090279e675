//! A superblock whose write may or may not have succeeded.

use crate::troubles::support::{Unruly, allocate, background, image, key, open, write};
use std::sync::atomic::Ordering;
use std::time::Duration;
use syncline_device::block_on;
use syncline_store::{Canary, Lab, Store, StoreError, StoreOptions, Transaction};

/// The log finds no room, so a checkpoint takes the pending changes; its superblock is written, but
/// the device reports a failure. Returns the result of a sync after that, and whether the image can
/// be opened.
fn after_a_doubtful_superblock(canary: Option<Canary>) -> (Result<(), StoreError>, Result<bool, StoreError>) {
    let spawn = background();
    let memory = image(16, &spawn);
    let device = Unruly::new(memory.clone());
    let store = open(
        device.clone(),
        StoreOptions { lab: Lab::breaking(canary), patience: Duration::ZERO, ..StoreOptions::default() },
        &spawn,
    );
    let run = allocate(&store, 1);
    let data = write(&store, run, 1);
    let mut transaction = Transaction::new();
    transaction.name_data(&data, run);
    // More than fits into the current segment.
    (0..200).for_each(|n| transaction.put(key(100 + n), vec![7; 2000]));
    let op = store.commit(transaction).unwrap();

    store.refuse_allocations(0, 1);
    // The first copies of the superblocks lie below this.
    device.doubtful_below.store(64 << 12, Ordering::SeqCst);
    let failed = block_on(store.checkpoint()).unwrap_err();
    assert!(store.read_only_reason().is_some(), "{failed}");
    device.doubtful_below.store(0, Ordering::SeqCst);
    let synced = block_on(store.sync(op));

    let reopened = block_on(Store::open(memory.snapshot(), StoreOptions::default(), spawn));
    let there = reopened.map(|(store, _)| block_on(store.get(key(100))).unwrap().is_some());
    (synced, there)
}

#[test]
fn what_a_doubtful_superblock_may_hold_is_not_logged_again() {
    let (synced, there) = after_a_doubtful_superblock(None);
    assert!(matches!(synced, Err(StoreError::ReadOnly { .. })), "{synced:?}");
    assert!(there.unwrap());
    let (synced, there) = after_a_doubtful_superblock(Some(Canary::SealAfterSuperblock));
    assert!(synced.is_ok() && there.is_err(), "the test sees it when it is: {synced:?}, {there:?}");
}
