//! A full filesystem keeps working and opens again, however fragmented its free space is and
//! however many operations compete for it.

use std::sync::{Arc, Mutex};
use std::time::Duration;
use syncline_check::check;
use syncline_device::{AlignedBuf, MemoryDevice, block_on};
use syncline_fs::types::{Caller, FileType, Ino, ROOT, Timestamp, XattrMode};
use syncline_fs::{AccessTime, Filesystem, FsError, Options};
use syncline_sim::{Latency, SimDevice, Simulation};
use syncline_store::{Canary, FormatOptions, Lab, Metadata, Store, StoreError, StoreOptions, format};

const CALLER: Caller = Caller { uid: 0, gid: 0 };
const BLOCK: usize = 4096;

/// A filesystem and the files that were synced.
struct Life {
    simulation: Simulation,
    memory: Arc<MemoryDevice>,
    fs: Arc<Filesystem>,
    files: Vec<(Ino, String, usize, u8)>,
    /// Number of files ever created.
    made: usize,
}

/// `names` decides the position of each name in the tree.
fn image(node_bytes: u32, metadata: Metadata, names: u8) -> Arc<MemoryDevice> {
    let memory = MemoryDevice::new(16 << 20);
    let root = Filesystem::initial_transaction(0, 0, 0o755, Timestamp { seconds: 1, nanoseconds: 0 });
    let hash_seed = [names; 16];
    let epoch = Some([3; 16]);
    let options = FormatOptions { node_bytes, metadata, hash_seed, epoch, ..FormatOptions::default() };
    let simulation = Simulation::new(0);
    simulation.run(format(memory.clone(), options, root, simulation.spawner())).unwrap().unwrap();
    memory
}

fn open(
    memory: &Arc<MemoryDevice>,
    seed: u64,
    canary: Option<Canary>,
) -> Result<(Simulation, Arc<Filesystem>), String> {
    let simulation = Simulation::new(seed);
    let device = SimDevice::new(&simulation, memory.clone(), Latency::default());
    let store_options = StoreOptions {
        epoch: Some([seed as u8 + 5; 16]),
        lab: Lab::breaking(canary),
        ..StoreOptions::default()
    };
    let options = Options { clock: simulation.clock(), access_time: AccessTime::Never, ..Options::default() };
    let spawn = simulation.spawner();
    let opening = async move {
        let (store, _) =
            Store::open(device, store_options, spawn.clone()).await.map_err(|error| error.to_string())?;
        Filesystem::open(store, spawn, options).await.map_err(|error| error.to_string())
    };
    let fs = simulation.run(opening).expect("opening ends")?;
    Ok((simulation, fs))
}

impl Life {
    fn begin(node_bytes: u32, metadata: Metadata, names: u8, canary: Option<Canary>) -> Self {
        let memory = image(node_bytes, metadata, names);
        let (simulation, fs) = open(&memory, 1, canary).unwrap();
        Self { simulation, memory, fs, files: Vec::new(), made: 0 }
    }

    fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, FsError>> + Send + 'static,
    ) -> Result<T, FsError> {
        self.simulation.run(work).expect("every operation ends")
    }

    /// Creates a file of this many blocks; returns false if there is no room.
    fn make(&mut self, blocks: usize) -> bool {
        let (fs, name, fill) = (self.fs.clone(), format!("file {}", self.made), self.made as u8 | 1);
        self.made += 1;
        let bytes = name.clone().into_bytes();
        let made = self.run(async move {
            let ino = fs.mknod(CALLER, ROOT, &bytes, FileType::Regular, 0o644, 0).await?.ino;
            let data = AlignedBuf::copy_from(&vec![fill; blocks * BLOCK]).into_bytes();
            let written = fs.write(ino, 0, data, false).await;
            if written.is_err() {
                fs.unlink(ROOT, &bytes).await?;
            }
            fs.forget(ino, 1);
            written.map(|_| ino)
        });
        match made {
            Ok(ino) => self.files.push((ino, name, blocks, fill)),
            Err(FsError::Store(StoreError::NoSpace)) => return false,
            Err(error) => panic!("{error}"),
        }
        true
    }

    fn remove_every(&mut self, nth: usize) {
        let mut index = 0;
        let (gone, stay) = std::mem::take(&mut self.files).into_iter().partition(|_| {
            index += 1;
            index % nth == 0
        });
        self.files = stay;
        let gone: Vec<(Ino, String, usize, u8)> = gone;
        for (_, name, _, _) in gone {
            let fs = self.fs.clone();
            self.run(async move { fs.unlink(ROOT, name.as_bytes()).await })
                .expect("what makes room has room");
        }
    }

    /// Total blocks of all files.
    fn blocks(&self) -> usize {
        self.files.iter().map(|(_, _, blocks, _)| blocks).sum()
    }

    fn try_sync(&self) -> Result<(), String> {
        let fs = self.fs.clone();
        self.run(async move { fs.syncfs().await })
            .map_err(|error| format!("what was accepted has no room: {error}"))
    }

    fn sync(&self) {
        assert_eq!(self.try_sync(), Ok(()));
    }

    /// Closes and reopens it, like an unmount and a mount.
    fn again(mut self) -> Result<Self, String> {
        let fs = self.fs.clone();
        let closing = async move {
            fs.close().await?;
            Ok(fs.store().close().await?)
        };
        self.run(closing).map_err(|error| error.to_string())?;
        let (memory, spawn) = (self.memory.clone(), self.simulation.spawner());
        let report = block_on(check(memory.clone(), spawn, &mut |_| {})).unwrap();
        assert!(report.findings.is_empty(), "{:?}", report.findings);
        (self.simulation, self.fs) = open(&memory, 2, None)?;
        Ok(self)
    }

    /// Asserts that all files read as they were written.
    fn compare(&self) {
        for (ino, name, blocks, fill) in &self.files {
            let (fs, ino, len) = (self.fs.clone(), *ino, blocks * BLOCK);
            let read = self.run(async move { fs.read(ino, 0, len + 1).await }).unwrap().concat();
            assert!(read == vec![*fill; len], "{name}");
        }
    }
}

/// Fills the image with files of one block; then repeatedly removes some and fills the holes,
/// longer files first.
fn live(node_bytes: u32, metadata: Metadata, names: u8, canary: Option<Canary>) -> Result<(), String> {
    let mut life = Life::begin(node_bytes, metadata, names, canary);
    while life.make(1) {}
    assert!(life.files.len() > 2200, "{} files", life.files.len());
    for (round, nth) in [2, 3, 2, 3].into_iter().enumerate() {
        let before: usize = life.blocks();
        life.remove_every(nth);
        life.try_sync()?;
        let left = life.blocks();
        for blocks in [128, 32, 16, 8, 4, 3, 2, 1] {
            // A fifth of the holes for each size, so that all sizes have a turn.
            let full = life.blocks() + (before - left) / 5;
            while life.blocks() + blocks <= full && life.make(blocks) {}
            life.try_sync()?;
        }
        let filled = life.blocks() - left;
        assert!(
            filled * 5 > (before - left) * 4,
            "round {round}: {filled} of {} blocks in holes",
            before - left
        );
    }
    let mut life = life.again()?;
    life.compare();
    life.remove_every(3);
    life.sync();
    assert!(life.make(20));
    life.sync();
    life.again().map(|life| life.compare())
}

#[test]
fn a_full_filesystem_in_small_pieces_goes_on_and_opens_again() {
    for node_bytes in [4096, 16384, 65536] {
        for (metadata, names) in (0..6).flat_map(|names| [(Metadata::Dup, names), (Metadata::Single, names)])
        {
            let lived = live(node_bytes, metadata, names, None);
            assert_eq!(lived, Ok(()), "nodes of {node_bytes} bytes, {metadata:?}, names {names}");
        }
    }
}

#[test]
fn without_room_that_lies_together_it_would_not() {
    assert!(live(16384, Metadata::Dup, 0, Some(Canary::ScatteredRoom)).is_err());
}

/// Many large xattrs at once, each admitted while there is room for one.
#[test]
fn what_is_admitted_at_once_has_room_together() {
    let mut life = Life::begin(16384, Metadata::Dup, 0, None);
    while life.make(1) {}
    let files: Vec<Ino> = life.files.iter().map(|(ino, ..)| *ino).take(300).collect();
    for (_, name, ..) in life.files.split_off(life.files.len() - 400) {
        let fs = life.fs.clone();
        life.run(async move { fs.unlink(ROOT, name.as_bytes()).await }).unwrap();
    }
    life.sync();
    // Nothing is cached: each operation waits for the device, and others are admitted meanwhile.
    let life = life.again().unwrap();
    let spawn = life.simulation.spawner();
    let answers = Arc::new(Mutex::new(Vec::new()));
    for ino in &files {
        let (fs, ino, answers) = (life.fs.clone(), *ino, answers.clone());
        spawn.spawn(Box::pin(async move {
            let set = fs.setxattr(ino, b"user.large", &vec![7; 60_000], XattrMode::Set).await;
            answers.lock().unwrap().push(set);
        }));
    }
    let (fs, waiting) = (life.fs.clone(), spawn.clone());
    let (all, asked) = (files.len(), answers.clone());
    life.run(async move {
        while asked.lock().unwrap().len() < all {
            waiting.sleep(Duration::from_millis(1)).await;
        }
        fs.store().checkpoint().await.map_err(FsError::from)
    })
    .expect("what was admitted has room");
    let set = answers.lock().unwrap().iter().filter(|answer| answer.is_ok()).count();
    let full = |answer: &Result<(), FsError>| matches!(answer, Err(FsError::Store(StoreError::NoSpace)));
    let refused = answers.lock().unwrap().iter().filter(|answer| full(answer)).count();
    println!("{set} set, {refused} refused");
    assert!(set > 0 && refused > 0 && set + refused == files.len(), "{set} set, {refused} refused");
    life.again().unwrap().compare();
}
