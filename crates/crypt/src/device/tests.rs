//! What lies on the device below, and what becomes of it when it is torn, damaged or enlarged.

use super::*;
use crate::{Cost, Found, KeyError, MasterKey, NewKey, Secret, begin, read_record};
use syncline_device::{DeviceExt, MemoryDevice, block_on};
use syncline_format::superblock::COUNTER_MAX;

const SIZE: u64 = 4096 * BLOCK + OVERHEAD_BYTES;

fn record(key: &str) -> KeyRecord {
    let mut record = KeyRecord::new();
    add(&mut record, key);
    record
}

fn add(record: &mut KeyRecord, key: &str) {
    let (master, secret) = (MasterKey::from_bytes(&[5; 64]), Secret::new(key.as_bytes()).unwrap());
    record.add(NewKey { master: &master, secret: &secret, name: "", cost: Cost::LEAST, now_ns: 0 }).unwrap();
}

fn encrypted(below: &Arc<dyn Device>) -> Arc<Encrypted> {
    let record = record("one");
    block_on(begin(below, &record)).unwrap();
    Encrypted::new(below.clone(), Arc::new(Cipher::new(&MasterKey::from_bytes(&[5; 64]))), record)
}

fn found(below: &Arc<dyn Device>) -> Option<Found> {
    block_on(read_record(below)).unwrap()
}

#[test]
fn blocks_are_encrypted_behind_the_header() {
    let memory = MemoryDevice::new(SIZE);
    let below: Arc<dyn Device> = memory.clone();
    let device = encrypted(&below);
    assert_eq!(device.size_bytes(), 4096 * BLOCK);
    let before = memory.image();
    let bufs = [1, 2].map(|byte| Bytes::from(vec![byte; BLOCK_BYTES])).to_vec();
    block_on(device.write_at(0, bufs)).unwrap();
    block_on(device.write_at(4095 * BLOCK, vec![Bytes::from(vec![3; BLOCK_BYTES])])).unwrap();
    let read = block_on(device.read_at(0, 2 * BLOCK_BYTES)).unwrap();
    assert_eq!((read[..BLOCK_BYTES].to_vec(), read[BLOCK_BYTES]), (vec![1; BLOCK_BYTES], 2));
    assert_eq!(block_on(device.read_at(4095 * BLOCK, BLOCK_BYTES)).unwrap()[..], [3; BLOCK_BYTES]);
    let after = memory.image();
    let changed: Vec<usize> = before
        .chunks(BLOCK_BYTES)
        .zip(after.chunks(BLOCK_BYTES))
        .enumerate()
        .filter_map(|(number, (before, after))| (before != after).then_some(number))
        .collect();
    assert_eq!(changed, [64, 65, 64 + 4095]);
    for pattern in [[1; 16], [2; 16], [3; 16]] {
        assert!(!after.chunks(16).any(|part| part == pattern));
    }
    // The header and the last block are out of reach.
    assert!(block_on(device.read_at(4096 * BLOCK, BLOCK_BYTES)).is_err());
    assert!(block_on(device.write_at(4096 * BLOCK, vec![Bytes::from(vec![3; BLOCK_BYTES])])).is_err());
    assert!(block_on(device.write_at(0, vec![Bytes::from(vec![3; 100])])).is_err());
    assert!(block_on(device.discard_at(u64::MAX - 4095, BLOCK)).is_err());
    assert_eq!(memory.image(), after);
    block_on(device.discard_at(0, BLOCK)).unwrap();
    assert_eq!(memory.image()[64 * BLOCK_BYTES..65 * BLOCK_BYTES], [0; BLOCK_BYTES]);
}

#[test]
fn an_image_without_a_record_is_not_encrypted() {
    let plain: Arc<dyn Device> = MemoryDevice::new(SIZE);
    assert!(found(&plain).is_none());
    let small: Arc<dyn Device> = MemoryDevice::new(SIZE - BLOCK);
    assert!(matches!(block_on(begin(&small, &record("one"))), Err(KeyError::TooSmall)));
}

/// Whichever of them are lost, and however.
#[test]
fn one_copy_of_the_record_is_enough() {
    let memory = MemoryDevice::new(SIZE);
    let below: Arc<dyn Device> = memory.clone();
    let record = record("one");
    block_on(begin(&below, &record)).unwrap();
    let places = record_places(SIZE);
    assert_eq!(found(&below).unwrap().stale, []);
    for kept in places {
        for is_zeroed in [true, false] {
            let copy = memory.snapshot();
            let damaged: Vec<u64> = places.into_iter().filter(|place| *place != kept).collect();
            for place in &damaged {
                let mut block = record.encode();
                block[100] ^= 1;
                let block = if is_zeroed { [0; BLOCK_BYTES] } else { block };
                block_on(copy.write_at(place * BLOCK, vec![Bytes::copy_from_slice(&block)])).unwrap();
            }
            let copy: Arc<dyn Device> = copy;
            let left = found(&copy).unwrap();
            assert_eq!((&left.record, &left.stale), (&record, &damaged));
            block_on(left.settle(&copy, 4096)).unwrap();
            assert_eq!(found(&copy).unwrap().stale, []);
        }
    }
    for place in places {
        let mut block = record.encode();
        block[100] ^= 1;
        block_on(below.write_at(place * BLOCK, vec![Bytes::copy_from_slice(&block)])).unwrap();
    }
    assert!(matches!(block_on(read_record(&below)), Err(KeyError::Damaged(_))));
}

/// Each number of whole copies, with the next one torn at each sector.
#[test]
fn a_change_of_keys_that_is_cut_off_leaves_the_old_or_the_new_keys() {
    let memory = MemoryDevice::new(SIZE);
    let below: Arc<dyn Device> = memory.clone();
    let old = record("one");
    block_on(begin(&below, &old)).unwrap();
    let mut new = KeyRecord { sequence: 1, ..old.clone() };
    add(&mut new, "two");
    for written in 0..=3 {
        for sectors in 0..8 {
            let copy: Arc<dyn Device> = memory.snapshot();
            for (index, place) in record_places(SIZE).into_iter().enumerate() {
                let mut block = if index < written { new.encode() } else { old.encode() };
                if index == written {
                    block[..512 * sectors].copy_from_slice(&new.encode()[..512 * sectors]);
                }
                block_on(copy.write_at(place * BLOCK, vec![Bytes::copy_from_slice(&block)])).unwrap();
            }
            let left = found(&copy).unwrap();
            assert!(left.record == new || written == 0 && left.record == old);
            block_on(left.settle(&copy, 4096)).unwrap();
            assert_eq!(found(&copy).unwrap().stale, []);
        }
    }
    block_on(found(&below).unwrap().replace(&below, new.clone())).unwrap();
    assert_eq!((found(&below).unwrap().record, found(&below).unwrap().stale), (new.clone(), vec![]));
    // A record that nothing could follow.
    let last = KeyRecord { sequence: COUNTER_MAX + 1, ..new.clone() };
    assert!(KeyRecord::decode(&last.encode()).is_err());
}

/// The last block is one of the filesystem's then.
#[test]
fn storage_that_was_cut_off_keeps_its_last_block() {
    let memory = MemoryDevice::new(SIZE + 8 * BLOCK);
    let below: Arc<dyn Device> = memory.clone();
    let old = record("one");
    block_on(begin(&below, &old)).unwrap();
    let cut = MemoryDevice::from_image(&memory.image()[..SIZE as usize]);
    let last = record_places(SIZE)[2];
    block_on(cut.write_at(last * BLOCK, vec![Bytes::from(vec![9; BLOCK_BYTES])])).unwrap();
    let below: Arc<dyn Device> = cut;
    let mut left = found(&below).unwrap();
    assert_eq!(left.stale, [last]);
    block_on(left.replace(&below, KeyRecord { sequence: 1, ..old })).unwrap();
    assert_eq!(block_on(below.read_at(last * BLOCK, BLOCK_BYTES)).unwrap()[..], [9; BLOCK_BYTES]);
    block_on(found(&below).unwrap().settle(&below, 4096)).unwrap();
    assert_eq!(found(&below).unwrap().stale, []);
}

#[test]
fn the_record_of_another_image_at_the_end_does_not_count() {
    let memory = MemoryDevice::new(SIZE);
    let below: Arc<dyn Device> = memory.clone();
    let own = record("one");
    block_on(begin(&below, &own)).unwrap();
    let other = KeyRecord { sequence: 9, ..record("two") };
    let last = record_places(SIZE)[2];
    let write = |block: &[u8]| {
        block_on(below.write_at(last * BLOCK, vec![Bytes::copy_from_slice(block)])).unwrap();
    };
    write(&other.encode());
    let mut left = found(&below).unwrap();
    assert_eq!((&left.record, &left.stale), (&own, &vec![last]));
    let new = own.following().unwrap();
    block_on(left.replace(&below, new.clone())).unwrap();
    assert_eq!(block_on(below.read_at(last * BLOCK, BLOCK_BYTES)).unwrap()[..], other.encode());
    block_on(found(&below).unwrap().settle(&below, 4096)).unwrap();
    assert_eq!((found(&below).unwrap().record, found(&below).unwrap().stale), (new, vec![]));
    for place in record_places(SIZE) {
        if place != last {
            block_on(below.write_at(place * BLOCK, vec![Bytes::from(vec![0; BLOCK_BYTES])])).unwrap();
        }
    }
    assert!(found(&below).unwrap().only_at_the_end);
}

/// A key that is removed afterwards must not be left there.
#[test]
fn a_device_that_grows_keeps_no_copy_where_it_ended() {
    let memory = MemoryDevice::new(SIZE + 64 * BLOCK);
    let below: Arc<dyn Device> = memory.clone();
    let own = record("one");
    block_on(begin(&below, &own)).unwrap();
    let former = record_places(SIZE)[2];
    block_on(below.write_at(former * BLOCK, vec![Bytes::copy_from_slice(&own.encode())])).unwrap();
    block_on(found(&below).unwrap().settle(&below, 4096)).unwrap();
    assert_eq!(block_on(below.read_at(former * BLOCK, BLOCK_BYTES)).unwrap()[..], [0; BLOCK_BYTES]);
    assert_eq!(found(&below).unwrap().stale, []);
}
