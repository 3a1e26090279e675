//! An ordered, transactional, crash-safe map from keys to values, with checksummed data blocks
//! beside it.
//!
//! The path of a change: [`Store::commit`] puts it into the memtable and, in log form, into the
//! pending log (`commit`); `seal` turns the pending log into a batch and starts writing it; `group`
//! waits for the writes, shares one flush among all callers and acknowledges; `checkpoint` merges
//! the memtable into the tree in the background; `recovery` reads all of it back after a crash.
//! Where tests and measurements change something about that, the code asks `lab`.
#![forbid(unsafe_code)]

mod branch;
mod checkpoint;
mod counters;
mod error;
mod figures;
mod health;
mod lab;
mod layers;
mod log;
mod offline;
mod opening;
mod options;
mod room;
mod store;
mod trace;
mod transaction;

pub use branch::{Branch, BranchStart};
pub use checkpoint::{
    RECEIVING, ReadSlots, SavedSnapshots, Snapshot, SnapshotError, SnapshotUsage, Submit, WIPED,
    first_kept_by_snapshots, kept_by_snapshots, read_superblocks, require_rollback, require_visible,
    roll_back, table_in_what_is_kept, table_of_snapshots,
};
pub use counters::CountersSnapshot;
pub use error::StoreError;
pub use figures::CacheCounters;
pub use health::Relocate;
pub use lab::{Ablation, Ablations, Canary, GiveWay, Lab};
pub use layers::Chunk;
#[doc(hidden)]
pub use log::Backlog;
pub use log::{Bracket, DataWrite, Quiet};
#[doc(hidden)]
pub use offline::Held;
pub use offline::{
    FormatOptions, Reachable, Rebuild, Regrown, Salvaged, Unreadable, format, require_shrinkable,
};
pub use opening::{
    Ignored, Recovered, RecoveryReport, SEGMENT_IN_USE, kept_besides, read_snapshots, snapshot_usage,
};
pub use options::StoreOptions;
pub use room::{Admission, Admitted, ChangeSize, Reservation};
pub use store::Store;
pub use syncline_space::{Pin, SpaceCounters};
pub use syncline_tree::Difference;
pub use trace::{BatchesTrace, Cover, DurableMark, ItemCounts, Stage, StageTimes, SyncTrace};
pub use transaction::{OpSeq, Transaction};
