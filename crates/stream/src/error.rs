//! Why a stream can't be made, read or applied.

use std::io;
use std::sync::Arc;
use syncline_fs::FsError;
use syncline_fs::types::Ino;
use syncline_store::StoreError;

/// Why a stream can't be made, read or applied. The target's files and snapshots are as they were.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StreamError {
    /// The stream can't be read or written.
    #[error("{0}")]
    Io(Arc<io::Error>),
    /// There is not one byte of it.
    #[error("no byte of a stream came")]
    Nothing,
    /// It does not begin as a stream does.
    #[error("this is no stream of 'syncline send'")]
    NotAStream,
    /// It is of a version, or needs something, that this program does not know.
    #[error("the stream {0}, which this program does not know; receive it with a newer syncline")]
    Unknown(String),
    /// It ends before its last record.
    #[error("the stream ends too early, after record {0}; send it again")]
    Truncated(u64),
    /// The bytes differ from the sent ones.
    #[error("the stream is damaged at record {record}: {what}; send it again")]
    Damaged {
        /// The number of the record, from 1; 0 stands for the header.
        record: u64,
        /// The fault.
        what: &'static str,
    },
    /// A record is whole, but asks for something impossible.
    #[error("record {record} of the stream is refused: {what}; make a new stream with 'syncline send'")]
    Refused {
        /// The number of the record.
        record: u64,
        /// The fault.
        what: String,
    },
    /// The snapshot that an incremental stream starts from is not in the target.
    #[error(
        "the stream starts from snapshot {0:?}, which is not in the target; receive that one first, or send without --from"
    )]
    NoParent(String),
    /// The image was made smaller since the parent came.
    #[error("the target is smaller than when snapshot {0:?} came; receive a stream made without --from")]
    Shrunk(String),
    /// A token can't be read.
    #[error("this is no token of 'syncline receive --token', or a part of it is missing; ask for it again")]
    Token,
    /// A token is not of the stream that would be sent.
    #[error(
        "the token is of another stream: {0}; 'syncline receive --token' tells where the receiver stands"
    )]
    OtherStream(String),
    /// The rest of a stream does not begin where the kept part ends.
    #[error(
        "the stream goes on after record {from}, and what is kept here ends after record {kept}; send it anew with what \
         'syncline receive --token' says now"
    )]
    OtherPlace {
        /// The record after which the stream goes on.
        from: u64,
        /// The last record that is kept.
        kept: u64,
    },
    /// A stream goes on, and nothing of it is kept.
    #[error("the stream goes on after record {0}, and no part of it is saved here; send it without --resume")]
    NothingKept(u64),
    /// A stream goes on, and the receiver does not.
    #[error("the stream goes on after record {0}; receive it with --resume")]
    Resumed(u64),
    /// The kept part is of another stream.
    #[error(
        "the saved part here is of the stream of snapshot {0:?}; let that one go on first, or give it up with \
         'syncline receive --abandon'"
    )]
    KeptOther(String),
    /// The kept part can't be used.
    #[error("the saved part of a stream is damaged: {0}; give it up with 'syncline receive --abandon'")]
    KeptDamaged(String),
    /// Snapshots to compare are in the wrong order, or the same.
    #[error("snapshot {from:?} is not older than {to:?}; exchange them")]
    Order {
        /// The one to start from.
        from: String,
        /// The one to send.
        to: String,
    },
    /// Snapshots to compare are of different filesystems: an inode number stands for two inodes.
    #[error(
        "the two snapshots are of different filesystems: inode {0} is another one in each; send without --from"
    )]
    Unrelated(Ino),
    /// Inode numbers are greater than any receiver takes.
    #[error(
        "its inode numbers are too great for a stream: a snapshot that was received and rolled back to brought them; copy its files instead, with 'syncline cp --archive'"
    )]
    Numbers,
    /// The filesystem refused something.
    #[error(transparent)]
    Filesystem(#[from] FsError),
}

impl StreamError {
    /// True if a stream broke off, or was damaged on its way: the records before that are as they were
    /// sent.
    pub fn is_cut(&self) -> bool {
        matches!(self, Self::Io(_) | Self::Truncated(_) | Self::Damaged { .. })
    }

    /// True if the stream itself is at fault: damaged, cut off, or asking for the impossible.
    pub fn is_of_stream(&self) -> bool {
        matches!(
            self,
            Self::Nothing
                | Self::NotAStream
                | Self::Unknown(_)
                | Self::Truncated(_)
                | Self::Damaged { .. }
                | Self::Refused { .. }
        )
    }
}

impl From<io::Error> for StreamError {
    fn from(error: io::Error) -> Self {
        Self::Io(Arc::new(error))
    }
}

impl From<StoreError> for StreamError {
    fn from(error: StoreError) -> Self {
        Self::Filesystem(error.into())
    }
}
