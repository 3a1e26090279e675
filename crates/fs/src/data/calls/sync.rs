//! fsync, fdatasync, sync of many files, barriers, syncfs.

use super::why;
use crate::FsError;
use crate::attributes::durability::{Durability, class_of, class_of_all};
use crate::data::flush::many;
use crate::data::flush::submit::{submit_dirty, submit_noting};
use crate::data::flush::{along, background};
use crate::filesystem::Filesystem;
use crate::inode::Inode;
use crate::receipt::{Call, Draft, Inodes, Why};
use crate::types::FileType;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use syncline_store::{Ablation, Canary, OpSeq};

/// Makes a file's data, size and name survive any crash; unless `data_only`, also its other attributes and
/// everything that was committed anywhere before (P1). If its class is `ordered`, promises that.
pub(crate) async fn fsync(fs: &Filesystem, inode: &Arc<Inode>, data_only: bool) -> Result<(), FsError> {
    fsync_as(fs, inode, class_of(fs, inode), data_only).await
}

/// The same, for a caller that decides about the class.
pub(crate) async fn fsync_as(
    fs: &Filesystem,
    inode: &Arc<Inode>,
    class: Durability,
    data_only: bool,
) -> Result<(), FsError> {
    let call = match inode.file_type {
        FileType::Directory => Call::Fsyncdir,
        _ if data_only => Call::Fdatasync,
        _ => Call::Fsync,
    };
    let mut draft = Draft::begin(call, Inodes::of([inode.ino]));
    draft.of_class(class);
    let result = fsync_noting(fs, inode, class, data_only, &mut draft).await;
    draft.end(fs, &result);
    result
}

/// The same, for a caller that has begun the receipt.
pub(super) async fn fsync_noting(
    fs: &Filesystem,
    inode: &Arc<Inode>,
    class: Durability,
    data_only: bool,
    draft: &mut Draft,
) -> Result<(), FsError> {
    if inode.file_type != FileType::Regular {
        fs.log_access_time(inode).await?;
    }
    if fs.store.ablates(Ablation::XattrSkip) {
        fs.log_xattrs_again(inode).await?;
    }
    let entry = fs.store.last_change();
    note_why(fs, [inode], entry, data_only && inode.file_type == FileType::Regular, draft);
    if inode.file_type == FileType::Regular {
        let counters = &fs.counters;
        if data_only { counters.fdatasyncs.add(1) } else { counters.fsyncs.add(1) }
    }
    // The failures up to now: a later one is for later fsyncs to report.
    let (unreported, unwritten) = {
        let failures = &inode.state.lock().data.failures;
        (failures.unreported(), failures.is_unwritten())
    };
    let result = match class {
        // Boxed, so that the future of a sync of another class has no room for this.
        Durability::Ordered(within) => Box::pin(order(fs, inode, data_only, within, draft)).await,
        Durability::Fsync | Durability::Strict => submit_and_sync(fs, inode, entry, data_only, draft).await,
    };
    let is_durable = !matches!(class, Durability::Ordered(_));
    if unwritten && is_durable && result.is_ok() {
        inode.state.lock().data.failures.end_unwritten();
    }
    let Some((count, error)) = unreported else { return result };
    inode.state.lock().data.failures.report(count);
    result.and(Err(error))
}

async fn submit_and_sync(
    fs: &Filesystem,
    inode: &Arc<Inode>,
    entry: OpSeq,
    data_only: bool,
    draft: &mut Draft,
) -> Result<(), FsError> {
    if inode.file_type != FileType::Regular {
        return sync_along(fs, entry, draft).await;
    }
    submit_noting(fs, inode, draft.submitted()).await?;
    // If dirty data was committed, that transaction has the access time already.
    let accessed = if data_only { None } else { fs.log_access_time(inode).await? };
    fs.store.give_way();
    let target = if data_only && fs.store.breaks(Canary::OverlookName) {
        inode.state.lock().data.logged.op()
    } else {
        target(inode, entry, data_only)
    };
    sync_along(fs, target.max(accessed.unwrap_or_default()), draft).await
}

/// Fixes the place in history of everything that was done to a file up to now, and promises a
/// flush.
///
/// The log guarantees the order, as for a barrier.
async fn order(
    fs: &Filesystem,
    inode: &Arc<Inode>,
    data_only: bool,
    within: u8,
    draft: &mut Draft,
) -> Result<(), FsError> {
    if !fs.store.breaks(Canary::OrderedWithoutOrder) {
        submit_noting(fs, inode, draft.submitted()).await?;
    }
    if !data_only && inode.file_type == FileType::Regular {
        fs.log_access_time(inode).await?;
    }
    promise(fs, [inode], within, draft)
}

/// Promises that everything in the log is durable in so many seconds. Refuses what can't be kept: a
/// filesystem that gave up writing has no flush to come.
fn promise<'a>(
    fs: &Filesystem,
    inodes: impl IntoIterator<Item = &'a Arc<Inode>>,
    within: u8,
    draft: &mut Draft,
) -> Result<(), FsError> {
    draft.end_submit();
    let target = fs.store.last_op();
    let is_owed = !fs.store.is_durable(target);
    if is_owed {
        fs.store.writable()?;
    }
    fs.counters.syncs_ordered.add(1);
    draft.ordered(fs, target);
    if is_owed {
        let within = Duration::from_secs(within.into());
        inodes.into_iter().for_each(|inode| fs.data.promises.add(fs, inode, target, within));
    }
    Ok(())
}

/// Makes everything up to `target` durable. If a batch has to be written, small files are taken
/// along.
async fn sync_along(fs: &Filesystem, target: OpSeq, draft: &mut Draft) -> Result<(), FsError> {
    if !fs.store.is_durable(target) {
        along::submit_along(fs).await;
        fs.store.give_way();
    }
    sync_to(fs, target, draft).await
}

/// Ends the submit stage and makes everything up to `target` durable.
async fn sync_to(fs: &Filesystem, target: OpSeq, draft: &mut Draft) -> Result<(), FsError> {
    draft.end_submit();
    let (trace, result) = fs.store.sync_traced(target).await;
    draft.synced(trace);
    Ok(result?)
}

/// Notes for the receipt which changes of these files, and of all that came before `entry`, are not
/// durable.
fn note_why<'a>(
    fs: &Filesystem,
    inodes: impl IntoIterator<Item = &'a Arc<Inode>>,
    entry: OpSeq,
    data_only: bool,
    draft: &mut Draft,
) {
    if fs.receipts.is_off() {
        return;
    }
    let mut newest = OpSeq::default();
    for inode in inodes {
        let (reasons, own) = why::own(&fs.store, inode, data_only);
        *draft.why() |= reasons;
        newest = newest.max(own);
    }
    let why = draft.why();
    why.add_if(!data_only && entry > newest && !fs.store.is_durable(entry), Why::OTHERS);
    why.add_if(why.is_empty() && fs.store.ablates(Ablation::FlushElide), Why::SWITCHED_OFF);
}

/// The operation that must be durable before a sync of this file is answered (P1): the newest of the file,
/// and for an fsync also the newest of all when it began.
fn target(inode: &Inode, entry: OpSeq, data_only: bool) -> OpSeq {
    let newest = inode.state.lock().newest_op(data_only);
    if data_only { newest } else { newest.max(entry) }
}

/// Makes several files durable with one batch and one flush, or promises that if all of them are of
/// class `ordered`: their changes that were not logged come back all or nothing after a crash (P6).
/// Fails with `TooLarge`, before any effect, if they have too much dirty data for one batch.
///
/// An earlier write-back failure counts as reported only if `uid` is root or the file's owner: the
/// caller need not have the files open, and must not take an error away from programs that have.
pub(crate) async fn sync_many(fs: &Filesystem, inodes: &[Arc<Inode>], uid: u32) -> Result<(), FsError> {
    let mut draft = Draft::begin(Call::SyncMany, Inodes::of(inodes.iter().map(|inode| inode.ino)));
    let result = Box::pin(sync_many_noting(fs, inodes, uid, Data::Submit, &mut draft)).await;
    draft.end(fs, &result);
    result
}

/// The same for a transaction of the library that has begun its receipt and submitted its data. Other
/// callers' writes to these files meanwhile are not part of it, and may be more than one batch takes.
pub(crate) async fn sync_submitted(
    fs: &Filesystem,
    inodes: &[Arc<Inode>],
    uid: u32,
    mut draft: Draft,
) -> Result<(), FsError> {
    draft.of_files(Inodes::of(inodes.iter().map(|inode| inode.ino)));
    let result = sync_many_noting(fs, inodes, uid, Data::IsSubmitted, &mut draft).await;
    draft.end(fs, &result);
    result
}

/// How a sync of many files treats their data.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Data {
    Submit,
    IsSubmitted,
}

async fn sync_many_noting(
    fs: &Filesystem,
    inodes: &[Arc<Inode>],
    uid: u32,
    data: Data,
    draft: &mut Draft,
) -> Result<(), FsError> {
    for inode in inodes {
        fs.log_access_time(inode).await?;
    }
    let entry = fs.store.last_change();
    let files: BTreeMap<_, _> = inodes
        .iter()
        .filter(|inode| inode.file_type == FileType::Regular)
        .map(|inode| (inode.ino, inode))
        .collect();
    fs.counters.fsyncs.add(files.len() as u64);
    note_why(fs, inodes, entry, false, draft);
    let unreported: Vec<_> =
        files.values().map(|inode| (*inode, inode.state.lock().data.failures.unreported())).collect();
    let mut result = match data {
        Data::Submit => {
            many::submit_many(fs, &files.values().copied().collect::<Vec<_>>(), draft.submitted()).await
        }
        Data::IsSubmitted => Ok(()),
    };
    let class = class_of_all(fs, inodes);
    draft.of_class(class);
    if result.is_ok()
        && let Durability::Ordered(within) = class
    {
        result = promise(fs, inodes, within, draft);
    } else if result.is_ok() {
        let target = files.values().map(|inode| target(inode, entry, false)).fold(entry, OpSeq::max);
        result = sync_to(fs, target, draft).await;
    }
    if result.is_ok() && data == Data::Submit && !matches!(class, Durability::Ordered(_)) {
        files.values().for_each(|inode| inode.state.lock().data.failures.end_unwritten());
    }
    for (inode, error) in unreported {
        if let Some((count, error)) = error {
            let mut state = inode.state.lock();
            if uid == 0 || uid == state.attr.uid {
                state.data.failures.report(count);
            }
            drop(state);
            result = result.and(Err(error));
        }
    }
    result
}

/// Orders without making durable: if anything that is written, created or changed anywhere after
/// this returned survives a crash, then so do the contents that these files had when this was
/// called. Waits for no flush.
///
/// The log guarantees this: a prefix of the transactions comes back, and a batch counts only with
/// all the data that it and the batches before it name. So it is enough to commit the transaction
/// that names the data before all later ones.
pub(crate) async fn barrier(fs: &Filesystem, inodes: &[Arc<Inode>]) -> Result<(), FsError> {
    fs.counters.barriers.add(1);
    for inode in inodes {
        submit_dirty(fs, inode).await?;
    }
    Ok(())
}

/// Writes back everything, without making it durable.
pub(crate) async fn write_back(fs: &Filesystem) -> Result<(), FsError> {
    background::write_back_all_of(fs, &fs.data.queue.all_dirty()).await
}

/// Writes back everything and makes a checkpoint. An error of one file does not stop the others.
pub(crate) async fn syncfs(fs: &Filesystem) -> Result<(), FsError> {
    let accessed = fs.log_access_times().await;
    let dirty = fs.data.queue.all_dirty();
    fs.store.give_way();
    let mut draft = Draft::begin(Call::Syncfs, Inodes::of(dirty.iter().map(|inode| inode.ino)));
    note_why(fs, &dirty, fs.store.last_op(), false, &mut draft);
    let written = background::write_back_all_of(fs, &dirty).await;
    fs.store.give_way();
    draft.end_submit();
    let (generation, target) = (fs.store.superblock().generation, fs.store.last_op());
    let checkpointed = fs.store.checkpoint().await;
    if written.is_ok() {
        draft.checkpointed(fs, generation, target.0, checkpointed.is_ok());
    }
    let result = written.and(accessed).and(checkpointed.map_err(FsError::from));
    draft.end(fs, &result);
    result
}
