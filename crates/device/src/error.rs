//! Why a device operation failed.

use std::sync::Arc;

/// What was being done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// A read.
    Read,
    /// A write.
    Write,
    /// A flush.
    Flush,
    /// A discard.
    Discard,
}

/// Why a device could not be opened or an operation failed. Cheap to clone: one failure answers many waiters.
#[derive(Clone, Debug, thiserror::Error)]
pub enum DeviceError {
    /// The operating system refused an operation.
    #[error("{operation:?} of {len_bytes} bytes at byte {offset} failed: {source}")]
    Io {
        /// What was being done.
        operation: Operation,
        /// Where, in bytes.
        offset: u64,
        /// How much, in bytes.
        len_bytes: u64,
        /// What the operating system said.
        source: Arc<std::io::Error>,
    },
    /// A write had completed, but a flush failed before one covered it; only writing it again can help (rule R6).
    #[error("a flush failed after this write completed: {source}")]
    Poisoned {
        /// What the failed flush said.
        source: Arc<std::io::Error>,
    },
    /// The image or block device could not be opened.
    #[error("cannot open {path}: {source}")]
    Open {
        /// The path as given.
        path: String,
        /// What the operating system said.
        source: Arc<std::io::Error>,
    },
    /// Another process holds the image (promise P7).
    #[error("{path} is in use by another process: unmount it first")]
    InUse {
        /// The path as given.
        path: String,
    },
}
