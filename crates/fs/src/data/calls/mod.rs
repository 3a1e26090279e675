//! The calls on files' data, one file or folder for each kind.
//!
//! `api` has the functions of the filesystem; most of them only lead to the files here. `write` and
//! `read` are the plainest, `sync` has fsync and its kin (`why` notes its reasons for the receipt).
//! `truncate`, `allocate` and `reflink` change extents, each in one transaction or several bounded
//! ones. `overwrite` finds room on a full filesystem. `rewrite`, `defragment` and `relocate`
//! move contents to other blocks.

pub(in crate::data) mod allocate;
pub(in crate::data) mod api;
pub(in crate::data) mod defragment;
pub(in crate::data) mod overwrite;
pub(in crate::data) mod read;
pub(in crate::data) mod reflink;
pub(in crate::data) mod relocate;
pub(in crate::data) mod rewrite;
pub(in crate::data) mod seek;
pub(in crate::data) mod sync;
pub(in crate::data) mod truncate;
pub(in crate::data) mod why;
pub(in crate::data) mod write;
