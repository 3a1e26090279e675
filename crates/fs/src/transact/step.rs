//! The steps of a transaction, and why one was not committed.

use crate::FsError;
use crate::types::{Ino, XattrMode};
use bytes::Bytes;

/// One change of a transaction. Paths begin at the root, with or without a slash; `..` and symbolic
/// links never lead out of it. A path is looked up when the transaction is committed, and sees what
/// the steps before have done.
#[derive(Clone, Debug)]
pub struct Step {
    /// The file or directory to change.
    pub path: Vec<u8>,
    /// The change.
    pub action: Action,
}

/// The change that a step makes.
#[derive(Clone, Debug)]
pub enum Action {
    /// Makes an empty regular file.
    Create {
        /// Its permission bits.
        permissions: u16,
        /// An existing file is an error; otherwise it stays as it is.
        exclusive: bool,
    },
    /// Gives a file that was made without a name its first one. All its dirty data
    /// is written before the transaction is applied.
    Link {
        /// The file. It must stay open until the commit.
        ino: Ino,
        /// An existing inode of that name is an error; otherwise it is replaced.
        exclusive: bool,
    },
    /// Makes a directory.
    Mkdir {
        /// Its permission bits.
        permissions: u16,
    },
    /// Makes a symbolic link.
    Symlink {
        /// Where it leads.
        target: Vec<u8>,
    },
    /// Writes into a regular file.
    Write {
        /// First byte in the file.
        offset: u64,
        /// The bytes to write.
        data: Bytes,
    },
    /// Sets the size of a regular file.
    SetLen {
        /// The size in bytes.
        size: u64,
    },
    /// Sets the permission bits.
    SetPermissions {
        /// The permission bits (07777).
        permissions: u16,
    },
    /// Sets an extended attribute; access control lists can't be set in a transaction.
    SetXattr {
        /// Its name.
        name: Vec<u8>,
        /// Its value.
        value: Vec<u8>,
        /// Whether it may, or must, be set already.
        mode: XattrMode,
    },
    /// Removes an extended attribute.
    RemoveXattr {
        /// Its name.
        name: Vec<u8>,
    },
    /// Renames, replacing what has the new name.
    Rename {
        /// The new path.
        to: Vec<u8>,
    },
    /// Removes a name of anything but a directory.
    RemoveFile,
    /// Removes an empty directory.
    RemoveDir,
}

/// Why a transaction was not committed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum NotCommitted {
    /// A step can't be done. Nothing has changed.
    #[error("step {step}: {error}")]
    Refused {
        /// Index of the step.
        step: usize,
        /// Why.
        error: FsError,
    },
    /// There is no room for it, or it is too large. Nothing has changed.
    #[error(transparent)]
    Unchanged(FsError),
    /// It was applied as a whole, and all see it. Whether it is durable is not known: a later sync
    /// tries again.
    #[error("the transaction is applied but not durable: {0}")]
    NotDurable(FsError),
    /// The device failed while it was applied. Memory has a part of it and the device none; the
    /// filesystem is read-only.
    #[error("the transaction broke off at step {step}: {error}")]
    Broken {
        /// Index of the step.
        step: usize,
        /// Why.
        error: FsError,
    },
}

impl NotCommitted {
    pub(super) fn unchanged(error: FsError) -> Self {
        Self::Unchanged(error)
    }

    /// The reason.
    pub fn cause(&self) -> &FsError {
        match self {
            Self::Refused { error, .. } | Self::Broken { error, .. } => error,
            Self::Unchanged(error) | Self::NotDurable(error) => error,
        }
    }
}
