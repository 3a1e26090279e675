//! Calls on the filesystem as a whole: figures, label, snapshots and their differences, a new size,
//! and the restoring of inodes from streams.
//!
//! Stands on `names`, `data` and `attributes`.

pub(crate) mod audit;
pub(crate) mod enlarge;
pub(crate) mod identity;
pub(crate) mod restore;
pub(crate) mod scan;
pub mod shrink;
pub(crate) mod snapshot;
pub(crate) mod snapshot_diff;
pub(crate) mod statfs;
