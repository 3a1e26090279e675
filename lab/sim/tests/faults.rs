//! P5: fsync reports the truth about a failing device, a retry is real, and data acknowledged
//! before survives.

use std::sync::Arc;
use syncline_device::{
    AlignedBuf, Background, Device, DeviceExt, MemoryDevice, Operation, Spawn, WorkerOptions, block_on,
};
use syncline_format::Key;
use syncline_format::superblock::{Pointer, Superblock, TreeRoot};
use syncline_sim::{Effect, Fault, FaultDevice};
use syncline_store::{
    FormatOptions, OpSeq, Store, StoreError, StoreOptions, Transaction, format, read_superblocks,
};

struct Rig {
    memory: Arc<MemoryDevice>,
    device: Arc<FaultDevice>,
    store: Arc<Store>,
    spawn: Arc<dyn Spawn>,
}

/// A device that fails three times in a row counts as failed.
fn options() -> StoreOptions {
    StoreOptions { patience: std::time::Duration::ZERO, ..StoreOptions::default() }
}

fn rig() -> Rig {
    let spawn: Arc<dyn Spawn> = Arc::new(Background::start(WorkerOptions::default()).unwrap());
    let memory = MemoryDevice::new(32 << 20);
    block_on(format(memory.clone(), FormatOptions::default(), Transaction::new(), spawn.clone())).unwrap();
    let device = FaultDevice::new(memory.clone());
    let (store, _) = block_on(Store::open(device.clone(), options(), spawn.clone())).unwrap();
    Rig { memory, device, store, spawn }
}

impl Rig {
    fn put(&self, object: u64) -> OpSeq {
        let mut transaction = Transaction::new();
        transaction.put(key(object), "value");
        self.store.commit(transaction).unwrap()
    }

    fn sync(&self, op: OpSeq) -> Result<(), StoreError> {
        block_on(self.store.sync(op))
    }

    /// Objects that exist if the power fails now. (Writes that reached the memory device count as
    /// persistent.)
    fn after_crash(&self) -> Vec<u64> {
        let image: Arc<dyn Device> = self.memory.snapshot();
        let opened = block_on(Store::open(image, options(), self.spawn.clone()));
        let (store, _) = opened.unwrap();
        (100..110).filter(|object| block_on(store.get(key(*object))).unwrap().is_some()).collect()
    }
}

fn key(object: u64) -> Key {
    Key { object, kind: 1, offset: 0 }
}

#[test]
fn a_write_that_fails_once_is_repeated_at_once() {
    let rig = rig();
    rig.device.add(Fault::next(Operation::Write, 1));
    rig.sync(rig.put(100)).unwrap();
    assert_eq!(rig.store.counters().device_writes_failed, 1);
    assert_eq!(rig.after_crash(), [100]);
}

#[test]
fn a_write_that_keeps_failing_fails_the_fsync_and_blocks_what_follows() {
    let rig = rig();
    rig.device.add(Fault::next(Operation::Write, u64::MAX));
    let first = rig.put(100);
    rig.sync(first).unwrap_err();
    assert!(!rig.store.is_durable(first));
    assert_eq!(rig.after_crash(), [0; 0]);
    // The device works again: a retry is real, and includes the later change (R5).
    rig.device.mend();
    let second = rig.put(101);
    rig.sync(second).unwrap();
    assert!(rig.store.is_durable(first));
    assert_eq!(rig.after_crash(), [100, 101]);
}

/// Rule R5's other way: the log continues elsewhere.
#[test]
fn a_write_that_fails_twice_makes_the_log_go_on_elsewhere() {
    let rig = rig();
    rig.sync(rig.put(100)).unwrap();
    let epoch = rig.store.superblock().epoch;
    rig.device.add(Fault::next(Operation::Write, 2));
    rig.sync(rig.put(101)).unwrap();
    assert_ne!(rig.store.superblock().epoch, epoch);
    assert_eq!(rig.store.counters().logs_left, 1);
    rig.sync(rig.put(102)).unwrap();
    assert_eq!(rig.after_crash(), [100, 101, 102]);
}

#[test]
fn a_failed_flush_is_redeemed_only_by_writing_again() {
    let rig = rig();
    rig.sync(rig.put(100)).unwrap();
    rig.device.add(Fault::next(Operation::Flush, 1));
    let op = rig.put(101);
    rig.sync(op).unwrap_err();
    assert!(!rig.store.is_durable(op));
    let before = rig.store.device_counters();
    rig.sync(op).unwrap();
    let after = rig.store.device_counters();
    assert_eq!(after.writes - before.writes, 1, "the batch was written again (R6)");
    assert_eq!(after.flushes_issued - before.flushes_issued, 1);
    assert_eq!(rig.after_crash(), [100, 101]);
}

#[test]
fn a_log_that_cannot_be_written_turns_the_filesystem_read_only() {
    let rig = rig();
    rig.sync(rig.put(100)).unwrap();
    rig.device.add(Fault::next(Operation::Write, u64::MAX));
    let op = rig.put(101);
    for _ in 0..3 {
        rig.sync(op).unwrap_err();
    }
    assert!(matches!(rig.store.commit(Transaction::new()), Err(StoreError::ReadOnly { .. })));
    let reason = rig.store.read_only_reason().unwrap();
    assert!(reason.contains("could not be written") && reason.contains("mount again"), "{reason}");
    assert!(block_on(rig.store.get(key(101))).unwrap().is_some(), "still readable");
    assert_eq!(rig.after_crash(), [100]);
}

#[test]
fn a_checkpoint_that_fails_loses_nothing_and_the_next_one_takes_everything() {
    for operation in [Operation::Write, Operation::Flush] {
        let rig = rig();
        rig.sync(rig.put(100)).unwrap();
        rig.device.add(Fault::next(operation, u64::MAX));
        block_on(rig.store.checkpoint()).unwrap_err();
        rig.device.mend();
        assert_eq!(rig.after_crash(), [100], "{operation:?}");
        rig.put(101);
        block_on(rig.store.checkpoint()).unwrap();
        assert_eq!(rig.after_crash(), [100, 101], "{operation:?}");
    }
}

#[test]
fn checkpoints_that_keep_failing_turn_the_filesystem_read_only() {
    let rig = rig();
    rig.sync(rig.put(100)).unwrap();
    rig.device.add(Fault::next(Operation::Write, u64::MAX));
    for _ in 0..3 {
        assert_eq!(rig.store.read_only_reason(), None);
        block_on(rig.store.checkpoint()).unwrap_err();
    }
    let reason = rig.store.read_only_reason().unwrap();
    assert!(
        reason.contains("checkpoints could not be written") && reason.contains("mount again"),
        "{reason}"
    );
    assert_eq!(rig.after_crash(), [100]);
}

#[test]
fn a_superblock_that_may_or_may_not_be_there_ends_all_writing() {
    let rig = rig();
    rig.sync(rig.put(100)).unwrap();
    let copies = rig.store.geometry().superblock_copies(0).into_iter();
    for addr in copies.chain(rig.store.geometry().superblock_copies(1)) {
        let bytes = addr * 4096..addr * 4096 + 1;
        rig.device.add(Fault { bytes, ..Fault::next(Operation::Write, u64::MAX) });
    }
    block_on(rig.store.checkpoint()).unwrap_err();
    let reason = rig.store.read_only_reason().unwrap();
    assert!(reason.contains("superblock"), "{reason}");
    assert_eq!(rig.after_crash(), [100]);
}

#[test]
fn one_bit_wrong_on_its_way_costs_no_acknowledged_change_at_recovery() {
    let rig = rig();
    // The newest batch, which no other calls durable, names data.
    let mut reservation = block_on(rig.store.reserve(4)).unwrap();
    let run = rig.store.allocate(&mut reservation, 4, None).unwrap();
    let write = rig.store.write_data(run, vec![AlignedBuf::copy_from(&[7; 4 * 4096]).into_bytes()]);
    let mut transaction = Transaction::new();
    transaction.name_data(&write, run);
    transaction.put(key(100), "value");
    let op = rig.store.commit(transaction).unwrap();
    rig.sync(op).unwrap();
    let mut opened = 0;
    for after in 0.. {
        let device = FaultDevice::seeded(rig.memory.snapshot(), after);
        device.add(Fault { effect: Effect::FlippedBit, after, ..Fault::next(Operation::Read, 1) });
        let store = block_on(Store::open(device.clone(), options(), rig.spawn.clone()));
        if device.injected() == 0 {
            break;
        }
        // Refusing is correct too: the next mount reads again.
        let Ok((store, _)) = store else { continue };
        opened += 1;
        device.mend();
        assert!(block_on(store.get(key(100))).unwrap().is_some(), "read {after}");
    }
    assert!(opened > 3, "most of these mounts succeed");
}

/// Recovery overwrites the log from where it takes the end to be. Bytes misread once must not
/// become that end.
#[test]
fn bytes_read_wrong_during_recovery_end_no_log() {
    let rig = rig();
    let objects: Vec<u64> = (100..110).collect();
    for object in &objects {
        rig.sync(rig.put(*object)).unwrap();
    }
    let mut failed = 0;
    let effects = [Effect::FlippedBit, Effect::Elsewhere, Effect::Zeros, Effect::Error];
    for (effect, after) in effects.into_iter().flat_map(|effect| (0..30).map(move |after| (effect, after))) {
        // If the same wrong bytes come back twice, they count as the device's contents.
        let once = matches!(effect, Effect::Zeros | Effect::Elsewhere);
        let times: &[u64] = if once { &[1] } else { &[1, 2, 5, u64::MAX] };
        for &times in times {
            let memory = rig.memory.snapshot();
            let device = FaultDevice::seeded(memory.clone(), after);
            device.add(Fault { effect, after, ..Fault::next(Operation::Read, times) });
            let opened = block_on(Store::open(device.clone(), options(), rig.spawn.clone()));
            failed += u64::from(opened.is_err());
            drop(opened);
            let again = Rig { memory, device, store: rig.store.clone(), spawn: rig.spawn.clone() };
            assert_eq!(again.after_crash(), objects, "{effect:?}, read {after} and {times} in all");
        }
    }
    assert!(failed > 0, "a device that never gives the same bytes is given up");
}

#[test]
fn wrong_bytes_are_an_error_never_an_answer() {
    let rig = rig();
    for object in 100..110 {
        rig.put(object);
    }
    block_on(rig.store.close()).unwrap();
    let device = FaultDevice::new(rig.memory.snapshot());
    let (store, _) = block_on(Store::open(device.clone(), options(), rig.spawn.clone())).unwrap();
    for effect in [Effect::FlippedBit, Effect::Zeros, Effect::Elsewhere] {
        device.add(Fault { effect, ..Fault::next(Operation::Read, u64::MAX) });
        assert!(matches!(block_on(store.get(key(100))), Err(StoreError::Corrupt { .. })), "{effect:?}");
        device.mend();
    }
    for object in [100, 102] {
        assert!(block_on(store.get(key(object))).unwrap().is_some());
    }
}

/// The power failed during a superblock write: one of the copies is there, but its first reader
/// can't read it. The result of that recovery must not depend on the copy staying unreadable.
#[test]
fn a_copy_of_a_superblock_that_can_not_be_read_counts_no_more() {
    let spawn: Arc<dyn Spawn> = Arc::new(Background::start(WorkerOptions::default()).unwrap());
    let before = MemoryDevice::new(32 << 20);
    block_on(format(before.clone(), FormatOptions::default(), Transaction::new(), spawn.clone())).unwrap();
    let (store, _) = block_on(Store::open(before.clone(), options(), spawn.clone())).unwrap();
    let put = |object| {
        let mut transaction = Transaction::new();
        transaction.put(key(object), "value");
        store.commit(transaction).unwrap()
    };
    let slot = |device: Arc<dyn Device>| block_on(read_superblocks(&device)).unwrap().slot;
    // The copy that is read first must not be in the newest slot, and recovery must have something
    // to do.
    put(100);
    while slot(before.clone()) == 0 {
        put(101);
        block_on(store.checkpoint()).unwrap();
    }
    block_on(store.sync(put(102))).unwrap();
    let memory = before.snapshot();
    let any: Arc<dyn Device> = memory.clone();
    let newest = || block_on(read_superblocks(&any)).unwrap();
    let superblock = newest().superblock;
    let end = superblock.geometry.usable().end();
    let elsewhere = Pointer { addr: end - 8, copy: end - 16, checksum: 1 };
    let tree = TreeRoot { node: elsewhere, level: 0 };
    let half_written = Superblock { generation: superblock.generation + 1, tree, ..superblock };
    let [first, _] = superblock.geometry.superblock_copies(0);
    let block = AlignedBuf::copy_from(&half_written.encode()).into_bytes();
    block_on(memory.write_at(first * 4096, vec![block])).unwrap();
    let device = FaultDevice::new(memory.clone());
    device.add(Fault::next(Operation::Read, 1));
    // The power fails again right after recovery's first write.
    device.add(Fault { after: 1, ..Fault::next(Operation::Write, u64::MAX) });
    let opened = block_on(Store::open(device, options(), spawn.clone()));
    assert!(opened.is_err());
    let (store, _) = block_on(Store::open(any.clone(), options(), spawn)).unwrap();
    for object in [100, 102] {
        assert!(block_on(store.get(key(object))).unwrap().is_some());
    }
}
