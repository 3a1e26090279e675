//! An fsync that is about to repeat a write while somebody else leaves the log.

use crate::troubles::late::{self, LateSync};
use crate::troubles::support::{bench, put};
use syncline_device::block_on;
use syncline_store::StoreOptions;

/// A checkpoint leaves the log while an fsync is about to repeat the same bad write: everything
/// becomes durable, and the fsync succeeds.
#[test]
fn a_sync_beside_a_checkpoint_that_leaves_the_log_succeeds() {
    let _alone = late::alone();
    let (_spawn, device, store) = bench(StoreOptions::default());
    let segment = store.superblock().log.segment;
    device.spoil(segment.start..segment.end());
    let op = put(&store, 100, "value");
    let late = LateSync::begin(&store, op);
    // As the background does, or a writer that finds no room.
    block_on(store.checkpoint()).unwrap();
    assert_eq!(store.counters().logs_left, 1);
    assert!(store.is_durable(op));
    late.end().unwrap();
}
