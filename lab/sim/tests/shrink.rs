//! Shrinking: everything beyond the new end moves, and a power cut leaves the filesystem with all
//! its contents, at its old size or at the new one.

use bytes::Bytes;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use syncline_check::check;
use syncline_device::{Device, MemoryDevice, block_on};
use syncline_fs::types::{Algorithm, Caller, FileType, Ino, ROOT, Timestamp};
use syncline_fs::{Allocation, Filesystem, FsError, Options, QuotaLimits, shrink::shrink};
use syncline_sim::{CrashImages, Latency, RecordingDevice, SimDevice, Simulation, unexplained};
use syncline_store::{FormatOptions, Store, StoreError, StoreOptions, format};

const CALLER: Caller = Caller { uid: 0, gid: 0 };
const MIB: u64 = 1 << 20;
const BLOCKS_PER_MIB: u64 = 256;

/// The contents of all files.
type Contents = BTreeMap<String, Vec<u8>>;

/// Every opening has a different log epoch (rule R3).
fn options(simulation: &Simulation) -> (StoreOptions, Options) {
    static OPENINGS: AtomicU64 = AtomicU64::new(100);
    let mut epoch = [0; 16];
    epoch[..8].copy_from_slice(&OPENINGS.fetch_add(1, Ordering::Relaxed).to_le_bytes());
    let store = StoreOptions { epoch: Some(epoch), memtable_bytes: 1 << 16, ..StoreOptions::default() };
    (store, Options { clock: simulation.clock(), ..Options::default() })
}

fn formatted(mib: u64) -> Arc<MemoryDevice> {
    let device = MemoryDevice::new(mib * MIB);
    let root = Filesystem::initial_transaction(0, 0, 0o755, Timestamp { seconds: 1, nanoseconds: 0 });
    let node_bytes = 16384;
    let format_options = FormatOptions {
        node_bytes,
        hash_seed: [2; 16],
        epoch: Some([3; 16]),
        parent_pointers: true,
        ..FormatOptions::default()
    };
    let simulation = Simulation::new(0);
    simulation.run(format(device.clone(), format_options, root, simulation.spawner())).unwrap().unwrap();
    device
}

/// Works on an image; then closes it if `close` is set, or kills it.
fn with_image<T, F, W>(device: Arc<dyn Device>, seed: u64, close: bool, work: W) -> T
where
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
    W: FnOnce(Arc<Filesystem>) -> F + Send + 'static,
{
    let simulation = Simulation::new(seed);
    let (store_options, options) = options(&simulation);
    let spawn = simulation.spawner();
    let working = async move {
        let (store, _) = Store::open(device, store_options, spawn.clone()).await.unwrap();
        let fs = Filesystem::open(store, spawn, options).await.unwrap();
        let answer = work(fs.clone()).await;
        if close {
            fs.close().await.unwrap();
            fs.store().close().await.unwrap();
        }
        answer
    };
    let answer = simulation.run(working).unwrap();
    simulation.kill();
    answer
}

fn noise(rng: &mut ChaCha8Rng, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    rng.fill(&mut bytes[..]);
    bytes
}

async fn make(fs: &Arc<Filesystem>, name: &str) -> Ino {
    fs.mknod(CALLER, ROOT, name.as_bytes(), FileType::Regular, 0o644, 0).await.unwrap().ino
}

/// Files of many kinds, most of them far back in the image, some only in the log.
async fn fill(fs: &Arc<Filesystem>) -> Contents {
    let mut rng = ChaCha8Rng::seed_from_u64(5);
    let mut contents = Contents::new();
    let ballast = make(fs, "ballast").await;
    fs.write(ballast, 0, noise(&mut rng, 24 << 20).into(), false).await.unwrap();
    fs.syncfs().await.unwrap();
    for (index, len) in [0, 100, 5000, 200_000, 700_000].into_iter().enumerate() {
        let (name, bytes) = (format!("plain{index}"), noise(&mut rng, len));
        let ino = make(fs, &name).await;
        fs.write(ino, 0, bytes.clone().into(), false).await.unwrap();
        fs.fsync(ino, false).await.unwrap();
        contents.insert(name, bytes);
    }
    // Shared blocks: whole, partial, and split by later writes.
    let source = fs.lookup(ROOT, b"plain4").await.unwrap().ino;
    for (index, (from, len)) in [(0, 700_000), (65_536, 300_000), (131_072, 131_072)].into_iter().enumerate()
    {
        let (name, mut bytes) = (format!("shared{index}"), contents["plain4"][from..from + len].to_vec());
        let ino = make(fs, &name).await;
        let copied = fs.copy_range((source, from as u64), (ino, 0), len as u64, false).await.unwrap();
        assert_eq!(copied, len as u64);
        bytes[70_000..70_100].fill(index as u8);
        fs.write(ino, 70_000, Bytes::copy_from_slice(&bytes[70_000..70_100]), false).await.unwrap();
        contents.insert(name, bytes);
    }
    let packed = make(fs, "packed").await;
    fs.set_compression(packed, Some(Algorithm::Zstd)).await.unwrap();
    let mut bytes: Vec<u8> = (0..400_000u32).map(|at| (at / 100) as u8).collect();
    fs.write(packed, 0, bytes.clone().into(), false).await.unwrap();
    fs.syncfs().await.unwrap();
    let copy = make(fs, "packed copy").await;
    fs.copy_range((packed, 131_072), (copy, 0), 131_072, false).await.unwrap();
    contents.insert("packed copy".into(), bytes[131_072..262_144].to_vec());
    bytes[150_000..160_000].fill(9);
    fs.write(packed, 150_000, vec![9; 10_000].into(), false).await.unwrap();
    contents.insert("packed".into(), bytes);
    let sparse = make(fs, "sparse").await;
    fs.allocate(sparse, Allocation::Preallocate { keep_size: false }, 0, 300_000, false).await.unwrap();
    fs.write(sparse, 100_000, vec![4; 50_000].into(), false).await.unwrap();
    let mut bytes = vec![0; 300_000];
    bytes[100_000..150_000].fill(4);
    contents.insert("sparse".into(), bytes);
    fs.syncfs().await.unwrap();
    let limits = QuotaLimits { bytes: 40 << 20, inodes: 100 };
    fs.set_quota(ROOT, limits).await.unwrap();
    // Most blocks before the others are free now.
    fs.allocate(ballast, Allocation::PunchHole, 0, 24 << 20, false).await.unwrap();
    fs.syncfs().await.unwrap();
    // This file is only in the log.
    let late = make(fs, "late").await;
    fs.write(late, 0, vec![8; 90_000].into(), false).await.unwrap();
    fs.fsync(late, false).await.unwrap();
    contents.insert("late".into(), vec![8; 90_000]);
    contents
}

async fn compare(fs: &Arc<Filesystem>, contents: &Contents) -> Result<(), String> {
    for (name, bytes) in contents {
        let found = fs.lookup(ROOT, name.as_bytes()).await.map_err(|error| format!("{name}: {error}"))?;
        let pieces =
            fs.read(found.ino, 0, bytes.len() + 1).await.map_err(|error| format!("{name}: {error}"))?;
        if pieces.concat() != *bytes {
            return Err(format!("{name} has other contents"));
        }
    }
    Ok(())
}

/// Examines an image, which is written to: returns the number of blocks of its filesystem, or what
/// is wrong.
fn look(image: &Arc<MemoryDevice>, seed: u64, contents: &Contents) -> Result<u64, String> {
    let simulation = Simulation::new(seed);
    let report = block_on(check(image.snapshot(), simulation.spawner(), &mut |_| {}));
    let report = report.map_err(|error| format!("check: {error}"))?;
    if let Some(finding) = unexplained(&report) {
        return Err(format!("check: {finding:?}"));
    }
    let contents = contents.clone();
    with_image(image.clone(), 9, true, move |fs| async move {
        compare(&fs, &contents).await?;
        let ino = make(&fs, "new").await;
        fs.write(ino, 0, vec![1; 300_000].into(), false).await.map_err(|error| error.to_string())?;
        fs.fsync(ino, false).await.map_err(|error| error.to_string())?;
        fs.unlink(ROOT, b"new").await.map_err(|error| error.to_string())?;
        fs.forget(ino, 1);
        Ok(fs.store().geometry().total_blocks)
    })
}

fn shrink_to(device: Arc<dyn Device>, simulation: &Simulation, total_blocks: u64) -> Result<(), FsError> {
    let (store_options, _) = options(simulation);
    let spawn = simulation.spawner();
    let shrinking = async move { shrink(device, store_options, spawn, total_blocks, &mut |_| {}).await };
    simulation.run(shrinking).unwrap()
}

#[test]
fn a_power_cut_at_any_event_leaves_the_old_size_or_the_new_one() {
    const OLD: u64 = 40 * BLOCKS_PER_MIB;
    const NEW: u64 = 20 * BLOCKS_PER_MIB;
    let memory = formatted(40);
    let contents = with_image(memory.clone(), 4, false, |fs| async move { fill(&fs).await });
    let before = memory.snapshot();
    let simulation = Simulation::new(1);
    let log = RecordingDevice::new(SimDevice::new(&simulation, memory.clone(), Latency::default()));
    shrink_to(log.clone(), &simulation, NEW).unwrap();
    assert_eq!(look(&memory.snapshot(), 2, &contents), Ok(NEW));
    // The image file can be truncated there.
    let image = memory.image();
    let cut = MemoryDevice::from_image(&image[..(NEW * 4096) as usize]);
    assert_eq!(look(&cut, 3, &contents), Ok(NEW));
    let mut images = CrashImages::new(&before, log.events(), 7);
    let (mut old, mut new) = (0, 0);
    for position in 0..=log.position() {
        let image = images.at(position, position as u64);
        let again = image.snapshot();
        match look(&image, position as u64, &contents) {
            Ok(OLD) => old += 1,
            Ok(NEW) => {
                new += 1;
                continue;
            }
            other => panic!("cut after event {position}: {other:?}"),
        }
        if position % 4 == 0 {
            shrink_to(again.clone(), &Simulation::new(position as u64), NEW)
                .unwrap_or_else(|error| panic!("again after a cut after event {position}: {error}"));
            let found = look(&again, position as u64, &contents);
            assert_eq!(found, Ok(NEW), "again after a cut after event {position}");
        }
    }
    assert!(old > 50 && new > 10, "{old} of the old size, {new} of the new one");
}

/// One change of a file, in the image and in its expected contents.
async fn change(fs: &Arc<Filesystem>, rng: &mut ChaCha8Rng, contents: &mut Contents) -> Result<(), FsError> {
    let name = format!("n{}", rng.random_range(0..8));
    if rng.random_range(0..6) == 0 {
        if contents.remove(&name).is_some() {
            fs.unlink(ROOT, name.as_bytes()).await?;
        }
        return Ok(());
    }
    if !contents.contains_key(&name) {
        let ino = make(fs, &name).await;
        contents.insert(name.clone(), Vec::new());
        if rng.random_range(0..3) == 0 {
            fs.set_compression(ino, Some(Algorithm::Lz4)).await?;
        }
        fs.forget(ino, 1);
    }
    let ino = fs.lookup(ROOT, name.as_bytes()).await?.ino;
    let at = rng.random_range(0..=contents[&name].len());
    let len = rng.random_range(1..600_000);
    let put = |contents: &mut Contents, at: usize, bytes: &[u8]| {
        let file = contents.get_mut(&name).expect("it is there");
        file.resize(file.len().max(at + bytes.len()), 0);
        file[at..at + bytes.len()].copy_from_slice(bytes);
    };
    match rng.random_range(0..4) {
        0 => {
            let from = format!("n{}", rng.random_range(0..8));
            let Some(source) = contents.get(&from).filter(|_| from != name).cloned() else { return Ok(()) };
            let (at, start) = (at / 4096 * 4096, rng.random_range(0..=source.len()) / 4096 * 4096);
            let source_ino = fs.lookup(ROOT, from.as_bytes()).await?.ino;
            let len = (source.len() - start).min(len);
            let copied =
                fs.copy_range((source_ino, start as u64), (ino, at as u64), len as u64, false).await?;
            fs.forget(source_ino, 1);
            put(contents, at, &source[start..start + copied as usize]);
        }
        1 => {
            let hole = len.min(contents[&name].len() - at);
            if hole > 0 {
                fs.allocate(ino, Allocation::PunchHole, at as u64, hole as u64, false).await?;
                put(contents, at, &vec![0; hole]);
            }
        }
        sort => {
            let bytes = if sort == 2 { noise(rng, len) } else { vec![at as u8; len] };
            let written = fs.write(ino, at as u64, bytes.clone().into(), false).await;
            written?;
            put(contents, at, &bytes);
        }
    }
    fs.forget(ino, 1);
    Ok(())
}

/// A refused operation changes nothing; the model must know which were refused.
async fn change_much(fs: Arc<Filesystem>, seed: u64, mut contents: Contents) -> Contents {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    for _ in 0..rng.random_range(5..25) {
        if fs.statfs().available < 1000 {
            break;
        }
        change(&fs, &mut rng, &mut contents).await.unwrap();
        if rng.random_range(0..3) == 0 {
            fs.syncfs().await.unwrap();
        }
    }
    fs.syncfs().await.unwrap();
    contents
}

#[test]
fn random_images_become_smaller_and_larger_again_and_again() {
    for seed in 0..10 {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        // The space map loses a level at 127 MiB.
        let largest = 140 * BLOCKS_PER_MIB;
        let memory = formatted(140);
        let (mut contents, mut present) = (Contents::new(), largest);
        for turn in 0..6 {
            let (before, turn_seed) = (std::mem::take(&mut contents), seed * 100 + turn);
            contents = with_image(memory.clone(), 4 + turn, turn % 2 == 0, move |fs| {
                change_much(fs, turn_seed, before)
            });
            let least = with_image(memory.clone(), 20, true, |fs| async move { fs.least_blocks() });
            assert!(least <= present, "seed {seed}, turn {turn}: {least} blocks, of {present}");
            let wanted = match rng.random_range(0..3) {
                0 => least,
                1 => rng.random_range(least..=present) / 16 * 16,
                _ => rng.random_range(present..=largest) / 16 * 16,
            };
            let simulation = Simulation::new(turn_seed);
            if wanted + 16 <= present && wanted >= least {
                shrink_to(memory.clone(), &simulation, wanted).unwrap_or_else(|error| {
                    panic!("seed {seed}, turn {turn}: {present} to {wanted}, least {least}: {error}")
                });
                present = wanted;
            } else if wanted >= present + 16 {
                let (store_options, _) = options(&simulation);
                let (device, spawn) = (memory.clone(), simulation.spawner());
                let growing = async move {
                    let (store, _) = Store::grow(device, store_options, spawn, wanted).await.unwrap();
                    store.close().await.unwrap();
                };
                simulation.run(growing).unwrap();
                present = wanted;
            }
            let found = look(&memory, turn_seed, &contents);
            assert_eq!(found, Ok(present), "seed {seed}, turn {turn}");
        }
    }
}

#[test]
fn what_does_not_fit_is_refused_and_snapshots_of_a_larger_one_too() {
    let memory = formatted(64);
    with_image(memory.clone(), 4, true, |fs| async move {
        let ino = make(&fs, "file").await;
        fs.write(ino, 0, vec![1; 30 << 20].into(), false).await.unwrap();
        fs.syncfs().await.unwrap();
        fs.create_snapshot("before").await.unwrap();
    });
    let image = memory.image();
    let refused = shrink_to(memory.clone(), &Simulation::new(1), 40 * BLOCKS_PER_MIB);
    let Err(FsError::Store(StoreError::Unusable(text))) = &refused else { panic!("{refused:?}") };
    assert!(text.contains("\"before\"") && text.contains("snapshot delete"), "{text}");
    for total in [0, 4095, 64 * BLOCKS_PER_MIB, 64 * BLOCKS_PER_MIB - 15, u64::MAX] {
        let refused = shrink_to(memory.clone(), &Simulation::new(1), total);
        assert!(matches!(refused, Err(FsError::Store(StoreError::Unusable(_)))), "{total}: {refused:?}");
    }
    assert!(memory.image() == image);
    with_image(memory.clone(), 5, true, |fs| async move { fs.delete_snapshot("before").await.unwrap() });
    // Too little room is noticed at the latest when it runs out, and nothing is lost.
    let refused = shrink_to(memory.clone(), &Simulation::new(1), 20 * BLOCKS_PER_MIB);
    assert!(matches!(refused, Err(FsError::Store(StoreError::NoSpace))), "{refused:?}");
    let contents = Contents::from([("file".to_owned(), vec![1; 30 << 20])]);
    assert_eq!(look(&memory, 2, &contents), Ok(64 * BLOCKS_PER_MIB));
    shrink_to(memory.clone(), &Simulation::new(1), 40 * BLOCKS_PER_MIB).unwrap();
    assert_eq!(look(&memory, 3, &contents), Ok(40 * BLOCKS_PER_MIB));
    // A snapshot made at the small size stays when the filesystem grows and shrinks again, though
    // not as far.
    with_image(memory.clone(), 6, true, |fs| async move {
        fs.create_snapshot("small").await.unwrap();
        fs.store().enlarge(Some(64 * MIB)).await.unwrap();
        let ino = make(&fs, "more").await;
        fs.write(ino, 0, vec![2; 10 << 20].into(), false).await.unwrap();
        fs.syncfs().await.unwrap();
    });
    shrink_to(memory.clone(), &Simulation::new(1), 56 * BLOCKS_PER_MIB).unwrap();
    let contents =
        Contents::from([("file".to_owned(), vec![1; 30 << 20]), ("more".to_owned(), vec![2; 10 << 20])]);
    assert_eq!(look(&memory, 4, &contents), Ok(56 * BLOCKS_PER_MIB));
    let snapshots = with_image(memory, 7, true, |fs| async move { fs.snapshots().await.unwrap().len() });
    assert_eq!(snapshots, 1);
}
