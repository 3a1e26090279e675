//! The contract of `Device`.

use crate::rbd::cluster::on_the_cluster;
use crate::rbd::records::record;
use bytes::Bytes;
use std::sync::Arc;
use std::time::{Duration, Instant};
use syncline_device::{Claim, Device, DeviceError, DeviceExt, block_on};
use syncline_net::rbd::{RbdDevice, RbdError, RbdOptions};

const LIMIT: Duration = Duration::from_secs(120);

#[test]
fn what_was_written_is_there_after_a_flush_and_reopening() {
    on_the_cluster(LIMIT, |cluster| {
        let (spec, device) = cluster.create(16, &RbdOptions::default());
        assert_eq!(device.size_bytes(), 16 << 20);
        // Across the border of two objects, in pieces.
        let offset = (4 << 20) - 8192;
        let pieces = vec![record(1, 0), record(1, 1), Bytes::new(), record(1, 2)];
        block_on(device.write_at(offset, pieces)).unwrap();
        block_on(device.write_at(0, vec![record(1, 9)])).unwrap();
        block_on(device.flush_all()).unwrap();
        drop(device);
        let device = RbdDevice::open(&spec, &RbdOptions::default()).unwrap();
        let read = block_on(device.read_at(offset - 4096, 5 * 4096)).unwrap();
        assert!(read[..4096].iter().all(|&byte| byte == 0));
        for (sequence, block) in (0..3).zip(read[4096..].chunks(4096)) {
            assert_eq!(block, &record(1, sequence)[..]);
        }
        assert!(read[4 * 4096..].iter().all(|&byte| byte == 0));
        assert_eq!(&block_on(device.read_at(0, 4096)).unwrap()[..], &record(1, 9)[..]);
        let counters = device.counters();
        assert_eq!((counters.reads, counters.writes, counters.flushes), (2, 0, 0));
        assert_eq!(counters.read_bytes, 6 * 4096);
        assert_eq!(counters.read_ns.count, 2);
    });
}

#[test]
fn many_operations_are_in_flight() {
    on_the_cluster(LIMIT, |cluster| {
        let (_, device) = cluster.create(64, &RbdOptions::default());
        // One after the other, and at once: that it is faster shows that they overlap.
        let alone = Instant::now();
        for sequence in 0..64 {
            block_on(device.write_at(sequence * (1 << 20), vec![record(2, sequence)])).unwrap();
        }
        let alone = alone.elapsed();
        let together = Instant::now();
        let writes: Vec<_> = (64..128)
            .map(|sequence| device.write_at((sequence - 64) * (1 << 20), vec![record(2, sequence)]))
            .collect();
        for write in writes {
            block_on(write).unwrap();
        }
        let together = together.elapsed();
        block_on(device.flush_all()).unwrap();
        eprintln!("64 writes: {alone:?} one after the other, {together:?} at once");
        assert!(together < alone, "{together:?} at once, {alone:?} one after the other");
        let reads: Vec<_> = (0..64).map(|index| device.read_at(index * (1 << 20), 4096)).collect();
        for (sequence, read) in (64..).zip(reads) {
            assert_eq!(&block_on(read).unwrap()[..], &record(2, sequence)[..]);
        }
        let counters = device.counters();
        assert_eq!((counters.writes, counters.write_ns.count, counters.flushes), (128, 128, 1));
    });
}

#[test]
fn discards_are_taken_and_leave_the_rest_alone() {
    on_the_cluster(LIMIT, |cluster| {
        let (_, device) = cluster.create(16, &RbdOptions::default());
        for sequence in 0..3 {
            let block = record(3, sequence).repeat(1024);
            block_on(device.write_at(sequence * (4 << 20), vec![block.into()])).unwrap();
        }
        assert!(device.discards());
        block_on(device.discard_at(4 << 20, 4 << 20)).unwrap();
        block_on(device.discard_at(8 << 20, 4096)).unwrap();
        block_on(device.flush_all()).unwrap();
        // Undefined, and with RBD: gone.
        let gone = block_on(device.read_at(4 << 20, 4 << 20)).unwrap();
        assert!(gone.iter().all(|&byte| byte == 0));
        assert_eq!(&block_on(device.read_at((4 << 20) - 4096, 4096)).unwrap()[..], &record(3, 0)[..]);
        assert_eq!(&block_on(device.read_at((8 << 20) + 4096, 4096)).unwrap()[..], &record(3, 2)[..]);
    });
}

#[test]
fn an_image_grows_and_tells_when_it_was_made_smaller() {
    on_the_cluster(LIMIT, |cluster| {
        let options = RbdOptions { check_every: Duration::from_millis(200), ..RbdOptions::default() };
        let (spec, device) = cluster.create(8, &options);
        assert_eq!(block_on(device.enlarge_to(4 << 20)).unwrap(), 8 << 20);
        assert_eq!(block_on(device.enlarge_to(16 << 20)).unwrap(), 16 << 20);
        assert_eq!(device.size_bytes(), 16 << 20);
        block_on(device.write_at((16 << 20) - 4096, vec![record(4, 0)])).unwrap();
        // Somebody else makes it larger. It is we who have the lock, so librbd does it here.
        cluster.rbd(&format!("resize rbd/{} --size 24M --no-progress", spec.image));
        assert_eq!(device.size_bytes(), 16 << 20);
        assert!(block_on(device.read_at(16 << 20, 4096)).is_err());
        assert_eq!(block_on(device.enlarge_to(0)).unwrap(), 24 << 20);
        assert!(block_on(device.read_at(16 << 20, 4096)).unwrap().iter().all(|&byte| byte == 0));
        block_on(device.write_at((24 << 20) - 4096, vec![record(4, 1)])).unwrap();
        cluster.rbd(&format!("resize rbd/{} --size 8M --allow-shrink --no-progress", spec.image));
        let started = Instant::now();
        while device.broken().is_none() {
            assert!(started.elapsed() < Duration::from_secs(20), "nobody noticed");
            std::thread::sleep(Duration::from_millis(50));
        }
        let error = block_on(device.write_at(0, vec![record(4, 2)])).unwrap_err().to_string();
        assert!(error.contains("was made smaller") && error.contains("rbd resize"), "{error}");
    });
}

#[test]
fn crooked_ranges_are_refused() {
    on_the_cluster(LIMIT, |cluster| {
        let (_, device) = cluster.create(4, &RbdOptions::default());
        let size = device.size_bytes();
        let block = || Bytes::from(vec![0; 4096]);
        assert!(block_on(device.read_at(size, 4096)).is_err());
        assert!(block_on(device.read_at(u64::MAX - 4095, 4096)).is_err());
        assert!(block_on(device.read_at(512, 4096)).is_err());
        assert!(block_on(device.write_at(size - 4096, vec![block(), block()])).is_err());
        let halves = vec![Bytes::from(vec![0; 2048]), Bytes::from(vec![0; 2048])];
        assert!(block_on(device.write_at(0, halves)).is_err());
        assert!(block_on(device.discard_at(0, size + 4096)).is_err());
        assert!(block_on(device.write_at(0, vec![])).is_ok());
        assert!(block_on(device.discard_at(size, 0)).is_ok());
        assert!(device.broken().is_none());
    });
}

#[test]
fn a_reader_changes_nothing() {
    on_the_cluster(LIMIT, |cluster| {
        let (spec, device) = cluster.create(4, &RbdOptions::default());
        block_on(device.write_at(0, vec![record(5, 0)])).unwrap();
        drop(device);
        let options = RbdOptions { read_only: true, ..RbdOptions::default() };
        let reader = RbdDevice::open(&spec, &options).unwrap();
        assert_eq!(&block_on(reader.read_at(0, 4096)).unwrap()[..], &record(5, 0)[..]);
        assert!(block_on(reader.write_at(0, vec![record(5, 1)])).is_err());
        assert!(block_on(reader.discard_at(0, 4096)).is_err());
        assert!(block_on(reader.enlarge_to(8 << 20)).is_err());
        block_on(reader.flush_all()).unwrap();
        assert!(!reader.discards() && reader.is_read_only());
        assert!(reader.broken().is_none());
    });
}

#[test]
fn operations_end_even_if_the_device_is_dropped_by_the_last_completion() {
    on_the_cluster(LIMIT, |cluster| {
        let (spec, device) = cluster.create(16, &RbdOptions::default());
        let (sender, receiver) = std::sync::mpsc::channel();
        for sequence in 0..32 {
            let (held, sender) = (device.clone(), sender.clone());
            let done = Box::new(move |result: Result<(), DeviceError>| {
                drop(held);
                sender.send(result.is_ok()).unwrap();
            });
            device.write(sequence * 4096, vec![record(6, sequence)], done);
        }
        drop(device);
        for _ in 0..32 {
            assert!(receiver.recv_timeout(Duration::from_secs(30)).unwrap());
        }
        // The lock was released, by the thread that closes.
        let options = RbdOptions { lock_wait: Duration::from_secs(9), ..RbdOptions::default() };
        let device = RbdDevice::open(&spec, &options).unwrap();
        let read = block_on(device.read_at(31 * 4096, 4096)).unwrap();
        assert_eq!(&read[..], &record(6, 31)[..]);
    });
}

#[test]
fn a_completion_that_panics_harms_nobody() {
    on_the_cluster(LIMIT, |cluster| {
        let (_, device) = cluster.create(4, &RbdOptions::default());
        let flown = Arc::new(());
        let held = flown.clone();
        device.write(
            0,
            vec![record(8, 0)],
            Box::new(move |_| {
                let _held = held;
                panic!("on purpose");
            }),
        );
        block_on(device.write_at(4096, vec![record(8, 1)])).unwrap();
        block_on(device.flush_all()).unwrap();
        assert_eq!(&block_on(device.read_at(0, 4096)).unwrap()[..], &record(8, 0)[..]);
        assert_eq!(Arc::strong_count(&flown), 1);
    });
}

#[test]
fn snapshots_are_claimed_against_other_devices() {
    on_the_cluster(LIMIT, |cluster| {
        let (spec, writer) = cluster.create(4, &RbdOptions::default());
        let beside = RbdOptions { beside_writer: true, ..RbdOptions::default() };
        let reader = RbdDevice::open(&spec, &beside).unwrap();
        let other = RbdDevice::open(&spec, &beside).unwrap();
        assert!(reader.claim_snapshot(1, Claim::Shared).unwrap());
        assert!(other.claim_snapshot(1, Claim::Shared).unwrap());
        assert!(!writer.claim_snapshot(1, Claim::Exclusive).unwrap());
        assert!(writer.claim_snapshot(2, Claim::Exclusive).unwrap());
        assert!(!reader.claim_snapshot(2, Claim::Shared).unwrap());
        assert!(reader.claim_snapshot(1, Claim::Released).unwrap());
        assert!(!writer.claim_snapshot(1, Claim::Exclusive).unwrap());
        assert!(other.claim_snapshot(1, Claim::Released).unwrap());
        assert!(writer.claim_snapshot(1, Claim::Exclusive).unwrap());
        assert!(writer.claim_snapshot(1, Claim::Exclusive).unwrap(), "it is its own");
    });
}

#[test]
fn an_image_is_removed_when_nobody_has_it() {
    on_the_cluster(LIMIT, |cluster| {
        let (spec, device) = cluster.create(4, &RbdOptions::default());
        assert!(RbdDevice::remove(&spec, &RbdOptions::default()).is_err());
        drop(device);
        RbdDevice::remove(&spec, &RbdOptions::default()).unwrap();
        let Err(error) = RbdDevice::open(&spec, &RbdOptions::default()) else { panic!("opened") };
        assert!(matches!(RbdError::of(&error), Some(RbdError::NoImage { .. })), "{error}");
    });
}
