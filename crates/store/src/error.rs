//! What can go wrong in the store.

use syncline_device::DeviceError;
use syncline_format::{BlockAddr, FormatError};

/// Why a store operation failed. Cheap to clone: one failure answers many waiters.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// Something on the device is not what its checksum or its structure says it must be (promise P4).
    #[error("block {addr}: {detail}")]
    Corrupt {
        /// Where.
        addr: BlockAddr,
        /// What is wrong.
        detail: FormatError,
    },
    /// No room is left, even after a checkpoint released what was held back.
    #[error("no space left on the image")]
    NoSpace,
    /// The filesystem turned read-only, or was opened so.
    #[error("the filesystem is read-only: {reason}")]
    ReadOnly {
        /// Why.
        reason: std::sync::Arc<str>,
    },
    /// The image can't be used; the text says what is wrong and what to do.
    #[error("{0}")]
    Unusable(std::sync::Arc<str>),
}
