//! Callers of a sync that give up while they drive a group: the others are not left alone.

use crate::troubles::support::{bench, put, quiet};
use futures_lite::future::poll_once;
use std::sync::atomic::Ordering;
use syncline_device::block_on;

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
