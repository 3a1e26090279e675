//! The cost of an operation, in counts: allocations, writes and flushes of the device, bytes of the
//! log and of the device in all. They are the same in each run, so a change that makes an operation
//! more expensive fails here, without a clock.
//!
//! Allocations are those of the calling thread; background tasks have threads of their own. The
//! device's counts are everybody's. Each bound is slightly above the measured value.

use allocation_counter::measure;
use bytes::Bytes;
use std::sync::Arc;
use syncline_device::{Background, MemoryDevice, Spawn, WorkerOptions, block_on};
use syncline_fs::types::{Caller, FileType, Ino, ROOT, Timestamp};
use syncline_fs::{Filesystem, Options};
use syncline_store::{CountersSnapshot, FormatOptions, Store, StoreOptions, format};

const CALLER: Caller = Caller { uid: 0, gid: 0 };
const BLOCK_BYTES: u64 = 4096;
/// Uncounted operations that come first, until caches are full and reusable memory is allocated.
const WARM: u64 = 300;
const COUNTED: u64 = 1000;
/// Number of measurements of each operation.
const TRIES: u32 = 5;
/// Blocks of the file that is overwritten.
const BLOCKS: u64 = 256;

struct Bench {
    fs: Arc<Filesystem>,
    file: Ino,
    block: Bytes,
    large: Bytes,
}

/// The cost of one operation.
#[derive(Debug)]
struct Cost {
    allocations: f64,
    device_writes: f64,
    flushes: f64,
    log_bytes: f64,
    device_bytes: f64,
}

impl Bench {
    fn new() -> Self {
        let spawn: Arc<dyn Spawn> = Arc::new(Background::start(WorkerOptions::default()).unwrap());
        let device = MemoryDevice::new(1 << 30);
        let root = Filesystem::initial_transaction(0, 0, 0o755, Timestamp { seconds: 1, nanoseconds: 0 });
        block_on(format(device.clone(), FormatOptions::default(), root, spawn.clone())).unwrap();
        let (store, _) = block_on(Store::open(device, StoreOptions::default(), spawn.clone())).unwrap();
        let fs = block_on(Filesystem::open(store, spawn, Options::default())).unwrap();
        let (block, large) =
            (vec![7; BLOCK_BYTES as usize].into(), vec![7; 16 * BLOCK_BYTES as usize].into());
        let mut bench = Self { fs, file: 0, block, large };
        bench.file = bench.create("file");
        (0..BLOCKS / 16).for_each(|part| bench.write(part * 16, &bench.large));
        bench.sync(bench.file);
        bench
    }

    fn create(&self, name: &str) -> Ino {
        block_on(self.fs.mknod(CALLER, ROOT, name.as_bytes(), FileType::Regular, 0o644, 0)).unwrap().ino
    }

    fn write(&self, block: u64, bytes: &Bytes) {
        block_on(self.fs.write(self.file, block * BLOCK_BYTES, bytes.clone(), false)).unwrap();
    }

    fn sync(&self, ino: Ino) {
        block_on(self.fs.fsync(ino, true)).unwrap();
    }

    fn counters(&self) -> CountersSnapshot {
        self.fs.store().counters()
    }

    fn cost(&self, operation: impl Fn(&Self, u64)) -> Cost {
        (0..WARM).for_each(|number| operation(self, number));
        let before = self.counters();
        let taken = measure(|| (WARM..WARM + COUNTED).for_each(|number| operation(self, number)));
        let after = self.counters();
        let each = |count: u64| count as f64 / COUNTED as f64;
        Cost {
            allocations: each(taken.count_total),
            device_writes: each(after.device_writes - before.device_writes),
            flushes: each(after.flushes_issued - before.flushes_issued),
            log_bytes: each(after.log_bytes - before.log_bytes),
            device_bytes: each(after.device_write_bytes - before.device_write_bytes),
        }
    }
}

type Operation = fn(&Bench, u64);

fn overwrite(bench: &Bench, number: u64) {
    bench.write(number * 37 % BLOCKS, &bench.block);
}

fn overwrite_and_sync(bench: &Bench, number: u64) {
    overwrite(bench, number);
    bench.sync(bench.file);
}

fn append_and_sync(bench: &Bench, number: u64) {
    bench.write(BLOCKS + number * 16, &bench.large);
    bench.sync(bench.file);
}

fn read(bench: &Bench, number: u64) {
    let at = number * 37 % BLOCKS * BLOCK_BYTES;
    drop(block_on(bench.fs.read(bench.file, at, BLOCK_BYTES as usize)).unwrap());
}

fn look_up(bench: &Bench, _: u64) {
    let found = block_on(bench.fs.lookup(ROOT, b"file")).unwrap();
    bench.fs.forget(found.ino, 1);
}

fn create(bench: &Bench, number: u64) {
    let ino = bench.create(&number.to_string());
    bench.fs.forget(ino, 1);
}

fn create_and_sync(bench: &Bench, number: u64) {
    let ino = bench.create(&number.to_string());
    bench.sync(ino);
    bench.fs.forget(ino, 1);
}

fn create_and_unlink(bench: &Bench, number: u64) {
    let name = number.to_string();
    let ino = bench.create(&name);
    block_on(bench.fs.unlink(ROOT, name.as_bytes())).unwrap();
    bench.fs.forget(ino, 1);
}

#[test]
fn no_operation_costs_more_than_it_did() {
    // Allocations, device writes, flushes, bytes of the log, bytes of the device.
    let operations: [(&str, Operation, [f64; 5]); 8] = [
        ("4 KiB overwrite", overwrite, [0.3, 0.0, 0.0, 0.0, 0.0]),
        ("4 KiB overwrite + fdatasync", overwrite_and_sync, [16.5, 1.2, 1.0, 8300.0, 13_500.0]),
        ("64 KiB append + fdatasync", append_and_sync, [44.5, 2.1, 1.0, 4200.0, 70_000.0]),
        ("4 KiB read", read, [9.3, 0.0, 0.0, 0.0, 0.0]),
        ("lookup", look_up, [0.3, 0.0, 0.0, 0.0, 0.0]),
        ("create", create, [10.5, 0.1, 0.1, 100.0, 200.0]),
        ("create + fdatasync", create_and_sync, [22.0, 1.1, 1.0, 4200.0, 4300.0]),
        ("create + unlink", create_and_unlink, [19.0, 0.1, 0.1, 100.0, 200.0]),
    ];
    for (what, operation, bounds) in operations {
        // If other programs use the CPUs, threads wait for each other more often.
        let told: Vec<Cost> = (0..TRIES).map(|_| Bench::new().cost(operation)).collect();
        println!("{what}: {told:?}");
        let fits = |cost: &Cost| {
            let counts =
                [cost.allocations, cost.device_writes, cost.flushes, cost.log_bytes, cost.device_bytes];
            counts.iter().zip(bounds).all(|(count, bound)| *count <= bound)
        };
        assert!(told.iter().any(fits), "{what}: {told:?}, of which there may be {bounds:?}");
    }
}
