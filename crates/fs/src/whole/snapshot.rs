//! Snapshots of the whole filesystem.

use crate::FsError;
use crate::data;
use crate::filesystem::Filesystem;
use std::pin::Pin;
use syncline_store::{Canary, Hold, Snapshot, SnapshotUsage, StoreError};

/// How often to try to make a snapshot while writes fill the filesystem.
const TRIES_MAX: u32 = 3;
/// Dirty bytes that are submitted while everybody stands still: 64 blocks take half a millisecond
/// even if each is an extent of its own.
const LITTLE_BYTES: u64 = 256 << 10;
/// How often everything is written back to come to so little, while each time leaves less. Writers may
/// fill memory as fast as the device empties it.
const ROUNDS_MAX: u32 = 8;

impl Filesystem {
    /// Makes a snapshot of one moment (promise P10): everything written or changed before this call
    /// is in it, and nothing is without all that was done before it. It is durable when this
    /// returns. Writers stand still only while the little that is dirty then is submitted.
    pub async fn create_snapshot(&self, name: &str) -> Result<Snapshot, FsError> {
        let mut tries = 1;
        loop {
            self.write_most_back().await?;
            let created_ns = self.now_ns();
            let submit =
                || -> Pin<Box<dyn Future<Output = _> + Send + '_>> { Box::pin(self.submit_for_snapshot()) };
            match self.store.create_snapshot_with(name, created_ns, &submit).await {
                // Data that others have written meanwhile needs room beside the snapshot: write it
                // back and try again.
                Err(FsError::Store(StoreError::NoSpace))
                    if tries < TRIES_MAX && self.data.queue.dirty_bytes() > 0 =>
                {
                    tries += 1
                }
                made => return made,
            }
        }
    }

    /// Keeps the blocks of an existing snapshot for a fork. The hold is durable when this returns;
    /// deleting it by its name releases it.
    pub async fn hold_snapshot(&self, hold: &Hold) -> Result<Snapshot, FsError> {
        Ok(self.store.hold_snapshot(hold, self.now_ns()).await?)
    }

    /// Nanoseconds since 1970.
    fn now_ns(&self) -> u64 {
        let now = self.now();
        let seconds = u64::try_from(now.seconds).unwrap_or(0);
        seconds.saturating_mul(1_000_000_000).saturating_add(u64::from(now.nanoseconds))
    }

    /// Leaves little to do while everybody stands still.
    async fn write_most_back(&self) -> Result<(), FsError> {
        if self.store.breaks(Canary::SnapshotWithoutData) {
            return Ok(());
        }
        self.log_access_times().await?;
        let mut before = u64::MAX;
        for _ in 0..ROUNDS_MAX {
            self.write_back().await?;
            // The snapshot has to wait for this, and writers go on meanwhile.
            self.store.checkpoint_over().await;
            let dirty = self.data.queue.dirty_bytes();
            if dirty <= LITTLE_BYTES || dirty > before / 4 * 3 {
                break;
            }
            before = dirty;
        }
        self.store.give_way();
        Ok(())
    }

    async fn submit_for_snapshot(&self) -> Result<(), FsError> {
        match self.store.breaks(Canary::SnapshotWithoutData) {
            true => Ok(()),
            false => data::submit_everything(self).await,
        }
    }

    /// Deletes a snapshot that is not mounted anywhere. Blocks that only this snapshot kept are
    /// free when this returns.
    pub async fn delete_snapshot(&self, name: &str) -> Result<(), FsError> {
        self.store.delete_snapshot(name).await?;
        self.retry_orphans();
        Ok(())
    }

    /// The snapshots in the order of creation, each with the number of blocks that only it uses.
    pub async fn snapshots(&self) -> Result<Vec<SnapshotUsage>, FsError> {
        let mut all = self.store.snapshot_usage().await?;
        all.retain(|usage| usage.snapshot.is_visible());
        Ok(all)
    }
}
