//! The commit of an atomic write of which most lies on the device: its memory, its log, and the time
//! in which nobody else can commit, in the two worst cases: each block is an extent of its own and
//! divides one of 32 blocks; each extent of 32 blocks replaces 32 of one block.
//!
//! `SYNCLINE_EXTENTS=65536 cargo test -p syncline-fs --test costs atomic_commit:: -- --nocapture` measures the
//! largest one.

use allocation_counter::measure;
use bytes::Bytes;
use std::sync::Arc;
use std::time::{Duration, Instant};
use syncline_device::{Background, MemoryDevice, Spawn, WorkerOptions, block_on};
use syncline_fs::types::{Caller, FileType, ROOT, Timestamp};
use syncline_fs::{Filesystem, Options};
use syncline_store::{FormatOptions, Store, StoreOptions, format};

const BLOCK: u64 = 4096;
/// Blocks of an extent.
const EXTENT: u64 = 32;
const EXTENTS: u64 = 2000;
/// Blocks that stay in memory.
const IN_MEMORY: u64 = 256;
/// Bytes for each extent: of memory at most at a time, and of the log. docs/MEMORY.md and
/// PROOF.md say the same.
const MEMORY_EACH: u64 = 2560;
const LOG_EACH: u64 = 400;

fn filesystem(extents: u64, extents_max: u64) -> Arc<Filesystem> {
    let spawn: Arc<dyn Spawn> = Arc::new(Background::start(WorkerOptions::default()).unwrap());
    let device = MemoryDevice::new((extents * EXTENT * BLOCK * 3).max(256 << 20));
    let root = Filesystem::initial_transaction(0, 0, 0o755, Timestamp { seconds: 1, nanoseconds: 0 });
    block_on(format(device.clone(), FormatOptions::default(), root, spawn.clone())).unwrap();
    // No checkpoint and no seal by itself: the counts show the commit alone.
    let options = StoreOptions {
        checkpoint_interval: Duration::from_secs(3600),
        memtable_bytes: 1 << 30,
        ..StoreOptions::default()
    };
    let (store, _) = block_on(Store::open(device, options, spawn.clone())).unwrap();
    let options =
        Options { atomic_blocks_max: IN_MEMORY, atomic_extents_max: extents_max, ..Options::default() };
    block_on(Filesystem::open(store, spawn, options)).unwrap()
}

fn extents() -> u64 {
    std::env::var("SYNCLINE_EXTENTS").map_or(EXTENTS, |number| number.parse().unwrap())
}

fn file(fs: &Filesystem) -> u64 {
    let caller = Caller { uid: 0, gid: 0 };
    block_on(fs.mknod(caller, ROOT, b"file", FileType::Regular, 0o644, 0)).unwrap().ino
}

/// Commits an atomic write that may have as many as `extents` extents.
fn commit(fs: &Filesystem, file: u64, extents: u64) {
    let before = fs.store().counters();
    let started = Instant::now();
    let taken = measure(|| block_on(fs.commit_atomic_write(fs.atomic_write_of(file).unwrap())).unwrap());
    let elapsed = started.elapsed();
    let after = fs.store().counters();
    let log = after.log_bytes - before.log_bytes;
    println!(
        "{extents} extents: {} bytes of memory each, {} of log, {elapsed:?}, {} batches, {} flushes",
        taken.bytes_max / extents,
        log / extents,
        after.batches - before.batches,
        after.flushes_issued - before.flushes_issued
    );
    assert!(taken.bytes_max <= extents * MEMORY_EACH, "{} bytes of memory", taken.bytes_max);
    assert!(log <= extents * LOG_EACH, "{log} bytes of log");
    assert_eq!(after.flushes_issued - before.flushes_issued, 1);
}

#[test]
fn a_commit_is_bounded_by_its_extents() {
    let extents = extents();
    let fs = filesystem(extents, extents);
    let file = file(&fs);
    let (whole, block) = (Bytes::from(vec![1; 1 << 20]), Bytes::from(vec![2; BLOCK as usize]));
    for at in 0..extents * EXTENT * BLOCK / (1 << 20) + 1 {
        block_on(fs.write(file, at << 20, whole.clone(), false)).unwrap();
    }
    block_on(fs.syncfs()).unwrap();
    let open = block_on(fs.start_atomic_write(file)).unwrap();
    for extent in 0..extents {
        let offset = (extent * EXTENT + 7) * BLOCK;
        block_on(fs.write_atomically(open, offset, block.clone(), false)).unwrap();
    }
    let spilled = fs.counters().atomic_spilled_bytes / BLOCK;
    assert!(spilled >= extents - IN_MEMORY, "{spilled} of {extents}");
    commit(&fs, file, extents);
    let found = block_on(fs.read(file, (7 + EXTENT) * BLOCK, BLOCK as usize)).unwrap().concat();
    assert!(found == block[..]);
}

/// A file that was written block by block is written again in sequence.
#[test]
fn a_commit_is_bounded_by_the_extents_that_it_replaces() {
    let extents = extents();
    let fs = filesystem(extents, extents);
    let file = file(&fs);
    let (whole, block) = (Bytes::from(vec![1; 1 << 20]), Bytes::from(vec![2; BLOCK as usize]));
    let mib = extents * EXTENT * BLOCK / (1 << 20);
    for first in 0..2 {
        for number in (first..mib << 8).step_by(2) {
            block_on(fs.write(file, number * BLOCK, block.clone(), false)).unwrap();
        }
        block_on(fs.syncfs()).unwrap();
    }
    let open = block_on(fs.start_atomic_write(file)).unwrap();
    let write = |at: &u64| block_on(fs.write_atomically(open, at << 20, whole.clone(), false));
    let written = (0..mib).take_while(|at| write(at).is_ok()).count() as u64;
    println!("{written} of {mib} MiB are accepted");
    assert!(fs.counters().atomic_spilled_bytes > (written - 2) << 20);
    // The blocks in memory come on top.
    commit(&fs, file, extents + IN_MEMORY);
    let found = block_on(fs.read(file, (written - 1) << 20, 1 << 20)).unwrap().concat();
    assert!(found == whole[..]);
    let found = block_on(fs.read(file, written << 20, 1 << 20)).unwrap().concat();
    assert!(written == mib || found.iter().all(|byte| *byte == 2));
}
