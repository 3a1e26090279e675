//! Receipts agree with the counters and with the device's operations.

use bytes::Bytes;
use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use syncline_device::{MemoryDevice, Operation};
use syncline_format::Kind;
use syncline_fs::types::{Caller, FileType, Ino, ROOT, SetAttributes, Timestamp};
use syncline_fs::{Call, Failed, Filesystem, FsError, Options, Receipt, Why};
use syncline_sim::{Fault, FaultDevice, Latency, SimDevice, Simulation};
use syncline_store::{
    Ablation, CountersSnapshot, Cover, FormatOptions, Lab, Stage, Store, StoreOptions, format,
};

const CALLER: Caller = Caller { uid: 0, gid: 0 };

/// A filesystem on a device with latencies, in virtual time, that can be made to fail.
struct Bench {
    simulation: Simulation,
    device: Arc<FaultDevice>,
    fs: Arc<Filesystem>,
}

impl Bench {
    fn new() -> Self {
        Self::with(StoreOptions::default(), Options::default())
    }

    fn with(store: StoreOptions, options: Options) -> Self {
        let memory = MemoryDevice::new(256 << 20);
        let simulation = Simulation::new(1);
        let root = Filesystem::initial_transaction(0, 0, 0o755, Timestamp { seconds: 1, nanoseconds: 0 });
        let formatting = format(memory.clone(), FormatOptions::default(), root, simulation.spawner());
        simulation.run(formatting).unwrap().unwrap();
        let device = FaultDevice::new(memory);
        let delayed = SimDevice::new(&simulation, device.clone(), Latency::default());
        let (spawn, clock) = (simulation.spawner(), simulation.clock());
        let opening = async move {
            let (store, _) = Store::open(delayed, store, spawn.clone()).await.unwrap();
            Filesystem::open(store, spawn, Options { clock, ..options }).await.unwrap()
        };
        let fs = simulation.run(opening).unwrap();
        Self { simulation, device, fs }
    }

    /// Runs work on the filesystem to its end.
    fn run<T: Send + 'static, F>(&self, work: impl FnOnce(Arc<Filesystem>) -> F) -> T
    where
        F: Future<Output = T> + Send + 'static,
    {
        self.simulation.run(work(self.fs.clone())).expect("the work ends")
    }

    fn create(&self, name: &str) -> Ino {
        let name = name.to_owned();
        self.run(|fs| async move {
            fs.mknod(CALLER, ROOT, name.as_bytes(), FileType::Regular, 0o644, 0).await.unwrap().ino
        })
    }

    fn write(&self, ino: Ino, offset: u64, data: &'static [u8]) {
        self.run(|fs| async move { fs.write(ino, offset, Bytes::from_static(data), false).await.unwrap() });
    }

    /// The result and the receipt of an fsync.
    fn try_fsync(&self, ino: Ino, data_only: bool) -> (Result<(), FsError>, Receipt) {
        let before = self.fs.last_receipt().map_or(0, |receipt| receipt.serial);
        let result = self.run(|fs| async move { fs.fsync(ino, data_only).await });
        let receipt = self.fs.last_receipt().expect("there is one");
        assert_eq!(receipt.serial, before + 1);
        check_sums(&receipt);
        (result, receipt)
    }

    fn fsync(&self, ino: Ino) -> Receipt {
        let (result, receipt) = self.try_fsync(ino, false);
        result.unwrap();
        receipt
    }

    fn store(&self) -> CountersSnapshot {
        self.fs.store().counters()
    }
}

/// Checks that hold for every receipt.
fn check_sums(receipt: &Receipt) {
    let times = receipt.times_ns;
    let stages = times.submit + times.wait + times.gather + times.write + times.flush + times.checkpoint;
    assert_eq!(stages + times.answer, times.total);
    assert_eq!(receipt.failed.is_none(), receipt.cover != Cover::Nothing, "{receipt:?}");
    if receipt.failed.is_none() {
        assert!(receipt.durable.op >= receipt.target_op, "{receipt:?}");
    }
}

#[test]
fn an_fsync_tells_what_it_wrote_and_which_flush_covered_it() {
    let bench = Bench::new();
    let ino = bench.create("file");
    bench.fsync(ROOT);
    let before = bench.store();
    bench.write(ino, 0, &[1; 65536]);
    let receipt = bench.fsync(ino);
    let after = bench.store();
    assert_eq!((receipt.call, receipt.files, receipt.inodes.listed()), (Call::Fsync, 1, &[ino][..]));
    assert_eq!(receipt.why, Why::DIRTY_DATA | Why::SIZE | Why::MTIME);
    let submitted = receipt.submitted;
    assert_eq!((submitted.blocks, submitted.device_writes, submitted.blocks_before_log), (16, 1, 0));
    assert_eq!((submitted.inodes, submitted.extents, submitted.inline_bytes), (1, 1, 0));
    assert_eq!(submitted.blocks * 4096, after.data_bytes - before.data_bytes);
    // One flush, issued by itself; two parallel writes, of the data and the batch.
    assert_eq!((receipt.cover, receipt.drove, receipt.members), (Cover::Issued, true, 1));
    assert_eq!(after.flushes_issued - before.flushes_issued, 1);
    assert_eq!(after.device_writes - before.device_writes, submitted.device_writes + 1);
    assert_eq!(receipt.durable.flush, after.flushes_issued);
    let batches = receipt.batches;
    assert_eq!((batches.count, batches.last), (1, receipt.durable.batch));
    assert_eq!(batches.log_bytes, after.log_bytes - before.log_bytes);
    assert_eq!(batches.data_bytes, 65536);
    assert_eq!(
        (batches.items.of(Kind::Inode), batches.items.of(Kind::Extent), batches.items.total()),
        (1, 1, 2)
    );
    assert!(submitted.log_bytes > 0 && submitted.log_bytes < batches.log_bytes);
}

#[test]
fn what_is_durable_already_is_elided_by_the_flush_before() {
    let bench = Bench::new();
    let ino = bench.create("file");
    bench.write(ino, 0, b"small");
    let first = bench.fsync(ino);
    assert!(first.why.has(Why::NAME | Why::DIRTY_DATA));
    assert_eq!((first.cover, first.submitted.inline_bytes, first.submitted.blocks), (Cover::Issued, 5, 0));
    let before = bench.store();
    for data_only in [false, true] {
        let (result, second) = bench.try_fsync(ino, data_only);
        result.unwrap();
        assert_eq!(second.call, if data_only { Call::Fdatasync } else { Call::Fsync });
        assert!(second.why.is_empty(), "{second:?}");
        assert_eq!((second.cover, second.members, second.batches.count), (Cover::Elided, 0, 0));
        assert_eq!(second.durable, first.durable, "the same batch, flush and ticket");
        assert_eq!(second.submitted, Default::default());
    }
    let after = bench.store();
    assert_eq!(after.syncs_elided - before.syncs_elided, 2);
    assert_eq!((after.flushes_issued, after.device_writes), (before.flushes_issued, before.device_writes));
}

#[test]
fn reasons_tell_own_changes_from_those_of_others() {
    let bench = Bench::new();
    let (one, two) = (bench.create("one"), bench.create("two"));
    bench.fsync(ROOT);
    bench.create("elsewhere");
    let receipt = bench.fsync(one);
    assert_eq!(receipt.why, Why::OTHERS, "P1: what came before is durable too");
    assert_eq!(receipt.submitted, Default::default(), "of its own it had nothing to log");
    assert_eq!(receipt.batches.items.of(Kind::Dirent), 1);
    bench.run(|fs| async move {
        let change = SetAttributes { permissions: Some(0o600), ..SetAttributes::default() };
        fs.setattr(CALLER, two, change).await.unwrap();
    });
    let (result, data_only) = bench.try_fsync(two, true);
    result.unwrap();
    assert_eq!((data_only.cover, data_only.why.is_empty()), (Cover::Elided, true));
    assert_eq!(bench.fsync(two).why, Why::ATTRIBUTES);
    bench.write(one, 0, &[1; 65536]);
    bench.run(|fs| async move { fs.barrier(&[one]).await.unwrap() });
    let receipt = bench.fsync(one);
    assert_eq!(receipt.why, Why::LOGGED, "the barrier had submitted it");
    assert_eq!((receipt.submitted.blocks, receipt.batches.data_bytes), (0, 65536));
    bench.create("third");
    let directory = bench.fsync(ROOT);
    assert_eq!((directory.call, directory.why), (Call::Fsyncdir, Why::ENTRIES));
}

#[test]
fn an_inode_read_anew_is_not_said_to_have_changed() {
    let bench = Bench::with(StoreOptions::default(), Options { cached_inodes_max: 0, ..Options::default() });
    let ino = bench.create("file");
    bench.run(|fs| async move { fs.forget(ino, 1) });
    bench.fsync(ROOT);
    // Each of these evicts the file from memory; when it is loaded again, something else is not
    // durable.
    for index in 0..64 {
        let other = bench.create(&format!("other{index}"));
        bench.run(|fs| async move { fs.forget(other, 1) });
    }
    let receipt = bench.fsync(ino);
    assert!(!receipt.why.has(Why::NAME) && !receipt.why.has(Why::LOGGED), "{receipt:?}");
    assert!(receipt.why.has(Why::LOADED), "{receipt:?}");
}

#[test]
fn of_a_group_one_issues_and_the_others_join() {
    const WRITERS: u64 = 8;
    const ROUNDS: u64 = 6;
    let bench = Bench::new();
    let files: Vec<Ino> = (0..WRITERS).map(|index| bench.create(&format!("f{index}"))).collect();
    bench.fsync(ROOT);
    let (before, old) = (bench.store(), bench.fs.receipts().len());
    let spawn = bench.simulation.spawner();
    bench.run(|fs| async move {
        let left = Arc::new(AtomicU64::new(WRITERS));
        for ino in files {
            let (fs, left) = (fs.clone(), left.clone());
            spawn.spawn(Box::pin(async move {
                for _ in 0..ROUNDS {
                    fs.write(ino, 0, Bytes::from_static(&[3; 65536]), false).await.unwrap();
                    fs.fsync(ino, false).await.unwrap();
                }
                left.fetch_sub(1, Ordering::AcqRel);
            }));
        }
        while left.load(Ordering::Acquire) > 0 {
            futures_lite::future::yield_now().await;
        }
    });
    let after = bench.store();
    let receipts = bench.fs.receipts().split_off(old);
    assert_eq!(receipts.len() as u64, WRITERS * ROUNDS);
    let mut groups: BTreeMap<u64, Vec<Receipt>> = BTreeMap::new();
    for receipt in receipts {
        check_sums(&receipt);
        groups.entry(receipt.durable.flush).or_default().push(receipt);
    }
    assert_eq!(groups.len() as u64, after.flushes_issued - before.flushes_issued, "a group, a flush");
    let log_bytes: u64 = groups.values().map(|group| group[0].batches.log_bytes).sum();
    assert_eq!(log_bytes, after.log_bytes - before.log_bytes);
    for group in groups.values() {
        let count = |wanted: Cover| group.iter().filter(|receipt| receipt.cover == wanted).count();
        assert_eq!((count(Cover::Issued), count(Cover::Joined)), (1, group.len() - 1));
        for receipt in group {
            assert_eq!(receipt.drove, receipt.cover == Cover::Issued);
            assert_eq!(receipt.members, group.len() as u64);
            assert_eq!((receipt.batches, receipt.durable), (group[0].batches, group[0].durable));
        }
        let data: u64 = group.iter().map(|receipt| receipt.submitted.blocks * 4096).sum();
        assert!(group[0].batches.data_bytes >= data, "the batch names the data of all its members");
    }
    assert!(groups.values().any(|group| group.len() as u64 == WRITERS), "all of them met in one group");
}

#[test]
fn a_failed_flush_leaves_a_receipt_with_its_error_and_stage() {
    let bench = Bench::new();
    let ino = bench.create("file");
    bench.fsync(ino);
    bench.write(ino, 0, &[1; 65536]);
    bench.device.add(Fault::next(Operation::Flush, 1));
    let (result, receipt) = bench.try_fsync(ino, false);
    assert_eq!(result.unwrap_err().errno(), 5);
    assert_eq!(receipt.failed, Some(Failed { errno: 5, stage: Some(Stage::Flush) }));
    assert_eq!((receipt.submitted.blocks, receipt.batches.count), (16, 1));
    assert_eq!(receipt.durable, Default::default(), "nothing is said to be durable");
    let retried = bench.fsync(ino);
    assert_eq!((retried.cover, retried.why), (Cover::Issued, Why::LOGGED));
    assert_eq!(retried.batches.last, receipt.batches.last, "the same batch, written again");

    // Fails the data, the batch beside it, and the checkpoint that would move them elsewhere.
    bench.write(ino, 0, &[2; 65536]);
    bench.device.add(Fault::next(Operation::Write, u64::MAX));
    let (result, receipt) = bench.try_fsync(ino, false);
    assert!(result.is_err());
    assert_eq!(receipt.failed, Some(Failed { errno: 5, stage: Some(Stage::Checkpoint) }));
    assert_eq!(receipt.times_ns.flush, 0);
    bench.device.mend();
}

#[test]
fn many_files_and_the_whole_filesystem_leave_one_receipt_each() {
    let bench = Bench::new();
    let files: Vec<Ino> = (0..20).map(|index| bench.create(&format!("f{index}"))).collect();
    files.iter().for_each(|&ino| bench.write(ino, 0, &[1; 32768]));
    let many = files.clone();
    bench.run(|fs| async move { fs.sync_many(&many, 0).await.unwrap() });
    let receipt = bench.fs.last_receipt().unwrap();
    check_sums(&receipt);
    assert_eq!((receipt.call, receipt.files, receipt.serial), (Call::SyncMany, 20, 1));
    assert_eq!(receipt.inodes.listed(), &files[..8]);
    assert_eq!((receipt.submitted.blocks, receipt.submitted.inodes), (160, 20));
    assert_eq!((receipt.cover, receipt.batches.data_bytes), (Cover::Issued, 160 * 4096));
    assert_eq!(bench.fs.recent_receipts(5, Some(files[7])).len(), 1);
    assert!(bench.fs.recent_receipts(5, Some(files[8])).is_empty());

    bench.write(files[0], 0, &[2; 8192]);
    for cover in [Cover::Checkpoint, Cover::Elided] {
        bench.run(|fs| async move { fs.syncfs().await.unwrap() });
        let receipt = bench.fs.last_receipt().unwrap();
        check_sums(&receipt);
        assert_eq!((receipt.call, receipt.cover), (Call::Syncfs, cover));
        assert_eq!(receipt.durable.generation, bench.fs.store().superblock().generation);
    }
}

#[test]
fn of_a_large_file_it_tells_what_went_before_the_log() {
    let bench = Bench::new();
    let ino = bench.create("large");
    for index in 0..4 {
        bench.write(ino, index << 20, &[1; 1 << 20]);
    }
    let submitted = bench.fsync(ino).submitted;
    assert_eq!((submitted.blocks, submitted.blocks_before_log), (1024, 768));
    assert_eq!(submitted.extents, 1024 / 32);
}

#[test]
fn what_is_switched_off_leaves_none_and_ablations_are_told() {
    let off = Bench::with(StoreOptions::default(), Options { receipts_max: 0, ..Options::default() });
    off.run(|fs| async move { fs.fsync(ROOT, false).await.unwrap() });
    assert!(off.fs.receipts().is_empty());
    let lab = Lab::without([Ablation::FlushElide]);
    let bench = Bench::with(StoreOptions { lab, ..StoreOptions::default() }, Options::default());
    let ino = bench.create("file");
    bench.fsync(ino);
    let again = bench.fsync(ino);
    assert_eq!((again.why, again.cover), (Why::SWITCHED_OFF, Cover::Issued));
}
