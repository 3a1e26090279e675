//! Checks that every block that is not free has exactly one owner, and that counters match what
//! memory holds. For tests that look at a store at rest; nothing else uses it.

use crate::log::Unflushed;
use crate::{DataWrite, Store};
use std::fmt;
use syncline_format::BlockRun;

/// Blocks and bytes that a store holds. They do not change while the store is at rest.
#[doc(hidden)]
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Held {
    /// Blocks that can be allocated.
    pub free_blocks: u64,
    /// Blocks that will become free.
    pub pending_free_blocks: u64,
    /// Blocks that are named.
    pub named_blocks: u64,
    /// Blocks that are reserved.
    pub reserved_blocks: u64,
    /// Blocks of log segments in use.
    pub log_blocks: u64,
    /// Log that is not sealed.
    pub pending_log_bytes: u64,
    /// Data that the unsealed log names.
    pub pending_data_bytes: u64,
    /// Sealed log, and the data that it names, not covered by a flush.
    pub sealed_bytes: u64,
    /// Data writes in memory.
    pub data_writes: u64,
    /// Changes that are not in the tree yet.
    pub memtable_bytes: u64,
    /// True while data is being relocated: nobody waits for limits meanwhile.
    pub leaving_log: bool,
}

impl Held {
    /// Log and data that stay in memory because no flush covers them.
    pub fn unflushed_bytes(&self) -> u64 {
        self.pending_log_bytes + self.pending_data_bytes + self.sealed_bytes
    }
}

/// Why a block is not free.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Owner {
    Nobody,
    /// A committed transaction or a checkpoint's own structure names it.
    Named,
    /// Freed; reusable after a superblock.
    Waiting,
    /// Part of the log's chain.
    Log,
    /// Holds the table of snapshots.
    SnapshotTable,
    /// The device refused a write there.
    Quarantine,
    /// Written but not named yet.
    Write,
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nobody => "nobody",
            Self::Named => "what is named",
            Self::Waiting => "what waits for a superblock",
            Self::Log => "the log",
            Self::SnapshotTable => "the table of snapshots",
            Self::Quarantine => "the quarantine",
            Self::Write => "a write that nothing names",
        })
    }
}

/// The owner of each block.
struct Owners(Vec<Owner>);

impl Owners {
    fn add(&mut self, owner: Owner, runs: impl IntoIterator<Item = BlockRun>) -> Result<(), String> {
        for block in runs.into_iter().flat_map(|run| run.start..run.end()) {
            let slot = self
                .0
                .get_mut(block as usize)
                .ok_or_else(|| format!("block {block} of {owner} does not exist"))?;
            if *slot != Owner::Nobody {
                return Err(format!("block {block} belongs to {slot} and to {owner}"));
            }
            *slot = owner;
        }
        Ok(())
    }

    /// Marks those blocks of a write that have no other owner.
    fn add_write(&mut self, write: &DataWrite) {
        let run = write.run();
        for slot in &mut self.0[run.start as usize..run.end() as usize] {
            if *slot == Owner::Nobody {
                *slot = Owner::Write;
            }
        }
    }
}

impl Store {
    /// True when some block of the run is in memory because its write is not known to be durable.
    #[doc(hidden)]
    pub fn holds_write(&self, run: BlockRun) -> bool {
        self.log.inflight().touches(run)
    }

    /// The blocks and bytes that memory and device hold, or an error if the counters disagree with
    /// them.
    #[doc(hidden)]
    pub fn held(&self) -> Result<Held, String> {
        let still = self.log.still();
        let Unflushed { pending_log: pending_log_bytes, pending_data, sealed } = still.unflushed();
        let ((counted, pending_data_bytes), (counted_sealed, sealed_bytes)) = (pending_data, sealed);
        if sealed_bytes != counted_sealed {
            return Err(format!(
                "{sealed_bytes} bytes are sealed and not flushed, {counted_sealed} are counted"
            ));
        }
        if pending_data_bytes != counted {
            return Err(format!("{pending_data_bytes} bytes of data are not sealed, {counted} are counted"));
        }
        let (mut data_writes, mut forgotten) = (0, None);
        let counted = self.log.inflight().each(|data| {
            data_writes += 1;
            forgotten = forgotten.or(data.is_forgotten().then(|| data.run()));
        });
        if counted != data_writes {
            return Err(format!("{data_writes} data writes are in memory, {counted} are counted"));
        }
        // Once nothing can be written any more, the table just serves readers.
        if let Some(run) = forgotten.filter(|_| self.health.writable().is_ok()) {
            return Err(format!("the write to {run:?} stays in memory, and nobody knows of it"));
        }
        let space = self.room.space().counters();
        Ok(Held {
            free_blocks: space.free,
            pending_free_blocks: space.pending_free,
            named_blocks: space.named,
            reserved_blocks: self.room.reserved(),
            log_blocks: still.segments().iter().map(|segment| segment.blocks).sum(),
            pending_log_bytes,
            pending_data_bytes,
            sealed_bytes,
            data_writes: data_writes as u64,
            memtable_bytes: self.layers.memory_bytes() as u64,
            leaving_log: self.health.is_leaving_log(),
        })
    }

    /// Fails unless every block that is not free has exactly one owner. `None` while a checkpoint
    /// or a discard holds blocks, when that can't be told from outside.
    #[doc(hidden)]
    pub fn audit_blocks(&self) -> Option<Result<(), String>> {
        let state = self.checkpoint.try_lock()?;
        let _batch = self.room.try_without_discards()?;
        Some(self.compare_books(state.table().blocks()))
    }

    fn compare_books(&self, table: &[BlockRun]) -> Result<(), String> {
        let still = self.log.still();
        let books = self.room.space().books();
        let mut owners = Owners(vec![Owner::Nobody; books.usable.end() as usize]);
        owners.add(Owner::Named, books.named)?;
        owners.add(Owner::Waiting, books.waiting.iter().copied())?;
        owners.add(Owner::Log, still.segments().iter().copied())?;
        owners.add(Owner::SnapshotTable, table.iter().copied())?;
        owners.add(Owner::Quarantine, books.withheld.iter().copied())?;
        self.log.inflight().each(|data| owners.add_write(data));
        let mut kept = vec![false; owners.0.len()];
        for block in books.kept.iter().flat_map(|run| run.start..run.end()) {
            kept[block as usize] = true;
        }
        let mut live = vec![false; owners.0.len()];
        for block in books.live.iter().flat_map(|run| run.start..run.end()) {
            live[block as usize] = true;
        }
        let is_lost = |block: &usize| live[*block] && !kept[*block] && owners.0[*block] == Owner::Nobody;
        let lost: Vec<usize> = (0..live.len()).filter(is_lost).collect();
        if let (Some(first), Some(last)) = (lost.first(), lost.last()) {
            return Err(format!(
                "{} blocks from {first} to {last} are not free and belong to nobody",
                lost.len()
            ));
        }
        let mut waiting = 0;
        for (block, (owner, (kept, live))) in owners.0.iter().zip(kept.into_iter().zip(live)).enumerate() {
            match (owner, kept, live) {
                (Owner::Log | Owner::SnapshotTable | Owner::Quarantine | Owner::Write, true, _) => {
                    return Err(format!("block {block} belongs to {owner} and to a snapshot"));
                }
                (owner, kept, false) if *owner != Owner::Nobody || kept => {
                    let owner = if kept { "a snapshot".to_owned() } else { owner.to_string() };
                    return Err(format!("block {block} is free although it belongs to {owner}"));
                }
                _ => waiting += u64::from(*owner == Owner::Waiting && !kept),
            }
        }
        if waiting != books.pending_free {
            return Err(format!("{waiting} blocks wait to be free, {} are counted", books.pending_free));
        }
        Ok(())
    }
}
