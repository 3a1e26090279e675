//! Making a filesystem: a power cut leaves either no filesystem, or the new one with its root
//! directory.

use std::sync::Arc;
use syncline_check::check;
use syncline_device::{Device, DeviceExt, MemoryDevice, block_on};
use syncline_fs::types::{ROOT, Timestamp};
use syncline_fs::{Filesystem, Options};
use syncline_sim::{CrashImages, Latency, RecordingDevice, SimDevice, Simulation, unexplained};
use syncline_store::{FormatOptions, Store, StoreOptions, format, read_superblocks};

const UUID: [u8; 16] = [9; 16];
const BYTES: u64 = 16 << 20;
/// Combinations of surviving writes tried at each moment.
const SEEDS: u64 = 6;

async fn make(device: Arc<dyn Device>, uuid: [u8; 16], spawn: Arc<dyn syncline_device::Spawn>) {
    let root = Filesystem::initial_transaction(0, 0, 0o755, Timestamp { seconds: 1, nanoseconds: 0 });
    let options = FormatOptions { uuid, epoch: Some([uuid[0]; 16]), ..FormatOptions::default() };
    format(device, options, root, spawn).await.unwrap();
}

/// Counts the images left by power cuts that hold the new filesystem, and those that do not.
fn cut_everywhere(base: &Arc<MemoryDevice>) -> (u32, u32) {
    let simulation = Simulation::new(1);
    let recording = RecordingDevice::new(SimDevice::new(&simulation, base.snapshot(), Latency::default()));
    simulation.run(make(recording.clone(), UUID, simulation.spawner())).unwrap();
    let events = recording.events();
    let moments = events.len();
    let mut images = CrashImages::new(base, events, 7);
    let (mut new, mut none) = (0, 0);
    for position in 0..=moments {
        for seed in 0..SEEDS {
            let image = images.at(position, seed);
            let any: Arc<dyn Device> = image.clone();
            match block_on(read_superblocks(&any)) {
                Ok(slots) if slots.superblock.uuid == UUID => {
                    new += 1;
                    assert_sound(image, &format!("event {position} of {moments}, seed {seed}"));
                }
                _ => none += 1,
            }
        }
    }
    (new, none)
}

fn assert_sound(image: Arc<MemoryDevice>, what: &str) {
    let simulation = Simulation::new(2);
    let report = block_on(check(image.snapshot(), simulation.spawner(), &mut |_| {})).unwrap();
    assert!(unexplained(&report).is_none(), "{what}: {:?}", report.findings);
    let spawn = simulation.spawner();
    let opening = async move {
        let (store, _) = Store::open(image, StoreOptions::default(), spawn.clone()).await?;
        let fs = Filesystem::open(store, spawn, Options::default()).await.expect("it has a root");
        fs.getattr(ROOT).await.expect("it can be looked at");
        fs.close().await.expect("it can be closed");
        Ok::<(), syncline_store::StoreError>(())
    };
    simulation.run(opening).unwrap().unwrap_or_else(|error| panic!("{what}: {error}"));
}

#[test]
fn a_cut_leaves_no_filesystem_or_the_new_one() {
    let (new, none) = cut_everywhere(&MemoryDevice::new(BYTES));
    assert!(new > 50 && none > 20, "{new} images hold it, {none} do not");
}

#[test]
fn a_cut_over_an_old_one_does_not_mix_them() {
    let old = MemoryDevice::new(BYTES);
    let simulation = Simulation::new(3);
    simulation.run(make(old.clone(), [1; 16], simulation.spawner())).unwrap();
    let (new, none) = cut_everywhere(&old);
    assert!(new > 50 && none > 20, "{new} images hold it, {none} do not");
}

/// A program that finds the signature of the previous contents would take the device for its own.
#[test]
fn nothing_at_the_ends_tells_of_what_was_there() {
    let device = MemoryDevice::new(BYTES);
    let full = vec![0xa5_u8; BYTES as usize];
    block_on(device.write_at(0, vec![full.into()])).unwrap();
    let simulation = Simulation::new(4);
    simulation.run(make(device.clone(), UUID, simulation.spawner())).unwrap();
    let image = device.image();
    assert!(image[..16 * 4096].iter().all(|byte| *byte == 0));
    let tail = &image[image.len() - 16 * 4096..];
    assert!(tail.chunks(4096).all(|block| block[0] != 0xa5 || block[4095] != 0xa5));
}
