//! Files that can't be written back, since their extents are damaged, beside sound ones: no call on a sound
//! file fails, and its data is written back as soon as ever.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::sync::Arc;
use std::time::Duration;
use syncline_device::{AlignedBuf, MemoryDevice, Spawn};
use syncline_format::{Key, Kind};
use syncline_fs::types::{Caller, FileType, Ino, ROOT, Timestamp};
use syncline_fs::{AccessTime, Filesystem, FsError, Options};
use syncline_sim::{Latency, SimDevice, Simulation};
use syncline_store::{FormatOptions, Store, StoreOptions, Transaction, format};

const CALLER: Caller = Caller { uid: 0, gid: 0 };
const BLOCK: u64 = 4096;
/// Blocks of a file that is damaged.
const BLOCKS: u64 = 10;
/// Blocks of a sound file.
const SOUND_BLOCKS: u64 = 64;
const DIRTY_MAX: u64 = 1 << 20;
/// Dirty data is due after 5 s, and somebody looks each second.
const SOON: Duration = Duration::from_secs(7);

fn image(simulation: &Simulation) -> Arc<MemoryDevice> {
    let memory = MemoryDevice::new(32 << 20);
    let root = Filesystem::initial_transaction(0, 0, 0o755, Timestamp { seconds: 1, nanoseconds: 0 });
    let options = FormatOptions { hash_seed: [2; 16], epoch: Some([3; 16]), ..FormatOptions::default() };
    simulation.run(format(memory.clone(), options, root, simulation.spawner())).unwrap().unwrap();
    memory
}

struct Life {
    fs: Arc<Filesystem>,
    spawn: Arc<dyn Spawn>,
    rng: ChaCha8Rng,
    /// The damaged files, and which of them have accepted data that is stuck.
    damaged: Vec<(Ino, bool)>,
    /// The sound files, and the byte that fills each of their blocks.
    sound: Vec<(Ino, Vec<u8>)>,
}

impl Life {
    async fn create(&self, name: String) -> Ino {
        self.fs.mknod(CALLER, ROOT, name.as_bytes(), FileType::Regular, 0o644, 0).await.unwrap().ino
    }

    async fn write(&self, ino: Ino, block: u64, blocks: u64, fill: u8) -> Result<(), FsError> {
        let data = AlignedBuf::copy_from(&vec![fill; (blocks * BLOCK) as usize]).into_bytes();
        self.fs.write(ino, block * BLOCK, data, false).await
    }

    /// Makes the files, and makes the first extent of some undecodable.
    async fn make(&mut self) {
        for index in 0..self.rng.random_range(1..25) {
            let ino = self.create(format!("damaged{index}")).await;
            self.write(ino, 0, BLOCKS, 1).await.unwrap();
            self.damaged.push((ino, false));
        }
        for index in 0..self.rng.random_range(1..40) {
            let ino = self.create(format!("sound{index}")).await;
            self.sound.push((ino, vec![0; SOUND_BLOCKS as usize]));
        }
        self.fs.syncfs().await.unwrap();
        let store = self.fs.store();
        for (ino, _) in &self.damaged {
            let key = Key::new(*ino, Kind::Extent, 0);
            let mut value = store.get(key).await.unwrap().unwrap().to_vec();
            value[8..10].fill(0);
            let mut transaction = Transaction::new();
            transaction.put(key, value);
            store.commit(transaction).unwrap();
        }
    }

    async fn write_damaged(&mut self) {
        let index = self.rng.random_range(0..self.damaged.len());
        // It may be refused, since much is stuck.
        if self.write(self.damaged[index].0, 0, BLOCKS, 2).await.is_ok() {
            self.damaged[index].1 = true;
        }
    }

    async fn write_sound(&mut self) -> Result<(), String> {
        let index = self.rng.random_range(0..self.sound.len());
        let first = self.rng.random_range(0..SOUND_BLOCKS);
        let blocks = self.rng.random_range(1..=SOUND_BLOCKS - first);
        let fill = self.rng.random_range(1..255);
        let (ino, _) = self.sound[index];
        let written = self.write(ino, first, blocks, fill).await;
        written.map_err(|error| format!("a write to a sound file: {error}"))?;
        self.sound[index].1[first as usize..(first + blocks) as usize].fill(fill);
        Ok(())
    }

    /// After a while without requests only damaged files are dirty.
    async fn wait(&self) -> Result<(), String> {
        self.spawn.sleep(SOON).await;
        let stuck = self.damaged.iter().filter(|(_, stuck)| *stuck).count() as u64;
        match self.fs.counters().dirty_bytes {
            dirty if dirty > stuck * BLOCKS * BLOCK => {
                Err(format!("{dirty} bytes are dirty, and {stuck} damaged files are"))
            }
            _ => Ok(()),
        }
    }

    async fn act(&mut self) -> Result<(), String> {
        match self.rng.random_range(0..20) {
            0..5 => self.write_damaged().await,
            5..15 => self.write_sound().await?,
            15 | 16 => {
                let (ino, _) = self.sound[self.rng.random_range(0..self.sound.len())];
                let synced = self.fs.fsync(ino, self.rng.random()).await;
                synced.map_err(|error| format!("an fsync of a sound file: {error}"))?;
            }
            17 => {
                let (ino, stuck) = self.damaged[self.rng.random_range(0..self.damaged.len())];
                if self.fs.fsync(ino, false).await.is_ok() && stuck {
                    return Err("an fsync of a damaged file is content".to_owned());
                }
            }
            18 => self.spawn.sleep(Duration::from_millis(self.rng.random_range(0..3000))).await,
            _ => self.wait().await?,
        }
        match self.fs.counters().dirty_bytes {
            dirty if dirty > DIRTY_MAX * 3 / 2 => Err(format!("{dirty} bytes are dirty")),
            _ => Ok(()),
        }
    }

    async fn compare(&self) -> Result<(), String> {
        for (ino, expected) in &self.sound {
            for (block, fill) in (0..).zip(expected) {
                let pieces = self.fs.read(*ino, block * BLOCK, BLOCK as usize).await;
                let bytes = pieces.map_err(|error| error.to_string())?.concat();
                if bytes.iter().any(|byte| byte != fill) || (bytes.is_empty() && *fill != 0) {
                    return Err(format!("block {block} of a sound file does not hold {fill}"));
                }
            }
        }
        Ok(())
    }
}

fn live(seed: u64) -> Result<(), String> {
    let simulation = Simulation::new(seed);
    let device = SimDevice::new(&simulation, image(&simulation), Latency::default());
    let store_options = StoreOptions { epoch: Some([5; 16]), ..StoreOptions::default() };
    let options = Options {
        dirty_bytes_max: DIRTY_MAX,
        writeback_start_bytes: DIRTY_MAX / 2,
        access_time: AccessTime::Never,
        clock: simulation.clock(),
        ..Options::default()
    };
    let spawn = simulation.spawner();
    let living = async move {
        let (store, _) = Store::open(device, store_options, spawn.clone()).await.unwrap();
        let fs = Filesystem::open(store, spawn.clone(), options).await.unwrap();
        let rng = ChaCha8Rng::seed_from_u64(seed);
        let mut life = Life { fs, spawn, rng, damaged: Vec::new(), sound: Vec::new() };
        life.make().await;
        for _ in 0..200 {
            life.act().await?;
        }
        life.wait().await?;
        life.compare().await
    };
    simulation.run(living).expect("somebody waits for ever")
}

#[test]
fn sound_files_are_written_as_if_there_were_no_damaged_ones() {
    for seed in 0..40 {
        live(seed).unwrap_or_else(|what| panic!("seed {seed}: {what}"));
    }
}
