//! Calls on the filesystem or a tree as a whole: figures, label, snapshots and their differences,
//! quotas of trees, a new size, and the restoring of inodes from streams.
//!
//! Stands on `names`, `data` and `attributes`.

pub(crate) mod audit;
pub(crate) mod enlarge;
pub(crate) mod identity;
pub(crate) mod quota;
pub(crate) mod restore;
pub mod shrink;
pub(crate) mod snapshot;
pub(crate) mod snapshot_diff;
pub(crate) mod statfs;
