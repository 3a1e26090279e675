//! The image of a fork: what lies in its base was made by a life of the laboratory, and all other blocks
//! of the base are garbage by the time that the fork is used.

use super::verify::read_all;
use super::{Base, FsHistory, FsSubject};
use crate::lab::{Plan, Subject, World};
use crate::{Simulation, fs::last_op};
use bytes::Bytes;
use std::sync::{Arc, OnceLock};
use syncline_device::{BLOCK_BYTES, Device, DeviceExt, FlushTracker, MemoryDevice, block_on};
use syncline_format::BlockRun;
use syncline_fs::{Filesystem, Options};
use syncline_store::{Hold, PageReader, Store, StoreOptions};

/// The snapshot of which the fork is made.
const SNAPSHOT: &str = "begin";

/// The base's device, and the fork's own storage with its history.
pub(super) struct Made {
    pub(super) base: Arc<MemoryDevice>,
    pub(super) own: Arc<MemoryDevice>,
    start: (crate::model::Tree, super::verify::Contents, u64),
}

impl Made {
    /// The history that the fork begins with.
    pub(super) fn history(&self) -> Arc<FsHistory> {
        let (tree, contents, op) = &self.start;
        Arc::new(FsHistory::starting_with(tree.clone(), contents, *op))
    }
}

pub(super) fn made() -> &'static Made {
    static MADE: OnceLock<Made> = OnceLock::new();
    MADE.get_or_init(make)
}

/// The own storage of a fork, and the history that it begins with.
pub(super) fn base() -> Base {
    (made().own.snapshot(), made().history())
}

/// The device of the fork whose own storage this is.
pub(super) async fn open(own: Arc<dyn Device>) -> Result<Arc<dyn Device>, String> {
    on(own, made().base.clone()).await
}

/// The device of a fork.
pub(super) async fn on(own: Arc<dyn Device>, base: Arc<dyn Device>) -> Result<Arc<dyn Device>, String> {
    let wrong = |error| format!("the fork does not open: {error}");
    let record = syncline_fork::record_of(&own).await.map_err(wrong)?;
    let record = record.ok_or("the superblocks tell of no fork")?;
    let fork = syncline_fork::open(own, base, &record).await.map_err(wrong)?;
    Ok(fork)
}

fn make() -> Made {
    const SEED: u64 = 7;
    let subject = FsSubject::EVERYTHING;
    let (base, history) = subject.base();
    let simulation = Simulation::new(SEED);
    let (device, spawn) = (base.clone(), simulation.spawner());
    let world = World::elsewhere(device.clone(), &base, &simulation, SEED, Plan::default());
    let lived = async move {
        let opened = subject.open(world.clone(), history, 0).await?;
        subject.work(world, opened.handle, opened.model).await?;
        let wrong = |error: &dyn std::fmt::Display| error.to_string();
        let (store, _) = Store::open(device, StoreOptions::default(), spawn.clone())
            .await
            .map_err(|error| wrong(&error))?;
        let fs = Filesystem::open(store, spawn, Options::default()).await.map_err(|error| wrong(&error))?;
        let snapshot = fs.create_snapshot(SNAPSHOT).await.map_err(|error| wrong(&error))?;
        let (tree, contents) = read_all(&fs).await?;
        let hold = Hold::new(snapshot.id, 5, "fork".as_ref());
        fs.hold_snapshot(&hold).await.map_err(|error| wrong(&error))?;
        fs.close().await.map_err(|error| wrong(&error))?;
        fs.store().close().await.map_err(|error| wrong(&error))?;
        Ok::<_, String>((tree, contents, hold.name()))
    };
    let lived = simulation.run(lived).expect("a memory device stalls nobody");
    let (tree, contents, hold) = lived.expect("the workload runs on a sound device");
    simulation.kill();
    let own = MemoryDevice::new(base.size_bytes());
    let kept = block_on(async {
        let claimed = syncline_fork::Base::claim(base.clone(), &hold).await?;
        let kept = claimed.kept().clone();
        syncline_fork::make(own.clone(), claimed, "base".as_ref()).await?;
        Ok::<_, syncline_fork::ForkError>(kept)
    });
    let kept = kept.expect("a memory device has room for a fork");
    spoil(&base, &kept);
    let op = last_op(own.snapshot());
    Made { base, own, start: (tree, contents, op) }
}

/// Overwrites the blocks that the base may use for anything: all but those that the snapshot keeps and the
/// table of snapshots.
fn spoil(base: &Arc<MemoryDevice>, kept: &syncline_store::KeptMap) {
    let device: Arc<dyn Device> = base.clone();
    let superblock =
        block_on(syncline_store::read_superblocks(&device)).expect("it was just closed").superblock;
    let pages = PageReader::new(FlushTracker::new(device.clone()));
    let table = block_on(syncline_store::table_of_snapshots(&pages, &superblock)).expect("it has snapshots");
    for run in kept.without(&[superblock.geometry.usable()]) {
        for block in (run.start..run.end()).filter(|block| table.iter().all(|run| run.start != *block)) {
            let garbage = Bytes::from(vec![0xAA; BLOCK_BYTES]);
            let at = BlockRun::new(block, 1).offset_bytes();
            block_on(device.write_at(at, vec![garbage])).expect("it is inside");
        }
    }
}
