//! Errors, and their conversion to [`io::Error`].

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use syncline_device::DeviceError;
use syncline_fs::FsError;
use syncline_image::KeyError;
use syncline_store::StoreError;

/// The reason why a call failed. Converts to [`io::Error`] with the errno that a kernel filesystem
/// would return.
///
/// ```
/// # let fs = syncline::Filesystem::in_memory(32 << 20)?;
/// let error = fs.rename("/draft", "/letter").unwrap_err();
/// assert_eq!(error.to_string(), "rename /draft: no such file or directory");
/// assert_eq!(error.errno(), 2);
/// # std::io::Result::Ok(())
/// ```
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A call that names a path failed.
    #[error("{operation} {}: {cause}", path.display())]
    At {
        /// The operation, as a verb.
        operation: &'static str,
        /// The path, as it was given.
        path: PathBuf,
        /// The reason.
        cause: Box<Error>,
    },
    /// The filesystem returned an error.
    #[error(transparent)]
    Filesystem(#[from] FsError),
    /// The image can't be opened, formatted or closed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The device or image file failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// ELOOP: a path leads through too many symbolic links.
    #[error("too many levels of symbolic links")]
    TooManySymlinks,
    /// EBADF: the file was not opened for this.
    #[error("the file was not opened for {0}")]
    WrongAccess(&'static str),
    /// EINVAL: the options contradict each other, or a position is impossible.
    #[error("invalid argument: {0}")]
    Invalid(&'static str),
    /// EXDEV: files of different filesystems in one call.
    #[error("the files belong to different filesystems")]
    CrossDevice,
    /// ENOMEM: not enough memory to read so much at once.
    #[error("{bytes} bytes at once do not fit into memory; read them in pieces")]
    Memory {
        /// Number of bytes to read.
        bytes: u64,
    },
    /// EILSEQ: the file's contents are not UTF-8.
    #[error("the file's contents are not UTF-8 text; 'read' gives them as bytes")]
    NotText,
    /// A transaction was applied, and all see it, but it could not be made durable. A later sync
    /// tries again.
    #[error("the transaction is applied but not durable yet, a sync tries again: {0}")]
    NotDurable(Box<Error>),
    /// The device failed while a transaction was applied. The device has nothing of it; the image is
    /// read-only in this process, which may see a part of it.
    #[error("the transaction broke off, close the image and open it again as it was before: {0}")]
    Broken(Box<Error>),
    /// The errno of the cause. A fork no longer needs its base, but the base still keeps the snapshot for it.
    #[error("{} needs its base no longer, but {} still keeps the snapshot for it: {cause}", fork.display(), base.display())]
    Unreleased {
        /// The image that was a fork.
        fork: PathBuf,
        /// The image that was its base.
        base: PathBuf,
        /// Why the hold was not released.
        cause: Box<Error>,
    },
    /// EMLINK: the file of a fork has hard links, under which the fork would live on.
    #[error(
        "the fork's file has {names} names (hard links), and would live on under the others: remove those first ('find -samefile' lists them)"
    )]
    HardLinks {
        /// Number of its names.
        names: u64,
    },
    /// No thread could be started for the engine.
    #[error("the engine's thread could not be started: {0}")]
    Thread(Arc<io::Error>),
}

/// The result of most calls.
pub type Result<T> = std::result::Result<T, Error>;

/// The Linux errno.
const EIO: i32 = 5;

impl Error {
    /// The reason, without operation and path.
    pub fn cause(&self) -> &Error {
        match self {
            Self::At { cause, .. }
            | Self::Unreleased { cause, .. }
            | Self::NotDurable(cause)
            | Self::Broken(cause) => cause.cause(),
            error => error,
        }
    }

    /// The errno of this error.
    pub fn errno(&self) -> i32 {
        match self {
            Self::At { cause, .. }
            | Self::Unreleased { cause, .. }
            | Self::NotDurable(cause)
            | Self::Broken(cause) => cause.errno(),
            Self::Filesystem(error) => error.errno(),
            Self::Store(error) => FsError::Store(error.clone()).errno(),
            Self::Device(DeviceError::InUse { .. } | DeviceError::SnapshotInUse { .. }) => 16,
            Self::Device(DeviceError::NotEmpty { .. }) => 17,
            Self::Device(error) => match syncline_image::key_error(error) {
                Some(KeyError::Missing) => 126,
                Some(KeyError::Wrong) => 129,
                _ => error.io_error().map_or(EIO, |error| match error.raw_os_error() {
                    Some(errno) => errno,
                    // No system call has refused it.
                    None => errno_of(error.kind()),
                }),
            },
            Self::TooManySymlinks => 40,
            Self::WrongAccess(_) => 9,
            Self::Invalid(_) => 22,
            Self::CrossDevice => 18,
            Self::Memory { .. } => 12,
            Self::NotText => 84,
            Self::HardLinks { .. } => 31,
            Self::Thread(error) => error.raw_os_error().unwrap_or(11),
        }
    }

    /// The kind of the [`io::Error`] that this converts to.
    pub fn kind(&self) -> io::ErrorKind {
        match self.cause() {
            Self::NotText | Self::Store(StoreError::Unusable(_)) => io::ErrorKind::InvalidData,
            _ => io::Error::from_raw_os_error(self.errno()).kind(),
        }
    }

    /// True for ENOENT.
    pub fn is_not_found(&self) -> bool {
        matches!(self.cause(), Self::Filesystem(FsError::NotFound))
    }
}

/// The errno of an error that Syncline, a server or a cluster has found.
fn errno_of(kind: io::ErrorKind) -> i32 {
    match kind {
        io::ErrorKind::NotFound => 2,
        io::ErrorKind::PermissionDenied => 13,
        io::ErrorKind::ResourceBusy => 16,
        io::ErrorKind::InvalidInput => 22,
        io::ErrorKind::StorageFull => 28,
        io::ErrorKind::ReadOnlyFilesystem => 30,
        io::ErrorKind::TimedOut => 110,
        io::ErrorKind::ConnectionRefused => 111,
        _ => EIO,
    }
}

/// Adds the operation and the path to an error that has none yet.
pub(crate) fn about<'a>(
    operation: &'static str,
    path: &'a (impl AsRef<Path> + ?Sized),
) -> impl FnOnce(Error) -> Error + 'a {
    move |error| match error {
        error @ Error::At { .. } => error,
        error => Error::At { operation, path: path.as_ref().to_owned(), cause: Box::new(error) },
    }
}

impl From<Error> for io::Error {
    /// Has the kind and errno that the same failure has in `std::fs`. The errno replaces the
    /// message.
    ///
    /// ```
    /// # let fs = syncline::Filesystem::in_memory(32 << 20)?;
    /// let error: std::io::Error = fs.read("/nowhere").unwrap_err().into();
    /// assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
    /// # std::io::Result::Ok(())
    /// ```
    fn from(error: Error) -> Self {
        match error.kind() {
            // No errno maps to this kind.
            io::ErrorKind::InvalidData => io::Error::new(io::ErrorKind::InvalidData, error),
            _ => io::Error::from_raw_os_error(error.errno()),
        }
    }
}
