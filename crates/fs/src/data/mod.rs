//! File data: dirty buffers, extents, write-back, fsync.

use crate::FsError;
use crate::filesystem::Filesystem;
use crate::inode::{DiskView, Inode};
use crate::types::{Attributes, Timestamp};
use bytes::Bytes;
use std::sync::Arc;
use syncline_store::OpSeq;

/// What the filesystem keeps once for all file data.
#[derive(Default)]
pub(crate) struct DataShared {}

/// The data side of an inode in memory.
pub(crate) struct DataState {
    /// Size as logged; never past a dirty range.
    pub disk_size: u64,
    /// The mtime that belongs to the last logged write.
    pub disk_mtime: Timestamp,
    /// 512-byte units as logged.
    pub disk_blocks: u64,
    /// Inline contents as logged.
    pub inline: Option<Bytes>,
}

impl DataState {
    /// Of an inode that was created just now.
    pub(crate) fn new(attr: &Attributes) -> Self {
        Self::load(attr, None, OpSeq::default())
    }

    /// Of an inode item that was read; marks start at `last_op`.
    pub(crate) fn load(attr: &Attributes, inline: Option<Bytes>, _last_op: OpSeq) -> Self {
        Self { disk_size: attr.size, disk_mtime: attr.mtime, disk_blocks: attr.blocks, inline }
    }

    /// What the inode item must carry now.
    pub(crate) fn disk_view(&self, _attr: &Attributes) -> DiskView<'_> {
        DiskView {
            size: self.disk_size,
            mtime: self.disk_mtime,
            blocks: self.disk_blocks,
            inline: self.inline.as_deref(),
        }
    }

    /// utimes: the new mtime is an attribute change of its own, logged with the next inode item whatever is dirty.
    pub(crate) fn set_disk_mtime(&mut self, mtime: Timestamp) {
        self.disk_mtime = mtime;
    }

    /// True when the cache may forget this inode: nothing dirty, nothing in flight, no error to remember.
    pub(crate) fn is_idle(&self) -> bool {
        true
    }

    /// True when writes were not yet submitted.
    pub(crate) fn has_dirty(&self) -> bool {
        false
    }
}

/// Starts what runs in the background. Called once by `Filesystem::open`.
pub(crate) fn start(_fs: &Arc<Filesystem>) {}

/// Writes everything back and ends what runs in the background. Called by `Filesystem::close`.
pub(crate) async fn stop(_fs: &Arc<Filesystem>) -> Result<(), FsError> {
    Ok(())
}

/// Starts writing the file's dirty data and commits the transaction that names it, without waiting for durability (P3).
/// Takes the inode's lease itself; the caller holds none.
pub(crate) async fn submit_dirty(_fs: &Filesystem, _inode: &Arc<Inode>) -> Result<(), FsError> {
    Ok(())
}

/// Sets the size, mtime and ctime of a regular file. Admits and takes the inode's lease itself; the caller holds none.
/// Under the lease it calls `Filesystem::drop_privileges`.
pub(crate) async fn truncate(
    _fs: &Filesystem,
    _inode: &Arc<Inode>,
    _new_size: u64,
    _now: Timestamp,
    _kill_privileges: bool,
) -> Result<(), FsError> {
    Ok(())
}

/// Deletes all extents of an inode without names, in bounded transactions, and drops its dirty data. Takes the lease
/// itself. Afterwards the inode item still exists, with size 0 or whatever else is true of it.
pub(crate) async fn remove_all(_fs: &Filesystem, _inode: &Arc<Inode>) -> Result<(), FsError> {
    Ok(())
}

/// Forgets dirty data that nobody can ever read: the inode has no name, no handle and no reference left.
pub(crate) fn drop_dirty(_fs: &Filesystem, _inode: &Arc<Inode>) {}
