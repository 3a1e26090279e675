//! The mechanisms that make fsync cheap, measured by their counters: each switched on and off.

use bytes::Bytes;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use syncline_device::MemoryDevice;
use syncline_fs::types::{Caller, FileType, Ino, ROOT, SetAttributes, Timestamp, XattrMode};
use syncline_fs::{Filesystem, FsCounters, Options};
use syncline_sim::{Latency, SimDevice, Simulation, ThroughDevice};
use syncline_store::{Ablation, CountersSnapshot, FormatOptions, Lab, Store, StoreOptions, format};

const CALLER: Caller = Caller { uid: 0, gid: 0 };
/// Writes and syncs of each writer.
const ROUNDS: u64 = 10;

/// A filesystem on a device with latencies, in virtual time.
struct Bench {
    simulation: Simulation,
    fs: Arc<Filesystem>,
}

impl Bench {
    fn new(without: &[Ablation]) -> Self {
        Self::formatted(without, FormatOptions::default())
    }

    fn formatted(without: &[Ablation], format_options: FormatOptions) -> Self {
        let memory = MemoryDevice::new(256 << 20);
        let simulation = Simulation::new(1);
        let root = Filesystem::initial_transaction(0, 0, 0o755, Timestamp { seconds: 1, nanoseconds: 0 });
        let formatting = format(memory.clone(), format_options, root, simulation.spawner());
        simulation.run(formatting).unwrap().unwrap();
        let device = ThroughDevice::new(SimDevice::new(&simulation, memory, Latency::default()));
        let options = StoreOptions { lab: Lab::without(without.iter().copied()), ..StoreOptions::default() };
        let (spawn, clock) = (simulation.spawner(), simulation.clock());
        let opening = async move {
            let (store, _) = Store::open(device, options, spawn.clone()).await.unwrap();
            Filesystem::open(store, spawn, Options { clock, ..Options::default() }).await.unwrap()
        };
        let fs = simulation.run(opening).unwrap();
        Self { simulation, fs }
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

    fn write(&self, ino: Ino, data: &'static [u8]) {
        self.write_at(ino, 0, data);
    }

    fn write_at(&self, ino: Ino, at: u64, data: &'static [u8]) {
        self.run(|fs| async move { fs.write(ino, at, Bytes::from_static(data), false).await.unwrap() });
    }

    fn fsync(&self, ino: Ino, data_only: bool) {
        self.run(|fs| async move { fs.fsync(ino, data_only).await.unwrap() });
    }

    fn clone_file(&self, from: Ino, to: Ino, len: u64) {
        self.run(|fs| async move {
            assert_eq!(fs.copy_range((from, 0), (to, 0), len, false).await.unwrap(), len);
            assert_eq!(fs.counters().reflinked_bytes, len, "all of it was shared");
        });
    }

    fn store(&self) -> CountersSnapshot {
        self.fs.store().counters()
    }

    fn files(&self) -> FsCounters {
        self.fs.counters()
    }

    /// Flushes that `work` needs.
    fn flushes(&self, work: impl FnOnce(&Self)) -> u64 {
        let before = self.store().flushes_issued;
        work(self);
        self.store().flushes_issued - before
    }
}

#[test]
fn xattrs_are_logged_when_they_change_and_not_when_files_are_synced() {
    let logged_by_fsyncs = |without: &[Ablation]| {
        let bench = Bench::new(without);
        let ino = bench.create("file");
        bench.run(|fs| async move {
            for (name, len) in [("user.a", 50), ("user.b", 3000), ("user.c", 60_000)] {
                fs.setxattr(ino, name.as_bytes(), &vec![7; len], XattrMode::Set).await.unwrap();
            }
        });
        assert_eq!(bench.files().xattrs_logged, 3);
        bench.fsync(ino, false);
        let (before, bytes) = (bench.files().xattrs_logged, bench.store().log_bytes);
        for _ in 0..5 {
            bench.write(ino, &[1; 65536]);
            bench.fsync(ino, false);
        }
        (bench.files().xattrs_logged - before, bench.store().log_bytes - bytes)
    };
    let (logged, bytes) = logged_by_fsyncs(&[]);
    assert_eq!(logged, 0);
    assert_eq!(bytes, 5 * 4096, "a block of log for each fsync");
    let (logged, bytes) = logged_by_fsyncs(&[Ablation::XattrSkip]);
    assert_eq!(logged, 15);
    assert!(bytes >= 5 * 60_000, "{bytes}");
}

#[test]
fn an_fsync_that_another_flush_covered_needs_none() {
    let flushes = |without: &[Ablation]| {
        let bench = Bench::new(without);
        let (one, two) = (bench.create("f1"), bench.create("f2"));
        bench.fsync(two, false);
        bench.flushes(|bench| {
            bench.write(one, b"aaa\n");
            bench.write(two, b"aaa\n");
            bench.fsync(two, false);
            bench.fsync(one, false);
            bench.fsync(one, false);
        })
    };
    assert_eq!(flushes(&[]), 1);
    assert_eq!(flushes(&[Ablation::FlushElide]), 3);
}

/// The order of a package manager: write all files, then fsync them one by one.
#[test]
fn small_files_go_along_with_the_fsync_of_any() {
    const FILES: u64 = 50;
    let figures = |without: &[Ablation]| {
        let bench = Bench::new(without);
        let files: Vec<Ino> = (0..FILES).map(|index| bench.create(&format!("f{index}"))).collect();
        let batches = bench.store().batches;
        let flushes = bench.flushes(|bench| {
            files.iter().for_each(|&ino| bench.write(ino, &[7; 1000]));
            files.iter().for_each(|&ino| bench.fsync(ino, false));
        });
        (flushes, bench.store().batches - batches, bench.files().taken_along)
    };
    assert_eq!(figures(&[]), (1, 1, FILES - 1));
    assert_eq!(figures(&[Ablation::FlushElide]), (FILES, FILES, 0));
}

#[test]
fn timestamps_cost_an_fdatasync_nothing() {
    let bench = Bench::new(&[]);
    let ino = bench.create("file");
    bench.write(ino, &[1; 8192]);
    bench.fsync(ino, true);
    let touch = |bench: &Bench| {
        bench.run(|fs| async move {
            let change = SetAttributes { permissions: Some(0o600), ..SetAttributes::default() };
            fs.setattr(CALLER, ino, change).await.unwrap();
        });
    };
    assert_eq!(
        bench.flushes(|bench| {
            touch(bench);
            bench.fsync(ino, true);
        }),
        0
    );
    assert_eq!(bench.flushes(|bench| bench.fsync(ino, false)), 1);
}

/// `ROUNDS` writes and syncs by each writer at once, 64 KiB at its own place; the writers take the
/// files in turn.
fn overwrite_at_once(bench: &Bench, writers: u64, files: Vec<Ino>) {
    write_at_once(bench, writers, files, &[3; 65536]);
}

/// Like `overwrite_at_once`, with other data.
fn write_at_once(bench: &Bench, writers: u64, files: Vec<Ino>, data: &'static [u8]) {
    let places = |writer| vec![writer << 16; ROUNDS as usize];
    let writers = (0..writers).zip(files.into_iter().cycle());
    at_once(bench, writers.map(|(writer, ino)| (ino, places(writer))).collect(), data);
}

/// Each block of each file overwritten and synced once, out of order, by a writer for each file.
fn overwrite_blocks_at_once(bench: &Bench, files: Vec<Ino>, blocks: u64) {
    let places: Vec<u64> = (0..blocks).map(|round| round * 37 % blocks * 4096).collect();
    at_once(bench, files.into_iter().map(|ino| (ino, places.clone())).collect(), &[2; 4096]);
}

/// Writers at once: each writes to its file at all its places, and syncs after each.
fn at_once(bench: &Bench, writers: Vec<(Ino, Vec<u64>)>, data: &'static [u8]) {
    let spawn = bench.simulation.spawner();
    bench.run(|fs| async move {
        let left = Arc::new(AtomicU64::new(writers.len() as u64));
        for (ino, places) in writers {
            let (fs, left) = (fs.clone(), left.clone());
            spawn.spawn(Box::pin(async move {
                for at in places {
                    fs.write(ino, at, Bytes::from_static(data), false).await.unwrap();
                    fs.fsync(ino, false).await.unwrap();
                }
                left.fetch_sub(1, Ordering::AcqRel);
            }));
        }
        while left.load(Ordering::Acquire) > 0 {
            futures_lite::future::yield_now().await;
        }
    });
}

#[test]
fn concurrent_fsyncs_share_batches_and_flushes() {
    const WRITERS: u64 = 16;
    let figures = |files: u64, without: &[Ablation]| {
        let bench = Bench::new(without);
        let files: Vec<Ino> = (0..files).map(|index| bench.create(&format!("f{index}"))).collect();
        let before = bench.store();
        overwrite_at_once(&bench, WRITERS, files);
        let after = bench.store();
        (after.flushes_issued - before.flushes_issued, after.batches - before.batches)
    };
    // Each writer with its own file, or all with one: an fsync excludes others of its file only
    // while it submits.
    for files in [WRITERS, 1] {
        let (flushes, batches) = figures(files, &[]);
        assert!(flushes <= WRITERS * ROUNDS / 8, "{files} files: {flushes} flushes");
        assert!(batches <= WRITERS * ROUNDS / 8, "{files} files: {batches} batches");
    }
    let (flushes, _) = figures(WRITERS, &[Ablation::FlushGroup]);
    assert!(flushes >= WRITERS * ROUNDS, "{flushes} flushes");
}

/// A lone writer saves one write; with many writers, new files are written once, and data that is
/// synced again is logged.
#[test]
fn the_first_sync_of_a_file_is_logged_where_few_sync() {
    const WRITERS: u64 = 16;
    let bench = Bench::new(&[]);
    let logged = |work: &dyn Fn()| {
        let before = bench.files().blocks_in_log;
        work();
        bench.files().blocks_in_log - before
    };
    let files = |prefix: &str| (0..WRITERS).map(|index| bench.create(&format!("{prefix}{index}"))).collect();
    let alone: Vec<Ino> = files("alone");
    let one_by_one = || {
        for &ino in &alone {
            bench.write(ino, &[1; 8192]);
            bench.fsync(ino, false);
        }
    };
    assert_eq!(logged(&one_by_one), 2 * WRITERS);
    write_at_once(&bench, WRITERS, files("busy"), &[3; 65536]);
    // The first write of each writer is placed, the others are logged.
    assert_eq!(
        logged(&|| write_at_once(&bench, WRITERS, files("small"), &[4; 8192])),
        2 * WRITERS * (ROUNDS - 1)
    );
}

#[test]
fn where_many_sync_fewer_blocks_are_logged() {
    const WRITERS: u64 = 16;
    let bench = Bench::new(&[]);
    let files: Vec<Ino> = (0..WRITERS).map(|index| bench.create(&format!("f{index}"))).collect();
    write_at_once(&bench, WRITERS, files.clone(), &[1; 16384]);
    let before = bench.files().blocks_in_log;
    write_at_once(&bench, WRITERS, files.clone(), &[2; 20480]);
    assert_eq!(bench.files().blocks_in_log, before);
    write_at_once(&bench, WRITERS, files.clone(), &[3; 16384]);
    assert!(bench.files().blocks_in_log > before);
}

#[test]
fn fsyncs_of_what_is_not_shared_look_no_count_up() {
    const WRITERS: u64 = 8;
    let lookups = |without: &[Ablation]| {
        let bench = Bench::new(without);
        let files: Vec<Ino> = (0..WRITERS).map(|index| bench.create(&format!("f{index}"))).collect();
        // Elsewhere on the image some blocks are shared.
        let (origin, clone) = (bench.create("origin"), bench.create("clone"));
        bench.write(origin, &[1; 1 << 20]);
        bench.clone_file(origin, clone, 1 << 20);
        let before = bench.files();
        overwrite_at_once(&bench, WRITERS, files);
        let after = bench.files();
        assert!(!without.is_empty() || after.shared_wait_ns == before.shared_wait_ns, "nobody waits");
        after.shared_lookups - before.shared_lookups
    };
    assert_eq!(lookups(&[]), 0);
    // The first round replaces nothing.
    let ablated = lookups(&[Ablation::ReflinkMark]);
    assert!(ablated >= WRITERS * (ROUNDS - 1), "{ablated} lookups");
}

#[test]
fn a_clone_pays_only_for_extents_with_the_mark() {
    // Makes each overwrite replace an extent at once.
    let bench = Bench::new(&[Ablation::DataInLog]);
    let (file, clone) = (bench.create("file"), bench.create("clone"));
    bench.write(file, &[1; 1 << 20]);
    bench.fsync(file, false);
    bench.clone_file(file, clone, 512 << 10);
    let lookups = |at: u64, ino: Ino| {
        let before = bench.files().shared_lookups;
        bench.run(|fs| async move {
            fs.write(ino, at, Bytes::from_static(&[2; 4096]), false).await.unwrap();
            fs.fsync(ino, false).await.unwrap();
        });
        bench.files().shared_lookups - before
    };
    assert_eq!(lookups(768 << 10, file), 0, "what was not cloned has no mark");
    assert_eq!(lookups(0, file), 1);
    assert_eq!(lookups(0, file), 0, "what was written since is the file's own");
    assert_eq!(lookups(8192, file), 1);
    assert_eq!(lookups(0, clone), 1, "the mark stays although its count is gone");
    assert_eq!(lookups(0, clone), 0);
}

#[test]
fn the_cost_of_a_directory_fsync_does_not_grow_with_the_directory() {
    const FILES: u64 = 30_000;
    let figures = |without: &[Ablation]| {
        let bench = Bench::new(without);
        bench.run(|fs| async move {
            for index in 0..FILES {
                let name = format!("file{index}");
                let created = fs.mknod(CALLER, ROOT, name.as_bytes(), FileType::Regular, 0o644, 0).await;
                fs.forget(created.unwrap().ino, 1);
                if index.is_multiple_of(100) {
                    futures_lite::future::yield_now().await;
                }
            }
        });
        let before = bench.store();
        bench.fsync(ROOT, false);
        let after = bench.store();
        (after.log_bytes - before.log_bytes, after.log_copies, after.log_puts - after.log_coalesced)
    };
    let (at_fsync, copies, items) = figures(&[]);
    assert!(at_fsync <= 2 << 20, "{at_fsync} bytes are left to the fsync");
    assert!(copies * 1000 < items, "{copies} copies of {items} items");
    let (at_fsync, copies, items) = figures(&[Ablation::DirBulk]);
    assert!(at_fsync >= FILES * 100, "{at_fsync} bytes are left to the fsync");
    assert!(copies >= items, "{copies} copies of {items} items");
}

/// Some hundred changes of names: the bytes that each logs without parent pointers, with parent
/// pointers, and with each parent pointer in an item.
#[test]
fn parent_pointers_that_fit_their_inode_log_no_items() {
    const FILES: u64 = 300;
    let logged = |without: &[Ablation], parent_pointers: bool| {
        let options = FormatOptions { parent_pointers, ..FormatOptions::default() };
        let bench = Bench::formatted(without, options);
        let mut logged = Vec::new();
        for step in ["create", "link", "rename", "unlink"] {
            let before = bench.store();
            bench.run(|fs| async move {
                for index in 0..FILES {
                    let [name, other, moved] =
                        ["file", "other", "moved"].map(|word| format!("{word}{index}").into_bytes());
                    match step {
                        "create" => {
                            fs.mknod(CALLER, ROOT, &name, FileType::Regular, 0o644, 0).await.unwrap();
                        }
                        "link" => {
                            let ino = fs.lookup(ROOT, &name).await.unwrap().ino;
                            fs.link(ino, ROOT, &other).await.unwrap();
                        }
                        "rename" => {
                            fs.rename(ROOT, &other, ROOT, &moved, Default::default()).await.unwrap();
                        }
                        _ => fs.unlink(ROOT, &moved).await.unwrap(),
                    }
                }
            });
            // Pending changes are counted when they are sealed.
            bench.fsync(ROOT, false);
            let after = bench.store();
            let items = |counters: &CountersSnapshot| {
                counters.log_puts + counters.log_deletes - counters.log_coalesced
            };
            // All changes share the directory's own item.
            logged.push((items(&after) - items(&before)) / FILES);
        }
        (logged, bench.files().parents_short, bench.files().parents_long)
    };
    let (plain, short, long) = logged(&[], false);
    assert_eq!((short, long), (0, 0));
    let (with, short, long) = logged(&[], true);
    assert_eq!(with, plain, "not one item more in any change");
    assert!(short == 3 * FILES && long == 0, "{short} short, {long} long");
    let (ablated, short, long) = logged(&[Ablation::ParentShortform], true);
    assert!(short == 0 && long == 3 * FILES, "{short} short, {long} long");
    assert_eq!((&plain[..], &ablated[..]), (&[2, 2, 3, 2][..], &[3, 3, 5, 3][..]));
}

/// A database overwrites and syncs a page: a single request to the device, where placing it takes
/// two writes and a flush.
#[test]
fn a_small_synced_write_is_one_request() {
    let counts = |without: &[Ablation]| {
        let bench = Bench::new(without);
        let file = bench.create("file");
        bench.write(file, &[1; 1 << 20]);
        bench.fsync(file, false);
        let before = bench.store();
        for _ in 0..ROUNDS {
            bench.write(file, &[2; 4096]);
            bench.fsync(file, true);
        }
        let after = bench.store();
        (
            after.device_writes - before.device_writes,
            after.device_writes_through - before.device_writes_through,
            after.flushes_issued - before.flushes_issued,
        )
    };
    assert_eq!(counts(&[]), (ROUNDS, ROUNDS, ROUNDS));
    assert_eq!(counts(&[Ablation::WriteThrough]), (ROUNDS, 0, ROUNDS));
    assert_eq!(counts(&[Ablation::DataInLog]), (2 * ROUNDS, 0, ROUNDS));
}

/// The cost of data in the log, in bytes: a synced block is written to the log and to its place.
/// One writer pays for a second block of log, since header and items do not fit beside the data;
/// many share it.
#[test]
fn a_small_synced_write_is_written_twice() {
    const BLOCKS: u64 = 400;
    let bytes_per_byte = |writers: u64, without: &[Ablation]| {
        let bench = Bench::new(without);
        let files: Vec<Ino> = (0..writers).map(|index| bench.create(&format!("f{index}"))).collect();
        for &ino in &files {
            (0..BLOCKS / 16).for_each(|part| bench.write_at(ino, part << 16, &[1; 65536]));
            bench.fsync(ino, true);
        }
        let before = bench.store();
        overwrite_blocks_at_once(&bench, files, BLOCKS);
        let after = bench.store();
        let written = (after.device_write_bytes - before.device_write_bytes) as f64;
        (written / (writers * BLOCKS * 4096) as f64, after.batches - before.batches)
    };
    let figures = [1, 16]
        .map(|writers| (bytes_per_byte(writers, &[]), bytes_per_byte(writers, &[Ablation::DataInLog])));
    println!("{figures:?}");
    let [((alone, _), (alone_placed, _)), ((many, batches), (many_placed, _))] = figures;
    assert!((2.9..=3.1).contains(&alone), "{figures:?}");
    assert!((2.0..=2.2).contains(&many), "{figures:?}");
    assert!(batches <= 16 * BLOCKS / 8, "{figures:?}");
    // Without the log's copy.
    assert!(alone_placed <= 2.1 && many_placed <= 1.2, "{figures:?}");
}
