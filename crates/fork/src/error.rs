//! Why a fork can't be made or opened.

use std::path::PathBuf;
use syncline_device::DeviceError;
use syncline_format::FormatError;
use syncline_store::StoreError;

/// Why a fork can't be made, opened or detached.
#[derive(Debug, thiserror::Error)]
pub enum ForkError {
    /// Neither copy of the record can be used.
    #[error("the record of its base is damaged ({0}); restore the fork from a copy, or make a new one")]
    Record(FormatError),
    /// What lies at the path of the base does not hold the snapshot for this fork.
    #[error(
        "{} is not the base of this fork any more: the fork was released ('syncline fork --forget'), or another image is there; \
         if the base was moved, 'syncline fork --base PATH' tells the fork where it is",
        base.display()
    )]
    Released {
        /// Where the base should be.
        base: PathBuf,
    },
    /// The base can't be opened.
    #[error(
        "it is a fork, and its base is out of reach: {error}; if the base was moved, 'syncline fork --base PATH' tells the fork where it is"
    )]
    Base {
        /// Why.
        error: DeviceError,
    },
    /// Forks of forks are nested too deeply.
    #[error(
        "there are more than {0} forks behind each other; make one of them independent with 'syncline fork --detach'"
    )]
    Depth(usize),
    /// The path of the base is too long for the record.
    #[error("the path of the base is too long")]
    Path,
    /// The base, or the fork, can't be read or written.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<DeviceError> for ForkError {
    fn from(error: DeviceError) -> Self {
        Self::Store(error.into())
    }
}
