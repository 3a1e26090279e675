//! The item tree: one immutable copy-on-write B+tree, whose nodes carry the checksums of their
//! children.
//!
//! A [`Tree`] is the machinery (device, node cache); a
//! [`TreeRoot`](syncline_format::superblock::TreeRoot), a plain value, selects the tree it works
//! on. Readers of one root never see another: a merge writes new nodes to free space, keeps
//! untouched subtrees by pointer and yields a new root. Nothing that the old root reaches is
//! overwritten while anybody may read it (rule R2, upheld by the code that reuses the space).
//!
//! Every node read is checked three times (promise P4): its bytes against the checksum in the
//! pointer, its structure by [`Node::decode`](syncline_format::node::Node::decode), and its place:
//! level and keys must match what the parent says. So a descent can't loop, and a scan can't go
//! backwards, whatever the image holds.
//!
//! In an image that holds its metadata twice, each node is written to two places. A read takes the
//! first sound copy; a damaged one is remembered as [`Rotten`] until the store mends it.
#![forbid(unsafe_code)]

mod difference;
mod error;
mod frame;
mod levels;
mod merge;
mod rotten;
mod scan;
mod tree;
mod walk;
mod writer;

pub use difference::Difference;
pub use error::{MergeFailed, TreeError};
pub use merge::Merged;
pub use rotten::Rotten;
pub use scan::{Chunk, Unreadable};
pub use tree::{Tree, TreeCounters};
pub use walk::{Visitor, Walked};
pub use writer::{Allocate, NodeCopy, WrittenRun};
