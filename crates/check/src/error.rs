//! Errors that prevent a check altogether.

use syncline_device::DeviceError;
use syncline_store::StoreError;

/// The reason why there is no report.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CheckError {
    /// The device failed on something that the check can't do without.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The image can't be opened: it is not one, it is truncated, or its format is newer.
    #[error(transparent)]
    Store(#[from] StoreError),
}
