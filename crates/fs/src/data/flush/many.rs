//! Submitting several files: in one transaction, or before an operation that needs them without dirty
//! data.

use super::start::{self, Submission};
use super::{ended, submit, writeback};
use crate::FsError;
use crate::data::memory::submission::Aim;
use crate::filesystem::Filesystem;
use crate::inode::Inode;
use crate::inode::change::{Leases, lease_all};
use crate::receipt::Submitted;
use crate::types::FileType;
use std::sync::Arc;
use syncline_format::items::extent::EXTENT_BLOCKS_MAX;
use syncline_store::{Admission, ChangeSize};

/// Most dirty blocks that one `sync_many` takes: 64 MiB. They are written in parallel with one
/// batch that holds all their extents.
pub(crate) const MANY_BLOCKS_MAX: u64 = 16384;

/// How often a file is submitted without its lease, before its writers have to wait.
const SETTLE_TRIES: usize = 3;

/// Submits the files (in the order of their numbers) in one transaction.
pub(crate) async fn submit_many(
    fs: &Filesystem,
    files: &[&Arc<Inode>],
    note: &mut Submitted,
) -> Result<(), FsError> {
    let _room = match files {
        [] | [_] => fs.store.admit(Admission::Finish).await?,
        _ => fs.store.admit_together(size_of(files)).await?,
    };
    submit_together(fs, files, MANY_BLOCKS_MAX, note).await
}

/// The same for a transaction of the library, which has found the room before: it waits for none, and
/// for no data to be written.
pub(crate) async fn submit_in_transaction(
    fs: &Filesystem,
    files: &[&Arc<Inode>],
    note: &mut Submitted,
) -> Result<(), FsError> {
    // Beside what the transaction writes, blocks may wait that are in the log already, or that leave an
    // inode item. So there may be more than `MANY_BLOCKS_MAX`.
    submit_together(fs, files, u64::MAX, note).await
}

/// The most memory that naming this many new blocks of a file takes.
pub(crate) fn size_of_names(blocks: u64) -> ChangeSize {
    let bytes = writeback::NAME_BYTES * (1 + blocks.div_ceil(EXTENT_BLOCKS_MAX));
    ChangeSize { items: 2, bytes }
}

/// The memory that a transaction with all dirty data of these files takes.
fn size_of(files: &[&Arc<Inode>]) -> ChangeSize {
    let mut size = ChangeSize { items: 0, bytes: 0 };
    for inode in files {
        let state = inode.state.lock();
        if !state.is_clean(Aim::Log) {
            // Its inode item, and the items beside it that name its blocks.
            let names = size_of_names(state.data.blocks.dirty());
            size.items += names.items;
            size.bytes += names.bytes;
        }
    }
    size
}

/// Leases inodes whose data all has its place: nothing of it is dirty or in flight while the leases are
/// held. Their `writeback`s are held, their leases are not.
///
/// Dirty data is submitted before the leases are taken, so that writers wait little. A writer that is
/// faster than the device may dirty any amount meanwhile. After a few tries it has to wait, and the rest
/// is submitted under the leases, in as many transactions as it takes.
pub(crate) async fn lease_settled<'a>(
    fs: &Filesystem,
    inodes: &[&'a Arc<Inode>],
) -> Result<Leases<'a>, FsError> {
    let files = || inodes.iter().filter(|inode| inode.file_type == FileType::Regular);
    let mut tries = 1;
    loop {
        for inode in files() {
            submit::submit_once(fs, inode, Aim::Place, &mut Submitted::default()).await?;
        }
        let leases = lease_all(inodes).await;
        let dirty: u64 = files().map(|inode| inode.state.lock().data.blocks.dirty()).sum();
        if dirty > fs.options.round_blocks && tries < SETTLE_TRIES {
            tries += 1;
            continue;
        }
        for inode in files() {
            submit_rest(fs, inode).await?;
        }
        return Ok(leases);
    }
}

/// Submits the dirty data of a file whose `writeback` and lease are held.
pub(in crate::data) async fn submit_rest(fs: &Filesystem, inode: &Arc<Inode>) -> Result<(), FsError> {
    if inode.state.lock().is_clean(Aim::Place) {
        return Ok(());
    }
    inode.state.lock().begin_submission();
    let (mut first, aim, note) = (0, Aim::Place, &mut Submitted::default());
    let most = fs.options.round_blocks.max(1);
    loop {
        // Between pages (P9).
        let next = inode.state.lock().data.round_end(first..u64::MAX, most + 1);
        let _room = fs.store.admit(Admission::Finish).await?;
        if next == u64::MAX {
            start::submit(fs, &[Submission { inode, blocks: first..next, aim }], note).await?;
            ended::require_size(fs, inode);
            return Ok(());
        }
        start::submit_part(fs, Submission { inode, blocks: first..next, aim }, note).await?;
        first = next;
    }
}

/// Submits all dirty data of these files in one transaction, or none if it is more than `blocks_max`.
async fn submit_together(
    fs: &Filesystem,
    files: &[&Arc<Inode>],
    blocks_max: u64,
    note: &mut Submitted,
) -> Result<(), FsError> {
    let _writebacks = submit::hold_writebacks(files).await;
    let _leases = lease_all(files).await;
    let dirty = begin(files);
    let blocks: u64 = dirty.iter().map(|file| file.inode.state.lock().data.blocks.dirty()).sum();
    if blocks > blocks_max {
        return Err(FsError::TooLarge);
    }
    if !dirty.is_empty() {
        start::submit(fs, &dirty, note).await?;
        dirty.iter().for_each(|file| ended::require_size(fs, file.inode));
    }
    Ok(())
}

/// Begins the submissions of those of the files that have something to submit.
fn begin<'a>(files: &[&'a Arc<Inode>]) -> Vec<Submission<'a>> {
    let is_dirty = |inode: &&&Arc<Inode>| !inode.state.lock().is_clean(Aim::Log);
    let begun = files.iter().filter(is_dirty).map(|inode| {
        inode.state.lock().begin_submission();
        Submission { inode, blocks: 0..u64::MAX, aim: Aim::Log }
    });
    begun.collect()
}
