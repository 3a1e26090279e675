//! Names: the entries of directories, and the calls that make, move and remove them.
//!
//! `directory` has the entries, `parents` the way back from an inode to its names. Each call is one
//! transaction; `orphan` removes inodes that have lost their last name. Stands on `attributes` (a new
//! inode inherits some) and on `data` (of a file that is renamed or removed).

pub(crate) mod clone;
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
