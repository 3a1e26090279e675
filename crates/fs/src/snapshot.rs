//! Snapshots of the whole filesystem.

use crate::FsError;
use crate::filesystem::Filesystem;
use syncline_store::{Canary, Snapshot, SnapshotUsage, StoreError};

/// How often to try to make a snapshot while writes fill the filesystem.
const TRIES_MAX: u32 = 3;

impl Filesystem {
    /// Makes a snapshot. Everything written before this call is in it, and it is durable when this
    /// returns. Writers continue meanwhile.
    pub async fn create_snapshot(&self, name: &str) -> Result<Snapshot, FsError> {
        let mut tries = 1;
        loop {
            if !self.store.breaks(Canary::SnapshotWithoutData) {
                self.log_access_times().await?;
                self.write_back().await?;
            }
            self.store.give_way();
            let now = self.now();
            let seconds = u64::try_from(now.seconds).unwrap_or(0);
            let created_ns = seconds.saturating_mul(1_000_000_000).saturating_add(u64::from(now.nanoseconds));
            match self.store.create_snapshot(name, created_ns).await {
                // Data that others have written meanwhile needs room beside the snapshot: write it
                // back and try again.
                Err(StoreError::NoSpace) if tries < TRIES_MAX && self.data.queue.dirty_bytes() > 0 => {
                    tries += 1
                }
                made => return Ok(made?),
            }
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
        all.retain(|usage| !usage.snapshot.is_receiving());
        Ok(all)
    }
}
