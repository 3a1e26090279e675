//! Errors of the store.

use std::io::ErrorKind;
use syncline_device::DeviceError;
use syncline_format::{BlockAddr, FormatError};

const MENDING: &str = "mend the device";

/// Why a store operation failed. Cheap to clone: one failure answers many waiters.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// Contents on the device do not match their checksum or are not valid (promise P4).
    #[error("block {addr}: {detail}")]
    Corrupt {
        /// The damaged block.
        addr: BlockAddr,
        /// The error in the block.
        detail: FormatError,
    },
    /// No room is left, even after a checkpoint released what was held back.
    #[error("no space left on the image")]
    NoSpace,
    /// The filesystem turned read-only or was opened read-only.
    #[error("the filesystem is read-only: {reason}")]
    ReadOnly {
        /// Why.
        reason: std::sync::Arc<str>,
    },
    /// A snapshot can't be made, found or removed.
    #[error(transparent)]
    Snapshot(#[from] crate::SnapshotError),
    /// The image file was made with its room allocated and keeps it: free blocks do not go back to
    /// the host.
    #[error("the image file keeps the room that it was made with")]
    KeepsRoom,
    /// The image is damaged beyond one block; the text says how and what to do.
    #[error("{0}")]
    Damaged(std::sync::Arc<str>),
    /// The image can't be used; the text says what is wrong and what to do.
    #[error("{0}")]
    Unusable(std::sync::Arc<str>),
}

impl StoreError {
    /// The step that makes a device that refuses writes take them again.
    pub(crate) fn mending_device(&self) -> &'static str {
        let Self::Device(error) = self else { return MENDING };
        match error.io_error().map(|error| error.kind()) {
            // An image file with holes, on a host that has no room for them any more.
            Some(ErrorKind::StorageFull | ErrorKind::QuotaExceeded) => "free space where the image lies",
            _ => MENDING,
        }
    }
}

impl From<syncline_tree::TreeError> for StoreError {
    fn from(error: syncline_tree::TreeError) -> Self {
        use syncline_tree::TreeError;
        match error {
            TreeError::Device(error) => Self::Device(error),
            TreeError::Corrupt { addr, detail } => Self::Corrupt { addr, detail },
            TreeError::NoSpace => Self::NoSpace,
            TreeError::ValueTooLarge { .. } => Self::Unusable(error.to_string().into()),
        }
    }
}

impl From<syncline_space::SpaceError> for StoreError {
    fn from(error: syncline_space::SpaceError) -> Self {
        use syncline_space::SpaceError;
        match error {
            SpaceError::Device(error) => Self::Device(error),
            SpaceError::Corrupt { addr, source, .. } => Self::Corrupt { addr, detail: source },
            SpaceError::NoSpace { .. } => Self::NoSpace,
            SpaceError::OwnPageFree { .. } | SpaceError::RootLevel { .. } => {
                Self::Damaged(format!("{error}; run 'syncline check'").into())
            }
            SpaceError::TooLarge { .. } | SpaceError::AlreadyPersisted { .. } => {
                Self::Unusable(error.to_string().into())
            }
        }
    }
}

impl From<syncline_log::ReplayError> for StoreError {
    fn from(error: syncline_log::ReplayError) -> Self {
        use syncline_log::ReplayError;
        match error {
            ReplayError::Device(error) => Self::Device(error),
            ReplayError::Corrupt { addr, detail, .. } => Self::Corrupt { addr, detail },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use syncline_device::Operation;

    #[test]
    fn a_full_host_is_told_from_a_device_that_fails() {
        let mending = |kind: ErrorKind| {
            StoreError::from(DeviceError::io(Operation::Write, 0, 4096, kind.into())).mending_device()
        };
        assert_eq!(mending(ErrorKind::StorageFull), "free space where the image lies");
        assert_eq!(mending(ErrorKind::QuotaExceeded), "free space where the image lies");
        assert_eq!(mending(ErrorKind::Other), "mend the device");
        assert_eq!(StoreError::NoSpace.mending_device(), "mend the device");
    }
}
