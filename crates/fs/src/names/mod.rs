//! Names: the entries of directories, and the calls that make, move and remove them.
//!
//! `directory` has the entries themselves and `parents` the way back from an inode to its names.
//! Each call is one transaction (`create`, `symlink`, `tmpfile`, `rename`, `unlink`); `orphan` removes
//! inodes that have lost their last name. Stands on `attributes` (inherited flags, lists, quotas)
//! and on `data` (a renamed file's data is submitted first, a removed file's extents are freed).

pub(crate) mod create;
pub(crate) mod directory;
pub(crate) mod hash;
pub(crate) mod orphan;
pub(crate) mod parents;
pub(crate) mod paths;
pub(crate) mod readdir;
pub(crate) mod rename;
pub(crate) mod symlink;
pub(crate) mod tmpfile;
pub(crate) mod unlink;
