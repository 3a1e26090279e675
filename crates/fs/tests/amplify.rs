//! Memory held by few dirty blocks: a large write must not keep its buffer when only little of it
//! is still dirty.
//!
//! This measures the whole process, so the test has one to itself.

use crate::alone::is_alone;
use std::sync::Arc;
use syncline_device::{AlignedBuf, Background, MemoryDevice, Spawn, WorkerOptions, block_on};
use syncline_fs::types::{Caller, FileType, Ino, ROOT, SetAttributes, Timestamp};
use syncline_fs::{Allocation, Filesystem, Options};
use syncline_store::{FormatOptions, Store, StoreOptions, format};

const CALLER: Caller = Caller { uid: 0, gid: 0 };
const WRITE_BYTES: u64 = 1 << 20;
const BLOCK_BYTES: u64 = 4096;
/// Number of writes of each kind: without a bound they would keep as many megabytes.
const WRITES: u64 = 600;
/// Memory that may be used: the limit of dirty data, the same amount for buffers of durable data
/// kept for reuse (64 MiB), and the same again for the device in memory, trees and log.
const ROOM_MIB: u64 = 3 * 64;

fn rss_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() >> 10
}

fn filesystem() -> Arc<Filesystem> {
    let spawn: Arc<dyn Spawn> = Arc::new(Background::start(WorkerOptions::default()).unwrap());
    let device = MemoryDevice::new(256 << 20);
    let root = Filesystem::initial_transaction(0, 0, 0o755, Timestamp { seconds: 1, nanoseconds: 0 });
    block_on(format(device.clone(), FormatOptions::default(), root, spawn.clone())).unwrap();
    let (store, _) = block_on(Store::open(device, StoreOptions::default(), spawn.clone())).unwrap();
    let options = Options { dirty_bytes_max: 64 << 20, ..Options::default() };
    block_on(Filesystem::open(store, spawn, options)).unwrap()
}

fn create(fs: &Filesystem, name: &str) -> Ino {
    block_on(fs.mknod(CALLER, ROOT, name.as_bytes(), FileType::Regular, 0o644, 0)).unwrap().ino
}

fn write(fs: &Filesystem, ino: Ino, offset: u64, len: u64) {
    let mut buf = AlignedBuf::zeroed(len as usize);
    buf.fill(7);
    block_on(fs.write(ino, offset, buf.into_bytes(), false)).unwrap();
}

/// Punches out all but the last block of each write.
fn punched(fs: &Arc<Filesystem>, ino: Ino, n: u64) {
    write(fs, ino, n * WRITE_BYTES, WRITE_BYTES);
    let hole = fs.allocate(ino, Allocation::PunchHole, n * WRITE_BYTES, WRITE_BYTES - BLOCK_BYTES, false);
    block_on(hole).unwrap();
}

/// Rewrites all but one block in the middle, block by block.
fn overwritten(fs: &Arc<Filesystem>, ino: Ino, n: u64) {
    let start = n % 8 * WRITE_BYTES;
    write(fs, ino, start, WRITE_BYTES);
    for block in (0..WRITE_BYTES / BLOCK_BYTES).filter(|block| *block != 100) {
        write(fs, ino, start + block * BLOCK_BYTES, BLOCK_BYTES);
    }
}

/// Truncates a file to its first two blocks, and logs these blocks.
fn logged(fs: &Arc<Filesystem>, _: Ino, n: u64) {
    let ino = create(fs, &format!("logged {n}"));
    write(fs, ino, 0, WRITE_BYTES);
    let cut = SetAttributes { size: Some(2 * BLOCK_BYTES), ..SetAttributes::default() };
    block_on(fs.setattr(CALLER, ino, cut)).unwrap();
    block_on(fs.fsync(ino, false)).unwrap();
    fs.forget(ino, 1);
}

#[test]
fn few_dirty_blocks_hold_little_memory() {
    if !is_alone("amplify::few_dirty_blocks_hold_little_memory") {
        return;
    }
    let before = rss_mib();
    type Way = fn(&Arc<Filesystem>, Ino, u64);
    let ways: [(&str, Way, u64); 3] =
        [("punched", punched, WRITES), ("logged", logged, WRITES), ("overwritten", overwritten, WRITES / 10)];
    for (what, way, writes) in ways {
        let (fs, begun) = (filesystem(), std::time::Instant::now());
        let ino = create(&fs, "file");
        let mut most = 0;
        for n in 0..writes {
            way(&fs, ino, n);
            most = most.max(rss_mib());
        }
        let dirty_kib = fs.counters().dirty_bytes >> 10;
        println!(
            "{what}: {:?}, dirty {dirty_kib} KiB, RSS {most} MiB at most, {before} before",
            begun.elapsed()
        );
        assert!(most < before + ROOM_MIB, "{what}: RSS {most} MiB with a dirty limit of 64 MiB");
        block_on(fs.close()).unwrap();
        block_on(fs.store().close()).unwrap();
    }
}
