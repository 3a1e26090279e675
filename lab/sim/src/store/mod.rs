//! The store under power cuts: transactions over a plain ordered map, with data blocks beside it.

mod history;
mod snapshots;
mod verify;
mod workload;

pub use history::StoreHistory;
pub use verify::verify_space;

use crate::executor::spread;
use crate::lab::{Opened, Subject, Work, World};
use crate::rest::{Limits, Watched, WatchedStore};
use bytes::Bytes;
use history::STAMP;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use syncline_device::MemoryDevice;
use syncline_format::{BlockRun, Crc, Key};
use syncline_store::{FormatOptions, Lab, Store, StoreOptions, Transaction};

/// Lowest object number that the workload uses.
const FIRST_OBJECT: u64 = 100;
/// The kind of plain items.
const ITEM: u8 = 2;
/// The kind of items that name data.
const EXTENT: u8 = 3;
/// Size of the image: the smallest there is.
const IMAGE_BYTES: u64 = 16 << 20;

/// Memory that operations may hold beyond a limit because they were admitted below it: for each
/// task a few writes of at most 60 blocks, collected while there was no room to name them, and
/// their share of the log.
const IN_HAND_BYTES: u64 = 3 << 20;
/// The log's part of that.
const LOG_IN_HAND_BYTES: u64 = 128 << 10;

/// A store and its history; recovery must lead back to a prefix of that.
pub struct StoreSubject;

impl Subject for StoreSubject {
    type Model = StoreHistory;
    type Handle = Arc<Store>;

    fn base(&self) -> (Arc<MemoryDevice>, Arc<StoreHistory>) {
        static BASE: OnceLock<(Arc<MemoryDevice>, BTreeMap<Key, Bytes>, u64)> = OnceLock::new();
        let (image, items, op) = BASE.get_or_init(make_base);
        (image.snapshot(), Arc::new(StoreHistory::starting_with(items.clone(), *op, 7)))
    }

    fn open(&self, world: World, model: Arc<StoreHistory>, position: usize) -> Work<Opened<Self>> {
        Box::pin(async move {
            let options = options(&world);
            let opened = Store::open(world.device.clone(), options, world.spawn.clone()).await;
            let (store, _) = opened.map_err(|error| format!("the image does not open: {error}"))?;
            let recovered_at = world.log.position();
            let came_back = verify::verify(&world, &store, &model, position).await?;
            Ok(Opened { handle: store, model: Arc::new(came_back), recovered_at })
        })
    }

    fn watch(&self, world: &World, store: &Arc<Store>, model: &Arc<StoreHistory>) -> Arc<dyn Watched> {
        let limits = limits(&options(world));
        let verify = {
            let (store, model) = (store.clone(), model.clone());
            move || -> Work<()> {
                let (store, model) = (store.clone(), model.clone());
                Box::pin(async move { verify::verify_present(&store, &model).await })
            }
        };
        let contents = {
            let (store, model, image) = (store.clone(), model.clone(), world.image.clone());
            Box::new(move || verify::compare_device(&store, &model, &image))
        };
        let (store, verify) = (store.clone(), Box::new(verify));
        Arc::new(WatchedStore { store, limits, faulty: world.faulty, verify, contents })
    }

    fn work(&self, world: World, store: Arc<Store>, model: Arc<StoreHistory>) -> Work<()> {
        Box::pin(workload::work(world, store, model))
    }
}

/// Limits so low that seals, flushes and checkpoints are frequent.
fn options(world: &World) -> StoreOptions {
    let mut rng = ChaCha8Rng::seed_from_u64(world.seed);
    if world.slow {
        return slow_options(world, &mut rng);
    }
    StoreOptions {
        node_cache_bytes: if world.load.pressure { 32 << 10 } else { 8 << 20 },
        memtable_bytes: 1 << rng.random_range(12..18),
        checkpoint_interval: Duration::from_millis(rng.random_range(2..60)),
        log_bytes: 1 << rng.random_range(15..20),
        seal_bytes: 1 << rng.random_range(9..15),
        unflushed_bytes: 1 << rng.random_range(14..20),
        lab: Lab::breaking(world.canary),
        epoch: Some(rng.random()),
        discard: rng.random(),
        patience: Duration::ZERO,
        ..StoreOptions::default()
    }
}

/// Default intervals, and limits that are reached while a slow flush runs.
pub(crate) fn slow_options(world: &World, rng: &mut ChaCha8Rng) -> StoreOptions {
    StoreOptions {
        memtable_bytes: 1 << rng.random_range(16..22),
        checkpoint_interval: Duration::from_nanos(spread(rng, 1_000_000_000, 30_000_000_000)),
        log_bytes: 1 << rng.random_range(17..21),
        seal_bytes: 1 << rng.random_range(11..15),
        unflushed_bytes: 1 << rng.random_range(15..18),
        pending_bytes: 1 << rng.random_range(14..18),
        // It is measured in real time.
        patience: Duration::ZERO,
        lab: Lab::breaking(world.canary),
        epoch: Some(rng.random()),
        discard: rng.random(),
        ..StoreOptions::default()
    }
}

/// Memory that a store may hold: the documented limits, plus one operation of each task admitted
/// just below them.
pub(crate) fn limits(options: &StoreOptions) -> Limits {
    Limits {
        // Pending log is sealed into a batch no matter how long the preceding flush takes.
        unflushed_bytes: 4 * options.unflushed_bytes + options.pending_bytes as u64 + IN_HAND_BYTES,
        pending_log_bytes: options.pending_bytes as u64 + LOG_IN_HAND_BYTES,
        memtable_bytes: 2 * options.memtable_bytes as u64 + IN_HAND_BYTES,
    }
}

fn make_base() -> (Arc<MemoryDevice>, BTreeMap<Key, Bytes>, u64) {
    let device = MemoryDevice::new(IMAGE_BYTES);
    let mut transaction = Transaction::new();
    let mut items = BTreeMap::new();
    // Enough for a tree of three levels with the smallest nodes.
    for index in 0..400_u64 {
        let key = Key { object: FIRST_OBJECT + index % 40, kind: ITEM, offset: 1000 + index };
        let value = Bytes::from(format!("at first {index} ").repeat(1 + index as usize % 20));
        transaction.put(key, value.clone());
        items.insert(key, value);
    }
    let stamp = Bytes::copy_from_slice(&1_u64.to_le_bytes());
    transaction.put(STAMP, stamp.clone());
    items.insert(STAMP, stamp);
    transaction.count_objects(7);
    let options = FormatOptions {
        node_bytes: 4096,
        uuid: [1; 16],
        hash_seed: [2; 16],
        epoch: Some([3; 16]),
        first_object: FIRST_OBJECT,
        ..FormatOptions::default()
    };
    let simulation = crate::Simulation::new(0);
    let formatting = syncline_store::format(device.clone(), options, transaction, simulation.spawner());
    simulation.run(formatting).expect("a memory device stalls nobody").expect("the image is large enough");
    (device, items, 1)
}

/// The location of data that the workload wrote, as encoded in the item that names it.
#[derive(Clone, Debug)]
struct Placed {
    run: BlockRun,
    tag: u64,
    checksums: Vec<Crc>,
}

impl Placed {
    fn encode(&self) -> Bytes {
        let mut bytes = Vec::new();
        bytes.extend(self.run.start.to_le_bytes());
        bytes.extend(self.run.blocks.to_le_bytes());
        bytes.extend(self.tag.to_le_bytes());
        self.checksums.iter().for_each(|checksum| bytes.extend(checksum.to_le_bytes()));
        bytes.into()
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let number = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        let checksums =
            bytes.get(24..)?.chunks_exact(4).map(|c| u32::from_le_bytes([c[0], c[1], c[2], c[3]]));
        Some(Self {
            run: BlockRun::new(number(0)?, number(8)?),
            tag: number(16)?,
            checksums: checksums.collect(),
        })
    }
}
