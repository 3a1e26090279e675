//! fsync, fdatasync, sync of many files, barriers, syncfs.

use super::submit::{self, Submission, submit_dirty};
use super::{WriteErrors, shared};
use crate::FsError;
use crate::change::lease_all;
use crate::filesystem::Filesystem;
use crate::inode::Inode;
use crate::types::FileType;
use std::collections::BTreeMap;
use std::sync::Arc;
use syncline_store::{Ablation, Admission, Canary, OpSeq};

/// Most dirty blocks that one [`sync_many`] takes: 64 MiB. They go in parallel with one batch that holds all their extents.
pub(crate) const MANY_BLOCKS_MAX: u64 = 16384;

/// Makes a file's data (and, unless `data_only`, everything that was committed anywhere before) survive any crash (P1).
pub(crate) async fn fsync(fs: &Filesystem, inode: &Arc<Inode>, data_only: bool) -> Result<(), FsError> {
    if fs.store.ablates(Ablation::XattrSkip) {
        fs.log_xattrs_again(inode).await?;
    }
    let entry = fs.store.last_op();
    if inode.file_type != FileType::Regular {
        return Ok(fs.store.sync(entry).await?);
    }
    let counters = &fs.counters;
    if data_only {
        counters.fdatasyncs.add(1)
    } else {
        counters.fsyncs.add(1)
    }
    // As of now: what fails later is for those who come later.
    let unreported = inode.state.lock().data.errors.unreported();
    let result = submit_and_sync(fs, inode, entry, data_only).await;
    let Some((count, error)) = unreported else { return result };
    inode.state.lock().data.errors.report(count);
    result.and(Err(error))
}

async fn submit_and_sync(
    fs: &Filesystem,
    inode: &Arc<Inode>,
    entry: OpSeq,
    data_only: bool,
) -> Result<(), FsError> {
    submit_dirty(fs, inode).await?;
    let target = if data_only && fs.store.breaks(Canary::OverlookName) {
        inode.state.lock().data.data_op
    } else {
        target(inode, entry, data_only)
    };
    Ok(fs.store.sync(target).await?)
}

/// The operation that must be durable before a sync of this file is answered.
fn target(inode: &Inode, entry: OpSeq, data_only: bool) -> OpSeq {
    let state = inode.state.lock();
    let own = state.data.data_op.max(state.name_op);
    if data_only { own } else { own.max(entry) }
}

/// Makes several files durable with one batch and one flush: what of them was not logged comes back all or nothing after a
/// crash (P6). `TooLarge` before any effect if they have too much dirty data for one batch.
///
/// A failure of earlier write-back counts as reported only if `uid` is root or the file's owner: who asks need not have the
/// files open, and shall not take an error away from those who have.
pub(crate) async fn sync_many(fs: &Filesystem, inodes: &[Arc<Inode>], uid: u32) -> Result<(), FsError> {
    let entry = fs.store.last_op();
    let files: BTreeMap<_, _> = inodes
        .iter()
        .filter(|inode| inode.file_type == FileType::Regular)
        .map(|inode| (inode.ino, inode))
        .collect();
    fs.counters.fsyncs.add(files.len() as u64);
    let unreported: Vec<_> =
        files.values().map(|inode| (*inode, inode.state.lock().data.errors.unreported())).collect();
    let mut result = submit_many(fs, &files.values().copied().collect::<Vec<_>>()).await;
    if result.is_ok() {
        let target = files.values().map(|inode| target(inode, entry, false)).fold(entry, OpSeq::max);
        result = fs.store.sync(target).await.map_err(FsError::from);
    }
    for (inode, error) in unreported {
        if let Some((count, error)) = error {
            let mut state = inode.state.lock();
            if uid == 0 || uid == state.attr.uid {
                state.data.errors.report(count);
            }
            drop(state);
            result = result.and(Err(error));
        }
    }
    result
}

/// Orders: after a crash, what these files held when this was called is there if anything that was written, created or
/// changed after it returned is, anywhere. Waits for no flush.
///
/// The log makes it so: what comes back is a prefix of the transactions, and a batch counts only with all the data that it
/// and those before it name. So it is enough that the transaction that names the data comes before all later ones.
pub(crate) async fn barrier(fs: &Filesystem, inodes: &[Arc<Inode>]) -> Result<(), FsError> {
    fs.counters.barriers.add(1);
    for inode in inodes {
        submit_dirty(fs, inode).await?;
    }
    Ok(())
}

/// Submits the files (in the order of their numbers) in one transaction.
async fn submit_many(fs: &Filesystem, files: &[&Arc<Inode>]) -> Result<(), FsError> {
    let _writebacks = submit::hold_writebacks(files).await;
    fs.store.admit(Admission::Shrink).await?;
    let _leases = lease_all(files).await;
    submit_leased(fs, files).await
}

/// Submits all that is dirty of these files in one transaction. Their `writeback`s and leases are held.
pub(crate) async fn submit_leased(fs: &Filesystem, files: &[&Arc<Inode>]) -> Result<(), FsError> {
    let dirty: Vec<Submission<'_>> = files
        .iter()
        .filter(|inode| !submit::is_clean(&inode.state.lock()))
        .map(|inode| {
            submit::begin(&mut inode.state.lock());
            Submission { inode, blocks: 0..u64::MAX }
        })
        .collect();
    let blocks: u64 = dirty.iter().map(|file| file.inode.state.lock().data.dirty.len()).sum();
    if blocks > MANY_BLOCKS_MAX {
        return Err(FsError::TooLarge);
    }
    if dirty.is_empty() { Ok(()) } else { submit::submit_leased(fs, &dirty).await }
}

/// Writes back everything and brings the tree up to date. An error of one file does not keep the others back.
pub(crate) async fn syncfs(fs: &Filesystem) -> Result<(), FsError> {
    let written = shared::write_back_everything(fs).await;
    let checkpointed = fs.store.checkpoint().await;
    written.and(checkpointed.map_err(FsError::from))
}

impl WriteErrors {
    /// A failure that no fsync has reported, and the count of failures it stands for.
    fn unreported(&self) -> Option<(u64, FsError)> {
        if self.count > self.reported { self.last.clone().map(|error| (self.count, error)) } else { None }
    }

    /// An fsync reports the failures up to `count`.
    fn report(&mut self, count: u64) {
        self.reported = self.reported.max(count);
    }
}
