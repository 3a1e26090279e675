//! What a check, a repair and a rollback need of the snapshots of an image that nobody has open.

use super::fork::next_object;
use crate::checkpoint::{Table, read_superblocks, write_slot};
use crate::{RecoveryReport, Snapshot, SnapshotError, StoreError, StoreOptions};
use std::sync::Arc;
use syncline_device::{Device, FlushTracker};
use syncline_format::superblock::Superblock;
use syncline_format::{BLOCK_BYTES, BlockRun};
use syncline_space::{PageReader, Space};

/// The blocks that snapshots keep, and the blocks of their table.
pub async fn kept_by_snapshots(
    pages: &PageReader,
    superblock: &Superblock,
) -> Result<Vec<BlockRun>, StoreError> {
    let table = Table::read(pages, superblock).await?;
    let mut runs = table.kept_without(pages, superblock, None).await?.runs();
    runs.extend(table.blocks());
    Ok(runs)
}

/// The snapshots of a damaged image that can be saved.
#[derive(Clone, Debug)]
pub struct SavedSnapshots {
    /// The snapshots whose space maps can be read.
    pub entries: Vec<Snapshot>,
    /// The others: nobody knows which blocks they need.
    pub given_up: Vec<Snapshot>,
    /// The blocks that `entries` keep.
    pub kept: Vec<BlockRun>,
    /// The blocks of the table.
    pub table: Vec<BlockRun>,
    /// The table must be written again, elsewhere: snapshots are given up, or it lies in what one keeps.
    pub moves: bool,
}

impl SavedSnapshots {
    /// Reads the table, and the space maps of all snapshots.
    pub(crate) async fn read(pages: &PageReader, superblock: &Superblock) -> Result<Self, StoreError> {
        let table = Table::read(pages, superblock).await?;
        let (mut entries, mut given_up) = (table.entries().to_vec(), Vec::new());
        if table.kept_without(pages, superblock, None).await.is_err() {
            for entry in std::mem::take(&mut entries) {
                let alone = Table::of(vec![entry.clone()]);
                match alone.kept_without(pages, superblock, None).await {
                    Ok(_) => entries.push(entry),
                    Err(_) => given_up.push(entry),
                }
            }
        }
        let kept = Table::of(entries.clone()).kept_without(pages, superblock, None).await?;
        let table = table.blocks().to_vec();
        let overlaps = table.iter().any(|block| !kept.is_clear_of(*block));
        let moves = overlaps || !given_up.is_empty();
        Ok(Self { entries, given_up, kept: kept.runs(), table, moves })
    }

    /// Writes a table of the saved snapshots to free blocks, and makes the superblock point to it. Waits for the
    /// writes.
    pub(crate) async fn write_table(
        &self,
        superblock: Superblock,
        space: &Space,
        tracker: &Arc<FlushTracker>,
    ) -> Result<Superblock, StoreError> {
        if self.entries.is_empty() {
            return Ok(superblock.without_snapshots());
        }
        let mut table = Table::of(self.entries.clone());
        let mut started = Vec::new();
        let snapshots = table.write(space, tracker, &mut started)?;
        for write in &started {
            write.wait().await?;
        }
        Ok(Superblock { snapshots, ..superblock })
    }
}

/// The first of these runs of which a snapshot, or the table, has a block.
pub async fn first_kept_by_snapshots(
    pages: &PageReader,
    superblock: &Superblock,
    runs: &[BlockRun],
) -> Result<Option<BlockRun>, StoreError> {
    let table = Table::read(pages, superblock).await?;
    let kept = table.kept_without(pages, superblock, None).await?;
    let common = |run: &&BlockRun| {
        let in_table = |block: &BlockRun| block.start < run.end() && run.start < block.end();
        !kept.is_clear_of(**run) || table.blocks().iter().any(in_table)
    };
    Ok(runs.iter().find(common).copied())
}

/// The first block of the table of snapshots that a snapshot also keeps, which is damage.
pub async fn table_in_what_is_kept(
    pages: &PageReader,
    superblock: &Superblock,
) -> Result<Option<BlockRun>, StoreError> {
    let table = Table::read(pages, superblock).await?;
    let kept = table.kept_without(pages, superblock, None).await?;
    Ok(table.blocks().iter().find(|run| !kept.is_clear_of(**run)).copied())
}

/// The blocks of the table of snapshots.
pub async fn table_of_snapshots(
    pages: &PageReader,
    superblock: &Superblock,
) -> Result<Vec<BlockRun>, StoreError> {
    Ok(Table::read(pages, superblock).await?.blocks().to_vec())
}

/// Fails if [`roll_back`] would refuse this snapshot. Writes nothing.
pub async fn require_rollback(device: &Arc<dyn Device>, name: &str) -> Result<(), StoreError> {
    let slots = read_superblocks(device).await?;
    slots.refuse_loss(&StoreOptions::default(), &mut RecoveryReport::default())?;
    rollback_target(device, &slots.superblock, name).await.map(drop)
}

/// The snapshot to roll back to.
async fn rollback_target(
    device: &Arc<dyn Device>,
    now: &Superblock,
    name: &str,
) -> Result<Snapshot, StoreError> {
    let pages = PageReader::new(FlushTracker::new(device.clone()));
    let snapshot = Table::read(&pages, now).await?.find(name)?.clone();
    if snapshot.total_blocks != now.geometry.total_blocks {
        let bytes = |blocks: u64| blocks * BLOCK_BYTES as u64;
        let (then_bytes, now_bytes) = (bytes(snapshot.total_blocks), bytes(now.geometry.total_blocks));
        return Err(SnapshotError::OtherSize { name: name.to_owned(), then_bytes, now_bytes }.into());
    }
    Ok(snapshot)
}

/// Returns an image to the state of a snapshot. All snapshots stay. The image must have been closed
/// cleanly, so that there is no log to lose. A single superblock makes the switch, so a crash
/// leaves the image in the old or in the new state.
pub async fn roll_back(device: Arc<dyn Device>, name: &str) -> Result<Snapshot, StoreError> {
    let tracker = FlushTracker::new(device.clone());
    tracker.flush_now().await?;
    let slots = read_superblocks(&device).await?;
    slots.refuse_loss(&StoreOptions::default(), &mut RecoveryReport::default())?;
    let now = &slots.superblock;
    if !now.clean {
        return Err(StoreError::Unusable(
            "the image was not closed cleanly; open it once, then roll back".into(),
        ));
    }
    let snapshot = rollback_target(&device, now, name).await?;
    let superblock = snapshot.superblock(now);
    let next_object = next_object(&tracker, superblock.geometry, now, &snapshot).await?;
    let superblock = Superblock { generation: slots.generation_seen + 1, next_object, ..superblock };
    slots.settle(&tracker).await?;
    write_slot(&tracker, 1 - slots.slot, &superblock).await?;
    Ok(snapshot)
}
