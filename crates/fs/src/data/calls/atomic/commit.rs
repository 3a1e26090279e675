//! Committing an atomic write: its blocks become dirty, and one transaction names all of them.

use super::Open;
use crate::FsError;
use crate::data::calls::sync;
use crate::data::extents::quota;
use crate::data::flush::start::{self, Submission};
use crate::data::flush::{ended, submit, writeback};
use crate::data::memory::block::Block;
use crate::data::memory::submission::Aim;
use crate::data::memory::{BLOCK, ranges::number_ranges};
use crate::durability::class_of;
use crate::filesystem::Filesystem;
use crate::receipt::{Call, Draft, Inodes, Submitted};
use crate::types::Timestamp;
use std::ops::Range;
use syncline_format::items::extent::EXTENT_BLOCKS_MAX;
use syncline_store::{ChangeSize, Reservation};

/// Names everything that was written since the start, and makes it durable as a sync of the file's
/// class does.
pub(super) async fn commit(fs: &Filesystem, inode: Open<'_>, handle: u64) -> Result<(), FsError> {
    let class = class_of(fs, inode);
    let mut draft = Draft::begin(Call::AtomicCommit, Inodes::of([inode.ino]));
    draft.of_class(class);
    let result = match name(fs, inode, handle, draft.submitted()).await {
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
async fn name(fs: &Filesystem, inode: Open<'_>, handle: u64, note: &mut Submitted) -> Result<(), FsError> {
    let writeback = inode.state.lock().data.writeback.clone();
    let _writeback = writeback.lock().await;
    loop {
        // What was dirty before the start goes first: the transaction below shall have nothing else
        // to write.
        if inode.state.lock().data.has_unlogged() {
            submit::submit_once(fs, inode, Aim::Log, note).await?;
        }
        let blocks = inode.state.lock().data.atomic.as_ref().map_or(0, |atomic| atomic.blocks.len());
        let bytes = writeback::NAME_BYTES * (2 + blocks.div_ceil(EXTENT_BLOCKS_MAX));
        let _room = fs.store.admit_together(ChangeSize { items: 2, bytes }).await?;
        let _lease = inode.lease.write().await;
        fs.require_present(inode)?;
        if inode.state.lock().data.has_unlogged() {
            continue;
        }
        // While this waited, the one that is meant may have ended, and another handle may have begun
        // one, which is not to be committed half-way.
        if inode.state.lock().data.atomic.as_ref().is_none_or(|atomic| atomic.handle != handle) {
            return Err(FsError::Invalid("the atomic write was committed or aborted meanwhile"));
        }
        let Some(merged) = Merged::merge(fs, inode).await? else { return Ok(()) };
        inode.state.lock().begin_submission();
        start::submit(fs, &[Submission { inode, blocks: 0..u64::MAX, aim: Aim::Log }], note).await?;
        merged.keep();
        ended::require_size(fs, inode);
        return Ok(());
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
        let Some((numbers, size)) = to_merge(fs, inode)? else {
            if let Some(atomic) = inode.state.lock().data.atomic.take() {
                fs.data.atomic.ended(&atomic);
                fs.quotas.move_reserved(atomic.quota, atomic.units, 0);
            }
            return Ok(None);
        };
        let credit = credit(fs, inode);
        let ranges = number_ranges(numbers.iter().copied());
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
        let reservation = std::mem::take(&mut atomic.reservation);
        atomic.units = 0;
        merged.replaced = state.data.dirty.take_each(merged.numbers.iter().copied());
        if blocks.len() < merged.numbers.len() {
            // The file outgrows its inode item, and block 0 leaves it.
            state.data.patch(0, 0, &[], None);
        }
        state.data.dirty.restore(blocks);
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
        if let Some(atomic) = state.data.atomic.take() {
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
        let blocks = data.dirty.take_each(self.numbers.iter().copied());
        data.dirty.restore_logged(std::mem::take(&mut self.replaced));
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
                charge.units = units;
            }
            self.fs.data.atomic.account(atomic);
        }
        self.fs.data.queue.account(data);
        state.attr.blocks = state.data.visible_units(state.attr.size);
    }
}

/// The blocks that become dirty, and the size of the file with them; `None` if there are none.
fn to_merge(fs: &Filesystem, inode: Open<'_>) -> Result<Option<(Vec<u64>, u64)>, FsError> {
    let state = inode.state.lock();
    let Some(atomic) = &state.data.atomic else {
        return Err(FsError::Invalid("the atomic write was aborted meanwhile"));
    };
    let mut numbers: Vec<u64> = atomic.blocks.numbers(..).collect();
    let size = atomic.size.max(state.attr.size);
    let outgrown = state.data.has_inline() && size > fs.limits.inline_bytes as u64;
    if outgrown && numbers.first().is_some_and(|&first| first > 0) {
        numbers.insert(0, 0);
    }
    debug_assert!(numbers.last().is_none_or(|last| last * BLOCK < size));
    Ok((!numbers.is_empty()).then_some((numbers, size)))
}

/// The units that the atomic write has reserved in the quota that the file counts in. Those in a
/// quota that it has left are given back.
fn credit(fs: &Filesystem, inode: Open<'_>) -> u64 {
    let mut state = inode.state.lock();
    let number = state.data.charge.as_ref().map(|charge| charge.number);
    let Some(atomic) = &mut state.data.atomic else { return 0 };
    if number == Some(atomic.quota) {
        return atomic.units;
    }
    fs.quotas.move_reserved(atomic.quota, std::mem::take(&mut atomic.units), 0);
    0
}
