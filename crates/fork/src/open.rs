//! Opening a fork: finding its base, and checking that it is the right one.

use crate::{ForkError, Forked};
use std::path::Path;
use std::sync::Arc;
use syncline_device::{Device, FlushTracker};
use syncline_format::BLOCK_BYTES;
use syncline_format::fork::ForkRecord;
use syncline_format::superblock::Superblock;
use syncline_store::{
    KeptMap, PageReader, Snapshot, SnapshotError, StoreError, claim_snapshot, read_snapshots,
};

/// An image of which a snapshot, or a hold of one, is claimed as long as the device is open.
pub struct Base {
    pub(crate) device: Arc<dyn Device>,
    pub(crate) superblock: Superblock,
    /// The claimed entry of its table of snapshots.
    pub(crate) claimed: Snapshot,
    /// The blocks that the entry keeps.
    pub(crate) kept: KeptMap,
}

impl Base {
    /// Claims the entry of this name in the table of snapshots: a snapshot, or a hold. `device` is open
    /// beside a possible writer.
    pub async fn claim(device: Arc<dyn Device>, name: &str) -> Result<Self, ForkError> {
        Self::claim_entry(device, name, |entry| entry.name == name).await
    }

    async fn claim_entry(
        device: Arc<dyn Device>,
        name: &str,
        is_it: impl Fn(&Snapshot) -> bool,
    ) -> Result<Self, ForkError> {
        let (superblock, claimed) = claim_snapshot(&device, name, is_it).await?;
        // A fork has the size that the image had then.
        let then = claimed.geometry(superblock.geometry);
        let pages = PageReader::new(FlushTracker::new(device.clone()));
        let kept = KeptMap::union(&pages, then, &[(then, claimed.space)]).await;
        Ok(Self { device, superblock, claimed, kept: kept.map_err(StoreError::from)? })
    }

    /// The blocks that the claimed entry keeps.
    pub fn kept(&self) -> &KeptMap {
        &self.kept
    }

    /// The record for a fork that the claimed entry of the image at `base` keeps.
    pub fn record(&self, sequence: u64, base: &Path) -> ForkRecord {
        let Snapshot { id, tree, space, .. } = self.claimed;
        let fork_id = self.claimed.hold().map_or(0, |hold| hold.fork_id);
        ForkRecord { sequence, fork_id, hold: id, tree, space, base: base.to_owned() }
    }

    /// The snapshot that a fork begins as: the one that is claimed, or held.
    pub(crate) async fn snapshot(&self) -> Result<Snapshot, ForkError> {
        let Some(hold) = self.claimed.hold() else { return Ok(self.claimed.clone()) };
        let (_, entries) = read_snapshots(&self.device).await?;
        let held = entries.into_iter().find(|entry| entry.id == hold.snapshot);
        Ok(held.ok_or(SnapshotError::Gone).map_err(StoreError::from)?)
    }

    /// Bytes of the fork's device.
    pub fn size_bytes(&self) -> u64 {
        self.claimed.total_blocks * BLOCK_BYTES as u64
    }
}

/// The device of a fork whose own storage is `own`. `base` is the device at the path that the record
/// gives, open beside a possible writer; it must hold the fork's snapshot.
pub async fn open(
    own: Arc<dyn Device>,
    base: Arc<dyn Device>,
    record: &ForkRecord,
) -> Result<Arc<Forked>, ForkError> {
    let is_it = |entry: &Snapshot| {
        // A temporary fork has no hold.
        let fork_id = entry.hold().map_or(0, |hold| hold.fork_id);
        entry.id == record.hold
            && fork_id == record.fork_id
            && (entry.tree, entry.space) == (record.tree, record.space)
    };
    let path = || record.base.clone();
    let base = Base::claim_entry(base, "of the base", is_it).await.map_err(|error| match error {
        ForkError::Store(StoreError::Snapshot(SnapshotError::NotFound { .. })) => {
            ForkError::Released { base: path() }
        }
        ForkError::Store(error) => ForkError::Unreadable { base: path(), source: error },
        error => error,
    })?;
    Ok(Forked::new(own, base))
}
