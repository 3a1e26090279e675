//! POSIX semantics over the store: inodes, directories, names, file data, attributes, orphans,
//! limits.
//!
//! A change of names or attributes is one store transaction. The operation asks for admission and
//! takes the leases of the inodes it changes (the rename lease first, then inodes in the order of
//! their numbers). It reads what it needs, and then computes and commits without waiting for
//! anything.
#![forbid(unsafe_code)]

mod access;
mod acl;
mod attributes;
mod audit;
mod cache;
mod clock;
mod counters;
mod create;
mod data;
mod directory;
mod durability;
mod enlarge;
mod error;
mod filesystem;
mod flags;
mod hash;
mod identity;
mod inode;
mod inode_change;
mod join;
mod options;
mod orphan;
mod parents;
mod paths;
mod patience;
mod privileges;
mod quota;
mod readdir;
mod receipt;
mod rename;
mod restore;
mod scan;
pub mod shrink;
mod snapshot;
mod snapshot_diff;
mod statfs;
mod symlink;
#[cfg(test)]
mod tests;
mod tmpfile;
mod transact;
pub mod types;
mod unlink;
mod xattr;
mod xattr_place;

pub use clock::{Clock, ManualClock, SystemClock};
pub use counters::FsCounters;
pub use data::{Allocation, AtomicWrite, Contents, Defragmented, Fragments, Rewritten, Usage};
pub use durability::Durability;
pub use enlarge::Enlarged;
pub use error::FsError;
pub use filesystem::{Filesystem, Loaded};
pub use options::{AccessTime, Options};
pub use quota::{QuotaLimits, QuotaUsage};
pub use receipt::{Call, Failed, Inodes, Receipt, Receipts, Submitted, Times, Why};
pub use restore::{Remade, RestoredAttributes};
pub use snapshot_diff::{Change, ChangeKind};
pub use syncline_device::Spawn;
#[doc(hidden)]
pub use transact::Together;
pub use transact::{Action, NotCommitted, STEPS_MAX, Step, TRANSACTION_BYTES_MAX};
