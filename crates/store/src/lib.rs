//! An ordered, transactional, crash-safe map from keys to values, with checksummed data blocks
//! beside it.
//!
//! The path of a change: [`Store::commit`] puts it into the memtable and, in log form, into the
//! pending log (`commit`); `seal` turns the pending log into a batch and starts writing it; `group`
//! waits for the writes, shares one flush among all callers and acknowledges; `checkpoint` merges
//! the memtable into the tree in the background; `recovery` reads all of it back after a crash.
//! Where tests and measurements change something about that, the code asks `lab`.
#![forbid(unsafe_code)]

mod admit;
mod aside;
mod audit;
mod background;
mod bracket;
mod branch;
mod checkpoint;
mod commit;
mod counters;
mod error;
mod features;
mod figures;
mod format;
mod group;
mod grow;
mod health;
mod inflight;
mod inspect;
mod lab;
mod leave_log;
mod memtable;
mod newest;
mod options;
mod reads;
mod rebuild;
mod recovery;
mod regrow;
mod replay;
mod reserve;
mod room;
mod salvage;
mod scrub;
mod seal;
mod shown;
mod shrink;
mod slots;
mod snapshots;
mod standstill;
mod store;
mod tickets;
mod trace;
mod transaction;
mod trim;
mod unnamed;
mod view;

#[doc(hidden)]
pub use admit::Backlog;
pub use admit::{Admission, Admitted, ChangeSize};
#[doc(hidden)]
pub use audit::Held;
pub use bracket::{Bracket, Quiet};
pub use branch::{Branch, BranchStart};
pub use counters::{Counters, CountersSnapshot, LatencySummary};
pub use error::StoreError;
pub use figures::{CacheCounters, Distribution, Distributions};
pub use format::{FormatOptions, format};
pub use inflight::DataWrite;
pub use inspect::Reachable;
pub use lab::{Ablation, Ablations, Canary, GiveWay, Lab};
pub use leave_log::Relocate;
pub use options::StoreOptions;
pub use reads::Chunk;
pub use rebuild::Rebuild;
pub use recovery::{Ignored, Recovered, RecoveryReport, SEGMENT_IN_USE};
pub use regrow::Regrown;
pub use reserve::Reservation;
pub use salvage::{Salvaged, Unreadable};
pub use shrink::require_shrinkable;
pub use slots::{ReadSlots, WIPED, read_superblocks};
pub use snapshots::{
    RECEIVING, SavedSnapshots, Snapshot, SnapshotError, SnapshotUsage, Submit, first_kept_by_snapshots,
    kept_by_snapshots, require_rollback, require_visible, roll_back, table_in_what_is_kept,
    table_of_snapshots,
};
pub use store::Store;
pub use syncline_space::{Pin, SpaceCounters};
pub use syncline_tree::Difference;
pub use trace::{BatchesTrace, Cover, DurableMark, ItemCounts, Stage, StageTimes, SyncTrace};
pub use transaction::{OpSeq, Transaction};
pub use view::{kept_besides, read_snapshots, snapshot_usage};
