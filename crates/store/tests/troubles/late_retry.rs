//! A write fails once; two wait for it, and one of them is late with repeating it.

use crate::support::{Unruly, background, block, image, key, open};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use syncline_device::block_on;
use syncline_store::{Canary, StoreOptions, Transaction};

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

/// True when the block that the late one had written once still holds what others wrote there since.
fn the_block_of_others_survives(canary: Option<Canary>) -> bool {
    BLOCKED.store(false, Ordering::SeqCst);
    RELEASED.store(false, Ordering::SeqCst);
    let spawn = background();
    let device = Unruly::new(image(64, &spawn));
    let store = open(device.clone(), StoreOptions { canary, ..StoreOptions::default() }, &spawn);

    let mut room = block_on(store.reserve(1)).unwrap();
    let run = store.allocate(&mut room, 1, None).unwrap();
    device.fail_once_at.store(run.offset_bytes(), Ordering::SeqCst);
    let old = store.write_data(run, vec![block(1)]);
    let mut names = Transaction::new();
    names.name_data(&old, run);
    names.put(key(100), "names the block");
    store.commit(names).unwrap();
    let mut frees = Transaction::new();
    frees.free(run);
    frees.put(key(100), "has it no more");
    let op = store.commit(frees).unwrap();

    let driver = {
        let store = store.clone();
        let drive = move || block_on(store.sync(op));
        std::thread::Builder::new().name("driver".into()).spawn(drive).unwrap()
    };
    wait_for(&BLOCKED);
    // Somebody else waits for the same batch, and repeats the write in time.
    block_on(store.checkpoint()).unwrap();

    let mut room = block_on(store.reserve(1)).unwrap();
    let again = store.allocate(&mut room, 1, Some(run.start)).unwrap();
    assert_eq!(again, run, "the block is free");
    let new = store.write_data(again, vec![block(2)]);
    let mut names = Transaction::new();
    names.name_data(&new, again);
    names.put(key(101), "names the block now");
    store.commit(names).unwrap();
    block_on(store.checkpoint()).unwrap();
    assert_eq!(block_on(store.read_data(again, new.checksums())).unwrap()[0], 2, "durable, and acknowledged");

    RELEASED.store(true, Ordering::SeqCst);
    driver.join().unwrap().unwrap();
    block_on(store.read_data(again, new.checksums())).is_ok_and(|bytes| bytes[0] == 2)
}

#[test]
fn a_late_repetition_does_not_reach_blocks_of_others() {
    tracing::subscriber::set_global_default(SlowLog).unwrap();
    assert!(the_block_of_others_survives(None));
    assert!(!the_block_of_others_survives(Some(Canary::LateRetry)), "the test sees it when it does");
}
