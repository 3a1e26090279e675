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
    /// The image at the path of the base has no hold for this fork.
    #[error(
        "{} keeps no snapshot for this fork: the fork was released ('syncline fork --forget'), it is a copy of one that was, or another image \
         is there; 'syncline fork --base BASE FORK' makes a new hold, if the base still has the snapshot",
        base.display()
    )]
    Released {
        /// Where the base should be.
        base: PathBuf,
    },
    /// The image does not have the snapshot.
    #[error(
        "{} does not have the snapshot as which this fork began: it is another image, or the snapshot was deleted, and what the fork shared \
         with it is lost",
        base.display()
    )]
    NoSnapshot {
        /// The image that should be the base.
        base: PathBuf,
    },
    /// The base can't be opened.
    #[error(
        "it is a fork, and its base is out of reach: {error}; if the base was moved, 'syncline fork --base BASE FORK' tells the fork \
         where it is"
    )]
    Base {
        /// Why.
        error: DeviceError,
    },
    /// The base is damaged.
    #[error("it is a fork, and its base {0} can't be used: 'syncline check {0}' tells why", base.display())]
    Unreadable {
        /// Where the base is.
        base: PathBuf,
        /// Why.
        source: StoreError,
    },
    /// The base is a temporary fork.
    #[error("{} is thrown away when it is closed, and a fork of it would be lost; fork the image of which it was made", base.display())]
    Temporary {
        /// The base.
        base: PathBuf,
    },
    /// The image that should be the base is the fork itself, or a fork of it.
    #[error("{} is this fork itself, or a fork of it: name an image that does not need this fork", base.display())]
    Cycle {
        /// The image that should be the base.
        base: PathBuf,
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
