//! Files on a device with some sectors that can't be written: every sync reports the truth, and
//! nearly always success.

use bytes::Bytes;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use syncline_device::{Background, Device, MemoryDevice, Operation, Spawn, WorkerOptions, block_on};
use syncline_fs::types::{Caller, FileType, Ino, ROOT, Timestamp};
use syncline_fs::{Filesystem, Options};
use syncline_sim::{
    CrashImages, Effect, Fault, FaultDevice, Latency, RecordingDevice, SimDevice, Simulation,
};
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
        // Neither at the front, with the image's first blocks, nor at superblocks: a device that
        // fails there is useless.
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

/// Contents of each file at its last sync, by name.
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

/// Runs one life; returns how many logs were left.
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

/// A sync of a file.
#[derive(Clone)]
struct Synced {
    /// Positions in the recording at which it began, and at which it was acknowledged.
    begun: usize,
    acknowledged: Option<usize>,
    file: u64,
    contents: Vec<u8>,
}

type History = Arc<Mutex<Vec<Synced>>>;

/// The contents that each file must have after a power cut; a file being rewritten may have any.
fn promised(history: &[Synced], position: usize) -> BTreeMap<u64, Vec<u8>> {
    let mut files = BTreeMap::new();
    for synced in history.iter().filter(|synced| synced.begun <= position) {
        match synced.acknowledged {
            Some(at) if at <= position => files.insert(synced.file, synced.contents.clone()),
            _ => files.remove(&synced.file),
        };
    }
    files
}

/// Images of power cuts, in each life.
const CUTS: usize = 60;

async fn open_in(device: Arc<dyn Device>, simulation: Arc<Simulation>, epoch: u8) -> Arc<Filesystem> {
    let store_options = StoreOptions {
        memtable_bytes: 1 << 15,
        checkpoint_interval: Duration::from_millis(5),
        epoch: Some([epoch; 16]),
        ..StoreOptions::default()
    };
    let options = Options { clock: simulation.clock(), ..Options::default() };
    let (store, _) = Store::open(device, store_options, simulation.spawner()).await.unwrap();
    Filesystem::open(store, simulation.spawner(), options).await.unwrap()
}

/// Writes and syncs files, each a few times.
async fn work(fs: Arc<Filesystem>, seed: u64, log: Arc<RecordingDevice>, history: History) {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    for n in 0..40 {
        let file = rng.random_range(0..12u64);
        let name = format!("{file}");
        let ino = match fs.lookup(ROOT, name.as_bytes()).await {
            Ok(found) => found.ino,
            Err(_) => fs.mknod(CALLER, ROOT, name.as_bytes(), FileType::Regular, 0o644, 0).await.unwrap().ino,
        };
        let begun = log.position();
        let contents = vec![n as u8; 5_000 + 30_000 * file as usize];
        fs.write(ino, 0, Bytes::from(contents.clone()), false).await.unwrap();
        let acknowledged = fs.fsync(ino, false).await.is_ok().then(|| log.position());
        history.lock().unwrap().push(Synced { begun, acknowledged, file, contents });
    }
}

/// A life with bad sectors and power cuts; returns how many logs were left.
fn cut_the_power(seed: u64) -> u64 {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let memory = MemoryDevice::new(32 << 20);
    let root = Filesystem::initial_transaction(0, 0, 0o755, Timestamp { seconds: 1, nanoseconds: 0 });
    let options =
        FormatOptions { node_bytes: 4096, hash_seed: [2; 16], epoch: Some([3; 16]), ..Default::default() };
    let simulation = Arc::new(Simulation::new(rng.random()));
    simulation.run(format(memory.clone(), options, root, simulation.spawner())).unwrap().unwrap();
    let base = memory.snapshot();
    let device = FaultDevice::seeded(memory, seed);
    for _ in 0..30 {
        let block = rng.random_range(64..(32 << 8) - 64) * 4096;
        let (operation, effect) = (Operation::Write, Effect::Error);
        device.add(Fault { operation, bytes: block..block + 4096, after: 0, times: u64::MAX, effect });
    }
    let log = RecordingDevice::new(SimDevice::new(&simulation, device, Latency::default()));
    let history = History::default();
    let (recorded, inner, noted, work_seed) =
        (log.clone(), simulation.clone(), history.clone(), rng.random());
    let left = simulation
        .run(async move {
            let fs = open_in(recorded.clone(), inner, 7).await;
            work(fs.clone(), work_seed, recorded, noted).await;
            fs.store().counters().logs_left
        })
        .expect("the work ends");
    let history = history.lock().unwrap().clone();
    let acknowledged: Vec<usize> = history.iter().filter_map(|synced| synced.acknowledged).collect();
    assert!(acknowledged.len() > 35, "seed {seed}: only {} syncs succeeded", acknowledged.len());
    // Moments just after a promise are the worst.
    let mut positions: Vec<usize> = (0..CUTS).map(|_| rng.random_range(0..=log.position())).collect();
    positions.extend(acknowledged);
    positions.sort_unstable();
    let mut images = CrashImages::new(&base, log.events(), rng.random());
    for position in positions {
        let (found, promised) = (images.at(position, rng.random()), promised(&history, position));
        let simulation = Arc::new(Simulation::new(rng.random()));
        let (device, inner) = (SimDevice::new(&simulation, found, Latency::default()), simulation.clone());
        let looking = async move {
            let fs = open_in(device, inner, 9).await;
            for (file, contents) in &promised {
                let ino = fs.lookup(ROOT, format!("{file}").as_bytes()).await.unwrap().ino;
                let read = fs.read(ino, 0, contents.len() + 1).await.unwrap().concat();
                assert!(read == *contents, "seed {seed}, cut after event {position}: file {file}");
            }
        };
        simulation.run(looking).expect("recovery ends");
    }
    left
}

#[test]
fn what_was_synced_survives_power_cuts_between_bad_sectors() {
    let left: u64 = (0..10).map(cut_the_power).sum();
    assert!(left > 0, "no bad sector was met");
    println!("{left} logs left");
}
