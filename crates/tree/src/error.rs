//! Errors of reading or writing the tree.

use syncline_device::DeviceError;
use syncline_format::{BlockAddr, BlockRun, FormatError, Key};

/// Why an operation on the tree failed. Cheap to clone.
#[derive(Clone, Debug, thiserror::Error)]
pub enum TreeError {
    /// The device failed.
    #[error("tree node: {0}")]
    Device(#[from] DeviceError),
    /// A node does not match what its parent says (promise P4).
    #[error("the tree node at block {addr} is damaged: {detail}")]
    Corrupt {
        /// The node's address.
        addr: BlockAddr,
        /// The error in the node.
        detail: FormatError,
    },
    /// No blocks are left for new nodes.
    #[error("no space is left for tree nodes")]
    NoSpace,
    /// An item's value is larger than the geometry allows.
    #[error("the value of {key:?} has {len_bytes} bytes; {max_bytes} is the most")]
    ValueTooLarge {
        /// Key of the item.
        key: Key,
        /// Length of its value.
        len_bytes: usize,
        /// The greatest length allowed.
        max_bytes: usize,
    },
}

/// A merge that failed. The tree it started from is unaffected.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{error}")]
pub struct MergeFailed {
    /// The cause.
    pub error: TreeError,
    /// Every run that was allocated. No write to them is in flight any more and the cache holds
    /// none of their nodes, so they may be reused at once.
    pub allocated: Vec<BlockRun>,
}
