//! Any single allocation may find no room: each in turn is made to fail, and every time the
//! filesystem returns a proper error, keeps everything it acknowledged, and continues.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use syncline_check::check;
use syncline_device::{AlignedBuf, Device, MemoryDevice, block_on};
use syncline_fs::types::{Caller, FileType, Ino, ROOT, RenameFlags, SetAttributes, Timestamp};
use syncline_fs::{AccessTime, Filesystem, FsError, Options};
use syncline_sim::{Latency, SimDevice, Simulation};
use syncline_store::{FormatOptions, Store, StoreError, StoreOptions, format};

const CALLER: Caller = Caller { uid: 0, gid: 0 };

/// A filesystem in a simulated run, and its expected contents.
struct Rig {
    simulation: Simulation,
    memory: Arc<MemoryDevice>,
    fs: Arc<Filesystem>,
    files: BTreeMap<String, (Ino, Vec<u8>)>,
    /// Number of errors for lack of room.
    refusals: u64,
}

fn image() -> Arc<MemoryDevice> {
    let memory = MemoryDevice::new(16 << 20);
    let root = Filesystem::initial_transaction(0, 0, 0o755, Timestamp { seconds: 1, nanoseconds: 0 });
    let options = FormatOptions {
        node_bytes: 4096,
        hash_seed: [2; 16],
        epoch: Some([3; 16]),
        ..FormatOptions::default()
    };
    let simulation = Simulation::new(0);
    simulation.run(format(memory.clone(), options, root, simulation.spawner())).unwrap().unwrap();
    memory
}

fn open(memory: &Arc<MemoryDevice>, seed: u64) -> (Simulation, Arc<Filesystem>) {
    let simulation = Simulation::new(seed);
    let device = SimDevice::new(&simulation, memory.clone(), Latency::default());
    let store_options = StoreOptions {
        node_cache_bytes: 1 << 20,
        memtable_bytes: 1 << 14,
        checkpoint_interval: Duration::from_millis(20),
        log_bytes: 1 << 17,
        seal_bytes: 1 << 12,
        unflushed_bytes: 1 << 18,
        epoch: Some([seed as u8 + 5; 16]),
        ..StoreOptions::default()
    };
    let options = Options {
        dirty_bytes_max: 1 << 20,
        writeback_start_bytes: 1 << 18,
        clock: simulation.clock(),
        access_time: AccessTime::Never,
        ..Options::default()
    };
    let spawn = simulation.spawner();
    let opening = async move {
        let (store, _) = Store::open(device, store_options, spawn.clone()).await.unwrap();
        Filesystem::open(store, spawn, options).await.unwrap()
    };
    let fs = simulation.run(opening).expect("opening ends");
    (simulation, fs)
}

impl Rig {
    /// Runs an operation. If it finds no room it is retried; the second time there is room.
    fn run<T, F>(&mut self, operation: impl Fn(Arc<Filesystem>) -> F) -> T
    where
        T: Send + 'static,
        F: Future<Output = Result<T, FsError>> + Send + 'static,
    {
        for _ in 0..8 {
            match self.simulation.run(operation(self.fs.clone())).expect("every operation ends") {
                Ok(answer) => return answer,
                Err(FsError::Store(StoreError::NoSpace)) => {
                    self.refusals += 1;
                    self.compare();
                }
                Err(error) => panic!("not an answer for want of room: {error}"),
            }
        }
        panic!("one allocation after another is refused only once");
    }

    /// Asserts that every file reads as it was written, even after a failed operation.
    fn compare(&self) {
        assert_eq!(self.fs.store().read_only_reason(), None);
        for (name, (ino, contents)) in &self.files {
            let (fs, ino, len) = (self.fs.clone(), *ino, contents.len() + 1);
            let read = self.simulation.run(async move { fs.read(ino, 0, len).await });
            assert!(read.expect("reading ends").unwrap().concat() == *contents, "{name}");
        }
    }

    fn create(&mut self, name: &str) {
        let bytes = name.as_bytes().to_vec();
        let attributes = self.run(|fs| {
            let name = bytes.clone();
            async move { fs.mknod(CALLER, ROOT, &name, FileType::Regular, 0o644, 0).await }
        });
        self.files.insert(name.to_owned(), (attributes.ino, Vec::new()));
    }

    fn write(&mut self, name: &str, offset: usize, len: usize, fill: u8) {
        let ino = self.files[name].0;
        let payload = AlignedBuf::copy_from(&vec![fill; len]).into_bytes().slice(..len);
        self.run(|fs| {
            let payload = payload.clone();
            async move { fs.write(ino, offset as u64, payload, false).await }
        });
        let contents = &mut self.files.get_mut(name).unwrap().1;
        contents.resize(contents.len().max(offset + len), 0);
        contents[offset..offset + len].fill(fill);
    }

    fn truncate(&mut self, name: &str, size: usize) {
        let ino = self.files[name].0;
        let set = SetAttributes { size: Some(size as u64), ..SetAttributes::default() };
        self.run(|fs| async move { fs.setattr(CALLER, ino, set).await });
        self.files.get_mut(name).unwrap().1.resize(size, 0);
    }

    fn fsync(&mut self, name: &str) {
        let ino = self.files[name].0;
        self.run(|fs| async move { fs.fsync(ino, false).await });
    }

    fn rename(&mut self, from: &str, to: &str) {
        let (one, other) = (from.as_bytes().to_vec(), to.as_bytes().to_vec());
        self.run(|fs| {
            let (one, other) = (one.clone(), other.clone());
            async move { fs.rename(ROOT, &one, ROOT, &other, RenameFlags::default()).await }
        });
        let file = self.files.remove(from).unwrap();
        self.files.insert(to.to_owned(), file);
    }

    fn unlink(&mut self, name: &str) {
        let bytes = name.as_bytes().to_vec();
        self.run(|fs| {
            let name = bytes.clone();
            async move { fs.unlink(ROOT, &name).await }
        });
        self.files.remove(name);
    }

    /// Operations of all kinds, with enough log for several segments and enough items for several
    /// checkpoints.
    fn work(&mut self) {
        for index in 0..12 {
            let name = format!("file{index}");
            self.create(&name);
            self.write(&name, 0, 1000 + index * 3000, index as u8 + 1);
            if index % 2 == 0 {
                self.fsync(&name);
            }
        }
        for round in 0..60 {
            let name = format!("file{}", round % 12);
            self.write(&name, round * 700, 9000, 100 + round as u8);
            self.fsync(&name);
            if round % 20 == 19 {
                self.run(|fs| async move { fs.syncfs().await });
            }
        }
        self.write("file3", 0, 900_000, 77);
        self.run(|fs| async move { fs.syncfs().await });
        self.truncate("file3", 50_001);
        self.create("temporary");
        self.write("temporary", 0, 20_000, 88);
        self.rename("temporary", "file5");
        self.unlink("file7");
        self.fsync("file3");
    }

    /// Asserts that the image can be emptied, unmounted and checked.
    fn end(mut self) {
        self.compare();
        self.run(|fs| async move { fs.syncfs().await });
        self.survives();
        let half: Vec<String> = self.files.keys().step_by(2).cloned().collect();
        half.iter().for_each(|name| self.unlink(name));
        let fs = self.fs.clone();
        let closing = async move {
            fs.close().await?;
            Ok::<(), FsError>(fs.store().close().await?)
        };
        self.simulation.run(closing).expect("closing ends").unwrap();
        self.survives();
    }

    /// Asserts that a power cut now leaves a sound image with everything in it.
    fn survives(&self) {
        let image = self.memory.snapshot();
        let spawn = self.simulation.spawner();
        let report = block_on(check(image.clone() as Arc<dyn Device>, spawn, &mut |_| {})).unwrap();
        assert!(report.findings.is_empty(), "{:?}", report.findings);
        let (simulation, fs) = open(&image, 9);
        for (name, (ino, contents)) in &self.files {
            let (fs, ino, len) = (fs.clone(), *ino, contents.len() + 1);
            let read = simulation.run(async move { fs.read(ino, 0, len).await });
            assert!(read.expect("reading ends").unwrap().concat() == *contents, "{name}");
        }
    }
}

fn sweep(times: u64) {
    let base = image();
    let (mut runs, mut answered) = (0, 0);
    for after in 0.. {
        let memory = base.snapshot();
        let (simulation, fs) = open(&memory, 1);
        let mut rig = Rig { simulation, memory, fs, files: BTreeMap::new(), refusals: 0 };
        rig.fs.store().refuse_allocations(after, times);
        rig.work();
        let refused = rig.fs.store().refuse_allocations(0, 0);
        answered += rig.refusals;
        rig.end();
        runs += 1;
        if refused == 0 {
            break;
        }
    }
    println!("{runs} runs, {answered} operations answered that there was no room");
    assert!(runs > 50 && answered > 0);
}

#[test]
fn each_allocation_in_turn_may_find_none() {
    sweep(1);
}

#[test]
fn each_three_allocations_in_turn_may_find_none() {
    sweep(3);
}

/// A writer that holds a lease waits for unlinked files to free their room. It must not wait for
/// its own file, which is removed only when the lease is free.
#[test]
fn a_writer_does_not_wait_for_the_removal_of_its_own_file() {
    for seed in 0..30 {
        let (simulation, fs) = open(&image(), seed);
        let spawn = simulation.spawner();
        let working = async move {
            let made = fs.mknod(CALLER, ROOT, b"file", FileType::Regular, 0o644, 0).await.unwrap();
            let other = fs.mknod(CALLER, ROOT, b"other", FileType::Regular, 0o644, 0).await.unwrap();
            fs.open_file(made.ino).await.unwrap();
            fs.unlink(ROOT, b"file").await.unwrap();
            fs.forget(made.ino, 1);
            let piece = AlignedBuf::zeroed(1 << 16).into_bytes();
            // Not quite full: the large write below is admitted and then finds too little.
            let mut offset = seed << 12;
            fs.write(other.ino, 0, AlignedBuf::zeroed(offset as usize).into_bytes(), false).await.unwrap();
            while fs.write(other.ino, offset, piece.clone(), false).await.is_ok() {
                offset += 1 << 16;
            }
            fs.fsync(other.ino, false).await.unwrap();
            let writer = fs.clone();
            let ended = Arc::new(std::sync::atomic::AtomicBool::new(false));
            let told = ended.clone();
            spawn.spawn(Box::pin(async move {
                let large = AlignedBuf::zeroed(1 << 19).into_bytes();
                let answer = writer.write(made.ino, 0, large, false).await;
                assert!(matches!(answer, Err(FsError::Store(StoreError::NoSpace) | FsError::Stale)));
                told.store(true, std::sync::atomic::Ordering::Release);
            }));
            for _ in 0..seed {
                futures_lite::future::yield_now().await;
            }
            fs.release_file(made.ino);
            while !ended.load(std::sync::atomic::Ordering::Acquire) {
                spawn.sleep(Duration::from_millis(1)).await;
            }
        };
        assert_eq!(simulation.run(working), Ok(()), "seed {seed}");
    }
}
