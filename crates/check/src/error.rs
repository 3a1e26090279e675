//! Why an image could not be checked at all.

use std::path::PathBuf;
use std::sync::Arc;
use syncline_device::DeviceError;
use syncline_store::StoreError;

/// Why there is no report.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CheckError {
    /// The device failed where nothing can be done without it.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The image can't be opened: it is none, it is truncated, or its format is newer.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// An undo file can't be written, or not be used.
    #[error("undo file {path}: {error}", path = path.display())]
    Undo {
        /// The file.
        path: PathBuf,
        /// Why.
        error: Arc<std::io::Error>,
    },
}
