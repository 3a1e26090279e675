//! An fsync that is about to repeat a write while somebody else leaves the log. A separate program,
//! because its log of messages is slow.

#[path = "troubles/late.rs"]
mod late;
#[path = "troubles/support.rs"]
#[allow(dead_code)]
mod support;

use late::{LateSync, SlowLog};
use support::{bench, put};
use syncline_device::block_on;
use syncline_store::StoreOptions;

/// A checkpoint leaves the log while an fsync is about to repeat the same bad write: everything
/// becomes durable, and the fsync succeeds.
#[test]
fn a_sync_beside_a_checkpoint_that_leaves_the_log_succeeds() {
    tracing::subscriber::set_global_default(SlowLog).unwrap();
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
