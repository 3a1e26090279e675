//! Callers that give up while they drive a group or take a checkpoint: the others are not left alone, and
//! what is durable stays so.

use crate::troubles::support::{bench, key, open, put, quiet};
use futures_lite::future::poll_once;
use std::sync::atomic::Ordering;
use syncline_device::block_on;
use syncline_store::{StoreError, Transaction};

/// An open bracket keeps a driver waiting before it closes its group, as expected syncs do.
#[test]
fn a_driver_that_gives_up_while_it_gathers() {
    let (_spawn, _device, store) = bench(quiet());
    let op = put(&store, 1, "something");
    let bracket = block_on(block_on(store.quiet()).open()).unwrap();
    let mut driver = Box::pin(store.sync(op));
    assert!(block_on(poll_once(driver.as_mut())).is_none());
    let mut member = Box::pin(store.sync(op));
    assert!(block_on(poll_once(member.as_mut())).is_none());
    drop(driver);
    bracket.close();
    block_on(member).expect("nothing has failed");
    block_on(store.sync(put(&store, 2, "something"))).expect("whoever comes later is in another group");
}

#[test]
fn a_driver_that_gives_up_during_the_flush() {
    let (_spawn, device, store) = bench(quiet());
    let op = put(&store, 1, "something");
    let bracket = block_on(block_on(store.quiet()).open()).unwrap();
    let mut driver = Box::pin(store.sync(op));
    assert!(block_on(poll_once(driver.as_mut())).is_none());
    let mut member = Box::pin(store.sync(op));
    assert!(block_on(poll_once(member.as_mut())).is_none());
    device.flush_delay_ms.store(200, Ordering::SeqCst);
    bracket.close();
    assert!(block_on(poll_once(driver.as_mut())).is_none());
    drop(driver);
    block_on(member).expect("nothing has failed");
    assert!(store.is_durable(op));
    block_on(store.sync(put(&store, 2, "something"))).unwrap();
}

/// The next checkpoint would not have its changes, and would end the log that has them.
#[test]
fn a_caller_that_gives_up_a_checkpoint_loses_nothing() {
    let (spawn, device, store) = bench(quiet());
    block_on(store.sync(put(&store, 1, "something"))).unwrap();
    device.flush_delay_ms.store(200, Ordering::SeqCst);
    let mut checkpoint = Box::pin(store.checkpoint());
    assert!(block_on(poll_once(checkpoint.as_mut())).is_none(), "it waits for a flush");
    drop(checkpoint);
    device.flush_delay_ms.store(0, Ordering::SeqCst);
    let mut transaction = Transaction::new();
    transaction.put(key(2), "something");
    assert!(matches!(store.commit(transaction), Err(StoreError::ReadOnly { .. })));
    assert!(matches!(block_on(store.checkpoint()), Err(StoreError::ReadOnly { .. })));
    let after = open(device.inner.snapshot(), quiet(), &spawn);
    assert_eq!(block_on(after.get(key(1))).unwrap().as_deref(), Some(&b"something"[..]));
}
