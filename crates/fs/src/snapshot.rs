//! Snapshots of the whole filesystem.

use crate::FsError;
use crate::filesystem::Filesystem;
use syncline_store::{Canary, Snapshot, SnapshotUsage, StoreError};

/// How often a snapshot is tried beside those who write to a full filesystem.
const TRIES_MAX: u32 = 3;

impl Filesystem {
    /// Makes a snapshot: what was written before this call is in it, and it is durable when this returns. Writers go on meanwhile.
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
                // What others have written meanwhile must have room beside it.
                Err(StoreError::NoSpace) if tries < TRIES_MAX && self.data.dirty_bytes() > 0 => tries += 1,
                made => return Ok(made?),
            }
        }
    }

    /// Deletes a snapshot that is not mounted anywhere. What only it kept is free when this returns.
    pub async fn delete_snapshot(&self, name: &str) -> Result<(), FsError> {
        self.store.delete_snapshot(name).await?;
        self.retry_orphans();
        Ok(())
    }

    /// The snapshots in the order in which they were made, each with the blocks that only it uses.
    pub async fn snapshots(&self) -> Result<Vec<SnapshotUsage>, FsError> {
        Ok(self.store.snapshot_usage().await?)
    }
}
