//! Flushes that fail while a stream comes: of the receiver or of the filesystem beside it, whichever asked
//! for one. A drive may have dropped what both had written (rule R6).

use crate::describe::{describe, require_same};
use crate::world::{ROOT_USER, World, make, open, open_snapshot, spawn};
use crate::{require_sound, stream};
use bytes::Bytes;
use std::io::Read;
use std::sync::Arc;
use std::time::Duration;
use syncline_device::{Device, MemoryDevice, Operation, block_on};
use syncline_fs::Filesystem;
use syncline_fs::types::{FileType, ROOT};
use syncline_sim::{Effect, Fault, FaultDevice};
use syncline_stream::{Options, receive_with};

const DATA: usize = 1 << 20;

/// Input in whose middle something is done.
struct Interrupted<'a, F> {
    bytes: &'a [u8],
    at: usize,
    act_at: usize,
    act: Option<F>,
}

impl<F: FnOnce()> Read for Interrupted<'_, F> {
    fn read(&mut self, room: &mut [u8]) -> std::io::Result<usize> {
        if self.at >= self.act_at
            && let Some(act) = self.act.take()
        {
            act();
        }
        let mut rest = &self.bytes[self.at..];
        let read = rest.read(room)?;
        self.at += read;
        Ok(read)
    }
}

fn written(seed: u8) -> Vec<u8> {
    (0..DATA).map(|at| (at / 4096) as u8 ^ seed | 1).collect()
}

fn write(fs: &Arc<Filesystem>, ino: u64, seed: u8) {
    block_on(fs.write(ino, 0, Bytes::from(written(seed)), false)).unwrap();
    // On the device, and not flushed.
    block_on(fs.settle_contents(ino)).unwrap();
}

/// Two snapshots of which the second has more, and the stream of that.
fn source(spawn: &Arc<dyn syncline_device::Spawn>) -> (World, Vec<u8>, Vec<u8>) {
    let source = World::new(spawn, 64 << 20, 16384);
    block_on(source.fs.create_snapshot("old")).unwrap();
    for number in 0..12u8 {
        let name = [b'a' + number];
        let made = block_on(source.fs.mknod(ROOT_USER, ROOT, &name, FileType::Regular, 0o644, 0)).unwrap();
        block_on(source.fs.write(made.ino, 0, Bytes::from(written(number)), false)).unwrap();
    }
    block_on(source.fs.create_snapshot("new")).unwrap();
    let (old, new) = (stream(&source, "old", None), stream(&source, "new", Some("old")));
    (source, old, new)
}

#[test]
fn a_failed_flush_of_the_receiver_is_one_of_the_filesystem_too() {
    let spawn = spawn();
    let (_source, old, new) = source(&spawn);
    let mut synced = 0;
    for seed in 0..12 {
        let device = MemoryDevice::new(96 << 20);
        make(&device, &spawn, 16384, 1);
        let faults = FaultDevice::seeded(device.clone(), seed);
        let fs = open(faults.clone() as Arc<dyn Device>, &spawn);
        block_on(receive_with(&fs, &old[..], Options::default())).map_err(|cut| cut.error).unwrap();
        let own = block_on(fs.mknod(ROOT_USER, ROOT, b"own", FileType::Regular, 0o644, 0)).unwrap().ino;
        block_on(fs.syncfs()).unwrap();
        let act = || {
            write(&fs, own, 9);
            faults.add(Fault { effect: Effect::Partial, ..Fault::next(Operation::Flush, 1) });
        };
        let input = Interrupted { bytes: &new, at: 0, act_at: new.len() - 100, act: Some(act) };
        // It may go on, or not.
        let _ = block_on(receive_with(&fs, input, Options { is_shared: true, ..Options::default() }));
        assert_eq!(faults.injected(), 1, "seed {seed}");
        if block_on(fs.fsync(own, false)).is_err() {
            continue;
        }
        synced += 1;
        // Synced data is there after a crash.
        let left = device.snapshot();
        let after = open(left.clone() as Arc<dyn Device>, &spawn);
        let read = block_on(after.read(own, 0, DATA)).unwrap().concat();
        assert!(read == written(9), "seed {seed}");
        block_on(after.close()).unwrap();
        block_on(after.store().close()).unwrap();
        require_sound(&left, &spawn, &format!("seed {seed}"));
    }
    assert!(synced > 0, "a sync writes again what was lost");
}

#[test]
fn a_failed_flush_of_the_filesystem_is_one_of_the_receiver_too() {
    let spawn = spawn();
    let (source, old, new) = source(&spawn);
    let mut received = 0;
    for seed in 0..12 {
        let device = MemoryDevice::new(96 << 20);
        make(&device, &spawn, 16384, 1);
        let faults = FaultDevice::seeded(device.clone(), seed);
        let fs = open(faults.clone() as Arc<dyn Device>, &spawn);
        block_on(receive_with(&fs, &old[..], Options::default())).map_err(|cut| cut.error).unwrap();
        let own = block_on(fs.mknod(ROOT_USER, ROOT, b"own", FileType::Regular, 0o644, 0)).unwrap().ino;
        block_on(fs.syncfs()).unwrap();
        let act = || {
            // The receiver writes what it has in the background.
            std::thread::sleep(Duration::from_millis(100));
            write(&fs, own, 9);
            faults.add(Fault { effect: Effect::Partial, ..Fault::next(Operation::Flush, 1) });
            let _ = block_on(fs.fsync(own, false));
        };
        let input = Interrupted { bytes: &new, at: 0, act_at: new.len() - 100, act: Some(act) };
        let options = Options { is_shared: true, ..Options::default() };
        let result = block_on(receive_with(&fs, input, options));
        assert_eq!(faults.injected(), 1, "seed {seed}");
        let left = device.snapshot();
        require_sound(&left, &spawn, &format!("seed {seed}"));
        if result.is_ok() {
            received += 1;
            let (sent, there) = (source.snapshot("new").0, open_snapshot(left, &spawn, "new").0);
            require_same(&describe(&sent), &describe(&there), &format!("seed {seed}"));
        }
    }
    assert!(received > 0, "it goes on after most of them");
}
