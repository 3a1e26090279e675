//! Closing that fails, and other calls meanwhile.

use crate::troubles::support::{bench, key, put};
use std::sync::{atomic, mpsc};
use std::time::Duration;
use syncline_device::block_on;
use syncline_store::{Admission, Store, StoreOptions, Transaction};

/// A caller waits for memory while the last checkpoint fails: nobody would be left to end that
/// wait.
#[test]
fn a_close_that_fails_leaves_nobody_waiting() {
    let (_spawn, device, store) = bench(StoreOptions { memtable_bytes: 64 << 10, ..StoreOptions::default() });
    device.gone.store(true, atomic::Ordering::SeqCst);
    let mut transaction = Transaction::new();
    for n in 0..100 {
        transaction.put(key(100 + n), vec![n as u8; 3000]);
    }
    store.commit(transaction).unwrap();
    let (tell, told) = mpsc::channel();
    let waiting = store.clone();
    std::thread::spawn(move || tell.send(block_on(waiting.admit(Admission::Grow))));
    std::thread::sleep(Duration::from_millis(200));
    assert!(block_on(store.close()).is_err());
    device.gone.store(false, atomic::Ordering::SeqCst);
    let answer = told.recv_timeout(Duration::from_secs(120));
    assert!(
        answer.is_ok(),
        "the device is back, the store closed with an error, and the writer waits for ever"
    );
}

/// A sync is acknowledged while the last checkpoint is in progress, and then the power fails (or
/// the process ends normally).
#[test]
fn a_sync_acknowledged_while_closing_survives() {
    let (spawn, device, store) = bench(StoreOptions::default());
    put(&store, 100, "before");
    device.flush_delay_ms.store(300, atomic::Ordering::SeqCst);
    let closing = {
        let store = store.clone();
        std::thread::spawn(move || block_on(store.close()))
    };
    std::thread::sleep(Duration::from_millis(100));
    let mut transaction = Transaction::new();
    transaction.put(key(200), "meanwhile");
    let committed = store.commit(transaction);
    let synced = committed.map(|op| block_on(store.sync(op)));
    closing.join().unwrap().unwrap();
    drop(store);
    let (store, _) =
        block_on(Store::open(device.inner.snapshot(), StoreOptions::default(), spawn.clone())).unwrap();
    let found = block_on(store.get(key(200))).unwrap();
    assert!(
        !matches!(synced, Ok(Ok(()))) || found.is_some(),
        "sync() answered Ok while close() was on its way, and the value is gone"
    );
}

/// The last superblock may or may not be on the device; it says that the log is empty. Then
/// somebody syncs changes that were committed meanwhile.
#[test]
fn a_sync_after_a_close_that_is_uncertain_survives() {
    let (spawn, device, store) =
        bench(StoreOptions { patience: Duration::from_millis(600), ..StoreOptions::default() });
    put(&store, 100, "before");
    // This covers the first copies of both slots.
    device.doubtful_below.store(16 * 4096, atomic::Ordering::SeqCst);
    let closing = {
        let store = store.clone();
        std::thread::spawn(move || block_on(store.close()))
    };
    std::thread::sleep(Duration::from_millis(200));
    let mut transaction = Transaction::new();
    transaction.put(key(200), "meanwhile");
    let committed = store.commit(transaction);
    let _ = closing.join().unwrap();
    let synced = committed.map(|op| block_on(store.sync(op)));
    let crashed = device.inner.snapshot();
    drop(store);
    let (store, _) = block_on(Store::open(crashed, StoreOptions::default(), spawn.clone())).unwrap();
    let found = block_on(store.get(key(200))).unwrap();
    assert!(!matches!(synced, Ok(Ok(()))) || found.is_some(), "acknowledged and gone");
}
