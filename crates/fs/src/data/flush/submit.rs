//! Submitting dirty data: the first half of an fsync, and the part of a rename that P3 requires.
//!
//! The way of a submission is `choose`, `start`, `finish` and at last `ended`, in this order.

use super::start::{self, Submission};
use super::writeback::{self, Way};
use super::{choose, ended};
use crate::FsError;
use crate::data::memory::submission::Aim;
use crate::filesystem::Filesystem;
use crate::inode::Inode;
use crate::receipt::Submitted;
use crate::types::FileType;
use std::sync::Arc;
use syncline_store::{Admission, Canary};

/// Commits a transaction that names the file's dirty data, whose writes it starts, or that contains
/// the data. Does not wait for durability (P3). Takes the inode's lease itself; the caller holds
/// none.
pub(crate) async fn submit_dirty(fs: &Filesystem, inode: &Arc<Inode>) -> Result<(), FsError> {
    submit_noting(fs, inode, &mut Submitted::default()).await
}

/// The same where few callers wait for the result: data that is not in the log is placed at once, and
/// is not written twice.
pub(crate) async fn submit_placing(fs: &Filesystem, inode: &Arc<Inode>) -> Result<(), FsError> {
    submit_as(fs, inode, Aim::Place, &mut Submitted::default()).await
}

/// Submits a file's dirty data as `submit_dirty` does, and notes what was written and logged.
pub(crate) async fn submit_noting(
    fs: &Filesystem,
    inode: &Arc<Inode>,
    note: &mut Submitted,
) -> Result<(), FsError> {
    submit_as(fs, inode, Aim::Log, note).await
}

async fn submit_as(
    fs: &Filesystem,
    inode: &Arc<Inode>,
    aim: Aim,
    note: &mut Submitted,
) -> Result<(), FsError> {
    if inode.file_type != FileType::Regular || inode.state.lock().is_settled(Aim::Log) {
        return Ok(());
    }
    if fs.store.breaks(Canary::OverlookWriteback) && inode.state.lock().data.blocks.dirty() == 0 {
        return Ok(());
    }
    fs.store.give_way();
    let writeback = inode.state.lock().data.writeback();
    let _writeback = writeback.lock().await;
    loop {
        submit_once(fs, inode, aim, note).await?;
        if ended::has_ended(fs, inode) {
            return Ok(());
        }
    }
}

/// Submits the data that is dirty now. The inode's `writeback` is held; its lease is not.
pub(crate) async fn submit_once(
    fs: &Filesystem,
    inode: &Arc<Inode>,
    aim: Aim,
    note: &mut Submitted,
) -> Result<(), FsError> {
    let (mut first, end) = (0, inode.state.lock().begin_submission());
    fs.store.give_way();
    loop {
        let room = fs.store.admit(Admission::Finish).await?;
        let lease = inode.lease.write().await;
        if inode.state.lock().is_clean(aim) {
            return Ok(());
        }
        let Some(split) = choose::before_log_end(fs, &inode.state.lock(), first, end) else {
            return start::submit(fs, &[Submission { inode, blocks: first..end, aim }], note).await;
        };
        drop((lease, room));
        first = writeback::round(fs, inode, first..split, Way::BeforeLog, note).await?;
    }
}

/// Takes the `writeback`s of several inodes, which are given in the order of their numbers.
pub(crate) async fn hold_writebacks(
    files: &[&Arc<Inode>],
) -> Vec<syncline_sync::asynchronous::MutexGuardArc<()>> {
    let mut held = Vec::with_capacity(files.len());
    for inode in files {
        let writeback = inode.state.lock().data.writeback();
        held.push(writeback.lock_arc().await);
    }
    held
}
