//! The errors of the filesystem, and the only table that maps them to an errno.

use syncline_codec::CodecError;
use syncline_format::FormatError;
use syncline_store::{SnapshotError, StoreError};

/// Why an operation failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum FsError {
    /// ENOENT
    #[error("no such file or directory")]
    NotFound,
    /// EEXIST
    #[error("file exists")]
    Exists,
    /// ENOTDIR
    #[error("not a directory")]
    NotDirectory,
    /// EISDIR
    #[error("is a directory")]
    IsDirectory,
    /// ENOTEMPTY
    #[error("directory not empty")]
    NotEmpty,
    /// EINVAL
    #[error("invalid argument: {0}")]
    Invalid(&'static str),
    /// ENAMETOOLONG
    #[error("name too long")]
    NameTooLong,
    /// EFBIG
    #[error("file too large")]
    TooLarge,
    /// EFBIG: all extents move in one transaction, which would be too large.
    #[error("more than 16,384 extents would have to move: copy the file instead")]
    TooManyExtents,
    /// ELOOP
    #[error("too many levels of symbolic links")]
    TooManySymlinks,
    /// EFBIG
    #[error("a transaction has at most 16,384 operations: commit it in parts")]
    TooManySteps,
    /// EFBIG
    #[error(
        "a transaction writes at most 64 MiB, counted in blocks of 4 KiB and with values of attributes: commit it in parts"
    )]
    TransactionTooLarge,
    /// EOPNOTSUPP
    #[error(
        "a transaction makes nothing in a directory whose default access list has more than 127 entries: make it before"
    )]
    LongDefaultAcl,
    /// EMLINK
    #[error("too many links")]
    TooManyLinks,
    /// EPERM
    #[error("operation not permitted")]
    NotPermitted,
    /// EACCES
    #[error("permission denied")]
    AccessDenied,
    /// EXDEV
    #[error("cross-device link")]
    CrossDevice,
    /// ENODATA
    #[error("no such attribute")]
    NoAttribute,
    /// ERANGE
    #[error("result does not fit the buffer")]
    Range,
    /// E2BIG
    #[error("argument list too long")]
    ListTooLong,
    /// ENXIO
    #[error("no data or hole past this offset")]
    NoSuchAddress,
    /// EOPNOTSUPP
    #[error("operation not supported")]
    NotSupported,
    /// ESTALE: the kernel named an inode that does not exist.
    #[error("stale file handle")]
    Stale,
    /// ENODATA
    #[error(
        "this image keeps no parent pointers; they are chosen when it is made: 'mkfs --parent-pointers on'"
    )]
    NoParentPointers,
    /// ENOENT: the inode has no name any more, but is still open.
    #[error("the inode has no name left: it was removed, and goes when nobody uses it any more")]
    NoName,
    /// EIO: an item contradicts itself or others, though its checksum holds (promise P4).
    #[error("inode {ino}: {detail}")]
    Corrupt {
        /// The inode whose item it is.
        ino: crate::types::Ino,
        /// The defect.
        detail: FormatError,
    },
    /// EIO: a reference count of shared blocks has an impossible value.
    #[error("reference count of block {block}: {detail}")]
    CorruptCount {
        /// First block of the count.
        block: u64,
        /// The defect.
        detail: FormatError,
    },
    /// EIO: a compressed unit has the right checksums but can't be decoded.
    #[error("inode {ino}, block {block}: {detail}")]
    Undecodable {
        /// The inode whose data it is.
        ino: crate::types::Ino,
        /// First block in the file.
        block: u64,
        /// The defect.
        detail: CodecError,
    },
    /// EMLINK
    #[error("a block can't have more references")]
    TooManyShares,
    /// EDQUOT
    #[error("the quota of the directory tree is used up")]
    QuotaExceeded,
    /// EBUSY: a directory is in at most one tree with a quota.
    #[error(
        "there is a quota above or below this directory, and quotas do not nest: 'quota list' shows which; remove it with 'quota remove'"
    )]
    QuotaNested,
    /// ENOENT
    #[error("this directory has no quota of its own: 'quota list' lists all quotas")]
    NoQuota,
    /// EOPNOTSUPP
    #[error(
        "this image has parent pointers in tree nodes of less than 16 KiB, which leave no room for quotas: make one with larger nodes"
    )]
    QuotaUnsupported,
    /// EBUSY
    #[error("a filesystem in use can't be made smaller: unmount it, and resize the image")]
    SmallerInUse,
    /// ERANGE
    #[error("the device is smaller than that: enlarge it first, or choose a smaller size")]
    DeviceTooSmall,
    /// ENOSPC
    #[error("there is no room for so long an image file where it lies: free some, or choose a smaller size")]
    HostFull,
    /// ENOSPC, EROFS or EIO, depending on the store's error.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl FsError {
    /// The error for an item of `ino` with an impossible value.
    pub(crate) fn corrupt(ino: crate::types::Ino, structure: &'static str, field: &'static str) -> Self {
        Self::Corrupt { ino, detail: FormatError::Field { structure, field } }
    }

    /// The errno of this error. (These are Linux's numbers; no other code knows them.)
    pub fn errno(&self) -> i32 {
        match self {
            Self::NotPermitted => 1,
            Self::NotFound | Self::NoName | Self::NoQuota => 2,
            Self::NoSuchAddress => 6,
            Self::ListTooLong => 7,
            Self::AccessDenied => 13,
            Self::QuotaNested | Self::SmallerInUse => 16,
            Self::Exists => 17,
            Self::CrossDevice => 18,
            Self::NotDirectory => 20,
            Self::IsDirectory => 21,
            Self::Invalid(_) => 22,
            Self::TooLarge | Self::TooManyExtents | Self::TooManySteps | Self::TransactionTooLarge => 27,
            Self::TooManyLinks | Self::TooManyShares => 31,
            Self::Range | Self::DeviceTooSmall => 34,
            Self::NameTooLong => 36,
            Self::NotEmpty => 39,
            Self::TooManySymlinks => 40,
            Self::NoAttribute | Self::NoParentPointers => 61,
            Self::NotSupported | Self::QuotaUnsupported | Self::LongDefaultAcl => 95,
            Self::Stale => 116,
            Self::QuotaExceeded => 122,
            Self::Store(StoreError::KeepsRoom) => 95,
            Self::Store(StoreError::NoSpace) | Self::HostFull => 28,
            Self::Store(StoreError::ReadOnly { .. }) => 30,
            Self::Store(StoreError::Snapshot(error)) => match error {
                SnapshotError::NotFound { .. } | SnapshotError::Gone | SnapshotError::NotHeld { .. } => 2,
                SnapshotError::InUse { .. }
                | SnapshotError::Forked(_)
                | SnapshotError::ForkInUse { .. }
                | SnapshotError::IsBase { .. } => 16,
                SnapshotError::Exists { .. } => 17,
                SnapshotError::Name { .. } | SnapshotError::OtherSize { .. } => 22,
                SnapshotError::TooMany => 31,
            },
            Self::Store(_) | Self::Corrupt { .. } | Self::CorruptCount { .. } | Self::Undecodable { .. } => 5,
        }
    }
}
