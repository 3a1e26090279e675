//! An unmount during discards on a device that takes long for each.

use bytes::Bytes;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use syncline_device::{
    AlignedBuf, Background, Completion, Device, MemoryDevice, Spawn, WorkerOptions, block_on,
};
use syncline_format::Key;
use syncline_store::{FormatOptions, Store, StoreOptions, Transaction, format};

const EACH: Duration = Duration::from_millis(500);
/// More runs than an unmount could wait for.
const RUNS: u64 = 1280;

/// A device whose discards take long and run one after the other.
struct Slow {
    inner: Arc<MemoryDevice>,
    begun: AtomicU64,
    one: Arc<Mutex<()>>,
}

impl Device for Slow {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }

    fn read(&self, offset: u64, buf: AlignedBuf, done: Completion<AlignedBuf>) {
        self.inner.read(offset, buf, done);
    }

    fn write(&self, offset: u64, bufs: Vec<Bytes>, done: Completion<()>) {
        self.inner.write(offset, bufs, done);
    }

    fn flush(&self, done: Completion<()>) {
        self.inner.flush(done);
    }

    fn discard(&self, offset: u64, len_bytes: u64, done: Completion<()>) {
        self.begun.fetch_add(1, Ordering::SeqCst);
        let (inner, one) = (self.inner.clone(), self.one.clone());
        std::thread::spawn(move || {
            let _one = one.lock().unwrap();
            std::thread::sleep(EACH);
            inner.discard(offset, len_bytes, done);
        });
    }
}

#[test]
fn an_unmount_does_not_wait_for_all_that_was_freed() {
    let spawn: Arc<dyn Spawn> = Arc::new(Background::start(WorkerOptions::default()).unwrap());
    let inner = MemoryDevice::new(256 << 20);
    block_on(format(inner.clone(), FormatOptions::default(), Transaction::new(), spawn.clone())).unwrap();
    let device = Arc::new(Slow { inner, begun: 0.into(), one: Arc::default() });
    let options = StoreOptions {
        discard: true,
        checkpoint_interval: Duration::from_secs(3600),
        ..StoreOptions::default()
    };
    let (store, _) = block_on(Store::open(device.clone(), options, spawn)).unwrap();
    let mut runs = Vec::new();
    for number in 0..RUNS {
        let mut room = block_on(store.reserve(2)).unwrap();
        let run = store.allocate(&mut room, 2, None).unwrap();
        let fill = AlignedBuf::copy_from(&[number as u8; 4096]).into_bytes();
        let data = store.write_data(run, vec![fill; 2]);
        let mut names = Transaction::new();
        names.name_data(&data, run);
        names.put(Key { object: 1000 + number, kind: 1, offset: 0 }, "x");
        store.commit(names).unwrap();
        runs.push(run);
    }
    block_on(store.checkpoint()).unwrap();
    // Free every other run, so that the freed runs do not touch.
    let mut frees = Transaction::new();
    runs.iter().step_by(2).for_each(|run| frees.free(*run));
    store.commit(frees).unwrap();
    for number in 0..2 {
        let mut change = Transaction::new();
        change.put(Key { object: 2, kind: 1, offset: 0 }, vec![number]);
        store.commit(change).unwrap();
        block_on(store.checkpoint()).unwrap();
    }
    let begun = Instant::now();
    while device.begun.load(Ordering::SeqCst) == 0 {
        assert!(begun.elapsed() < Duration::from_secs(60), "the background discards");
        std::thread::sleep(Duration::from_millis(10));
    }
    let begun = Instant::now();
    block_on(store.close()).unwrap();
    // The discards in flight at first (4 s), 5 s, and the discards in flight then. All take minutes.
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
    assert!(device.begun.load(Ordering::SeqCst) < RUNS / 2, "it waited for all");
}
