//! While data is placed anew, writers wait for memory as always.

use crate::support::{Unruly, background, block, image, key, open};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak, mpsc};
use std::time::{Duration, Instant};
use syncline_device::block_on;
use syncline_format::BlockRun;
use syncline_store::{Admission, Relocate, Store, StoreError, StoreOptions, Transaction};

/// A device that takes its time with failing: as a disk does, which tries a bad sector for half a minute.
struct Slowly {
    store: Weak<Store>,
    begun: Mutex<mpsc::Sender<()>>,
    done: Arc<AtomicBool>,
}

impl Relocate for Slowly {
    fn relocate(&self, run: BlockRun) -> Pin<Box<dyn Future<Output = Result<(), StoreError>> + Send + '_>> {
        Box::pin(async move {
            let _ = self.begun.lock().unwrap().send(());
            while !self.done.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(10));
            }
            let mut frees = Transaction::new();
            frees.free(run);
            frees.put(key(100), "lies elsewhere");
            self.store.upgrade().unwrap().commit(frees).map(drop)
        })
    }
}

#[test]
fn memory_stays_bounded_while_data_is_placed_anew() {
    let spawn = background();
    let device = Unruly::new(image(512, &spawn));
    let options = StoreOptions {
        unflushed_bytes: 1 << 20,
        memtable_bytes: 2 << 20,
        pending_bytes: 1 << 20,
        seal_bytes: 64 << 10,
        checkpoint_interval: Duration::from_secs(3600),
        ..StoreOptions::default()
    };
    let store = open(device.clone(), options, &spawn);
    let (begin, begun) = mpsc::channel();
    let done = Arc::new(AtomicBool::new(false));
    let by = Slowly { store: Arc::downgrade(&store), begun: Mutex::new(begin), done: done.clone() };
    store.set_relocation(Arc::new(by));
    let mut room = block_on(store.reserve(1)).unwrap();
    let run = store.allocate(&mut room, 1, None).unwrap();
    device.bad.lock().replace(run.offset_bytes()..run.offset_bytes() + 4096);
    let data = store.write_data(run, vec![block(1)]);
    let mut names = Transaction::new();
    names.name_data(&data, run);
    names.put(key(100), "names the block");
    let op = store.commit(names).unwrap();
    let syncing = {
        let store = store.clone();
        std::thread::spawn(move || block_on(store.sync(op)))
    };
    begun.recv().unwrap();
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
    writer.join().unwrap();
    let synced = syncing.join().unwrap();
    let limit = (4 << 20) + (1 << 20);
    assert!(most < 2 * limit, "{} MiB in 3 s, of {} MiB that may be; {synced:?}", most >> 20, limit >> 20);
}
