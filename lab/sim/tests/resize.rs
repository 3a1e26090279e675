//! Growing: a power cut leaves the filesystem at its old size or at the new one.

use bytes::Bytes;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;
use syncline_check::check;
use syncline_device::{Device, DeviceExt, MemoryDevice, block_on};
use syncline_format::Geometry;
use syncline_format::superblock::Superblock;
use syncline_fs::types::{Caller, FileType, ROOT, Timestamp};
use syncline_fs::{Filesystem, Options};
use syncline_sim::{CrashImages, Latency, RecordingDevice, SimDevice, Simulation, unexplained};
use syncline_store::{FormatOptions, Store, StoreError, StoreOptions, format, read_superblocks};

const CALLER: Caller = Caller { uid: 0, gid: 0 };
const MIB: u64 = 1 << 20;
const OLD_BLOCKS: u64 = 24 * MIB / 4096;
/// The space map gets another level at 127 MiB.
const NEW_BLOCKS: u64 = 160 * MIB / 4096;
/// Sizes of the files in bytes, from empty to more than an extent.
const SIZES: [usize; 5] = [0, 100, 5000, 200_000, 1_000_000];

fn options(simulation: &Simulation, epoch: u8) -> (StoreOptions, Options) {
    let store = StoreOptions { epoch: Some([epoch; 16]), memtable_bytes: 1 << 16, ..StoreOptions::default() };
    (store, Options { clock: simulation.clock(), ..Options::default() })
}

fn contents(index: usize) -> Bytes {
    (0..SIZES[index]).map(|at| (at / 7 + index) as u8).collect::<Vec<u8>>().into()
}

/// A filesystem of the old size on a device of the new one, as a crash left it, with some files
/// only in the log.
fn base() -> Arc<MemoryDevice> {
    let small = MemoryDevice::new(OLD_BLOCKS * 4096);
    let root = Filesystem::initial_transaction(0, 0, 0o755, Timestamp { seconds: 1, nanoseconds: 0 });
    let format_options = FormatOptions {
        node_bytes: 4096,
        hash_seed: [2; 16],
        epoch: Some([3; 16]),
        ..FormatOptions::default()
    };
    let simulation = Simulation::new(0);
    simulation.run(format(small.clone(), format_options, root, simulation.spawner())).unwrap().unwrap();
    let (store_options, options) = options(&simulation, 4);
    let (device, spawn) = (small.clone(), simulation.spawner());
    let working = async move {
        let (store, _) = Store::open(device, store_options, spawn.clone()).await.unwrap();
        let fs = Filesystem::open(store, spawn, options).await.unwrap();
        for index in 0..SIZES.len() {
            let name = format!("file{index}");
            let made = fs.mknod(CALLER, ROOT, name.as_bytes(), FileType::Regular, 0o644, 0).await.unwrap();
            fs.write(made.ino, 0, contents(index), false).await.unwrap();
            fs.fsync(made.ino, false).await.unwrap();
            if index == 2 {
                fs.store().checkpoint().await.unwrap();
            }
        }
    };
    simulation.run(working).unwrap();
    simulation.kill();
    let large = MemoryDevice::new(NEW_BLOCKS * 4096);
    for (at, piece) in small.image().chunks(MIB as usize).enumerate() {
        block_on(large.write_at(at as u64 * MIB, vec![Bytes::copy_from_slice(piece)])).unwrap();
    }
    large
}

/// Examines an image after a cut: returns the size of the filesystem, or what is wrong.
fn look(image: Arc<MemoryDevice>, seed: u64, grow_again: bool) -> Result<u64, String> {
    look_for(image, seed, grow_again, &[])
}

/// Like `look`, with files that were synced; each contains its name many times over.
fn look_for(image: Arc<MemoryDevice>, seed: u64, grow_again: bool, synced: &[&str]) -> Result<u64, String> {
    let synced: Vec<String> = synced.iter().map(|name| (*name).to_owned()).collect();
    let simulation = Simulation::new(seed);
    let report = block_on(check(image.snapshot(), simulation.spawner(), &mut |_| {}));
    let report = report.map_err(|error| format!("check: {error}"))?;
    if let Some(finding) = unexplained(&report) {
        return Err(format!("check: {finding:?}"));
    }
    let (store_options, options) = options(&simulation, 9);
    let spawn = simulation.spawner();
    let looking = async move {
        let opened = if grow_again {
            match Store::grow(image.clone(), store_options.clone(), spawn.clone(), NEW_BLOCKS).await {
                Err(StoreError::Unusable(text)) if text.contains("64 KiB") => {
                    Store::open(image, store_options, spawn.clone()).await
                }
                grown => grown,
            }
        } else {
            Store::open(image, store_options, spawn.clone()).await
        };
        let (store, _) = opened.map_err(|error| format!("it does not open: {error}"))?;
        let total = store.geometry().total_blocks;
        let fs = Filesystem::open(store, spawn, options).await.map_err(|error| error.to_string())?;
        for (index, size) in SIZES.into_iter().enumerate() {
            let found = fs.lookup(ROOT, format!("file{index}").as_bytes()).await;
            let found = found.map_err(|error| format!("file{index}: {error}"))?;
            let pieces = fs.read(found.ino, 0, size + 1).await.map_err(|error| error.to_string())?;
            if pieces.concat() != contents(index) {
                return Err(format!("file{index} has other contents"));
            }
        }
        for name in synced {
            let found = fs.lookup(ROOT, name.as_bytes()).await;
            let found = found.map_err(|error| format!("{name}: {error}"))?;
            let pieces = fs.read(found.ino, 0, 100_000).await.map_err(|error| error.to_string())?;
            if pieces.concat() != name.repeat(3000).as_bytes() {
                return Err(format!("{name} has other contents"));
            }
        }
        // All the room can be used.
        let free = fs.statfs().available;
        if total == NEW_BLOCKS && free < (NEW_BLOCKS - OLD_BLOCKS) * 9 / 10 {
            return Err(format!("only {free} blocks are available"));
        }
        let made = fs
            .mknod(CALLER, ROOT, b"new", FileType::Regular, 0o644, 0)
            .await
            .map_err(|error| error.to_string())?;
        fs.write(made.ino, 0, vec![1; 3 << 20].into(), false).await.map_err(|error| error.to_string())?;
        fs.close().await.map_err(|error| error.to_string())?;
        fs.store().close().await.map_err(|error| error.to_string())?;
        Ok(total)
    };
    simulation.run(looking).map_err(|stalled| format!("{stalled:?}"))?
}

#[test]
fn a_power_cut_at_any_event_leaves_the_old_size_or_the_new_one() {
    let memory = base();
    let before = memory.snapshot();
    let simulation = Simulation::new(1);
    let log = RecordingDevice::new(SimDevice::new(&simulation, memory.clone(), Latency::default()));
    let (device, spawn) = (log.clone(), simulation.spawner());
    let (store_options, _) = options(&simulation, 5);
    let growing = async move {
        let (store, _) = Store::grow(device, store_options, spawn, NEW_BLOCKS).await.unwrap();
        store.close().await.unwrap();
    };
    simulation.run(growing).unwrap();
    assert_eq!(look(memory, 2, false), Ok(NEW_BLOCKS));
    let mut images = CrashImages::new(&before, log.events(), 7);
    let (mut old, mut new) = (0, 0);
    for position in 0..=log.position() {
        for seed in 0..4 {
            let image = images.at(position, seed);
            match look(image.snapshot(), seed, false) {
                Ok(OLD_BLOCKS) => old += 1,
                Ok(NEW_BLOCKS) => new += 1,
                other => panic!("cut after event {position}, seed {seed}: {other:?}"),
            }
            let again = look(image, seed, true);
            assert_eq!(again, Ok(NEW_BLOCKS), "grown again after a cut after event {position}, seed {seed}");
        }
    }
    assert!(old > 20 && new > 20, "{old} of the old size, {new} of the new one");
    let last = images.at(log.position(), 99);
    assert_eq!(look(last, 3, false), Ok(NEW_BLOCKS), "it had ended");
}

/// Writers that run while it grows: each writes and syncs a file again and again, until something
/// is beyond the old end.
fn grow_among_writers(
    device: Arc<dyn Device>,
    log: Arc<RecordingDevice>,
    simulation: Simulation,
) -> Vec<(usize, String)> {
    let (store_options, options) = options(&simulation, 5);
    let spawn = simulation.spawner();
    let synced = Arc::new(Mutex::new(Vec::new()));
    let notes = synced.clone();
    let working = async move {
        let (store, _) = Store::open(device, store_options, spawn.clone()).await.unwrap();
        let fs = Filesystem::open(store, spawn.clone(), options).await.unwrap();
        let (grown, running) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(3)));
        for writer in 0..3 {
            let (fs, log, notes) = (fs.clone(), log.clone(), notes.clone());
            let (grown, running) = (grown.clone(), running.clone());
            spawn.spawn(Box::pin(async move {
                let mut after = 0;
                for turn in 0.. {
                    let name = format!("synced{writer}.{turn}");
                    let made =
                        fs.mknod(CALLER, ROOT, name.as_bytes(), FileType::Regular, 0o644, 0).await.unwrap();
                    fs.write(made.ino, 0, name.repeat(3000).into(), false).await.unwrap();
                    fs.fsync(made.ino, false).await.unwrap();
                    notes.lock().push((log.position(), name));
                    after += u32::from(grown.load(Ordering::SeqCst));
                    if after == 4 {
                        break;
                    }
                }
                running.fetch_sub(1, Ordering::SeqCst);
            }));
        }
        spawn.sleep(Duration::from_millis(2)).await;
        let size = fs.store().enlarge(Some(NEW_BLOCKS * 4096)).await.unwrap();
        assert_eq!((size, fs.statfs().blocks), (NEW_BLOCKS * 4096, NEW_BLOCKS));
        grown.store(true, Ordering::SeqCst);
        while running.load(Ordering::SeqCst) > 0 {
            spawn.sleep(Duration::from_micros(100)).await;
        }
        let wanted = fs.store().available_blocks();
        assert!(wanted > NEW_BLOCKS - OLD_BLOCKS, "{wanted}");
    };
    simulation.run(working).unwrap();
    simulation.kill();
    std::mem::take(&mut synced.lock())
}

#[test]
fn a_power_cut_at_any_event_among_writers_loses_nothing_that_was_synced() {
    let memory = base();
    let before = memory.snapshot();
    let simulation = Simulation::new(11);
    let log = RecordingDevice::new(SimDevice::new(&simulation, memory.clone(), Latency::default()));
    let synced = grow_among_writers(log.clone(), log.clone(), simulation);
    assert!(synced.len() > 15, "{} files", synced.len());
    let mut images = CrashImages::new(&before, log.events(), 7);
    let (mut old, mut new) = (0, 0);
    for position in 0..=log.position() {
        let image = images.at(position, position as u64);
        let promised: Vec<&str> =
            synced.iter().filter(|(at, _)| *at <= position).map(|(_, name)| name.as_str()).collect();
        match look_for(image, position as u64, false, &promised) {
            Ok(OLD_BLOCKS) => old += 1,
            Ok(NEW_BLOCKS) => new += 1,
            other => panic!("cut after event {position}: {other:?}"),
        }
    }
    assert!(old > 20 && new > 20, "{old} of the old size, {new} of the new one");
}

#[test]
fn sizes_that_make_no_sense_change_nothing() {
    let memory = base();
    let before = memory.image();
    for total in [0, OLD_BLOCKS - 1, OLD_BLOCKS, OLD_BLOCKS + 15, NEW_BLOCKS + 1, u64::MAX] {
        let simulation = Simulation::new(1);
        let (store_options, _) = options(&simulation, 5);
        let growing = Store::grow(memory.clone(), store_options, simulation.spawner(), total);
        let refused = simulation.run(growing).unwrap().map(|_| ());
        assert!(matches!(refused, Err(StoreError::Unusable(_))), "{total}: {refused:?}");
    }
    assert!(memory.image() == before);
}

/// On a device larger than the filesystem, the second copies still count, and the blocks at the
/// device's end do not.
#[test]
fn the_second_copies_are_found_at_the_end_of_the_filesystem() {
    let device: Arc<dyn Device> = base();
    let read = |block: u64| block_on(device.read_at(block * 4096, 4096)).unwrap();
    let write = |block: u64, bytes: &[u8]| {
        block_on(device.write_at(block * 4096, vec![Bytes::copy_from_slice(bytes)])).unwrap();
    };
    let sound = block_on(read_superblocks(&device)).unwrap();
    assert_eq!((sound.superblock.geometry.total_blocks, sound.damaged.len()), (OLD_BLOCKS, 0));
    // Another filesystem once ended at the end of the device.
    let stranger = Superblock {
        generation: sound.superblock.generation + 1000,
        geometry: Geometry { total_blocks: NEW_BLOCKS, ..sound.superblock.geometry },
        hash_seed: [77; 16],
        ..sound.superblock.clone()
    };
    write(NEW_BLOCKS - 16, &stranger.encode());
    write(NEW_BLOCKS - 8, &[0xab; 4096]);
    let found = block_on(read_superblocks(&device)).unwrap();
    assert_eq!((found.superblock, found.damaged.len()), (sound.superblock.clone(), 0));
    // The first copy of the newest superblock is lost.
    let [first, second] = sound.superblock.geometry.superblock_copies(sound.slot);
    assert_eq!(read(first)[..], read(second)[..]);
    write(first, &[0xab; 4096]);
    let found = block_on(read_superblocks(&device)).unwrap();
    assert_eq!((&found.superblock, found.slot), (&sound.superblock, sound.slot));
    assert_eq!(
        found.damaged.iter().map(|(slot, copy, _)| (*slot, *copy)).collect::<Vec<_>>(),
        [(sound.slot, 0)]
    );
}
