//! A write fails once; two tasks wait for it, and one of them is late in repeating it.

use crate::troubles::late::{self, LateSync};
use crate::troubles::support::{allocate, bench, give_up, name, write};
use std::sync::atomic::Ordering;
use syncline_device::block_on;
use syncline_store::{Canary, Lab, StoreOptions};

/// True if the block that the late thread wrote before still holds the data that others wrote to it
/// since.
fn the_block_of_others_survives(canary: Option<Canary>) -> bool {
    let (_spawn, device, store) =
        bench(StoreOptions { lab: Lab::breaking(canary), ..StoreOptions::default() });
    let run = allocate(&store, 1);
    device.fail_once_at.store(run.offset_bytes(), Ordering::SeqCst);
    name(&store, 100, run, &write(&store, run, 1));
    let late = LateSync::begin(&store, give_up(&store, 100, run));
    // Another task waits for the same batch, and repeats the write in time.
    block_on(store.checkpoint()).unwrap();

    let mut room = block_on(store.reserve(1)).unwrap();
    let again = store.allocate(&mut room, 1, Some(run.start)).unwrap();
    assert_eq!(again, run, "the block is free");
    let new = write(&store, again, 2);
    name(&store, 101, again, &new);
    block_on(store.checkpoint()).unwrap();
    assert_eq!(
        block_on(store.read_data(7, again, new.checksums())).unwrap()[0],
        2,
        "durable, and acknowledged"
    );

    late.end().unwrap();
    block_on(store.read_data(7, again, new.checksums())).is_ok_and(|bytes| bytes[0] == 2)
}

#[test]
fn a_late_repetition_does_not_reach_blocks_of_others() {
    let _alone = late::alone();
    assert!(the_block_of_others_survives(None));
    assert!(!the_block_of_others_survives(Some(Canary::LateRetry)), "the test sees it when it does");
}
