//! A filesystem that is grown while everything else runs, with snapshots of all its sizes.

use super::history::FsHistory;
use super::workload::{self, Failure, Mix};
use crate::lab::World;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use syncline_format::BLOCK_BYTES;
use syncline_fs::{Filesystem, FsError};
use syncline_store::StoreError;

/// The smallest growth.
const STEP_BYTES: u64 = 64 << 10;

/// The usual work, and beside it a task that grows the filesystem.
pub(super) async fn work(world: World, fs: Arc<Filesystem>, history: Arc<FsHistory>) -> Result<(), String> {
    let (this_world, this_fs) = (world.clone(), fs.clone());
    let beside = move |stopping| async move { grow(&this_world, &this_fs, stopping).await };
    workload::work_beside(world, fs, history, Mix::Everything, beside).await
}

async fn grow(world: &World, fs: &Arc<Filesystem>, stopping: Arc<AtomicBool>) -> Result<(), String> {
    let mut rng = ChaCha8Rng::seed_from_u64(world.seed ^ 0x960e);
    while !stopping.load(Ordering::Acquire) {
        world.nap(rng.random_range(100..10_000)).await;
        match enlarge(fs, &mut rng).await.map_err(Failure::from) {
            Ok(()) | Err(Failure::Expected) => {}
            Err(Failure::Device(FsError::Store(StoreError::ReadOnly { .. }))) if world.faulty => {
                return Ok(());
            }
            Err(Failure::Device(_)) if world.faulty => {}
            Err(Failure::Device(error)) => return Err(format!("it could not be resized: {error}")),
            Err(Failure::Wrong(what)) => return Err(what),
        }
    }
    Ok(())
}

async fn enlarge(fs: &Arc<Filesystem>, rng: &mut ChaCha8Rng) -> Result<(), FsError> {
    let store = fs.store();
    let present = store.geometry().total_blocks * BLOCK_BYTES as u64;
    let most = store.device().size_bytes();
    if present + STEP_BYTES > most {
        return Ok(());
    }
    let wanted = match rng.random_range(0..3) {
        0 => present + STEP_BYTES,
        1 => rng.random_range(present + STEP_BYTES..=most),
        _ => most,
    };
    store.enlarge(Some(wanted)).await?;
    Ok(())
}
