//! Why a device operation failed.

use crate::Holder;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// The operation that failed.
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

/// Why a device could not be opened or an operation failed. Cheap to clone: one failure answers
/// many waiters.
#[derive(Clone, Debug, thiserror::Error)]
pub enum DeviceError {
    /// The operating system refused an operation.
    #[error("{operation:?} of {len_bytes} bytes at byte {offset} failed: {source}")]
    Io {
        /// The operation.
        operation: Operation,
        /// Where, in bytes.
        offset: u64,
        /// How much, in bytes.
        len_bytes: u64,
        /// The operating system's error.
        source: Arc<io::Error>,
    },
    /// A write had completed, but a flush failed before one covered it; only writing it again can
    /// help (rule R6).
    #[error("a flush failed before it covered this write: {source}")]
    Poisoned {
        /// The error of the failed flush.
        source: Arc<io::Error>,
    },
    /// The device dropped an operation without an answer; whether it took place is unknown.
    #[error("{operation:?} was dropped without an answer")]
    Abandoned {
        /// The operation.
        operation: Operation,
    },
    /// The image or block device could not be opened.
    #[error("cannot open {path}: {source}")]
    Open {
        /// The path as given.
        path: String,
        /// The operating system's error.
        source: Arc<io::Error>,
    },
    /// An image could not be created.
    #[error("cannot create {path}: {source}")]
    Create {
        /// The path as given.
        path: String,
        /// The operating system's error.
        source: Arc<io::Error>,
    },
    /// An existing file or block device could not be made an image.
    #[error("cannot make an image of {path}: {source}")]
    TakeOver {
        /// The path as given.
        path: String,
        /// The operating system's error.
        source: Arc<io::Error>,
    },
    /// An image could not be extended.
    #[error("cannot make {path} longer: {source}")]
    Extend {
        /// The path as given.
        path: String,
        /// The operating system's error.
        source: Arc<io::Error>,
    },
    /// The image, or the same bytes under another name, is in use (promise P7).
    #[error("{path} is in use by {holder}: {}", holder.next_step())]
    InUse {
        /// The path as given.
        path: String,
        /// The user of the image, as far as that can be determined.
        holder: Arc<Holder>,
    },
    /// A snapshot of the image is mounted or being read.
    #[error("a snapshot of {path} is in use: unmount it first ('syncline status' lists the mounts)")]
    SnapshotInUse {
        /// The path as given.
        path: String,
    },
    /// There is data at the path, and the caller did not allow overwriting it.
    #[error("{path} is not empty: overwriting it must be forced")]
    NotEmpty {
        /// The path as given.
        path: String,
    },
}

impl DeviceError {
    /// The operating system's error, where there was one.
    pub fn io_error(&self) -> Option<&Arc<io::Error>> {
        match self {
            Self::Io { source, .. }
            | Self::Poisoned { source }
            | Self::Open { source, .. }
            | Self::Create { source, .. }
            | Self::TakeOver { source, .. }
            | Self::Extend { source, .. } => Some(source),
            Self::Abandoned { .. }
            | Self::InUse { .. }
            | Self::SnapshotInUse { .. }
            | Self::NotEmpty { .. } => None,
        }
    }

    /// An operation that the operating system refused.
    pub fn io(operation: Operation, offset: u64, len_bytes: u64, source: io::Error) -> Self {
        Self::Io { operation, offset, len_bytes, source: Arc::new(source) }
    }

    /// A range that is not made of whole blocks inside the device.
    pub fn out_of_range(operation: Operation, offset: u64, len_bytes: u64) -> Self {
        let reason = "the range is not made of whole blocks inside the device";
        Self::io(operation, offset, len_bytes, io::Error::new(io::ErrorKind::InvalidInput, reason))
    }

    pub(crate) fn open(path: &Path, source: io::Error) -> Self {
        Self::Open { path: path.display().to_string(), source: Arc::new(source) }
    }

    pub(crate) fn create(path: &Path, source: io::Error) -> Self {
        Self::Create { path: path.display().to_string(), source: Arc::new(source) }
    }

    pub(crate) fn take_over(path: &Path, source: io::Error) -> Self {
        Self::TakeOver { path: path.display().to_string(), source: Arc::new(source) }
    }

    pub(crate) fn extend(path: &Path, source: io::Error) -> Self {
        Self::Extend { path: path.display().to_string(), source: Arc::new(source) }
    }

    pub(crate) fn in_use(path: &Path, holder: Holder) -> Self {
        Self::InUse { path: path.display().to_string(), holder: Arc::new(holder) }
    }

    /// The source to report to those whose durability depended on a flush that failed with this
    /// error.
    pub(crate) fn poison_source(&self) -> Arc<io::Error> {
        self.io_error().cloned().unwrap_or_else(|| Arc::new(io::Error::other(self.to_string())))
    }
}
