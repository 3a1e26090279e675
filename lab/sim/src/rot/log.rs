//! Rots every block of a log in turn: either everything acknowledged is there, or the store refuses
//! to open.

use super::{Rot, Versions};
use crate::{Latency, SimDevice, Simulation, Stalled, ThroughDevice};
use bytes::Bytes;
use parking_lot::Mutex;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::sync::Arc;
use std::time::Duration;
use syncline_device::{BLOCK_BYTES, Device, MemoryDevice, Spawn};
use syncline_format::{BlockAddr, BlockRun, Key};
use syncline_store::{
    Canary, FormatOptions, Lab, OpSeq, Store, StoreError, StoreOptions, Transaction, format,
};

/// Size of the image: the smallest there is, with the shortest segments.
const IMAGE_BYTES: u64 = 16 << 20;
const FIRST_OBJECT: u64 = 100;
const KIND: u8 = 2;
/// Tasks that commit and sync.
const TASKS: u64 = 3;

/// A store that lived, was idle for a while, and lost power.
pub struct LogLife {
    seed: u64,
    versions: Arc<Versions>,
    crashed: Arc<MemoryDevice>,
    history: History,
    /// The segments of the log.
    pub segments: Vec<BlockRun>,
    canary: Option<Canary>,
}

/// The history of the store.
#[derive(Clone, Default)]
struct History {
    /// In commit order.
    committed: Vec<(OpSeq, Vec<(Key, Bytes)>)>,
    /// The newest acknowledged transaction.
    acknowledged: OpSeq,
}

/// Statistics of a search through a log.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct LogSearch {
    /// Blocks of the log.
    pub blocks: u64,
    /// Segments it lies in.
    pub segments: u64,
    /// Images opened; each has a different block rotten, or a block rotten differently.
    pub images: u64,
    /// Images in which everything acknowledged was there.
    pub whole: u64,
    /// Images that were refused, with a message.
    pub refused: u64,
}

impl LogSearch {
    /// Adds another search's figures.
    pub fn add(&mut self, other: Self) {
        self.blocks += other.blocks;
        self.segments += other.segments;
        self.images += other.images;
        self.whole += other.whole;
        self.refused += other.refused;
    }
}

impl LogLife {
    /// A life determined by `seed`, whose log has several segments at the end.
    pub fn live(seed: u64, canary: Option<Canary>) -> Result<Self, String> {
        let simulation = Simulation::new(seed);
        let versions = Versions::of(MemoryDevice::new(IMAGE_BYTES));
        let options = FormatOptions { epoch: Some([3; 16]), ..FormatOptions::default() };
        let formatting = format(versions.clone(), options, Transaction::new(), simulation.spawner());
        run(&simulation, formatting)?.map_err(|error| error.to_string())?;
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let device: Arc<dyn Device> = SimDevice::new(&simulation, versions.clone(), Latency::default());
        let device = if rng.random() { ThroughDevice::new(device) } else { device };
        let options = StoreOptions {
            seal_bytes: 1 << rng.random_range(10..16),
            unflushed_bytes: 1 << rng.random_range(16..20),
            // No checkpoint: everything in the log is at stake.
            checkpoint_interval: Duration::from_secs(3600),
            lab: Lab::breaking(canary),
            epoch: Some(rng.random()),
            ..StoreOptions::default()
        };
        let history = Arc::new(Mutex::new(History::default()));
        let life = work(device, options, simulation.spawner(), history.clone(), rng.random());
        run(&simulation, life)??;
        simulation.kill();
        let crashed = versions.snapshot();
        let history = history.lock().clone();
        let mut life = Self { seed, versions, crashed, history, segments: Vec::new(), canary };
        let opening = Simulation::new(seed);
        let salvage = Store::open_to_salvage(life.crashed.clone(), opening.spawner());
        life.segments = run(&opening, salvage)?.map_err(|error| error.to_string())?.1.segments;
        Ok(life)
    }

    /// The blocks of the log, in order.
    pub fn blocks(&self) -> impl Iterator<Item = BlockAddr> {
        self.segments.iter().flat_map(|segment| segment.start..segment.end())
    }

    /// Rots each block of the log in every way, one after the other.
    pub fn search(&self) -> Result<LogSearch, String> {
        let segments = self.segments.len() as u64;
        let mut search = LogSearch { segments, ..LogSearch::default() };
        let mut rng = ChaCha8Rng::seed_from_u64(self.seed);
        for addr in self.blocks() {
            search.blocks += 1;
            let bit = rng.random_range(0..BLOCK_BYTES * 8);
            for rot in [Rot::Zeroed, Rot::Flipped(bit), Rot::Older, Rot::Neighbour] {
                let device = self.crashed.snapshot();
                if !rot.befall(&device, &self.versions, addr) {
                    continue;
                }
                search.images += 1;
                let was_refused = self.look_at(device);
                let was_refused = was_refused.map_err(|what| format!("block {addr} {rot}: {what}"))?;
                search.refused += u64::from(was_refused);
                search.whole += u64::from(!was_refused);
            }
        }
        Ok(search)
    }

    /// Opens an image with rot; returns true if that is refused. An error is silent loss or worse.
    fn look_at(&self, device: Arc<MemoryDevice>) -> Result<bool, String> {
        let rotten = device.snapshot();
        let opened = self.open(device, StoreOptions::default())?;
        match (opened.refusal, opened.missing) {
            (None, None) => return Ok(false),
            (None, Some(missing)) => return Err(format!("opened for writing, and {missing}")),
            (Some(_), _) => {}
        }
        // The rest can be rescued read-only, but not without a message if anything is missing.
        let rescued = self.open(rotten, StoreOptions { read_only: true, ..StoreOptions::default() })?;
        match rescued {
            Opened { refusal: Some(error), .. } => Err(format!("not even opened read-only: {error}")),
            Opened { missing: Some(missing), notes, .. } if notes.is_empty() => {
                Err(format!("opened read-only without a word, and {missing}"))
            }
            _ => Ok(true),
        }
    }

    fn open(&self, device: Arc<MemoryDevice>, options: StoreOptions) -> Result<Opened, String> {
        let simulation = Simulation::new(self.seed);
        // The canary applies to both the writer and the reader of the log.
        let options = StoreOptions { lab: Lab::breaking(self.canary), epoch: Some([9; 16]), ..options };
        let opening = Store::open(device, options, simulation.spawner());
        let history = self.history.clone();
        run(&simulation, async move {
            Ok(match opening.await {
                Ok((store, report)) => {
                    Opened { refusal: None, notes: report.notes, missing: history.compare(&store).await? }
                }
                Err(error) => Opened { refusal: Some(error), notes: Vec::new(), missing: None },
            })
        })?
    }
}

/// The result of opening an image.
struct Opened {
    refusal: Option<StoreError>,
    notes: Vec<String>,
    /// Acknowledged data that is missing.
    missing: Option<String>,
}

impl History {
    /// Acknowledged data that is missing, if any; an error if the contents are not a prefix of the
    /// history.
    async fn compare(&self, store: &Store) -> Result<Option<String>, String> {
        let mut first_missing = None;
        for (op, items) in &self.committed {
            for (key, value) in items {
                match store.get(*key).await.map_err(|error| error.to_string())? {
                    None => first_missing = first_missing.or(Some(*op)),
                    Some(found) if found != value => return Err(format!("{key:?} has a wrong value")),
                    Some(_) if first_missing.is_some() => {
                        return Err(format!("{key:?} is there, and what was committed before is not"));
                    }
                    Some(_) => {}
                }
            }
        }
        let missing = first_missing.filter(|op| *op <= self.acknowledged);
        Ok(missing.map(|op| format!("{op:?} is missing, {:?} was acknowledged", self.acknowledged)))
    }
}

fn run<T: Send + 'static>(
    simulation: &Simulation,
    future: impl Future<Output = T> + Send + 'static,
) -> Result<T, String> {
    simulation.run(future).map_err(|stalled: Stalled| format!("{stalled:?}"))
}

/// Commits and syncs until the log has several segments, then stays idle.
async fn work(
    device: Arc<dyn Device>,
    options: StoreOptions,
    spawn: Arc<dyn Spawn>,
    history: Arc<Mutex<History>>,
    seed: u64,
) -> Result<(), String> {
    let opened = Store::open(device, options, spawn.clone()).await;
    let (store, _) = opened.map_err(|error| error.to_string())?;
    let going = Arc::new(Mutex::new((TASKS, None::<StoreError>)));
    for task in 0..TASKS {
        let mut writer = Writer {
            rng: ChaCha8Rng::seed_from_u64(seed.wrapping_add(task)),
            store: store.clone(),
            history: history.clone(),
            spawn: spawn.clone(),
        };
        let going = going.clone();
        spawn.spawn(Box::pin(async move {
            let result = writer.work().await;
            let mut going = going.lock();
            going.0 -= 1;
            going.1 = going.1.take().or(result.err());
        }));
    }
    while going.lock().0 > 0 {
        spawn.sleep(Duration::from_millis(1)).await;
    }
    // Long enough for the marker that calls the last batch durable.
    spawn.sleep(Duration::from_secs(2)).await;
    let failed = going.lock().1.take();
    failed.map_or(Ok(()), |error| Err(error.to_string()))
}

/// One of the tasks that commit and sync.
struct Writer {
    rng: ChaCha8Rng,
    store: Arc<Store>,
    history: Arc<Mutex<History>>,
    spawn: Arc<dyn Spawn>,
}

impl Writer {
    async fn work(&mut self) -> Result<(), StoreError> {
        for _ in 0..self.rng.random_range(30..100) {
            match self.rng.random_range(0..100) {
                0 => self.store.checkpoint().await?,
                1..6 => self.spawn.sleep(Duration::from_millis(self.rng.random_range(1..600))).await,
                6..20 => drop(self.commit(1)?),
                // Longer than a segment, then longer than a few blocks.
                20 => self.commit_and_sync(120).await?,
                21..30 => self.commit_and_sync(10).await?,
                _ => self.commit_and_sync(1).await?,
            }
        }
        self.commit_and_sync(1).await
    }

    async fn commit_and_sync(&mut self, items_max: usize) -> Result<(), StoreError> {
        let op = self.commit(items_max)?;
        self.store.sync(op).await?;
        let mut history = self.history.lock();
        history.acknowledged = history.acknowledged.max(op);
        Ok(())
    }

    /// Commits and adds to the history, with nothing in between.
    fn commit(&mut self, items_max: usize) -> Result<OpSeq, StoreError> {
        let mut history = self.history.lock();
        let object = FIRST_OBJECT + history.committed.len() as u64;
        let items: Vec<_> = (0..self.rng.random_range(1..=items_max as u64))
            .map(|offset| {
                let text = format!("{object} {offset} ");
                let value = Bytes::from(text.repeat(self.rng.random_range(1..300)));
                (Key { object, kind: KIND, offset }, value)
            })
            .collect();
        let mut transaction = Transaction::new();
        items.iter().for_each(|(key, value)| transaction.put(*key, value.clone()));
        let op = self.store.commit(transaction)?;
        history.committed.push((op, items));
        Ok(op)
    }
}
