//! An fsync that is about to repeat a write while somebody else leaves the log. A program of its own: one thread is kept where it warns of
//! the failed write.

#[path = "troubles/support.rs"]
#[allow(dead_code)]
mod support;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use support::{Unruly, background, image, key, open};
use syncline_device::block_on;
use syncline_store::{StoreOptions, Transaction};

static BLOCKED: AtomicBool = AtomicBool::new(false);
static RELEASED: AtomicBool = AtomicBool::new(false);

fn wait_for(flag: &AtomicBool) {
    while !flag.load(Ordering::SeqCst) {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A subscriber that keeps the thread called "driver" where it warns of the failed write, until it is released.
struct SlowLog;

impl tracing::Subscriber for SlowLog {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::WARN
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, _: &tracing::Event<'_>) {
        if std::thread::current().name() == Some("driver") && !BLOCKED.swap(true, Ordering::SeqCst) {
            wait_for(&RELEASED);
        }
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

/// A checkpoint leaves the log while an fsync is about to repeat the same bad write: all is durable, and the fsync says EIO.
#[test]
fn a_sync_beside_a_checkpoint_that_leaves_the_log_succeeds() {
    tracing::subscriber::set_global_default(SlowLog).unwrap();
    let spawn = background();
    let device = Unruly::new(image(64, &spawn));
    let store = open(device.clone(), StoreOptions::default(), &spawn);
    let segment = store.superblock().log.segment;
    device.bad.lock().replace(segment.offset_bytes()..segment.end() * 4096);
    let mut transaction = Transaction::new();
    transaction.put(key(100), "value");
    let op = store.commit(transaction).unwrap();
    let driver = {
        let store = store.clone();
        std::thread::Builder::new().name("driver".into()).spawn(move || block_on(store.sync(op))).unwrap()
    };
    wait_for(&BLOCKED);
    // The background's, or that of a writer without room.
    block_on(store.checkpoint()).unwrap();
    assert_eq!(store.counters().logs_left, 1);
    assert!(store.is_durable(op));
    RELEASED.store(true, Ordering::SeqCst);
    let synced = driver.join().unwrap();
    assert!(synced.is_ok(), "durable: {}, and the fsync says {synced:?}", store.is_durable(op));
}
