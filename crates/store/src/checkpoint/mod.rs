//! The checkpoint: it merges a frozen memtable into the tree and writes a superblock. Snapshots are
//! roots that checkpoints keep.

mod features;
mod grow;
mod run;
mod slots;
mod snapshots;
mod standstill;

pub use slots::{ReadSlots, WIPED, read_superblocks};
pub use snapshots::{
    RECEIVING, SavedSnapshots, Snapshot, SnapshotError, SnapshotUsage, Submit, first_kept_by_snapshots,
    kept_by_snapshots, require_rollback, require_visible, roll_back, table_in_what_is_kept,
    table_of_snapshots,
};

pub(crate) use run::{CheckpointState, Frozen};
pub(crate) use slots::{GENERATION_OF_MKFS, write_slot};
pub(crate) use snapshots::{Adopted, NewTable, Replaced, Table, TableChange, usage};
pub(crate) use standstill::Gate;
