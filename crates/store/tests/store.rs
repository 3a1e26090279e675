//! The store on a memory device: commit, sync, checkpoint and recovery.

use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use syncline_device::{
    AlignedBuf, Background, Device, DeviceExt, MemoryDevice, Spawn, WorkerOptions, block_on,
};
use syncline_format::Key;
use syncline_store::{
    Admission, DataWrite, FormatOptions, GiveWay, Lab, Metadata, OpSeq, Store, StoreError, StoreOptions,
    Transaction, format,
};

const SIZE: u64 = 64 << 20;

fn spawn() -> Arc<dyn Spawn> {
    Arc::new(Background::start(WorkerOptions::default()).unwrap())
}

fn formatted(spawn: &Arc<dyn Spawn>) -> Arc<MemoryDevice> {
    let device = MemoryDevice::new(SIZE);
    block_on(format(device.clone(), FormatOptions::default(), Transaction::new(), spawn.clone())).unwrap();
    device
}

fn open(device: &Arc<MemoryDevice>, spawn: &Arc<dyn Spawn>) -> Arc<Store> {
    block_on(Store::open(device.clone(), StoreOptions::default(), spawn.clone())).unwrap().0
}

fn key(object: u64, offset: u64) -> Key {
    Key { object, kind: 1, offset }
}

fn put(store: &Store, object: u64, value: &str) -> OpSeq {
    let mut transaction = Transaction::new();
    transaction.put(key(object, 0), value.to_owned());
    store.commit(transaction).unwrap()
}

fn get(store: &Store, object: u64) -> Option<Bytes> {
    block_on(store.get(key(object, 0))).unwrap()
}

#[test]
fn a_sync_is_one_flush_and_one_log_write() {
    let spawn = spawn();
    let store = open(&formatted(&spawn), &spawn);
    let before = store.device_counters();
    let op = put(&store, 100, "value");
    block_on(store.sync(op)).unwrap();
    let after = store.device_counters();
    assert_eq!(after.flushes_issued - before.flushes_issued, 1);
    assert_eq!(after.writes - before.writes, 1);
    assert_eq!(after.write_bytes - before.write_bytes, 4096);
    block_on(store.sync(op)).unwrap();
    assert_eq!(store.device_counters().flushes_issued, after.flushes_issued, "already durable");
}

#[test]
fn what_was_synced_is_there_after_a_crash_and_what_was_not_is_a_prefix() {
    let spawn = spawn();
    let device = formatted(&spawn);
    let store = open(&device, &spawn);
    let synced = put(&store, 100, "synced");
    block_on(store.sync(synced)).unwrap();
    put(&store, 101, "not synced");
    let crashed = device.snapshot();
    let again = open(&crashed, &spawn);
    assert_eq!(get(&again, 100).as_deref(), Some(&b"synced"[..]));
    assert_eq!(get(&again, 101), None);
}

#[test]
fn items_survive_checkpoints_and_clean_reopening() {
    let spawn = spawn();
    let device = formatted(&spawn);
    let store = open(&device, &spawn);
    let mut model = BTreeMap::new();
    for round in 0..5u64 {
        for index in 0..2000u64 {
            let object = (index * 7919 + round * 13) % 5000;
            let mut transaction = Transaction::new();
            if (index + round) % 3 == 0 {
                transaction.delete(key(object, 1));
                model.remove(&key(object, 1));
            } else {
                let value = Bytes::from(format!("{round}-{index}").repeat(1 + (index % 5) as usize));
                transaction.put(key(object, 1), value.clone());
                model.insert(key(object, 1), value);
            }
            store.commit(transaction).unwrap();
        }
        block_on(store.checkpoint()).unwrap();
        check(&store, &model);
    }
    block_on(store.close()).unwrap();
    assert!(store.commit(Transaction::new()).is_err(), "closed");
    drop(store);
    let (store, report) = block_on(Store::open(device, StoreOptions::default(), spawn.clone())).unwrap();
    assert!(report.clean);
    assert_eq!(report.batches, 0);
    check(&store, &model);
}

/// Tree, memtable and tombstones in it, around the item that is asked for.
#[test]
fn a_scan_finds_the_item_before_its_beginning() {
    let spawn = spawn();
    let store = open(&formatted(&spawn), &spawn);
    let mut model = BTreeMap::new();
    let mut state = 7u64;
    let mut below = |end: u64| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) % end
    };
    for round in 0..40 {
        // Rounds with few changes leave most to the tree.
        for _ in 0..below(400) {
            let key = key(below(8), below(64));
            let mut transaction = Transaction::new();
            if below(2) == 0 {
                transaction.delete(key);
                model.remove(&key);
            } else {
                let value = Bytes::from(below(1000).to_string());
                transaction.put(key, value.clone());
                model.insert(key, value);
            }
            store.commit(transaction).unwrap();
        }
        if round % 3 == 0 {
            block_on(store.checkpoint()).unwrap();
        }
        for _ in 0..300 {
            let (object, at, max) = (below(8), below(64), below(40) as usize + 1);
            let (low, to) = (key(object, at - below(at + 1)), key(object, at + below(16)));
            let at = key(object, at);
            let chunk = block_on(store.scan_near(low, at, to, max)).unwrap();
            let first = chunk.items.first().map_or(at, |(first, _)| (*first).min(at));
            let floor = model.range(low..=at).next_back().map_or(at, |(floor, _)| *floor);
            assert!(low <= first && first <= floor, "{first:?} of {floor:?}");
            let wanted: Vec<_> = model.range(first..=to).map(|(key, value)| (*key, value.clone())).collect();
            assert_eq!(chunk.items[..], wanted[..chunk.items.len()]);
            // A chunk with all items may still be called incomplete: the rest of the range may hold
            // only removed items.
            assert!(!chunk.complete || chunk.items.len() == wanted.len());
            assert!(chunk.complete || !chunk.items.is_empty());
        }
    }
}

fn check(store: &Store, model: &BTreeMap<Key, Bytes>) {
    let mut from = Key::MIN;
    let mut found = Vec::new();
    loop {
        let chunk = block_on(store.scan(from, Key::MAX, 97)).unwrap();
        assert!(chunk.items.len() <= 97);
        if let Some((last, _)) = chunk.items.last() {
            from = last.next().unwrap();
        }
        found.extend(chunk.items);
        if chunk.complete {
            break;
        }
    }
    assert!(found.iter().map(|(k, v)| (k, v)).eq(model.iter()));
}

fn write(store: &Arc<Store>, fill: u8, blocks: u64) -> (DataWrite, Transaction) {
    write_near(store, fill, blocks, None)
}

fn write_near(store: &Arc<Store>, fill: u8, blocks: u64, near: Option<u64>) -> (DataWrite, Transaction) {
    let mut reservation = block_on(store.reserve(blocks)).unwrap();
    let run = store.allocate(&mut reservation, blocks, near).unwrap();
    assert_eq!(run.blocks, blocks);
    let data = AlignedBuf::copy_from(&vec![fill; run.len_bytes() as usize]).into_bytes();
    let write = store.write_data(run, vec![data]);
    let mut transaction = Transaction::new();
    transaction.name_data(&write, run);
    (write, transaction)
}

#[test]
fn data_and_its_batch_share_one_flush_and_reads_are_checked() {
    let spawn = spawn();
    let device = formatted(&spawn);
    let store = open(&device, &spawn);
    let before = store.device_counters();
    let (data, mut transaction) = write(&store, 7, 16);
    transaction.put(key(100, 0), "names the data");
    let op = store.commit(transaction).unwrap();
    block_on(store.sync(op)).unwrap();
    let after = store.device_counters();
    assert_eq!((after.flushes_issued - before.flushes_issued, after.writes - before.writes), (1, 2));
    let bytes = block_on(store.read_data(7, data.run(), data.checksums())).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 7));
    let wrong = vec![0; 16];
    assert!(matches!(block_on(store.read_data(7, data.run(), &wrong)), Err(StoreError::Corrupt { .. })));
    assert_eq!(store.counters().checksum_errors, 1);
}

/// The task that makes data durable drops its buffers before anybody can reuse the blocks, however
/// long that takes.
#[test]
fn blocks_that_were_written_anew_are_not_read_from_the_memory_of_what_was_there_before() {
    let (spawn, armed) = (spawn(), Arc::new(AtomicBool::new(false)));
    let (reached, come) = channel();
    let (go, going) = channel();
    let going = Mutex::new(going);
    let give_way = {
        let armed = armed.clone();
        GiveWay::calling(move |place| {
            if place.file().ends_with("seal.rs") && armed.swap(false, Ordering::SeqCst) {
                reached.send(()).unwrap();
                going.lock().unwrap().recv().unwrap();
            }
        })
    };
    let options = StoreOptions { lab: Lab::giving_way(give_way), ..StoreOptions::default() };
    let store = block_on(Store::open(formatted(&spawn), options, spawn.clone())).unwrap().0;
    let (first, mut transaction) = write_near(&store, 1, 4, None);
    let (second, _) = write_near(&store, 2, 4, Some(first.run().end()));
    assert_eq!(second.run().start, first.run().end());
    transaction.name_data(&second, second.run());
    let op = store.commit(transaction).unwrap();
    armed.store(true, Ordering::SeqCst);
    std::thread::scope(|scope| {
        scope.spawn(|| block_on(store.sync(op)).unwrap());
        come.recv().unwrap();
        let mut transaction = Transaction::new();
        [&first, &second].iter().for_each(|write| transaction.free(write.run()));
        store.commit(transaction).unwrap();
        block_on(store.checkpoint()).unwrap();
        let (anew, transaction) = write_near(&store, 3, 8, Some(first.run().start));
        assert_eq!(anew.run().start, first.run().start);
        store.commit(transaction).unwrap();
        let read = block_on(store.read_data(7, second.run(), &anew.checksums()[4..])).unwrap();
        let fill = read[0];
        go.send(()).unwrap();
        assert_eq!(fill, 3);
    });
}

#[test]
fn a_batch_whose_data_is_missing_does_not_count() {
    let spawn = spawn();
    let device = formatted(&spawn);
    let store = open(&device, &spawn);
    let (data, mut transaction) = write(&store, 7, 4);
    transaction.put(key(100, 0), "names the data");
    let op = store.commit(transaction).unwrap();
    block_on(store.sync(op)).unwrap();
    let crashed = device.snapshot();
    // The flush never happened, and the device lost the last block of the data.
    let lost = AlignedBuf::zeroed(4096).into_bytes();
    crashed.write(data.run().offset_bytes() + 3 * 4096, vec![lost], Box::new(|result| result.unwrap()));
    let (store, report) = block_on(Store::open(crashed, StoreOptions::default(), spawn.clone())).unwrap();
    assert_eq!(report.discarded_batches, 1);
    assert_eq!(get(&store, 100), None);
}

#[test]
fn many_callers_share_flushes() {
    let spawn = spawn();
    let store = open(&formatted(&spawn), &spawn);
    std::thread::scope(|scope| {
        for thread in 0..8u64 {
            let store = &store;
            scope.spawn(move || {
                for round in 0..50 {
                    let op = put(store, 1000 + thread, &format!("{round}"));
                    block_on(store.sync(op)).unwrap();
                }
            });
        }
    });
    let counters = store.counters();
    assert!(counters.flushes_issued <= 410, "{}", counters.flushes_issued);
    assert!(store.is_durable(store.last_op()));
}

#[test]
fn a_full_image_answers_no_space_and_recovers_when_space_is_freed() {
    let spawn = spawn();
    let device = formatted(&spawn);
    let store = open(&device, &spawn);
    let mut runs = Vec::new();
    let error = loop {
        let reserved = block_on(store.reserve(64));
        let mut reservation = match reserved {
            Ok(reservation) => reservation,
            Err(error) => break error,
        };
        while reservation.blocks() > 0 {
            let run = store.allocate(&mut reservation, 64, None).unwrap();
            let data = AlignedBuf::zeroed(run.len_bytes() as usize).into_bytes();
            let write = store.write_data(run, vec![data]);
            let mut transaction = Transaction::new();
            transaction.name_data(&write, run);
            transaction.put(key(5000 + runs.len() as u64, 0), "extent");
            runs.push(run);
            store.commit(transaction).unwrap();
        }
    };
    assert!(matches!(error, StoreError::NoSpace));
    assert!(runs.len() as u64 * 64 * 4096 > SIZE / 2, "most of the image could be used");
    block_on(store.sync(store.last_op())).unwrap();
    for (index, run) in runs.iter().enumerate() {
        let _room = block_on(store.admit(Admission::Shrink)).unwrap();
        let mut transaction = Transaction::new();
        transaction.free(*run);
        transaction.delete(key(5000 + index as u64, 0));
        store.commit(transaction).unwrap();
    }
    block_on(store.reserve(64)).unwrap();
    block_on(store.close()).unwrap();
}

#[test]
fn a_read_only_store_replays_and_writes_nothing() {
    let spawn = spawn();
    let device = formatted(&spawn);
    let store = open(&device, &spawn);
    block_on(store.sync(put(&store, 100, "logged"))).unwrap();
    let crashed = device.snapshot();
    let image = crashed.image();
    let options = StoreOptions { read_only: true, ..StoreOptions::default() };
    let (again, report) = block_on(Store::open(crashed.clone(), options, spawn.clone())).unwrap();
    assert_eq!(report.batches, 1);
    assert_eq!(get(&again, 100).as_deref(), Some(&b"logged"[..]));
    assert!(matches!(again.commit(Transaction::new()), Err(StoreError::ReadOnly { .. })));
    block_on(again.close()).unwrap();
    assert!(image == crashed.image());
}

/// If two callers unmount at once, as after two signals, both get the result.
#[test]
fn a_store_that_is_closed_twice_is_closed() {
    let spawn = spawn();
    let device = formatted(&spawn);
    let store = open(&device, &spawn);
    put(&store, 100, "in memory");
    std::thread::scope(|scope| {
        let closing = [(); 2].map(|()| scope.spawn(|| block_on(store.close())));
        for closed in closing {
            closed.join().unwrap().unwrap();
        }
    });
    let image = device.image();
    block_on(store.close()).unwrap();
    assert!(image == device.image());
    assert!(matches!(store.commit(Transaction::new()), Err(StoreError::ReadOnly { .. })));
}

#[test]
fn what_is_no_image_is_named_so() {
    let spawn = spawn();
    let refuse = |device: Arc<MemoryDevice>| match block_on(Store::open(
        device,
        StoreOptions::default(),
        spawn.clone(),
    )) {
        Err(error) => error.to_string(),
        Ok(_) => panic!("opened"),
    };
    assert!(refuse(MemoryDevice::new(SIZE)).contains("not a Syncline image"));
    assert!(refuse(MemoryDevice::new(1 << 20)).contains("truncated"));
    let image = formatted(&spawn).image();
    let short = refuse(MemoryDevice::from_image(&image[..image.len() / 2]));
    assert!(short.contains("truncated"), "{short}");
}

#[test]
fn either_superblock_copy_is_enough() {
    let spawn = spawn();
    let device = formatted(&spawn);
    let store = open(&device, &spawn);
    put(&store, 100, "kept");
    block_on(store.close()).unwrap();
    let geometry = store.geometry();
    for copy in 0..2 {
        let damaged = device.snapshot();
        for slot in 0..2 {
            let bad = AlignedBuf::copy_from(&[0x55; 4096]).into_bytes();
            let addr = geometry.superblock_copies(slot)[copy];
            damaged.write(addr * 4096, vec![bad], Box::new(|result| result.unwrap()));
        }
        assert_eq!(get(&open(&damaged, &spawn), 100).as_deref(), Some(&b"kept"[..]));
    }
}

/// Memtables far smaller than the amount written, and no checkpoints except requested ones: a
/// caller that waits for one must get it.
#[test]
fn a_checkpoint_that_is_asked_for_as_another_ends_is_not_forgotten() {
    const WRITERS: u64 = 4;
    let spawn = spawn();
    let options = StoreOptions {
        memtable_bytes: 16 << 10,
        checkpoint_interval: std::time::Duration::from_secs(3600),
        ..StoreOptions::default()
    };
    let store = block_on(Store::open(formatted(&spawn), options, spawn.clone())).unwrap().0;
    let (done, end) = std::sync::mpsc::channel();
    for writer in 0..WRITERS {
        let (store, done) = (store.clone(), done.clone());
        std::thread::spawn(move || {
            for round in 0..3000 {
                let _room = block_on(store.admit(Admission::Grow)).unwrap();
                put(&store, 100 + writer * 16 + round % 16, &"value".repeat(400));
            }
            done.send(()).unwrap();
        });
    }
    for _ in 0..WRITERS {
        end.recv_timeout(std::time::Duration::from_secs(60))
            .expect("a writer waits for a checkpoint that nobody makes");
    }
    assert!(store.counters().checkpoints > 100);
}

/// A rotten node counts as damage like a rotten data block, and a checkpoint that meets it is
/// reported.
#[test]
fn damaged_metadata_is_counted_and_so_is_a_checkpoint_that_fails() {
    let spawn = spawn();
    let device = MemoryDevice::new(SIZE);
    let options = FormatOptions { metadata: Metadata::Single, ..FormatOptions::default() };
    block_on(format(device.clone(), options, Transaction::new(), spawn.clone())).unwrap();
    let store = open(&device, &spawn);
    let mut transaction = Transaction::new();
    transaction.put(key(100, 0), "value");
    store.commit(transaction).unwrap();
    block_on(store.close()).unwrap();
    drop(store);
    let store = open(&device, &spawn);
    let root = store.superblock().tree.node.addr;
    let rotten = AlignedBuf::copy_from(&vec![0x5a; 4096]).into_bytes();
    block_on(device.write_at(root * 4096, vec![rotten])).unwrap();
    assert!(matches!(block_on(store.get(key(100, 0))), Err(StoreError::Corrupt { .. })));
    let counters = store.counters();
    assert_eq!((counters.checksum_errors, counters.checkpoints_failed), (1, 0));
    let mut transaction = Transaction::new();
    transaction.put(key(101, 0), "value");
    store.commit(transaction).unwrap();
    assert!(block_on(store.checkpoint()).is_err());
    let counters = store.counters();
    assert!(counters.checksum_errors > 1 && counters.checkpoints_failed > 0, "{counters:?}");
}
