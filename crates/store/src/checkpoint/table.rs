//! The table of snapshots, and how a checkpoint changes it.

use super::snapshots::{Snapshot, SnapshotError};
use crate::StoreError;
use std::sync::Arc;
use syncline_device::{AlignedBuf, FlushTracker, WriteHandle};
use syncline_format::snapshots::{SNAPSHOTS_MAX, check_table, decode_block, encode_block, entries_per_block};
use syncline_format::superblock::{FEATURE_HOLDS, FEATURE_SNAPSHOTS, Pointer, Superblock};
use syncline_format::{BLOCK_BYTES, BlockRun, FormatError, Metadata};
use syncline_space::{Class, FrozenMap, KeptMap, PageReader, Space};

/// The table of snapshots that the newest superblock points to.
#[derive(Clone, Default, Debug)]
pub(crate) struct Table {
    /// The snapshots, in order of creation.
    entries: Vec<Snapshot>,
    /// The blocks of the table.
    blocks: Vec<BlockRun>,
}

/// A change of the table by a checkpoint.
#[derive(Clone)]
pub(crate) enum TableChange {
    /// Adds a snapshot of the state that the checkpoint writes.
    Create { name: String, created_ns: u64 },
    /// Adds a hold of this snapshot for a fork.
    Hold { of: Box<Snapshot>, name: String, created_ns: u64 },
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
    change: TableChange,
}

impl Table {
    /// A table of these snapshots that is not written yet.
    pub(crate) fn of(entries: Vec<Snapshot>) -> Self {
        Self { entries, blocks: Vec::new() }
    }

    /// The snapshots, in order of creation.
    pub(crate) fn entries(&self) -> &[Snapshot] {
        &self.entries
    }

    /// The blocks of the table.
    pub(crate) fn blocks(&self) -> &[BlockRun] {
        &self.blocks
    }

    /// Reads the table that a superblock points to.
    pub(crate) async fn read(pages: &PageReader, superblock: &Superblock) -> Result<Self, StoreError> {
        let mut table = Self::default();
        let mut at = superblock.snapshots;
        while at != Pointer::default() {
            let corrupt = |detail| StoreError::Corrupt { addr: at.addr, detail };
            let block = pages.read(at).await?;
            let (entries, next) = decode_block(&block, superblock.geometry, at).map_err(corrupt)?;
            table.entries.extend(entries);
            table.blocks.extend(at.places().map(|addr| BlockRun::new(addr, 1)));
            // Every block has an entry, so a circular chain ends here with an error.
            check_table(&table.entries, superblock.generation).map_err(corrupt)?;
            at = next;
        }
        Ok(table)
    }

    /// The snapshot of this name.
    pub(crate) fn find(&self, name: &str) -> Result<&Snapshot, SnapshotError> {
        let found = self.entries.iter().find(|entry| entry.name == name);
        found.ok_or_else(|| SnapshotError::not_found(name))
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

    /// Where the forks of a snapshot were made.
    pub(crate) fn forks_of(&self, id: u64) -> Vec<String> {
        let holds = self.entries.iter().filter_map(Snapshot::hold);
        holds.filter(|hold| hold.snapshot == id).map(|hold| hold.path).collect()
    }

    /// This time, or the next one at which no snapshot was made: a stream knows snapshots by their
    /// times, and clocks are set back.
    pub(super) fn free_time(&self, created_ns: u64) -> u64 {
        let is_taken = |time: &u64| self.entries.iter().any(|entry| entry.created_ns == *time);
        (created_ns..u64::MAX).find(|time| !is_taken(time)).unwrap_or(created_ns)
    }

    /// Keeps the blocks that the snapshots need, before anything is allocated.
    pub(crate) async fn keep(
        &self,
        pages: &PageReader,
        superblock: &Superblock,
        space: &Space,
    ) -> Result<(), StoreError> {
        let kept = self.kept_without(pages, superblock, None).await?;
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
        pages: &PageReader,
        superblock: &Superblock,
        id: Option<u64>,
    ) -> Result<KeptMap, StoreError> {
        let others = self.entries.iter().filter(|entry| Some(entry.id) != id);
        let maps: Vec<_> = others.map(|entry| (entry.geometry(superblock.geometry), entry.space)).collect();
        Ok(KeptMap::union(pages, superblock.geometry, &maps).await?)
    }

    /// Writes the table to free blocks, the last block first, since each points to the next.
    pub(crate) fn write(
        &mut self,
        space: &Space,
        tracker: &Arc<FlushTracker>,
        started: &mut Vec<WriteHandle>,
    ) -> Result<Pointer, StoreError> {
        let metadata = space.geometry().metadata;
        let Self { entries, blocks } = self;
        let mut place = |class| {
            let run = space.allocate(class, 1, 1, None).ok_or(StoreError::NoSpace)?;
            blocks.push(run);
            Ok::<_, StoreError>(run.start)
        };
        let mut next = Pointer::default();
        for entries in entries.rchunks(entries_per_block(metadata)) {
            let first = place(Class::Node)?;
            let mut block = AlignedBuf::zeroed(BLOCK_BYTES);
            next = encode_block(&mut block, first, next, entries, metadata);
            if metadata == Metadata::Dup {
                next.copy = place(Class::Copy)?;
            }
            let block = block.into_bytes();
            let write = |addr| tracker.write(BlockRun::new(addr, 1).offset_bytes(), vec![block.clone()]);
            started.extend(next.places().map(write));
        }
        Ok(next)
    }
}

impl NewTable {
    /// A table that is not written yet.
    pub(crate) fn new(change: TableChange) -> Self {
        Self { table: Table::default(), change }
    }

    /// For the laboratory: the new table, as if it only moved.
    pub(crate) fn lab_only_moved(self) -> Self {
        Self { change: TableChange::Move, ..self }
    }

    /// True when it has one snapshot less than before.
    pub(crate) fn removes(&self) -> bool {
        matches!(self.change, TableChange::Delete { .. })
    }

    /// True when it has one snapshot more than before.
    pub(crate) fn adds(&self) -> bool {
        matches!(self.change, TableChange::Create { .. } | TableChange::Hold { .. } | TableChange::Adopt(_))
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
            TableChange::Hold { of, name, created_ns } => {
                let (id, created_ns, name) = (superblock.generation, *created_ns, name.clone());
                entries.push(Snapshot { id, created_ns, name, ..Snapshot::clone(of) });
                superblock.features |= FEATURE_HOLDS;
            }
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
            // A hold keeps the blocks that its snapshot keeps already.
            TableChange::Move | TableChange::Hold { .. } => {}
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
