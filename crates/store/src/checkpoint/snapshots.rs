//! Snapshots: the state that a checkpoint wrote, kept under a name.
//!
//! A checkpoint that makes a snapshot writes, beside its nodes and its space map, a new table with
//! one more entry, and its superblock points to that table. So the snapshot exists from the moment
//! that the superblock does, and a crash leaves it whole or not at all. From then on the allocator
//! keeps the blocks that its space map names. Nothing is copied, and the write and fsync paths do
//! not know of it.
//!
//! A checkpoint whose table lacks the snapshot removes it; blocks that only it kept become reusable
//! when that superblock is durable (rule R2).

use super::CheckpointState;
use super::slots::{read_superblocks, write_slot};
use crate::{RecoveryReport, Store, StoreError, StoreOptions};
use std::pin::Pin;
use std::sync::Arc;
use syncline_device::{AlignedBuf, Claim, Device, DeviceExt, FlushTracker, WriteHandle};
use syncline_format::snapshots::{ENTRIES_PER_BLOCK, SNAPSHOTS_MAX, check_table, decode_block, encode_block};
use syncline_format::superblock::{FEATURE_SNAPSHOTS, Pointer, Superblock};
use syncline_format::{BLOCK_BYTES, BlockRun, FormatError, Key, OBJECTS_END};
use syncline_space::{Class, FrozenMap, KeptMap, Space};
use syncline_tree::Tree;

pub use syncline_format::snapshots::{RECEIVING, Snapshot};

/// Node cache for finding the last key of a tree.
const LAST_KEY_CACHE_BYTES: usize = 1 << 20;

/// Why a snapshot can't be made, found or removed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SnapshotError {
    /// No snapshot has this name.
    #[error("there is no snapshot {name:?}; 'syncline snapshot list' lists the snapshots")]
    NotFound {
        /// The requested name.
        name: String,
    },
    /// A snapshot of this name exists already.
    #[error("there is a snapshot {name:?} already; choose another name, or delete that one first")]
    Exists {
        /// The requested name.
        name: String,
    },
    /// The snapshot is mounted or being read.
    #[error(
        "snapshot {name:?} is in use: if it is mounted, unmount it first; if it is being sent or read, wait for the end of that"
    )]
    InUse {
        /// The requested name.
        name: String,
    },
    /// The name is not valid for a snapshot.
    #[error(
        "{name:?} can't be the name of a snapshot: 1 to 255 bytes of UTF-8 without slashes and control characters, \
         and not {RECEIVING:?}"
    )]
    Name {
        /// The requested name.
        name: String,
    },
    /// The image was resized since, so it can't be rolled back to this snapshot.
    #[error(
        "the image had {then_bytes} bytes when snapshot {name:?} was taken, and has {now_bytes}; give it that size again \
         ('syncline resize') and roll back, or mount the snapshot ('mount --snapshot') and copy from it"
    )]
    OtherSize {
        /// The requested name.
        name: String,
        /// The size of the filesystem then.
        then_bytes: u64,
        /// Its size now.
        now_bytes: u64,
    },
    /// The limit on the number of snapshots is reached.
    #[error("there are {SNAPSHOTS_MAX} snapshots, and no more are possible; delete one first")]
    TooMany,
}

/// A snapshot, and the space that would come back if it were deleted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SnapshotUsage {
    /// The snapshot.
    pub snapshot: Snapshot,
    /// Blocks that nothing else uses.
    pub exclusive_blocks: u64,
}

/// Commits what a snapshot must show beside what is committed already. Boxed, because hardly any
/// checkpoint does it.
pub type Submit<'a, E> =
    &'a (dyn Fn() -> Pin<Box<dyn Future<Output = Result<(), E>> + Send + 'a>> + Sync + 'a);

/// The snapshots, each with the number of blocks that only it uses.
pub(crate) fn usage(entries: Vec<Snapshot>, exclusive: Vec<u64>) -> Vec<SnapshotUsage> {
    let usage = entries.into_iter().zip(exclusive);
    usage.map(|(snapshot, exclusive_blocks)| SnapshotUsage { snapshot, exclusive_blocks }).collect()
}

/// The table of snapshots that the newest superblock points to.
#[derive(Clone, Default, Debug)]
pub(crate) struct Table {
    /// The snapshots, in order of creation.
    pub(crate) entries: Vec<Snapshot>,
    /// The blocks of the table.
    pub(crate) blocks: Vec<BlockRun>,
}

/// A change of the table by a checkpoint.
#[derive(Clone)]
pub(crate) enum TableChange {
    /// Adds a snapshot of the state that the checkpoint writes.
    Create { name: String, created_ns: u64 },
    /// Adds a snapshot that a branch has written. Boxed: every checkpoint has room for a change.
    Adopt(Box<Adopted>),
    /// Keeps the entries and moves the table.
    Move,
    /// Removes a snapshot; `rest` is what the other snapshots keep.
    Delete { id: u64, rest: KeptMap },
}

/// A snapshot that a branch has written.
#[derive(Clone)]
pub(crate) struct Adopted {
    pub(crate) snapshot: Snapshot,
    /// Features that it needs.
    pub(crate) features: u32,
    /// The blocks that it keeps.
    pub(crate) kept: KeptMap,
    /// The snapshot whose place it takes.
    pub(crate) replaced: Option<Replaced>,
}

/// A snapshot that is removed when another one is added.
#[derive(Clone)]
pub(crate) struct Replaced {
    pub(crate) id: u64,
    /// The blocks that the other snapshots keep.
    pub(crate) rest: KeptMap,
}

/// A table that a checkpoint writes.
pub(crate) struct NewTable {
    table: Table,
    pub(crate) change: TableChange,
}

impl Table {
    /// Reads the table that a superblock points to.
    pub(crate) async fn read(device: &Arc<dyn Device>, superblock: &Superblock) -> Result<Self, StoreError> {
        let mut table = Self::default();
        let mut at = superblock.snapshots;
        while at != Pointer::default() {
            let corrupt = |detail| StoreError::Corrupt { addr: at.addr, detail };
            let block = device.read_at(BlockRun::new(at.addr, 1).offset_bytes(), BLOCK_BYTES).await?;
            let (entries, next) = decode_block(&block, superblock.geometry, at).map_err(corrupt)?;
            table.entries.extend(entries);
            table.blocks.push(BlockRun::new(at.addr, 1));
            // Every block has an entry, so a circular chain ends here with an error.
            check_table(&table.entries, superblock.generation).map_err(corrupt)?;
            at = next;
        }
        Ok(table)
    }

    /// The snapshot of this name.
    pub(crate) fn find(&self, name: &str) -> Result<&Snapshot, SnapshotError> {
        let found = self.entries.iter().find(|entry| entry.name == name);
        found.ok_or_else(|| SnapshotError::NotFound { name: name.to_owned() })
    }

    /// Fails if there is no room for another snapshot of this name, once `replaced` is gone.
    pub(crate) fn require_new(&self, name: &str, replaced: Option<u64>) -> Result<(), SnapshotError> {
        let mut others = self.entries.iter().filter(|entry| Some(entry.id) != replaced);
        if others.any(|entry| entry.name == name) {
            return Err(SnapshotError::Exists { name: name.to_owned() });
        }
        let is_full = self.entries.len() >= SNAPSHOTS_MAX + usize::from(replaced.is_some());
        if is_full { Err(SnapshotError::TooMany) } else { Ok(()) }
    }

    /// This time, or the next one at which no snapshot was made: a stream knows snapshots by their
    /// times, and clocks are set back.
    fn free_time(&self, created_ns: u64) -> u64 {
        let is_taken = |time: &u64| self.entries.iter().any(|entry| entry.created_ns == *time);
        (created_ns..u64::MAX).find(|time| !is_taken(time)).unwrap_or(created_ns)
    }

    /// Keeps the blocks that the snapshots need, before anything is allocated.
    pub(crate) async fn keep(
        &self,
        tracker: &Arc<FlushTracker>,
        superblock: &Superblock,
        space: &Space,
    ) -> Result<(), StoreError> {
        let kept = self.kept_without(tracker, superblock, None).await?;
        for block in &self.blocks {
            if kept.contains(block.start) || !space.reserve_segment(*block) {
                let detail = FormatError::Field { structure: "table of snapshots", field: "block in use" };
                return Err(StoreError::Corrupt { addr: block.start, detail });
            }
        }
        space.keep(kept);
        Ok(())
    }

    /// All blocks that the snapshots other than `id` keep.
    pub(crate) async fn kept_without(
        &self,
        tracker: &Arc<FlushTracker>,
        superblock: &Superblock,
        id: Option<u64>,
    ) -> Result<KeptMap, StoreError> {
        let others = self.entries.iter().filter(|entry| Some(entry.id) != id);
        let maps: Vec<_> = others.map(|entry| (entry.geometry(superblock.geometry), entry.space)).collect();
        Ok(KeptMap::union(tracker, superblock.geometry, &maps).await?)
    }

    /// Writes the table to free blocks, the last block first, since each points to the next.
    fn write(
        &mut self,
        space: &Space,
        tracker: &Arc<FlushTracker>,
        started: &mut Vec<WriteHandle>,
    ) -> Result<Pointer, StoreError> {
        let mut next = Pointer::default();
        for entries in self.entries.rchunks(ENTRIES_PER_BLOCK) {
            let run = space.allocate(Class::Node, 1, 1, None).ok_or(StoreError::NoSpace)?;
            self.blocks.push(run);
            let mut block = AlignedBuf::zeroed(BLOCK_BYTES);
            next = encode_block(&mut block, run.start, next, entries);
            started.push(tracker.write(run.offset_bytes(), vec![block.into_bytes()]));
        }
        Ok(next)
    }
}

impl NewTable {
    /// A table that is not written yet.
    pub(crate) fn new(change: TableChange) -> Self {
        Self { table: Table::default(), change }
    }

    /// True when it has one snapshot less than before.
    pub(crate) fn removes(&self) -> bool {
        matches!(self.change, TableChange::Delete { .. })
    }

    /// True when it has one snapshot more than before.
    pub(crate) fn adds(&self) -> bool {
        matches!(self.change, TableChange::Create { .. } | TableChange::Adopt(_))
    }

    /// Number of its blocks, once it is written.
    pub(crate) fn blocks(&self) -> usize {
        self.table.blocks.len()
    }

    /// Writes the table and makes the superblock to be written point to it. After an error, and
    /// once no write is in flight, `undo` gives its blocks back.
    pub(crate) fn write(
        &mut self,
        before: &Table,
        superblock: &mut Superblock,
        space: &Space,
        tracker: &Arc<FlushTracker>,
        started: &mut Vec<WriteHandle>,
    ) -> Result<(), StoreError> {
        let mut entries = before.entries.clone();
        match &self.change {
            TableChange::Create { name, created_ns } => entries.push(Snapshot {
                id: superblock.generation,
                created_ns: *created_ns,
                total_blocks: superblock.geometry.total_blocks,
                tree: superblock.tree,
                space: superblock.space,
                tree_nodes: superblock.tree_nodes,
                used_blocks: superblock.used_blocks,
                objects: superblock.objects,
                name: name.clone(),
            }),
            TableChange::Adopt(adopted) => {
                entries
                    .retain(|entry| adopted.replaced.as_ref().is_none_or(|replaced| entry.id != replaced.id));
                entries.push(Snapshot { id: superblock.generation, ..adopted.snapshot.clone() });
                superblock.features |= adopted.features;
            }
            TableChange::Move => {}
            TableChange::Delete { id, .. } => entries.retain(|entry| entry.id != *id),
        }
        self.table.entries = entries;
        superblock.snapshots = self.table.write(space, tracker, started)?;
        superblock.features &= !FEATURE_SNAPSHOTS;
        superblock.features |= if self.table.entries.is_empty() { 0 } else { FEATURE_SNAPSHOTS };
        Ok(())
    }

    /// Holds its blocks until a later superblock is durable: the one that points to it may or may
    /// not be.
    pub(crate) fn hold(self, space: &Space, generation: u64) {
        self.table.blocks.into_iter().for_each(|block| space.hold(block, generation));
    }

    /// Gives its blocks back: no superblock points to it.
    pub(crate) fn undo(self, space: &Space) {
        self.table.blocks.into_iter().for_each(|block| space.give_back(block));
    }

    /// Makes this table the current one: the superblock that points to it is durable, and the one
    /// before is not needed any more.
    pub(crate) fn adopt(self, before: &Table, space: &Space, frozen: &FrozenMap) -> Table {
        before.blocks.iter().for_each(|block| space.hold(*block, frozen.generation()));
        match self.change {
            TableChange::Move => {}
            TableChange::Create { .. } => space.keep_frozen(frozen),
            TableChange::Adopt(adopted) => match adopted.replaced {
                None => space.keep_also(&adopted.kept),
                Some(Replaced { mut rest, .. }) => {
                    rest.add(&adopted.kept);
                    space.keep_only(rest, frozen.generation());
                }
            },
            TableChange::Delete { rest, .. } => space.keep_only(rest, frozen.generation()),
        }
        self.table
    }
}

impl Store {
    /// Makes a snapshot of everything committed so far. It and all that it contains are durable
    /// when this returns.
    pub async fn create_snapshot(&self, name: &str, created_ns: u64) -> Result<Snapshot, StoreError> {
        self.create_snapshot_with(name, created_ns, &|| Box::pin(async { Ok(()) })).await
    }

    /// Makes a snapshot of one moment (promise P10): of everything committed so far, and of the
    /// changes that `submit` commits. From before that call to the cut no change begins (`standstill`). It is
    /// called again if the device refuses the first attempt.
    pub async fn create_snapshot_with<'a, E: From<StoreError>>(
        &self,
        name: &str,
        created_ns: u64,
        submit: Submit<'a, E>,
    ) -> Result<Snapshot, E> {
        if !Snapshot::is_free_name(name) {
            return Err(StoreError::from(SnapshotError::Name { name: name.to_owned() }).into());
        }
        let mut made = self.try_create_snapshot(name, created_ns, submit).await?;
        if matches!(&made, Err(error @ StoreError::Device(_)) if !self.is_end(error))
            && self.health.writable().is_ok()
        {
            tracing::warn!("a snapshot could not be made, and is tried again elsewhere");
            made = self.try_create_snapshot(name, created_ns, submit).await?;
        }
        match self.unless_log_left(made).await? {
            Some(done) => Ok(done),
            None => Ok(self.try_create_snapshot(name, created_ns, submit).await??),
        }
    }

    /// The outer error is that of `submit`.
    async fn try_create_snapshot<E>(
        &self,
        name: &str,
        created_ns: u64,
        submit: Submit<'_, E>,
    ) -> Result<Result<Snapshot, StoreError>, E> {
        let mut state = self.checkpoint.lock().await;
        if let Err(error) = state.table.require_new(name, None) {
            return Ok(Err(error.into()));
        }
        // During the standstill nobody can wait for a checkpoint to make room.
        if self.has_room_after_checkpoint_only()
            && let Err(error) = self.run_checkpoint(&mut state, false).await
        {
            return Ok(Err(error));
        }
        let created_ns = state.table.free_time(created_ns);
        let mut still = self.stand_still(state);
        submit().await?;
        self.give_way();
        let change = TableChange::Create { name: name.to_owned(), created_ns };
        let made = self.run_checkpoint_with(&mut still.checkpoint, false, Some(change)).await;
        Ok(made.and_then(|()| Ok(still.checkpoint.table.find(name)?.clone())))
    }

    /// Deletes a snapshot that nobody has open. Blocks that only it kept are free when this
    /// returns.
    pub async fn delete_snapshot(&self, name: &str) -> Result<(), StoreError> {
        match self.unless_log_left(self.try_delete_snapshot(name).await).await? {
            Some(done) => Ok(done),
            None => self.try_delete_snapshot(name).await,
        }
    }

    async fn try_delete_snapshot(&self, name: &str) -> Result<(), StoreError> {
        self.health.writable()?;
        let mut state = self.checkpoint.lock().await;
        let id = state.table.find(name)?.id;
        if state.bases.contains(&id) || !self.device().claim_snapshot(id, Claim::Exclusive)? {
            return Err(SnapshotError::InUse { name: name.to_owned() }.into());
        }
        let result = self.delete_claimed(&mut state, id).await;
        self.device().claim_snapshot(id, Claim::Released)?;
        result
    }

    async fn delete_claimed(&self, state: &mut CheckpointState, id: u64) -> Result<(), StoreError> {
        let rest = state.table.kept_without(&self.tracker, &self.superblock(), Some(id)).await?;
        self.lab_drop_snapshot(&rest);
        self.run_checkpoint_with(state, false, Some(TableChange::Delete { id, rest })).await
    }

    /// The snapshots, in order of creation, and what is kept of a stream.
    pub async fn snapshots(&self) -> Vec<Snapshot> {
        self.checkpoint.lock().await.table.entries.clone()
    }

    /// The snapshots, each with the number of blocks that only it uses. Reads their space maps.
    pub async fn snapshot_usage(&self) -> Result<Vec<SnapshotUsage>, StoreError> {
        let state = self.checkpoint.lock().await;
        let now = self.geometry();
        let entries = &state.table.entries;
        let maps: Vec<_> = entries.iter().map(|entry| (entry.geometry(now), entry.space)).collect();
        let exclusive = KeptMap::exclusive(&self.tracker, &maps, &self.room.space().named_map()).await?;
        Ok(usage(entries.clone(), exclusive))
    }
}

/// The blocks that snapshots keep, and the blocks of their table.
pub async fn kept_by_snapshots(
    tracker: &Arc<FlushTracker>,
    superblock: &Superblock,
) -> Result<Vec<BlockRun>, StoreError> {
    let table = Table::read(tracker.device(), superblock).await?;
    let mut runs = table.kept_without(tracker, superblock, None).await?.runs();
    runs.extend(table.blocks);
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
    pub(crate) async fn read(
        tracker: &Arc<FlushTracker>,
        superblock: &Superblock,
    ) -> Result<Self, StoreError> {
        let Table { entries, blocks } = Table::read(tracker.device(), superblock).await?;
        let mut saved = Table { entries, blocks };
        let mut given_up = Vec::new();
        if saved.kept_without(tracker, superblock, None).await.is_err() {
            for entry in std::mem::take(&mut saved.entries) {
                let alone = Table { entries: vec![entry.clone()], blocks: Vec::new() };
                match alone.kept_without(tracker, superblock, None).await {
                    Ok(_) => saved.entries.push(entry),
                    Err(_) => given_up.push(entry),
                }
            }
        }
        let kept = saved.kept_without(tracker, superblock, None).await?;
        let overlaps = saved.blocks.iter().any(|block| !kept.is_clear_of(*block));
        let Table { entries, blocks: table } = saved;
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
        let mut table = Table { entries: self.entries.clone(), blocks: Vec::new() };
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
    tracker: &Arc<FlushTracker>,
    superblock: &Superblock,
    runs: &[BlockRun],
) -> Result<Option<BlockRun>, StoreError> {
    let table = Table::read(tracker.device(), superblock).await?;
    let kept = table.kept_without(tracker, superblock, None).await?;
    let common = |run: &&BlockRun| {
        let in_table = |block: &BlockRun| block.start < run.end() && run.start < block.end();
        !kept.is_clear_of(**run) || table.blocks.iter().any(in_table)
    };
    Ok(runs.iter().find(common).copied())
}

/// The first block of the table of snapshots that a snapshot also keeps, which is damage.
pub async fn table_in_what_is_kept(
    tracker: &Arc<FlushTracker>,
    superblock: &Superblock,
) -> Result<Option<BlockRun>, StoreError> {
    let table = Table::read(tracker.device(), superblock).await?;
    let kept = table.kept_without(tracker, superblock, None).await?;
    Ok(table.blocks.iter().find(|run| !kept.is_clear_of(**run)).copied())
}

/// The blocks of the table of snapshots.
pub async fn table_of_snapshots(
    device: &Arc<dyn Device>,
    superblock: &Superblock,
) -> Result<Vec<BlockRun>, StoreError> {
    Ok(Table::read(device, superblock).await?.blocks)
}

/// Refuses the name of a stream's received part: half a snapshot, which can't be mounted, sent or rolled
/// back to.
pub fn require_visible(name: &str) -> Result<(), StoreError> {
    match name == RECEIVING {
        true => Err(SnapshotError::NotFound { name: name.to_owned() }.into()),
        false => Ok(()),
    }
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
    let snapshot = Table::read(device, now).await?.find(name)?.clone();
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
    // A received snapshot may have greater numbers than those that were handed out here.
    let tree = Tree::new(tracker.clone(), superblock.geometry, LAST_KEY_CACHE_BYTES);
    let last = tree.floor(superblock.tree, Key::MAX).await?;
    let numbers = last.map_or(0, |(key, _)| key.object.saturating_add(1).min(OBJECTS_END));
    let superblock = Superblock {
        generation: slots.generation_seen + 1,
        next_object: now.next_object.max(numbers),
        ..superblock
    };
    slots.settle(&tracker).await?;
    write_slot(&tracker, 1 - slots.slot, &superblock).await?;
    Ok(snapshot)
}
