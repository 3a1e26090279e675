//! Opening a snapshot: a read-only store without a log, possibly while somebody else writes to the
//! image.

use super::recovery::{assemble, load_space};
use super::replay::Replayed;
use crate::checkpoint::{Table, read_superblocks, usage};
use crate::{Snapshot, SnapshotError, SnapshotUsage, Store, StoreError, StoreOptions};
use std::sync::Arc;
use syncline_device::{Claim, Device, FlushTracker, Spawn};
use syncline_format::Geometry;
use syncline_format::space::MAX_BLOCKS;
use syncline_format::superblock::{SpaceRoot, Superblock};
use syncline_space::{KeptMap, PageReader, Space};

/// How many times superblock and table are read while somebody else changes them.
const TRIES: u32 = 16;
/// Node cache of a snapshot that is read through once.
const LOOK_CACHE_BYTES: usize = 1 << 20;

impl Store {
    /// Opens a snapshot read-only. Somebody else may have the image open for writing: everything
    /// that the snapshot needs stays in place, and the snapshot can't be deleted while `device` is
    /// open.
    pub async fn open_snapshot(
        device: Arc<dyn Device>,
        options: StoreOptions,
        spawn: Arc<dyn Spawn>,
        name: &str,
    ) -> Result<(Arc<Self>, Snapshot), StoreError> {
        let (now, snapshot) = claim_snapshot(&device, name, |entry| entry.name == name).await?;
        let (kept, then) = (snapshot.superblock(&now), snapshot.geometry(now.geometry));
        let tracker = FlushTracker::new(device);
        let pages = PageReader::new(tracker.clone());
        let store = show(tracker, &pages, options, spawn, (&kept, then), true).await?;
        Ok((store, snapshot))
    }

    /// Opens a snapshot beside the open store, without claiming it: it may be deleted at any time,
    /// and reads then return anything. A caller that finds something wrong checks whether the
    /// snapshot still exists ([`Store::snapshots`]). `pages` reads the snapshot's space map.
    pub async fn look_at_snapshot(
        &self,
        snapshot: &Snapshot,
        pages: &PageReader,
    ) -> Result<Arc<Self>, StoreError> {
        let tracker = FlushTracker::new(self.device().clone());
        let options = StoreOptions { node_cache_bytes: LOOK_CACHE_BYTES, ..self.options.clone() };
        let now = self.superblock();
        let geometry = snapshot.geometry(now.geometry);
        let superblock = snapshot.superblock(&now);
        show(tracker, pages, options, self.spawn.clone(), (&superblock, geometry), false).await
    }
}

/// A read-only store of the state that a superblock leads to. `then` is the size that the image had
/// when the map was written; if `lenient`, the map may be damaged.
async fn show(
    tracker: Arc<FlushTracker>,
    pages: &PageReader,
    options: StoreOptions,
    spawn: Arc<dyn Spawn>,
    (superblock, then): (&Superblock, Geometry),
    lenient: bool,
) -> Result<Arc<Store>, StoreError> {
    let loaded = load_space(pages, &Superblock { geometry: then, ..superblock.clone() }).await;
    let space = match loaded {
        // Reading does not need the map.
        Err(_) if lenient && then.total_blocks <= MAX_BLOCKS => Space::format(then),
        loaded => loaded?,
    };
    let options = StoreOptions { read_only: true, ..options };
    let (nothing, segment) = (Replayed::nothing(superblock), superblock.log.segment);
    let store = assemble(tracker, options, spawn, superblock, space, nothing, segment);
    store.health.end_writing("it is a snapshot");
    Ok(Arc::new(store))
}

/// Reads the snapshots of an image, possibly while somebody else writes to it.
pub async fn read_snapshots(device: &Arc<dyn Device>) -> Result<(Superblock, Vec<Snapshot>), StoreError> {
    let mut tries = 0;
    loop {
        tries += 1;
        let superblock = read_superblocks(device).await?.superblock;
        let pages = PageReader::new(FlushTracker::new(device.clone()));
        match Table::read(&pages, &superblock).await {
            Ok(table) => return Ok((superblock, table.entries().to_vec())),
            // A writer may just have replaced the table.
            Err(StoreError::Corrupt { .. }) if tries < TRIES => {}
            Err(error) => return Err(error),
        }
    }
}

/// The snapshots, each with the number of blocks that only it uses, as of the last checkpoint.
/// Somebody else may be writing to the image.
pub async fn snapshot_usage(device: &Arc<dyn Device>) -> Result<Vec<SnapshotUsage>, StoreError> {
    let pages = PageReader::new(FlushTracker::new(device.clone()));
    let mut tries = 0;
    loop {
        tries += 1;
        let (superblock, entries) = read_snapshots(device).await?;
        // Blocks that the present state uses as well are exclusive to no snapshot.
        let maps = maps(&superblock, &entries);
        let nothing = KeptMap::empty(superblock.geometry);
        match KeptMap::exclusive(&pages, &maps, &nothing).await.map_err(StoreError::from) {
            Ok(exclusive) => return Ok(usage(entries, exclusive)),
            // The present map may have been rewritten, and its old pages reused.
            Err(StoreError::Corrupt { .. }) if tries < TRIES => {}
            Err(error) => return Err(error),
        }
    }
}

/// The number of blocks that only snapshots have, and what is kept of a stream, as of the last
/// checkpoint. Somebody else may be writing to the image.
pub async fn kept_besides(device: &Arc<dyn Device>) -> Result<u64, StoreError> {
    let pages = PageReader::new(FlushTracker::new(device.clone()));
    let mut tries = 0;
    loop {
        tries += 1;
        let (superblock, entries) = read_snapshots(device).await?;
        if entries.is_empty() {
            return Ok(0);
        }
        match KeptMap::together(&pages, &maps(&superblock, &entries)).await.map_err(StoreError::from) {
            Ok(blocks) => return Ok(blocks.saturating_sub(superblock.used_blocks)),
            // As in `snapshot_usage`.
            Err(StoreError::Corrupt { .. }) if tries < TRIES => {}
            Err(error) => return Err(error),
        }
    }
}

/// The space maps of the snapshots, and as one more that of the present state.
fn maps(superblock: &Superblock, entries: &[Snapshot]) -> Vec<(Geometry, SpaceRoot)> {
    let now = (superblock.geometry, superblock.space);
    let maps = entries.iter().map(|entry| (entry.geometry(superblock.geometry), entry.space));
    maps.chain([now]).collect()
}

/// Finds an entry of the table of snapshots and claims it, so that nobody can delete it while `device`
/// is open. `name` is what the caller calls it.
pub async fn claim_snapshot(
    device: &Arc<dyn Device>,
    name: &str,
    is_it: impl Fn(&Snapshot) -> bool,
) -> Result<(Superblock, Snapshot), StoreError> {
    let find = |entries: Vec<Snapshot>| {
        let found = entries.into_iter().find(&is_it);
        found.ok_or_else(|| SnapshotError::not_found(name))
    };
    let snapshot = find(read_snapshots(device).await?.1)?;
    if !device.claim_snapshot(snapshot.id, Claim::Shared)? {
        return Err(SnapshotError::in_use(name).into());
    }
    // It existed before the claim, and may have been deleted in between.
    let (superblock, entries) = read_snapshots(device).await?;
    if find(entries)?.id != snapshot.id {
        device.claim_snapshot(snapshot.id, Claim::Released)?;
        return Err(SnapshotError::in_use(name).into());
    }
    Ok((superblock, snapshot))
}
