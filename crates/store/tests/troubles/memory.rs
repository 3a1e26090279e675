//! While data is relocated, writers wait for memory as always.

use crate::troubles::support::{
    Unruly, allocate, background, image, key, name, open, place_elsewhere, quiet, write,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use syncline_device::block_on;
use syncline_store::{Admission, StoreOptions, Transaction};

/// The device takes long to fail, like a disk that retries a bad sector for half a minute.
#[test]
fn memory_stays_bounded_while_data_is_placed_anew() {
    let spawn = background();
    let device = Unruly::new(image(512, &spawn));
    let options = StoreOptions {
        unflushed_bytes: 1 << 20,
        memtable_bytes: 2 << 20,
        pending_bytes: 1 << 20,
        seal_bytes: 64 << 10,
        ..quiet()
    };
    let store = open(device.clone(), options, &spawn);
    let (begun, go) = place_elsewhere(&store);
    let run = allocate(&store, 1);
    device.spoil(run.start..run.end());
    let op = name(&store, 100, run, &write(&store, run, 1));
    let syncing = {
        let store = store.clone();
        std::thread::spawn(move || block_on(store.sync(op)))
    };
    begun.recv().unwrap();
    let done = Arc::new(AtomicBool::new(false));
    let writer = {
        let (store, done) = (store.clone(), done.clone());
        std::thread::spawn(move || {
            for n in 0u64.. {
                if done.load(Ordering::SeqCst) {
                    break;
                }
                let Ok(_room) = block_on(store.admit(Admission::Shrink)) else { break };
                let mut transaction = Transaction::new();
                transaction.put(key(1000 + n), vec![n as u8; 2000]);
                store.commit(transaction).unwrap();
            }
        })
    };
    let (began, mut most) = (Instant::now(), 0);
    while began.elapsed() < Duration::from_secs(3) {
        let backlog = store.backlog();
        most = most.max(backlog.unflushed_bytes + backlog.pending_bytes as u64);
        std::thread::sleep(Duration::from_millis(20));
    }
    done.store(true, Ordering::SeqCst);
    drop(go);
    writer.join().unwrap();
    let synced = syncing.join().unwrap();
    let limit = (4 << 20) + (1 << 20);
    assert!(most < 2 * limit, "{} MiB in 3 s, of {} MiB that may be; {synced:?}", most >> 20, limit >> 20);
}
