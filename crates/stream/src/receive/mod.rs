//! Making a snapshot of a stream.
//!
//! Everything is done in a branch of the target's store, so nothing of it is to be seen before the
//! stream has ended and all of it was as it was sent. What is wrong with a stream, or with the
//! target, leaves the target as it was; so does a crash.

mod apply;
mod contents;
mod names;

use crate::header::NUMBERS_FOLLOWED_END;
use crate::{Header, Reader, StreamError};
use apply::Target;
use std::io::Read;
use std::sync::Arc;
use syncline_format::superblock::{
    FEATURE_COUNTED_XATTRS, FEATURE_LEASE, FEATURE_PARENT_POINTERS, FEATURE_SNAPSHOTS, FEATURE_UNPLACED,
    FEATURES_KNOWN,
};
use syncline_fs::Filesystem;
use syncline_fs::types::Timestamp;
use syncline_store::{BranchStart, Snapshot};

/// Features that say how an image is made, not what its contents need.
const FEATURES_OF_IMAGES: u32 =
    FEATURE_COUNTED_XATTRS | FEATURE_LEASE | FEATURE_PARENT_POINTERS | FEATURE_SNAPSHOTS | FEATURE_UNPLACED;

/// A snapshot that was received.
#[derive(Clone, Debug)]
pub struct Received {
    /// The snapshot in the target.
    pub snapshot: Snapshot,
    /// The header of the stream.
    pub header: Header,
    /// Number of records.
    pub records: u64,
}

/// Reads a stream and makes its snapshot in the filesystem `target`, under its own name or under
/// `name`. It is durable when this returns.
pub async fn receive(
    target: &Arc<Filesystem>,
    input: impl Read,
    name: Option<&str>,
) -> Result<Received, StreamError> {
    let (mut reader, header) = Reader::new(input)?;
    let unknown = header.filesystem_features & !FEATURES_KNOWN;
    if unknown != 0 {
        return Err(StreamError::Unknown(format!("has features of filesystems {unknown:#x}")));
    }
    let store = target.store();
    let name = name.unwrap_or(&header.snapshot.name);
    store.require_new_name(name).await?;
    let start = start(target, &header).await?;
    let features = header.filesystem_features & !FEATURES_OF_IMAGES;
    let branch = store.branch(start, features, u64::MAX).await?;
    if header.next_object <= NUMBERS_FOLLOWED_END {
        branch.store().keep_numbers_below(header.next_object);
    }
    let filled = match target.open_branch(branch.store().clone()).await {
        Ok(fs) => {
            let filled = fill(&fs, &mut reader, &header).await;
            if filled.is_err() {
                // Dirty data need not be written back.
                branch.store().shut_down_untold("its stream was refused");
            }
            let closed = fs.close().await;
            filled.and(closed.map_err(StreamError::from))
        }
        Err(error) => Err(error.into()),
    };
    if let Err(error) = filled {
        store.abandon_branch(branch).await;
        return Err(error);
    }
    let snapshot = store.adopt_branch(branch, name, header.snapshot.created_ns).await?;
    Ok(Received { snapshot, header, records: reader.records() })
}

/// The state that the stream is applied to: its parent's, or an empty filesystem.
async fn start(target: &Filesystem, header: &Header) -> Result<BranchStart, StreamError> {
    let Some(parent) = &header.parent else {
        let root = Filesystem::initial_transaction(0, 0, 0o755, Timestamp::default());
        return Ok(BranchStart::Empty(Box::new(root)));
    };
    let snapshots = target.store().snapshots().await;
    let found = snapshots.into_iter().find(|snapshot| snapshot.created_ns == parent.created_ns);
    let found = found.ok_or_else(|| StreamError::NoParent(parent.name.clone()))?;
    if found.total_blocks > target.store().geometry().total_blocks {
        return Err(StreamError::Shrunk(found.name));
    }
    Ok(BranchStart::Snapshot(found))
}

/// Applies all records.
async fn fill<R: Read>(
    fs: &Arc<Filesystem>,
    reader: &mut Reader<R>,
    header: &Header,
) -> Result<(), StreamError> {
    let mut target = Target::begin(fs, header.next_object).await?;
    while let Some(record) = reader.next_record()? {
        target.apply(record).await.map_err(|error| error.at(reader.records()))?;
    }
    target.end().await.map_err(|error| error.at(reader.records()))
}
