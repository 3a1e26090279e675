//! Making a filesystem smaller while it is not in use.
//!
//! The filesystem is opened behind a border: nothing from the new end on is handed out. Everything
//! behind that end then moves by ordinary means: file data by transactions (done by the layer that
//! knows extents), nodes and pages by checkpoints. Finally one superblock makes the filesystem
//! smaller. Until then it has its old size, and everything that the newest superblock leads to is
//! where it was. PROOF.md has the crash cases.

use crate::checkpoint::{Table, TableChange};
use crate::{Admission, RecoveryReport, Snapshot, Store, StoreError, StoreOptions, Transaction};
use std::sync::Arc;
use syncline_device::{Device, FlushTracker, Spawn};
use syncline_format::node::Node;
use syncline_format::superblock::{Pointer, Superblock};
use syncline_format::{Geometry, Key};
use syncline_space::PageReader;
use syncline_tree::{TreeError, Visitor};

/// Items rewritten unchanged in one transaction, so that the nodes on the path to them move.
const TOUCHED_AT_ONCE: usize = 256;
/// Limit of rounds. Each round moves all nodes that the one before had not seen, so two are enough.
const ROUNDS_MAX: u32 = 8;

impl Store {
    /// Opens an image as [`open`](Self::open) does, to make its filesystem `total_blocks` large:
    /// nothing is placed behind the future end. Refuses, before anything is written, if a snapshot
    /// belongs to a larger filesystem.
    pub async fn open_to_shrink(
        device: Arc<dyn Device>,
        options: StoreOptions,
        spawn: Arc<dyn Spawn>,
        total_blocks: u64,
    ) -> Result<(Arc<Self>, RecoveryReport), StoreError> {
        let superblock = crate::read_superblocks(&device).await?.superblock;
        let smaller = Geometry { total_blocks, ..superblock.geometry };
        if options.read_only || smaller.check().is_err() {
            return refuse("a filesystem has at least 16 MiB");
        }
        if total_blocks + Geometry::TAIL_BLOCKS > superblock.geometry.total_blocks {
            return refuse("a filesystem shrinks by 64 KiB at least");
        }
        let pages = PageReader::new(FlushTracker::new(device.clone()));
        require_no_larger_snapshot(&Table::read(&pages, &superblock).await?, &superblock, total_blocks)?;
        Self::open_within(device, options, spawn, smaller.usable().end()).await
    }

    /// Makes the filesystem that [`open_to_shrink`](Self::open_to_shrink) opened `total_blocks`
    /// large, durably. All file data must lie before the new end, and nobody else may use the
    /// store. After an error nothing more is written, and the image is as a crash would leave it.
    pub async fn shrink(self: &Arc<Self>, total_blocks: u64) -> Result<(), StoreError> {
        let smaller = Geometry { total_blocks, ..self.geometry() };
        let moved = self.move_nodes(smaller).await;
        let result = match moved {
            Ok(()) => self.decide_smaller(smaller).await,
            error => error,
        };
        if let Err(error) = &result {
            self.turn_read_only(&format!("it could not be made smaller ({error})"));
        }
        result
    }

    /// Moves nodes from behind the new end to places before it.
    async fn move_nodes(self: &Arc<Self>, smaller: Geometry) -> Result<(), StoreError> {
        let end = smaller.usable().end();
        self.layers.tree().border(end);
        for _ in 0..ROUNDS_MAX {
            self.checkpoint().await?;
            let keys = self.keys_of_nodes_behind(end).await?;
            if keys.is_empty() {
                return Ok(());
            }
            for keys in keys.chunks(TOUCHED_AT_ONCE) {
                let _room = self.admit(Admission::Shrink).await?;
                let mut transaction = Transaction::new();
                for key in keys {
                    if let Some(value) = self.get(*key).await? {
                        transaction.put(*key, value);
                    }
                }
                self.commit(transaction)?;
            }
        }
        refuse("tree nodes stay behind the new end; run 'syncline check --repair'")
    }

    /// The first key of each node that reaches behind `end`.
    async fn keys_of_nodes_behind(&self, end: u64) -> Result<Vec<Key>, StoreError> {
        let blocks = self.geometry().node_blocks();
        let (mut keys, mut damage) = (Vec::new(), None);
        {
            let mut visit = |_: u8, pointer: Pointer, node: Result<&Node, &TreeError>| match node {
                Ok(node) if pointer.places().any(|addr| addr + blocks > end) => keys.extend(node.first_key()),
                Ok(_) => {}
                Err(error) => damage = Some(error.to_string()),
            };
            let visitor: &mut Visitor<'_> = &mut visit;
            let _pin = self.room.space().pin();
            let root = self.layers.root();
            self.layers.tree().walk(root, visitor).await;
        }
        match damage {
            Some(damage) => refuse(&format!("{damage}; run 'syncline check --repair'")),
            None => Ok(keys),
        }
    }

    /// Takes the checkpoints that move the map and the table of snapshots, and the one that makes
    /// the filesystem smaller.
    async fn decide_smaller(&self, smaller: Geometry) -> Result<(), StoreError> {
        let mut state = self.checkpoint.lock().await;
        let (larger, end) = (self.geometry(), smaller.usable().end());
        let mut rounds = 0;
        loop {
            // Also makes a durable superblock say that everything freed behind the end is free
            // (rule R2).
            let table = state.table().blocks().iter().any(|block| block.start >= end);
            let pages = self.room.space().move_pages(end, smaller);
            self.run_checkpoint_with(&mut state, false, table.then_some(TableChange::Move)).await?;
            rounds += 1;
            if !table && !pages {
                break;
            }
            if rounds == ROUNDS_MAX {
                return refuse(
                    "pages of the space map stay behind the new end; run 'syncline check --repair'",
                );
            }
        }
        let behind: u64 = self.room.space().named_behind(end).iter().map(|run| run.blocks).sum();
        if behind > 0 {
            return refuse(&format!(
                "{behind} blocks behind the new end are in use by nothing known; run 'syncline check --repair'"
            ));
        }
        // Nothing refers to these places any more, and their contents, perhaps a program's data,
        // must not be taken for a superblock.
        self.clear_second_copies(smaller).await?;
        let generation = self.log.generation();
        self.room.space().narrow_map(smaller, generation)?;
        self.run_checkpoint(&mut state, false).await?;
        self.run_checkpoint(&mut state, false).await?;
        // Both slots give the new size now. Code that looks at the device's end would find the
        // copies at the old end.
        self.clear_second_copies(larger).await
    }
}

/// Refuses if [`Store::open_to_shrink`] would refuse because of snapshots. Writes nothing.
pub async fn require_shrinkable(device: &Arc<dyn Device>, total_blocks: u64) -> Result<(), StoreError> {
    let superblock = crate::read_superblocks(device).await?.superblock;
    let pages = PageReader::new(FlushTracker::new(device.clone()));
    require_no_larger_snapshot(&Table::read(&pages, &superblock).await?, &superblock, total_blocks)
}

fn require_no_larger_snapshot(
    table: &Table,
    superblock: &Superblock,
    total_blocks: u64,
) -> Result<(), StoreError> {
    let larger = table.entries().iter().filter(|entry| entry.total_blocks > total_blocks);
    let name = |entry: &Snapshot| match entry.hold() {
        Some(hold) => {
            format!("one for the fork {} ('syncline fork --detach' makes it independent)", hold.path)
        }
        None if entry.id == superblock.base => {
            format!("{:?}, the base of this fork ('syncline fork --detach' makes it independent)", entry.name)
        }
        None if entry.is_receiving() => {
            "the saved part of a stream ('syncline receive --abandon' discards it)".to_owned()
        }
        None => format!("{:?}", entry.name),
    };
    let names: Vec<String> = larger.map(name).collect();
    if names.is_empty() {
        return Ok(());
    }
    refuse(&format!(
        "snapshots keep what they were made of where it is: {}; delete them with 'syncline snapshot delete', or copy them \
         elsewhere first",
        names.join(", ")
    ))
}

fn refuse<T>(text: &str) -> Result<T, StoreError> {
    Err(StoreError::Unusable(text.into()))
}
