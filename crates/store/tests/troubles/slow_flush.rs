//! A device with slow flushes slows down writers, and nothing else.

use crate::troubles::support::{Unruly, background, image, key, open};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use syncline_device::block_on;
use syncline_store::{Admission, Canary, Lab, Store, StoreOptions, Transaction};

const PENDING_BYTES: usize = 1 << 20;

/// Commits small items for `time`, longer than flushes take, and until the pending log has once been longer than
/// `wanted`; returns the length in bytes of the longest pending log.
fn longest_pending_log(store: &Arc<Store>, time: Duration, wanted: usize) -> usize {
    let begun = Instant::now();
    let mut longest = 0;
    for n in 0.. {
        // A busy machine takes longer.
        if begun.elapsed() > time && (longest > wanted || begun.elapsed() > 20 * time) {
            break;
        }
        let _room = block_on(store.admit(Admission::Grow)).unwrap();
        let mut transaction = Transaction::new();
        transaction.put(key(100 + n % 20_000), vec![n as u8; 2000 + n as usize % 100]);
        store.commit(transaction).unwrap();
        longest = longest.max(store.backlog().pending_bytes);
    }
    longest
}

fn run(canary: Option<Canary>, wanted: usize) -> (usize, Arc<Store>) {
    let spawn = background();
    let device = Unruly::new(image(1024, &spawn));
    let options = StoreOptions {
        lab: Lab::breaking(canary),
        pending_bytes: PENDING_BYTES,
        seal_bytes: 64 << 10,
        unflushed_bytes: 4 << 20,
        ..StoreOptions::default()
    };
    let store = open(device.clone(), options, &spawn);
    device.flush_delay_ms.store(700, Ordering::SeqCst);
    (longest_pending_log(&store, Duration::from_millis(2500), wanted), store)
}

#[test]
fn commits_during_long_flushes_wait_for_the_log() {
    let (longest, store) = run(None, 0);
    assert!(longest < PENDING_BYTES + (64 << 10), "{longest} bytes were pending");
    block_on(store.sync(store.last_op())).unwrap();
    assert_eq!(store.read_only_reason(), None);

    let (longest, _) = run(Some(Canary::UnboundedPending), 2 * PENDING_BYTES);
    assert!(longest > 2 * PENDING_BYTES, "the test sees it when they don't: {longest}");
}
