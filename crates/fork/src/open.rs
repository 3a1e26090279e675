//! Opening a fork: finding its base, and checking that it is the right one.

use crate::{ForkError, Forked};
use std::path::Path;
use std::sync::Arc;
use syncline_device::{Device, DeviceExt, FlushTracker};
use syncline_format::fork::{ForkRecord, RECORD_AT};
use syncline_format::superblock::Superblock;
use syncline_format::{BLOCK_BYTES, BlockRun};
use syncline_store::{
    KeptMap, Snapshot, SnapshotError, StoreError, claim_snapshot, read_snapshots, read_superblocks,
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
        let kept = KeptMap::union(&FlushTracker::new(device.clone()), then, &[(then, claimed.space)]).await;
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
        let gone = || SnapshotError::NotFound { name: hold.snapshot.to_string() };
        Ok(held.ok_or_else(gone).map_err(StoreError::from)?)
    }

    /// Bytes of the fork's device.
    pub fn size_bytes(&self) -> u64 {
        self.claimed.total_blocks * BLOCK_BYTES as u64
    }
}

/// The record of a fork; `None` if there is another image on this storage, or none.
pub async fn record_of(own: &Arc<dyn Device>) -> Result<Option<ForkRecord>, ForkError> {
    match read_superblocks(own).await {
        Ok(slots) if slots.superblock.is_fork() => {}
        Err(error @ StoreError::Device(_)) => return Err(error.into()),
        // Opening the image reports what is wrong with it.
        _ => return Ok(None),
    }
    let mut copies = Vec::new();
    for at in RECORD_AT {
        // One copy is enough.
        let read = own.read_at(BlockRun::new(at, 1).offset_bytes(), BLOCK_BYTES).await;
        copies.push(read.map(|block| block.to_vec()).unwrap_or_default());
    }
    ForkRecord::newest([&copies[0], &copies[1]]).map(Some).map_err(ForkError::Record)
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
