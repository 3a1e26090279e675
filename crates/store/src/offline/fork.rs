//! Making a fork: an image that begins as a snapshot of another one.

use crate::checkpoint::{Table, read_superblocks, write_slot};
use crate::room::{LEAST_SEGMENT_BLOCKS, segment_blocks};
use crate::{RecoveryReport, Snapshot, StoreError, StoreOptions};
use std::sync::Arc;
use syncline_device::{AlignedBuf, Device, FlushTracker};
use syncline_format::superblock::{
    FEATURE_FORK, FEATURE_HOLDS, FEATURE_LEASE, FEATURE_SNAPSHOTS, LogStart, Superblock,
};
use syncline_format::{BlockRun, Epoch, Geometry, Key, OBJECTS_END};
use syncline_space::{Class, KeptMap, Space};
use syncline_tree::Tree;

/// Node cache for finding the last key of a tree.
const LAST_KEY_CACHE_BYTES: usize = 1 << 20;

/// The parameters of a new fork.
#[derive(Clone)]
pub struct NewFork<'a> {
    /// The superblock of the base.
    pub base: &'a Superblock,
    /// The snapshot of the base.
    pub snapshot: &'a Snapshot,
    /// The blocks that the snapshot keeps.
    pub kept: &'a KeptMap,
    /// Name of the new filesystem.
    pub uuid: [u8; 16],
    /// The first log epoch.
    pub epoch: Epoch,
}

/// Makes a fork on `device`, whose blocks that the snapshot keeps are those of the base. Nobody else
/// knows the device, so the order of the writes does not matter. One flush makes everything durable,
/// also what the caller wrote before.
///
/// The snapshot is in the fork's own table. So the fork neither hands out nor frees a block that the
/// snapshot keeps, by the same means as with any snapshot.
pub async fn format_fork(device: Arc<dyn Device>, fork: NewFork<'_>) -> Result<(), StoreError> {
    let geometry = fork.snapshot.geometry(fork.base.geometry);
    let tracker = FlushTracker::new(device);
    let space = Space::format(geometry);
    space.keep(fork.kept.clone());
    let blocks = segment_blocks(geometry.total_blocks);
    let segment = space
        .allocate(Class::Log, blocks, LEAST_SEGMENT_BLOCKS.min(blocks), None)
        .ok_or(StoreError::NoSpace)?;
    let mut started = Vec::new();
    let snapshots = Table::of(vec![fork.snapshot.clone()]).write(&space, &tracker, &mut started)?;
    for write in &started {
        write.wait().await?;
    }
    let features = fork.base.features & !(FEATURE_LEASE | FEATURE_HOLDS);
    let superblock = Superblock {
        uuid: fork.uuid,
        geometry,
        generation: fork.base.generation.max(fork.snapshot.id) + 1,
        // Under an epoch of its own nothing that lies there counts as its log (rule R3).
        epoch: fork.epoch,
        log: LogStart::first_in(segment, 1, 0),
        features: features | FEATURE_SNAPSHOTS | FEATURE_FORK,
        next_object: next_object(&tracker, geometry, fork.base, fork.snapshot).await?,
        snapshots,
        base: fork.snapshot.id,
        clean: true,
        ..fork.snapshot.superblock(fork.base)
    };
    let again = Superblock { generation: superblock.generation + 1, ..superblock.clone() };
    for (slot, superblock) in [(0, again), (1, superblock)] {
        let block = AlignedBuf::copy_from(&superblock.encode()).into_bytes();
        // Numbers of a hostile base may be at their limits.
        let corrupt = |detail| StoreError::Corrupt { addr: geometry.superblock_copies(slot)[0], detail };
        Superblock::decode(&block).map_err(corrupt)?;
        for copy in geometry.superblock_copies(slot) {
            let write = tracker.write(BlockRun::new(copy, 1).offset_bytes(), vec![block.clone()]);
            write.wait().await?;
        }
    }
    tracker.flush_now().await?;
    Ok(())
}

/// Makes a fork an image like any other: its storage has all blocks of the snapshot by now, durably.
/// The snapshot stays. The image must have been closed cleanly. One superblock makes the switch; then
/// the other slot follows, so that nothing tells of a fork any more.
pub async fn end_fork(device: Arc<dyn Device>) -> Result<(), StoreError> {
    let slots = read_superblocks(&device).await?;
    slots.refuse_loss(&StoreOptions::default(), &mut RecoveryReport::default())?;
    let now = &slots.superblock;
    if !now.clean {
        return Err(StoreError::Unusable("the fork was not closed cleanly; mount it once".into()));
    }
    let tracker = FlushTracker::new(device);
    slots.settle(&tracker).await?;
    let features = now.features & !FEATURE_FORK;
    let superblock = Superblock { generation: slots.generation_seen + 1, features, base: 0, ..now.clone() };
    write_slot(&tracker, 1 - slots.slot, &superblock).await?;
    let again = Superblock { generation: superblock.generation + 1, ..superblock };
    write_slot(&tracker, slots.slot, &again).await?;
    tracker.flush_now().await?;
    Ok(())
}

/// An object id that neither the base has handed out nor the snapshot has, which may have been
/// received.
pub(super) async fn next_object(
    tracker: &Arc<FlushTracker>,
    geometry: Geometry,
    now: &Superblock,
    snapshot: &Snapshot,
) -> Result<u64, StoreError> {
    let tree = Tree::new(tracker.clone(), geometry, LAST_KEY_CACHE_BYTES);
    let last = tree.floor(snapshot.tree, Key::MAX).await?;
    let numbers = last.map_or(0, |(key, _)| key.object.saturating_add(1).min(OBJECTS_END));
    Ok(now.next_object.max(numbers))
}
