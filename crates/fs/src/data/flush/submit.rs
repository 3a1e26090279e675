//! Submitting dirty data: the first half of an fsync, and the part of a rename that P3 requires.
//!
//! The last megabyte or so of the dirty data is written in parallel with the batch that names it:
//! the writes are started and the transaction is committed at once. Everything before that goes
//! through background write-back (`writeback`), so that a large fsync does not hold up everybody's
//! flush.

use super::choose;
use super::transact::{self, FileChange, InlineChange, SizeChange};
use super::writeback::{self, Way};
use super::{ahead, ended};
use crate::FsError;
use crate::data::extents::lookup;
use crate::data::extents::place::{self, Naming, Placement};
use crate::data::extents::room::make_up_reservation;
use crate::data::extents::shares;
use crate::data::extents::shares::Shares;
use crate::data::memory::DataState;
use crate::data::memory::block::Block;
use crate::data::memory::ranges::number_ranges;
use crate::data::memory::submission::Aim;
use crate::filesystem::Filesystem;
use crate::inode::{Inode, InodeState};
use crate::receipt::Submitted;
use crate::types::FileType;
use smallvec::SmallVec;
use std::num::NonZeroU64;
use std::ops::Range;
use std::sync::Arc;
use syncline_format::items::extent::{EXTENT_BLOCKS_MAX, Extent};
use syncline_format::items::inode::compression_of;
use syncline_store::{Admission, Canary};

/// Commits a transaction that names the file's dirty data, whose writes it starts, or that contains
/// the data. Does not wait for durability (P3). Takes the inode's lease itself; the caller holds
/// none.
pub(crate) async fn submit_dirty(fs: &Filesystem, inode: &Arc<Inode>) -> Result<(), FsError> {
    submit_noting(fs, inode, &mut Submitted::default()).await
}

/// Submits a file's dirty data as `submit_dirty` does, and notes what was written and logged.
pub(crate) async fn submit_noting(
    fs: &Filesystem,
    inode: &Arc<Inode>,
    note: &mut Submitted,
) -> Result<(), FsError> {
    if inode.file_type != FileType::Regular || inode.state.lock().is_settled(Aim::Log) {
        return Ok(());
    }
    if fs.store.breaks(Canary::OverlookWriteback) && inode.state.lock().data.dirty.is_empty() {
        return Ok(());
    }
    fs.store.give_way();
    let writeback = inode.state.lock().data.writeback.clone();
    let _writeback = writeback.lock().await;
    loop {
        submit_once(fs, inode, Aim::Log, note).await?;
        if !inode.state.lock().has_missed(fs) {
            ended::require_size(fs, inode);
            return Ok(());
        }
    }
}

/// Takes the `writeback`s of several inodes, which are given in the order of their numbers.
pub(crate) async fn hold_writebacks(
    files: &[&Arc<Inode>],
) -> Vec<syncline_sync::asynchronous::MutexGuardArc<()>> {
    let mut held = Vec::with_capacity(files.len());
    for inode in files {
        let writeback = inode.state.lock().data.writeback.clone();
        held.push(writeback.lock_arc().await);
    }
    held
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
        let Some(split) = ahead_end(fs, &inode.state.lock(), first, end) else {
            return submit_leased(fs, &[Submission { inode, blocks: first..end, aim }], note).await;
        };
        drop((lease, room));
        first = writeback::round(fs, inode, first..split, Way::Ahead, note).await?;
    }
}

/// The beginning of the last `parallel` dirty blocks of the range, if it has more than that.
fn background_end(data: &DataState, first: u64, end: u64, parallel: u64) -> Option<u64> {
    if first >= end || data.dirty.len() <= parallel {
        return None;
    }
    let mut last = data.dirty.numbers_backwards(first, end);
    let split = last.nth(parallel as usize - 1)?;
    last.next().map(|_| split)
}

/// The end of the part of the range that is written before its batch, if there is such a part: all
/// but the last `parallel_blocks` dirty blocks and, if the file is to be compressed, the whole
/// units among those last ones. A smaller sync compresses nothing.
fn ahead_end(fs: &Filesystem, state: &InodeState, first: u64, end: u64) -> Option<u64> {
    let split = background_end(&state.data, first, end, fs.options.parallel_blocks.max(1));
    if compression_of(state.meta.flags).is_none() {
        return split;
    }
    split.max(whole_units_end(&state.data, split.unwrap_or(first), end))
}

/// The end of the last unit in the range whose blocks are all dirty.
fn whole_units_end(data: &DataState, first: u64, end: u64) -> Option<u64> {
    if first >= end {
        return None;
    }
    let mut needed = None;
    for number in data.dirty.numbers_backwards(first, end) {
        if number % EXTENT_BLOCKS_MAX == EXTENT_BLOCKS_MAX - 1 {
            needed = Some(number);
        }
        if needed != Some(number) {
            needed = None;
        } else if number.is_multiple_of(EXTENT_BLOCKS_MAX) {
            return Some(number + EXTENT_BLOCKS_MAX);
        } else {
            needed = Some(number - 1);
        }
    }
    None
}

/// The part of a file to submit in one transaction. The file's `writeback` and its lease (for
/// writing) are held.
pub(crate) struct Submission<'a> {
    pub inode: &'a Arc<Inode>,
    /// The range of dirty blocks, up to the end that `begin_submission` returned or further.
    pub blocks: Range<u64>,
    pub aim: Aim,
}

/// A submission between the start of its writes and its commit.
struct Started<'a> {
    inode: &'a Arc<Inode>,
    taken: Vec<(u64, Block)>,
    /// Blocks that stay dirty and are marked as logged.
    logged: SmallVec<[u64; 4]>,
    placements: Vec<Placement>,
    change: FileChange<'a>,
}

/// Submits dirty data of several files in one transaction.
pub(crate) async fn submit_leased(
    fs: &Filesystem,
    files: &[Submission<'_>],
    note: &mut Submitted,
) -> Result<(), FsError> {
    let mut old: SmallVec<[_; 1]> = SmallVec::with_capacity(files.len());
    for file in files {
        if choose::is_logged(fs, &file.inode.state.lock(), file.aim) {
            old.push(None);
            continue;
        }
        make_up_reservation(fs, file.inode).await?;
        old.push(Some(overlapped(fs, file).await?));
    }
    let shares = shares::hold(fs, old.iter().flatten().flatten()).await?;
    // From here on nothing waits, so a caller that gives up leaves nothing half done.
    let mut started: SmallVec<[Started<'_>; 1]> = SmallVec::with_capacity(files.len());
    for (file, old) in files.iter().zip(old) {
        let begun = match old {
            Some(old) => start(fs, file, &old),
            None => Ok(start_logging(file)),
        };
        match begun {
            Ok(file) => started.push(file),
            Err(error) => {
                started.iter_mut().for_each(|file| file.undo(fs));
                return Err(error);
            }
        }
    }
    finish(fs, started, shares, note)
}

fn finish(
    fs: &Filesystem,
    mut started: SmallVec<[Started<'_>; 1]>,
    shares: Shares<'_>,
    note: &mut Submitted,
) -> Result<(), FsError> {
    let changes = started
        .iter_mut()
        .map(|file| std::mem::replace(&mut file.change, FileChange::nothing(file.inode)))
        .collect();
    fs.store.give_way();
    let result = transact::commit_noting(fs, changes, shares, note);
    fs.store.give_way();
    for file in &mut started {
        match result {
            Ok(_) => {
                place::note(&file.placements, note);
                file.done(fs);
            }
            Err(_) => file.undo(fs),
        }
    }
    result.map(|_| ())
}

/// The extents that the file's dirty blocks will replace.
async fn overlapped(fs: &Filesystem, file: &Submission<'_>) -> Result<Vec<Extent>, FsError> {
    let ranges = {
        let state = file.inode.state.lock();
        let known_end = state.data.extent_end.unwrap_or(u64::MAX);
        let end = file.blocks.end.min(known_end).max(file.blocks.start);
        number_ranges(state.data.dirty.numbers(file.blocks.start..end))
    };
    lookup::overlapping(&fs.store, file.inode.ino, &ranges).await
}

/// Takes the blocks, starts their writes and works out what the transaction says about them.
fn start<'a>(fs: &Filesystem, file: &Submission<'a>, old: &[Extent]) -> Result<Started<'a>, FsError> {
    let inode = file.inode;
    let mut state = inode.state.lock();
    let size = state.attr.size;
    let data = &mut state.data;
    let mut change =
        FileChange { size: SizeChange::Submitted { all: true, reach: 0 }, ..FileChange::nothing(inode) };
    if data.inlines(fs.limits.inline_bytes as u64, size) {
        change.inline = InlineChange::Set(data.inline_contents(size));
        let taken = data.dirty.take(0, 1, 1);
        return Ok(Started { inode, taken, logged: SmallVec::new(), placements: Vec::new(), change });
    }
    let near = data.near.map(NonZeroU64::get);
    let (taken, mut reservation) = data.take_dirty(size, &file.blocks, u64::MAX);
    drop(state);
    let placements = match place::place(fs, &mut reservation, &taken, near) {
        Ok(placements) => placements,
        Err(error) => {
            inode.state.lock().data.dirty.restore(taken);
            return Err(error);
        }
    };
    let mut naming = Naming::default();
    for placement in &placements {
        placement.name(&mut naming, |_| true);
    }
    change.name(old, naming);
    Ok(Started { inode, taken, logged: SmallVec::new(), placements, change })
}

/// Marks the dirty blocks as logged, and puts their contents into the transaction.
fn start_logging<'a>(file: &Submission<'a>) -> Started<'a> {
    let inode = file.inode;
    let mut change =
        FileChange { size: SizeChange::Submitted { all: true, reach: 0 }, ..FileChange::nothing(inode) };
    change.logged = inode.state.lock().data.dirty.log();
    let logged = change.logged.iter().map(|(number, _)| *number).collect();
    Started { inode, taken: Vec::new(), logged, placements: Vec::new(), change }
}

impl Started<'_> {
    /// After the commit: from now on the store serves these blocks, from memory until they are
    /// durable.
    fn done(&mut self, fs: &Filesystem) {
        let counters = &fs.counters;
        let in_item = self.placements.is_empty() && !self.taken.is_empty();
        if in_item {
            counters.inline_writes.add(1);
        }
        let placed: u64 = self.placements.iter().map(|placement| placement.write.run().len_bytes()).sum();
        counters.submitted_bytes.add(placed);
        counters.blocks_in_log.add(self.logged.len() as u64);
        if !in_item {
            fs.data.cached.add(fs, self.inode, &self.taken);
        }
        let mut state = self.inode.state.lock();
        let size = state.attr.size;
        let data = &mut state.data;
        data.add_reservation(None);
        data.submitted = true;
        fs.data.queue.account(data);
        state.attr.blocks = state.data.visible_units(size);
        drop(state);
        if !self.logged.is_empty() {
            ahead::begin(fs, self.inode);
        }
    }

    /// After a failed commit: the data is dirty as before and will be placed anew.
    fn undo(&mut self, fs: &Filesystem) {
        place::abandon(fs, &self.placements);
        let mut state = self.inode.state.lock();
        state.data.dirty.restore(std::mem::take(&mut self.taken));
        state.data.dirty.unlog(self.logged.drain(..));
        // Write-back may have found the inode clean meanwhile and taken it off its list.
        fs.data.queue.note_dirty(fs, self.inode, &mut state.data);
    }
}
