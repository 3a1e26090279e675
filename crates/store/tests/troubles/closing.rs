//! Closing that fails.

use crate::support::{Unruly, background, image, key, open};
use std::sync::{atomic, mpsc};
use std::time::Duration;
use syncline_device::block_on;
use syncline_store::{Admission, StoreOptions, Transaction};

/// Somebody waits for memory while the last checkpoint fails: nobody is left who would end that wait.
#[test]
fn a_close_that_fails_leaves_nobody_waiting() {
    let spawn = background();
    let device = Unruly::new(image(64, &spawn));
    let options = StoreOptions { memtable_bytes: 64 << 10, ..StoreOptions::default() };
    let store = open(device.clone(), options, &spawn);
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
    let answer = told.recv_timeout(Duration::from_secs(15));
    assert!(
        answer.is_ok(),
        "the device is back, the store closed with an error, and the writer waits for ever"
    );
}
