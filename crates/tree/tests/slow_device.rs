//! Merges on a device whose writes are slow or fail.

use crate::common::{Bench, Changes, key, value};
use bytes::Bytes;
use futures_lite::future::{block_on, poll_once};
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;
use syncline_device::{AlignedBuf, Completion, Device, DeviceError, FlushTracker, MemoryDevice, Operation};
use syncline_tree::{Tree, TreeError};

type Write = (u64, Vec<Bytes>, Completion<()>);

/// Much longer than a merge needs to fill one write.
const WRITE_TAKES: Duration = Duration::from_millis(10);

/// Passes writes to a thread that performs them one after the other, each after a pause. Writes
/// fail from number `fail_from` on.
struct SlowDevice {
    memory: Arc<MemoryDevice>,
    writes: Mutex<mpsc::Sender<Write>>,
    figures: Arc<Figures>,
}

#[derive(Default)]
struct Figures {
    in_flight_bytes: AtomicU64,
    most_in_flight_bytes: AtomicU64,
    writes: AtomicU64,
}

impl SlowDevice {
    fn new(memory: Arc<MemoryDevice>, fail_from: u64) -> Arc<Self> {
        let (writes, queue) = mpsc::channel::<Write>();
        let figures = Arc::new(Figures::default());
        let (on_thread, their_figures) = (memory.clone(), figures.clone());
        std::thread::spawn(move || {
            for (offset, bufs, done) in queue {
                std::thread::sleep(WRITE_TAKES);
                let len_bytes: usize = bufs.iter().map(Bytes::len).sum();
                their_figures.in_flight_bytes.fetch_sub(len_bytes as u64, SeqCst);
                if their_figures.writes.fetch_add(1, SeqCst) >= fail_from {
                    let source = Arc::new(std::io::Error::other("worn out"));
                    let (operation, len_bytes) = (Operation::Write, len_bytes as u64);
                    done(Err(DeviceError::Io { operation, offset, len_bytes, source }));
                } else {
                    on_thread.write(offset, bufs, done);
                }
            }
        });
        Arc::new(Self { memory, writes: Mutex::new(writes), figures })
    }
}

impl Device for SlowDevice {
    fn size_bytes(&self) -> u64 {
        self.memory.size_bytes()
    }
    fn read(&self, offset: u64, buf: AlignedBuf, done: Completion<AlignedBuf>) {
        self.memory.read(offset, buf, done);
    }
    fn write(&self, offset: u64, bufs: Vec<Bytes>, done: Completion<()>) {
        let len_bytes: usize = bufs.iter().map(Bytes::len).sum();
        let now = self.figures.in_flight_bytes.fetch_add(len_bytes as u64, SeqCst) + len_bytes as u64;
        self.figures.most_in_flight_bytes.fetch_max(now, SeqCst);
        self.writes.lock().unwrap().send((offset, bufs, done)).unwrap();
    }
    fn flush(&self, done: Completion<()>) {
        self.memory.flush(done);
    }
    fn discard(&self, offset: u64, len_bytes: u64, done: Completion<()>) {
        self.memory.discard(offset, len_bytes, done);
    }
}

/// A bench whose device becomes slow after the empty tree was made.
fn bench(fail_from: u64) -> (Bench, Arc<Figures>) {
    let mut bench = Bench::new(16384, 64 << 10, 1 << 20);
    let slow = SlowDevice::new(bench.device.clone(), fail_from);
    let figures = slow.figures.clone();
    bench.tracker = FlushTracker::new(slow);
    bench.tree = Tree::new(bench.tracker.clone(), bench.geometry, 1 << 20);
    (bench, figures)
}

/// About 40 MB of nodes.
fn many() -> Changes {
    (0..40_000).map(|number| (key(number), Some(value(number, 1000)))).collect()
}

#[test]
fn writes_in_flight_are_bounded() {
    let (mut bench, figures) = bench(u64::MAX);
    let changes = many();
    bench.merge(&changes).unwrap();
    assert!(figures.writes.load(SeqCst) > 30, "writes are up to 1 MiB long");
    let most = figures.most_in_flight_bytes.load(SeqCst);
    assert!((2 << 20..=10 << 20).contains(&most), "{most} bytes in flight");
    bench.check(&changes.into_iter().map(|(key, value)| (key, value.unwrap())).collect());
}

#[test]
fn a_failed_write_ends_the_merge_once_nothing_is_in_flight() {
    for fail_from in [0, 5, 20] {
        let (mut bench, figures) = bench(fail_from);
        let used = bench.space.used_blocks();
        let error = bench.merge(&many()).unwrap_err();
        assert!(matches!(error, TreeError::Device(DeviceError::Io { .. })), "{error}");
        assert_eq!(
            figures.in_flight_bytes.load(SeqCst),
            0,
            "a block is handed back while a write to it is under way"
        );
        assert!(figures.writes.load(SeqCst) < 35, "the merge went on long after the failure");
        assert_eq!(bench.space.used_blocks(), used);
        bench.check(&crate::common::Model::new());
    }
}

#[test]
fn a_write_that_fails_late_shows_in_its_handle() {
    let (mut bench, _) = bench(0);
    let merged = bench.merge_only(&Changes::from([(key(1), Some(value(1, 9)))])).unwrap();
    assert_eq!(merged.written.len(), 1);
    assert!(block_on(merged.written[0].handle.wait()).is_err());
}

#[test]
fn a_long_merge_lets_others_run() {
    let bench = Bench::new(16384, 64 << 10, 1 << 20);
    let changes = many();
    let allocate = |_, wanted| bench.space.allocate(wanted);
    let mut merge = pin!(bench.tree.merge(bench.root, 2, &changes, &allocate));
    let mut turns = 0;
    while block_on(poll_once(merge.as_mut())).is_none() {
        turns += 1;
    }
    assert!(turns > 100, "{turns} turns for some 2700 nodes");
}
