//! Quotas that come and go while everything else runs.

use super::history::FsHistory;
use super::workload::{self, Failure, Mix};
use crate::lab::World;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use syncline_fs::{Filesystem, FsError, QuotaLimits};
use syncline_store::StoreError;

/// The usual work, and beside it a task that sets and removes quotas.
pub(super) async fn work(
    world: World,
    fs: Arc<Filesystem>,
    history: Arc<FsHistory>,
    mix: Mix,
) -> Result<(), String> {
    let (this_world, this_fs, this_history) = (world.clone(), fs.clone(), history.clone());
    let beside = move |stopping: Arc<AtomicBool>| async move {
        change_quotas(&this_world, &this_fs, &this_history, &stopping).await
    };
    workload::work_beside(world, fs, history, mix, beside).await
}

async fn change_quotas(
    world: &World,
    fs: &Arc<Filesystem>,
    history: &Arc<FsHistory>,
    stopping: &AtomicBool,
) -> Result<(), String> {
    let mut rng = ChaCha8Rng::seed_from_u64(world.seed ^ 0x9007a);
    while !stopping.load(Ordering::Acquire) {
        let directories = history.tree()?.directories();
        let dir = *directories.choose(&mut rng).expect("there is a root");
        // A call of the library, beside which no transaction is applied.
        let beside = fs.beside_transactions().await;
        let changed = if rng.random_range(0..4) == 0 {
            fs.remove_quota(dir).await
        } else {
            // Some limits are below the current usage.
            let bytes = if rng.random() { 0 } else { rng.random_range(1..2_000_000) };
            let inodes = if rng.random() { 0 } else { rng.random_range(1..30) };
            fs.set_quota(dir, QuotaLimits { bytes, inodes }).await.map(drop)
        };
        drop(beside);
        match changed.map_err(Failure::from) {
            Ok(()) | Err(Failure::Expected) => {}
            Err(Failure::Device(FsError::Store(StoreError::ReadOnly { .. }))) if world.faulty => {
                return Ok(());
            }
            Err(Failure::Device(_)) if world.faulty => {}
            Err(Failure::Device(error)) => return Err(format!("a quota could not be changed: {error}")),
            Err(Failure::Wrong(what)) => return Err(what),
        }
        world.nap(rng.random_range(100..20_000)).await;
    }
    Ok(())
}
