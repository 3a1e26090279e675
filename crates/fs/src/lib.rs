//! POSIX semantics over the store: inodes, directories, names, file data, attributes, orphans,
//! limits.
//!
//! Each folder stands on the folders before it, and imports nothing from later ones; only an inode
//! contains the state of its data.
//!
//! - `receipt`: the records that syncs leave.
//! - `inode`: inodes in memory, their cache, their items and their changes; the figures of quotas.
//! - `attributes`: attributes of stat(2), extended attributes, access control lists, flags,
//!   durability classes, access times.
//! - `data`: contents of files, from the calls down to the dirty blocks.
//! - `names`: directories, and the calls that make, move and remove names; orphans.
//! - `whole`: snapshots, quotas of trees, resizing, restoring, figures.
//! - `transact`: transactions of the library, several changes as one.
//!
//! `Filesystem` (`filesystem.rs`) composes them. All folders add methods to it.
//!
//! A change of names or attributes is one store transaction. The operation asks for admission and
//! takes the leases of the inodes it changes (the rename lease first, then inodes in the order of
//! their numbers). It reads what it needs, and then computes and commits without waiting for
//! anything.
#![forbid(unsafe_code)]

mod attributes;
mod clock;
mod counters;
mod data;
mod error;
mod filesystem;
mod inode;
mod join;
mod names;
mod options;
mod patience;
mod receipt;
#[cfg(test)]
mod tests;
mod transact;
pub mod types;
mod whole;

pub use attributes::durability::Durability;
pub use clock::{Clock, ManualClock, SystemClock};
pub use counters::FsCounters;
pub use data::{Allocation, Contents, Defragmented, Fragments, Rewritten, Usage};
pub use error::FsError;
pub use filesystem::{Filesystem, Loaded};
pub use options::{AccessTime, Options};
pub use receipt::{Call, Failed, Inodes, Receipt, Receipts, Submitted, Times, Why};
pub use syncline_device::Spawn;
pub use syncline_store::Hold;
#[doc(hidden)]
pub use transact::Together;
pub use transact::{Action, NotCommitted, STEPS_MAX, Step, TRANSACTION_BYTES_MAX};
pub use whole::enlarge::Enlarged;
pub use whole::quota::{QuotaLimits, QuotaUsage};
pub use whole::restore::{Remade, RestoredAttributes};
pub use whole::shrink;
pub use whole::snapshot_diff::{Change, ChangeKind};
