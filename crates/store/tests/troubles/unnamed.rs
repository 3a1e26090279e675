//! Data that a flush covers before anything names it, as that of a large atomic write.

use crate::troubles::support::{allocate, bench, name, open, put, quiet, write};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use syncline_device::{DeviceExt, block_on};
use syncline_format::BlockRun;
use syncline_store::{Canary, DataWrite, Lab, Store, StoreOptions};

const BLOCKS: u64 = 100;

fn covered(store: &Arc<Store>, run: BlockRun, fill: u8) -> DataWrite {
    let written = write(store, run, fill);
    block_on(store.cover_unnamed(&[written])).unwrap().remove(0)
}

fn audit(store: &Store) {
    store.audit_blocks().expect("nothing is under way").unwrap();
}

fn holds(store: &Store, run: BlockRun, data: &DataWrite, fill: u8) -> bool {
    let read = block_on(store.read_data(7, run, data.checksums()));
    read.is_ok_and(|bytes| bytes.iter().all(|byte| *byte == fill))
}

#[test]
fn it_keeps_no_memory_and_a_crash_frees_it() {
    let (spawn, device, store) = bench(quiet());
    block_on(store.checkpoint()).unwrap();
    let free = store.space().free;
    let run = allocate(&store, BLOCKS);
    let flushes = store.device_counters().flushes_issued;
    let data = covered(&store, run, 5);
    assert_eq!(store.device_counters().flushes_issued - flushes, 1);
    assert_eq!(store.held().unwrap().data_writes, 0);
    assert!(holds(&store, run, &data, 5));
    assert_eq!(store.space().free, free - BLOCKS);
    audit(&store);
    // Neither a batch nor a checkpoint names the data.
    block_on(store.sync(put(&store, 1, "something"))).unwrap();
    block_on(store.checkpoint()).unwrap();
    audit(&store);
    assert!(holds(&store, run, &data, 5));
    // After a crash every block that is not free belongs to somebody.
    let after = open(device.inner.snapshot(), quiet(), &spawn);
    block_on(after.checkpoint()).unwrap();
    audit(&after);
}

#[test]
fn a_batch_that_names_it_has_nothing_to_wait_for_and_replay_finds_it() {
    let (spawn, device, store) = bench(quiet());
    let run = allocate(&store, BLOCKS);
    let data = covered(&store, run, 6);
    let (first, rest) = (BlockRun::new(run.start, 30), BlockRun::new(run.start + 40, BLOCKS - 40));
    let between = BlockRun::new(run.start + 30, 10);
    // A part that the caller does not need is free at once.
    let free = store.space().free;
    store.abandon(&data, between);
    assert_eq!(store.space().free, free + 10);
    audit(&store);
    let mut names = syncline_store::Transaction::new();
    names.name_data(&data, first);
    names.name_data(&data, rest);
    names.put(crate::troubles::support::key(100), "names the data");
    let op = store.commit(names).unwrap();
    assert_eq!(store.backlog().unflushed_bytes, 0, "none of it is in memory");
    audit(&store);
    block_on(store.sync(op)).unwrap();
    let after = open(device.inner.snapshot(), quiet(), &spawn);
    assert!(block_on(after.get(crate::troubles::support::key(100))).unwrap().is_some());
    let checksums = data.checksums();
    assert!(block_on(after.read_data(7, first, &checksums[..30])).unwrap().iter().all(|byte| *byte == 6));
    assert!(block_on(after.read_data(7, rest, &checksums[40..])).unwrap().iter().all(|byte| *byte == 6));
    block_on(after.checkpoint()).unwrap();
    audit(&after);
}

/// The store reserves as many blocks as it gives back, for the write that replaces the abandoned
/// part.
#[test]
fn blocks_that_are_given_back_can_be_reserved_again() {
    let (_spawn, _device, store) = bench(quiet());
    let run = allocate(&store, BLOCKS);
    let data = covered(&store, run, 7);
    let reserved = store.held().unwrap().reserved_blocks;
    let again = store.abandon_for(&data, BlockRun::new(run.start + 10, 20));
    assert_eq!((again.blocks(), store.held().unwrap().reserved_blocks), (20, reserved + 20));
    audit(&store);
    store.abandon(&data, BlockRun::new(run.start, 10));
    store.abandon(&data, BlockRun::new(run.start + 30, BLOCKS - 30));
    audit(&store);
}

#[test]
fn a_flush_that_fails_covers_nothing_and_another_try_writes_again() {
    let (_spawn, device, store) = bench(quiet());
    let run = allocate(&store, BLOCKS);
    let written = write(&store, run, 8);
    device.flush_fails.store(true, Ordering::SeqCst);
    block_on(store.cover_unnamed(std::slice::from_ref(&written))).map(drop).unwrap_err();
    assert_eq!(store.held().unwrap().data_writes, 1, "its buffers stay (rule R6)");
    device.flush_fails.store(false, Ordering::SeqCst);
    let writes = store.device_counters().writes;
    let data = block_on(store.cover_unnamed(&[written])).unwrap().remove(0);
    assert!(store.device_counters().writes > writes, "it was written again");
    assert!(holds(&store, run, &data, 8));
    // A flush that fails later takes nothing back.
    let op = put(&store, 1, "something");
    device.flush_fails.store(true, Ordering::SeqCst);
    block_on(store.sync(op)).unwrap_err();
    device.flush_fails.store(false, Ordering::SeqCst);
    block_on(store.sync(name(&store, 100, run, &data))).unwrap();
    assert!(holds(&store, run, &data, 8));
}

#[test]
fn a_write_that_fails_is_told() {
    let (_spawn, device, store) = bench(quiet());
    let run = allocate(&store, BLOCKS);
    device.spoil(run.start..run.start + 1);
    let written = write(&store, run, 9);
    block_on(store.cover_unnamed(std::slice::from_ref(&written))).map(drop).unwrap_err();
    store.abandon(&written, run);
    drop(written);
    audit(&store);
}

/// Blocks that were never named go back to the device as freed ones do.
#[test]
fn what_is_given_back_is_discarded() {
    let (_spawn, device, store) = bench(StoreOptions { discard: true, ..quiet() });
    let run = allocate(&store, BLOCKS);
    let data = covered(&store, run, 5);
    store.abandon(&data, run);
    audit(&store);
    put(&store, 1, "something");
    block_on(store.close()).unwrap();
    let found = block_on(device.inner.read_at(run.offset_bytes(), run.len_bytes() as usize)).unwrap();
    let left = found.iter().filter(|byte| **byte == 5).count();
    assert!(left < 4096, "the device still has {left} bytes of it");
}

/// The canary: data that the store takes for durable may still be in flight when the batch is
/// acknowledged.
#[test]
fn taking_it_for_durable_without_a_flush_is_noticed() {
    let lab = Lab::breaking(Some(Canary::SpillUncovered));
    let (_spawn, _device, store) = bench(StoreOptions { lab, ..quiet() });
    let run = allocate(&store, BLOCKS);
    let flushes = store.device_counters().flushes_issued;
    drop(covered(&store, run, 5));
    assert_eq!(store.device_counters().flushes_issued, flushes);
}
