//! An ordered, transactional, crash-safe map from keys to values, with checksummed data blocks
//! beside it.
//!
//! A store has five parts, each a folder whose fields nobody else sees; what others may ask of a part
//! stands in its `mod.rs`:
//!
//! - `log`: appends changes, makes a position durable, and says how far the history is durable.
//! - `layers`: the memtables over the tree; reads, scans and takes changes.
//! - `room`: hands out blocks and promises them, so that what was accepted is never refused.
//! - `checkpoint`: freezes a memtable, merges it into the tree and writes a superblock; keeps
//!   snapshots.
//! - `health`: says whether the store may still be written, and what it does when a device fails.
//!
//! [`Store`] composes them. The path of a change: [`Store::commit`] puts it into the memtable and, in
//! log form, into the pending log (`log/commit`); `log/seal` turns the pending log into a batch and
//! starts writing it; `log/group` waits for the writes, shares one flush among all callers and
//! acknowledges; `checkpoint/run` merges the memtable into the tree in the background; `opening`
//! reads all of it back after a crash. `branch` and `offline` stand above and use the parts as anybody
//! would. Where tests and measurements change something about that, the code asks `lab`.
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
mod report;
mod room;
mod store;
mod trace;

pub use branch::{Branch, BranchStart};
pub use checkpoint::{
    Bracket, Forked, Hold, Quiet, RECEIVING, ReadSlots, Snapshot, SnapshotError, SnapshotUsage, Submit,
    WIPED, read_superblocks, require_visible,
};
pub use counters::CountersSnapshot;
pub use error::StoreError;
pub use figures::CacheCounters;
pub use health::{Mended, Relocate};
pub use lab::{Ablation, Ablations, Canary, GiveWay, Lab};
pub use layers::Chunk;
#[doc(hidden)]
pub use log::Backlog;
pub use log::{DataWrite, OpSeq, Transaction};
#[doc(hidden)]
pub use offline::Held;
pub use offline::{
    FormatOptions, NewFork, Reachable, Rebuild, Salvaged, SavedSnapshots, Unreadable, end_fork,
    first_kept_by_snapshots, format, format_fork, kept_by_snapshots, require_rollback, require_shrinkable,
    require_size, roll_back, table_in_what_is_kept, table_of_snapshots,
};
pub use opening::{Recovered, SEGMENT_IN_USE, claim_snapshot, kept_besides, read_snapshots, snapshot_usage};
pub use options::StoreOptions;
pub use report::{Ignored, RecoveryReport};
pub use room::{Admission, Admitted, ChangeSize, Reservation};
pub use store::Store;
pub use syncline_format::Metadata;
pub use syncline_space::{KeptMap, PageReader, Pin, RottenPage, SpaceCounters};
pub use syncline_tree::{Difference, Rotten};
pub use trace::{BatchesTrace, Cover, DurableMark, ItemCounts, Stage, StageTimes, SyncTrace};
