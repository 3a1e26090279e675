//! The marker of an idle log, which calls acknowledged batches durable.

use crate::troubles::support::{background, block, image, key, open, put};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use syncline_device::{DeviceExt, Spawn, block_on};
use syncline_store::{Store, StoreOptions};

/// Looks until this is so. Within two seconds on a machine that is not busy.
fn eventually(what: &str, condition: impl Fn() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < Duration::from_secs(600), "it does not come: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The first acknowledged batch of a mount is marked like any other.
#[test]
fn the_first_acknowledged_batch_of_a_mount_is_marked() {
    let spawn = background();
    let store = open(image(64, &spawn), StoreOptions::default(), &spawn);
    block_on(store.sync(put(&store, 100, "value"))).unwrap();
    eventually("a marker after an acknowledgement", || store.counters().markers == 1);
}

/// The purpose of the marker: without it, one rotten block could silently lose acknowledged
/// batches.
#[test]
fn rot_in_the_first_batch_of_a_mount_is_told() {
    let spawn = background();
    // A change that nobody has synced waits in memory, such as the removal of a file without a
    // name.
    for something_waits in [false, true] {
        let device = image(64, &spawn);
        let store = open(device.clone(), StoreOptions::default(), &spawn);
        block_on(store.sync(put(&store, 100, "value"))).unwrap();
        if something_waits {
            put(&store, 101, "another");
        }
        // The marker, or the change that waits.
        eventually("a batch that no flush covers", || store.backlog().unflushed_bytes > 0);
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
}

/// Counts sleeps: each wakes a thread.
struct Counted(Arc<dyn Spawn>, AtomicU64);

impl Spawn for Counted {
    fn spawn(&self, task: Pin<Box<dyn Future<Output = ()> + Send>>) {
        self.0.spawn(task);
    }
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.sleep(duration)
    }
}

/// After any idle time, an acknowledged batch is marked as quickly as ever, and until then nobody
/// looks for it.
#[test]
fn a_log_rests_when_it_is_marked_and_is_marked_after_a_rest() {
    let counted = Arc::new(Counted(background(), AtomicU64::new(0)));
    let spawn: Arc<dyn Spawn> = counted.clone();
    let store = open(image(64, &spawn), StoreOptions::default(), &spawn);
    for number in 1..4 {
        block_on(store.sync(put(&store, 100 + number, "value"))).unwrap();
        eventually("a marker after an acknowledgement", || store.counters().markers == number);
        // The task that made it comes to rest.
        eventually("1.5 s with one timer at most, in which nobody asked for anything", || {
            let slept = counted.1.load(Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(1500));
            counted.1.load(Ordering::Relaxed) - slept <= 1
        });
        assert_eq!(store.counters().markers, number);
    }
}
