//! Files on a device some of whose sectors can't be written: whoever syncs is told the truth, and nearly always that it is done.

use bytes::Bytes;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeMap;
use std::sync::Arc;
use syncline_device::{Background, Device, MemoryDevice, Operation, Spawn, WorkerOptions, block_on};
use syncline_fs::types::{Caller, FileType, Ino, ROOT, Timestamp};
use syncline_fs::{Filesystem, Options};
use syncline_sim::{Effect, Fault, FaultDevice};
use syncline_store::{FormatOptions, Store, StoreOptions, format};

const CALLER: Caller = Caller { uid: 0, gid: 0 };
const BLOCKS: u64 = (64 << 20) / 4096;
const BAD_SECTORS: usize = 40;
const STEPS: u64 = 60;

fn open(device: Arc<dyn Device>, spawn: &Arc<dyn Spawn>) -> Arc<Filesystem> {
    let (store, _) = block_on(Store::open(device, StoreOptions::default(), spawn.clone())).unwrap();
    block_on(Filesystem::open(store, spawn.clone(), Options::default())).unwrap()
}

fn bad_sectors(device: &FaultDevice, rng: &mut ChaCha8Rng) {
    for _ in 0..BAD_SECTORS {
        // Not in front, where the image's own first blocks are, nor where superblocks are: a device that fails there is no use.
        let block = rng.random_range(64..BLOCKS - 64) * 4096;
        let sector = block + 512 * rng.random_range(0..8);
        let bytes = sector..sector + 512;
        let (operation, effect) = (Operation::Write, Effect::Error);
        device.add(Fault { operation, bytes, after: 0, times: u64::MAX, effect });
    }
}

fn read(fs: &Filesystem, ino: Ino, len: usize) -> Vec<u8> {
    block_on(fs.read(ino, 0, len)).unwrap().concat()
}

/// What each file held when it was last synced, by name.
type Files = BTreeMap<String, (Ino, Vec<u8>)>;

fn compare(fs: &Filesystem, files: &Files) {
    for (name, (_, contents)) in files {
        let ino = block_on(fs.lookup(ROOT, name.as_bytes())).unwrap().ino;
        assert!(read(fs, ino, contents.len() + 1) == *contents, "{name}");
    }
}

fn step(fs: &Filesystem, files: &mut Files, n: u64, rng: &mut ChaCha8Rng) {
    let make = |name: &str| {
        block_on(fs.mknod(CALLER, ROOT, name.as_bytes(), FileType::Regular, 0o644, 0)).unwrap().ino
    };
    let known = files.len().checked_sub(1).map(|last| rng.random_range(0..=last));
    match (rng.random_range(0..4), known.and_then(|at| files.iter().nth(at))) {
        (0, Some((_, (source, contents)))) => {
            let (source, contents, name) = (*source, contents.clone(), format!("copy{n}"));
            let ino = make(&name);
            block_on(fs.copy_range((source, 0), (ino, 0), contents.len() as u64, false)).unwrap();
            block_on(fs.fsync(ino, false)).unwrap();
            files.insert(name, (ino, contents));
        }
        (1, Some((name, _))) => {
            let name = name.clone();
            let (ino, contents) = files.get_mut(&name).unwrap();
            let at = rng.random_range(0..contents.len());
            let piece = vec![n as u8; rng.random_range(1..100_000)];
            contents.resize(contents.len().max(at + piece.len()), 0);
            contents[at..at + piece.len()].copy_from_slice(&piece);
            block_on(fs.write(*ino, at as u64, Bytes::from(piece), false)).unwrap();
            block_on(fs.fsync(*ino, true)).unwrap();
        }
        _ => {
            let name = format!("file{n}");
            let ino = make(&name);
            let contents: Vec<u8> =
                (0..rng.random_range(5_000..900_000usize)).map(|at| (at as u64 ^ n) as u8).collect();
            block_on(fs.write(ino, 0, Bytes::from(contents.clone()), false)).unwrap();
            block_on(fs.fsync(ino, false)).unwrap();
            files.insert(name, (ino, contents));
        }
    }
}

/// One life; how many logs were left.
fn live(seed: u64) -> u64 {
    println!("seed {seed}");
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let spawn: Arc<dyn Spawn> = Arc::new(Background::start(WorkerOptions::default()).unwrap());
    let memory = MemoryDevice::new(BLOCKS * 4096);
    let root = Filesystem::initial_transaction(0, 0, 0o755, Timestamp { seconds: 1, nanoseconds: 0 });
    block_on(format(memory.clone(), FormatOptions::default(), root, spawn.clone())).unwrap();
    let device = FaultDevice::seeded(memory.clone(), seed);
    bad_sectors(&device, &mut rng);
    let fs = open(device.clone(), &spawn);
    let mut files = Files::new();
    for n in 0..STEPS {
        step(&fs, &mut files, n, &mut rng);
        if n % 20 == 19 {
            compare(&open(memory.snapshot(), &spawn), &files);
        }
    }
    compare(&fs, &files);
    assert_eq!(fs.store().read_only_reason(), None);
    let left = fs.store().counters().logs_left;
    block_on(fs.close()).unwrap();
    block_on(fs.store().close()).unwrap();
    compare(&open(memory, &spawn), &files);
    left
}

#[test]
fn every_sync_succeeds_all_the_same() {
    let left: u64 = (0..6).map(live).sum();
    assert!(left > 0, "no bad sector was met");
    println!("{left} logs left");
}
