//! Committing an atomic write: its blocks in memory become dirty, and one transaction names all of
//! them, with those that lie on the device already.

use super::{Open, require_part, spill};
use crate::FsError;
use crate::attributes::durability::class_of;
use crate::data::calls::sync;
use crate::data::extents::quota;
use crate::data::flush::start::{self, Submission};
use crate::data::flush::{ended, submit};
use crate::data::memory::atomic::AtomicWrite;
use crate::data::memory::block::Block;
use crate::data::memory::submission::Aim;
use crate::data::memory::{BLOCK, ranges::number_ranges};
use crate::filesystem::Filesystem;
use crate::receipt::{Call, Draft, Inodes, Submitted};
use crate::types::Timestamp;
use std::ops::Range;
use syncline_store::{Admitted, ChangeSize, Reservation};

/// Names everything that was written since the start, and makes it durable as a sync of the file's
/// class does.
pub(super) async fn commit(fs: &Filesystem, inode: Open<'_>, write: AtomicWrite) -> Result<(), FsError> {
    let class = class_of(fs, inode);
    let mut draft = Draft::begin(Call::AtomicCommit, Inodes::of([inode.ino]));
    draft.of_class(class);
    let result = match name(fs, inode, write, draft.submitted()).await {
        Ok(()) => {
            fs.counters.atomic_commits.add(1);
            sync::fsync_noting(fs, inode, class, true, &mut draft).await
        }
        failed => failed,
    };
    draft.end(fs, &result);
    result
}

/// Commits the transaction. If it fails, the atomic write is open as before.
async fn name(
    fs: &Filesystem,
    inode: Open<'_>,
    write: AtomicWrite,
    note: &mut Submitted,
) -> Result<(), FsError> {
    // A change begins here (P10).
    fs.store.pass_gate().await;
    let has_spilled = inode.state.lock().data.atomic.as_ref().is_some_and(|open| !open.spilled.is_empty());
    let _naming = if has_spilled { Some(fs.data.atomic.naming.lock().await) } else { None };
    let writeback = inode.state.lock().data.writeback();
    let _writeback = writeback.lock().await;
    loop {
        // What was dirty before the start goes first: the transaction below shall have nothing else
        // to write.
        if inode.state.lock().data.has_unlogged() {
            submit::submit_once(fs, inode, Aim::Log, note).await?;
        }
        let mut aside = Aside::take(fs, inode, write);
        let _room = fs.store.admit_together(aside.size).await?;
        aside.promise = None;
        let _lease = inode.lease.write().await;
        fs.require_present(inode)?;
        if inode.state.lock().data.has_unlogged() {
            continue;
        }
        // While this waited, it may have ended, and somebody may have begun the next one, which is not
        // to be committed half-way.
        require_part(inode, Some(write))?;
        let Some(merged) = Merged::merge(fs, inode).await? else { return Ok(()) };
        let spilled = {
            let mut state = inode.state.lock();
            state.begin_submission();
            state.data.atomic.as_ref().map(|atomic| spill::name(&atomic.spilled)).unwrap_or_default()
        };
        // A few blocks go into the log with their contents, unless the batch names others anyway.
        let aim = if spilled.extents.is_empty() { Aim::Log } else { Aim::Place };
        let before_log = spilled.named.iter().map(|(_, run)| run.blocks).sum::<u64>();
        let writes = spilled.named.len() as u64;
        start::submit_beside(fs, &[Submission { inode, blocks: 0..u64::MAX, aim }], spilled, note).await?;
        note.blocks += before_log;
        note.blocks_before_log += before_log;
        note.device_writes += writes;
        merged.keep();
        ended::require_size(fs, inode);
        return Ok(());
    }
}

/// The room for naming the spilled blocks, while a commit is under way: it is promised to the change
/// that names them. When dropped, it goes back to the atomic write, if that is still open.
struct Aside<'a> {
    fs: &'a Filesystem,
    inode: Open<'a>,
    write: AtomicWrite,
    blocks: u64,
    size: ChangeSize,
    /// Keeps others from the room until the change is admitted.
    promise: Option<Admitted>,
}

impl<'a> Aside<'a> {
    fn take(fs: &'a Filesystem, inode: Open<'a>, write: AtomicWrite) -> Self {
        let mut state = inode.state.lock();
        let nodes = spill::nodes_of(fs, &state.data);
        let Some(atomic) = state.data.atomic.as_mut().filter(|open| open.is == write) else {
            return Self { fs, inode, write, blocks: 0, size: ChangeSize::default(), promise: None };
        };
        let size = spill::size_of_names(atomic, nodes);
        let blocks = atomic.spilled.room.blocks();
        let promise = (blocks > 0).then(|| fs.store.promise(size));
        atomic.spilled.room = Reservation::default();
        Self { fs, inode, write, blocks, size, promise }
    }
}

impl Drop for Aside<'_> {
    fn drop(&mut self) {
        if self.blocks > 0
            && let Some(atomic) = &mut self.inode.state.lock().data.atomic
            && atomic.is == self.write
        {
            atomic.spilled.room.merge(self.fs.store.reserve_again(self.blocks));
        }
    }
}

/// The blocks of an atomic write among the dirty ones. When dropped, it takes them back.
struct Merged<'a> {
    fs: &'a Filesystem,
    inode: Open<'a>,
    numbers: Vec<u64>,
    /// Logged blocks that they replace.
    replaced: Vec<(u64, Block)>,
    size: u64,
    mtime: Timestamp,
    ctime: Timestamp,
    /// The blocks that count in the quota now, and the units that were reserved before.
    charged: Option<(Vec<Range<u64>>, u64)>,
    kept: bool,
}

impl<'a> Merged<'a> {
    /// Makes the blocks dirty; `None` if nothing was written. The inode's `writeback` and its lease
    /// are held, and none of its blocks is dirty, unless it is in the log too.
    async fn merge(fs: &'a Filesystem, inode: Open<'a>) -> Result<Option<Self>, FsError> {
        let Some(ToMerge { numbers, size, mut ranges }) = to_merge(fs, inode)? else {
            if let Some(atomic) = inode.state.lock().data.atomic.take() {
                fs.data.atomic.ended(&atomic);
                fs.quotas.move_reserved(atomic.quota, atomic.units, 0);
            }
            return Ok(None);
        };
        let credit = credit(fs, inode);
        ranges.extend(number_ranges(numbers.iter().copied()));
        let accepted = quota::accept_with(fs, inode, &ranges, size, credit).await?;
        let mut state = inode.state.lock();
        let state = &mut *state;
        let mut merged = Self {
            fs,
            inode,
            numbers,
            replaced: Vec::new(),
            size: state.attr.size,
            mtime: state.attr.mtime,
            ctime: state.attr.ctime,
            charged: None,
            kept: false,
        };
        state.attr = state.data.show(state.attr);
        let Some(atomic) = &mut state.data.atomic else { return Ok(None) };
        let blocks = atomic.blocks.take(0, u64::MAX, u64::MAX);
        let mut reservation = std::mem::take(&mut atomic.reservation);
        // The rest is for preallocated blocks, should this fail.
        let rest = reservation.blocks().saturating_sub(merged.numbers.len() as u64);
        atomic.reservation = reservation.split(rest);
        atomic.units = 0;
        // Of the dirty blocks, only logged ones are left: few.
        let logged = state.data.blocks.numbers(..).filter(|number| atomic.spilled.contains(*number));
        let logged: Vec<u64> = merged.numbers.iter().copied().chain(logged).collect();
        merged.replaced = state.data.blocks.take_each(logged);
        if blocks.len() < merged.numbers.len() {
            // The file outgrows its inode item, and block 0 leaves it.
            state.data.patch(0, 0, &[], None);
        }
        state.data.blocks.restore(blocks);
        state.data.add_reservation(Some(reservation));
        let units = state.data.charge.as_ref().map(|charge| charge.units);
        merged.charged = units.map(|units| (accepted.holes().to_vec(), units));
        accepted.apply(fs, state);
        Ok(Some(merged))
    }

    /// The transaction is committed.
    fn keep(mut self) {
        self.kept = true;
        let mut state = self.inode.state.lock();
        if let Some(mut atomic) = state.data.atomic.take() {
            atomic.spilled.named();
            self.fs.data.atomic.ended(&atomic);
        }
        // Logged blocks are yet to be placed.
        self.fs.data.queue.note_dirty(self.fs, self.inode, &mut state.data);
    }
}

impl Drop for Merged<'_> {
    fn drop(&mut self) {
        if self.kept {
            return;
        }
        let mut state = self.inode.state.lock();
        let state = &mut *state;
        (state.attr.size, state.attr.mtime, state.attr.ctime) = (self.size, self.mtime, self.ctime);
        let data = &mut state.data;
        let blocks = data.blocks.take_each(self.numbers.iter().copied());
        data.blocks.restore_logged(std::mem::take(&mut self.replaced));
        let wanted = blocks.len() as u64;
        let reservation = data.reservation.as_mut().map(|mine| mine.split(wanted)).unwrap_or_default();
        data.add_reservation(None);
        if let Some(atomic) = &mut data.atomic {
            atomic.blocks.restore(blocks);
            atomic.reservation.merge(reservation);
            atomic.reservation.merge(Reservation::of_names(&self.fs.store));
            if let (Some(charge), Some((holes, units))) = (&mut data.charge, self.charged.take()) {
                holes.iter().for_each(|range| charge.holes.remove(range));
                atomic.units = charge.units.saturating_sub(units);
                atomic.quota = charge.number;
                charge.units = units;
            }
            self.fs.data.atomic.account(atomic);
        }
        self.fs.data.queue.account(data);
        state.attr.blocks = state.data.visible_units(state.attr.size);
    }
}

/// The parts of an atomic write that a commit merges into the file.
struct ToMerge {
    /// The blocks that become dirty.
    numbers: Vec<u64>,
    /// The ranges that are spilled.
    ranges: Vec<Range<u64>>,
    /// The size of the file with them.
    size: u64,
}

/// The parts to merge; `None` if nothing was written.
fn to_merge(fs: &Filesystem, inode: Open<'_>) -> Result<Option<ToMerge>, FsError> {
    let state = inode.state.lock();
    let Some(atomic) = &state.data.atomic else {
        return Err(FsError::AtomicWriteEnded);
    };
    let mut numbers: Vec<u64> = atomic.blocks.numbers(..).collect();
    let ranges: Vec<Range<u64>> = atomic.spilled.ranges().collect();
    let size = atomic.size.max(state.attr.size);
    let outgrown = state.data.has_inline() && size > fs.limits.inline_bytes as u64;
    if outgrown && !atomic.is_empty() && numbers.first() != Some(&0) {
        numbers.insert(0, 0);
    }
    debug_assert!(numbers.last().is_none_or(|last| last * BLOCK < size));
    let is_empty = numbers.is_empty() && ranges.is_empty();
    Ok((!is_empty).then_some(ToMerge { numbers, ranges, size }))
}

/// The units that the atomic write has reserved in the quota that the file counts in. Units
/// in a quota that the file has left are given back.
pub(super) fn credit(fs: &Filesystem, inode: Open<'_>) -> u64 {
    let mut state = inode.state.lock();
    let number = state.data.charge.as_ref().map(|charge| charge.number);
    let Some(atomic) = &mut state.data.atomic else { return 0 };
    if number == Some(atomic.quota) {
        return atomic.units;
    }
    fs.quotas.move_reserved(atomic.quota, std::mem::take(&mut atomic.units), 0);
    0
}
