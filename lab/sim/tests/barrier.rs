//! fbarrier: data written before it is never lost while something written after it survives.

use bytes::Bytes;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::sync::Arc;
use std::time::Duration;
use syncline_device::{Device, MemoryDevice};
use syncline_fs::types::{Caller, FileType, Ino, ROOT, Timestamp};
use syncline_fs::{AccessTime, Filesystem, Options};
use syncline_sim::{CrashImages, Latency, RecordingDevice, SimDevice, Simulation};
use syncline_store::{FormatOptions, Store, StoreOptions, format};

const CALLER: Caller = Caller { uid: 0, gid: 0 };
/// Files that are written in turn, with a barrier after each.
const FILES: usize = 3;
/// Blocks of a file: too many to be inline in its inode item.
const BLOCKS: u64 = 5;
const ROUNDS: u64 = 30;
const IMAGES: usize = 12;

fn image() -> Arc<MemoryDevice> {
    let memory = MemoryDevice::new(16 << 20);
    let root = Filesystem::initial_transaction(0, 0, 0o755, Timestamp { seconds: 1, nanoseconds: 0 });
    let options =
        FormatOptions { node_bytes: 4096, hash_seed: [2; 16], epoch: Some([3; 16]), ..Default::default() };
    let simulation = Simulation::new(0);
    simulation.run(format(memory.clone(), options, root, simulation.spawner())).unwrap().unwrap();
    memory
}

async fn open(device: Arc<dyn Device>, simulation: Arc<Simulation>) -> Arc<Filesystem> {
    let store_options = StoreOptions {
        memtable_bytes: 1 << 14,
        checkpoint_interval: Duration::from_millis(5),
        seal_bytes: 1 << 11,
        unflushed_bytes: 1 << 18,
        epoch: Some([7; 16]),
        ..StoreOptions::default()
    };
    let options = Options {
        dirty_bytes_max: 1 << 19,
        writeback_start_bytes: 1 << 15,
        clock: simulation.clock(),
        access_time: AccessTime::Never,
        ..Options::default()
    };
    let (store, _) = Store::open(device, store_options, simulation.spawner()).await.unwrap();
    Filesystem::open(store, simulation.spawner(), options).await.unwrap()
}

/// The contents of round `round`: its number in every block.
fn contents(round: u64) -> Bytes {
    let mut bytes = vec![0; BLOCKS as usize * 4096];
    bytes.chunks_mut(4096).for_each(|block| block[..8].copy_from_slice(&round.to_le_bytes()));
    bytes.into()
}

/// Writes round after round to the files, in order, and sometimes syncs a separate file or the last
/// of them.
async fn work(fs: Arc<Filesystem>, spawn: Arc<dyn syncline_device::Spawn>, seed: u64, barriers: bool) {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut files = Vec::new();
    for index in 0..=FILES {
        let name = format!("file{index}");
        let made = fs.mknod(CALLER, ROOT, name.as_bytes(), FileType::Regular, 0o644, 0).await;
        files.push(made.unwrap().ino);
    }
    let other = files.pop().unwrap();
    for round in 1..=ROUNDS {
        for file in &files {
            fs.write(*file, 0, contents(round), false).await.unwrap();
            if barriers {
                fs.barrier(&[*file]).await.unwrap();
            }
        }
        match rng.random_range(0..6) {
            0 => fs.fsync(files[FILES - 1], rng.random()).await.unwrap(),
            1 => {
                fs.write(other, 0, contents(round), false).await.unwrap();
                fs.fsync(other, false).await.unwrap();
            }
            2 => spawn.sleep(Duration::from_micros(rng.random_range(0..2000))).await,
            _ => {}
        }
    }
}

/// The least and the greatest round in a file's blocks.
async fn rounds(fs: &Filesystem, ino: Ino) -> (u64, u64) {
    let pieces = fs.read(ino, 0, BLOCKS as usize * 4096).await.unwrap();
    let bytes: Vec<u8> = pieces.iter().flat_map(|piece| piece.iter().copied()).collect();
    let found =
        |block: usize| bytes.get(block * 4096..block * 4096 + 8).map(|round| round.try_into().unwrap());
    let all = (0..BLOCKS as usize).map(|block| found(block).map_or(0, u64::from_le_bytes));
    all.fold((u64::MAX, 0), |(least, most), round| (least.min(round), most.max(round)))
}

/// Describes what is out of order in an image that a power cut left.
async fn disorder(fs: Arc<Filesystem>) -> Option<String> {
    let mut found = Vec::new();
    for index in 0..FILES {
        let Ok(attributes) = fs.lookup(ROOT, format!("file{index}").as_bytes()).await else { break };
        found.push(rounds(&fs, attributes.ino).await);
    }
    let ordered = found.is_sorted_by(|(least, _), (_, most)| least >= most);
    // The first file begins a round only after the barrier that ended the previous one.
    let whole = found.first().is_none_or(|(_, first)| found.iter().all(|(least, _)| least + 1 >= *first));
    (!ordered || (found.len() == FILES && !whole)).then(|| format!("{found:?}"))
}

/// Describes what is out of order after some power cut of a seed.
fn run(seed: u64, barriers: bool) -> Option<String> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let memory = image();
    let base = memory.snapshot();
    let simulation = Arc::new(Simulation::new(rng.random()));
    let device = SimDevice::new(&simulation, memory, Latency::default());
    let log = RecordingDevice::new(device);
    let (device, spawn, inner) = (log.clone(), simulation.spawner(), simulation.clone());
    let work_seed = rng.random();
    let working = async move {
        let fs = open(device, inner).await;
        work(fs, spawn, work_seed, barriers).await;
    };
    simulation.run(working).expect("the work ends");
    let mut positions: Vec<usize> = (0..IMAGES).map(|_| rng.random_range(0..=log.position())).collect();
    positions.sort_unstable();
    let mut images = CrashImages::new(&base, log.events(), rng.random());
    positions.into_iter().find_map(|position| {
        let found = images.at(position, rng.random());
        let simulation = Arc::new(Simulation::new(rng.random()));
        let (device, inner) = (SimDevice::new(&simulation, found, Latency::default()), simulation.clone());
        let looking = async move { disorder(open(device, inner).await).await };
        let disorder = simulation.run(looking).expect("recovery ends");
        disorder.map(|what| format!("seed {seed}, cut after event {position}: {what}"))
    })
}

#[test]
fn nothing_overtakes_a_barrier() {
    for seed in 0..60 {
        assert_eq!(run(seed, true), None);
    }
}

#[test]
fn without_barriers_files_do_overtake_each_other() {
    assert!((0..60).any(|seed| run(seed, false).is_some()));
}
