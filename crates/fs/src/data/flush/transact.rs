//! Committing changes of file data: extents, logged size and inline data in one transaction.

use crate::FsError;
use crate::data::extents::place::Naming;
use crate::data::extents::plan::{self, ExtentChanges};
use crate::data::extents::shares::Shares;
use crate::data::memory::charge::ChargeBefore;
use crate::data::memory::dirty::Logged;
use crate::data::memory::preallocated::PreallocatedChange;
use crate::data::memory::unplaced::UnplacedChange;
use crate::filesystem::Filesystem;
use crate::inode::quotas::Delta;
use crate::inode::{Inode, InodeState};
use crate::receipt::Submitted;
use crate::types::Timestamp;
use bytes::Bytes;
use smallvec::SmallVec;
use std::num::NonZeroU64;
use std::ops::Range;
use std::sync::Arc;
use syncline_format::BlockRun;
use syncline_format::items::extent::Extent;
use syncline_store::{Canary, DataWrite, OpSeq, Transaction};

/// The change that a transaction makes to the data of one file, whose lease is held for writing.
pub(crate) struct FileChange<'a> {
    pub inode: &'a Arc<Inode>,
    pub extents: ExtentChanges,
    /// Blocks that the new extents name.
    pub named: Vec<(DataWrite, BlockRun)>,
    pub inline: InlineChange,
    /// Dirty blocks whose contents the transaction has.
    pub logged: Logged,
    pub size: SizeChange,
}

/// The changes of a transaction: of one file, mostly.
pub(crate) type FileChanges<'a> = SmallVec<[FileChange<'a>; 1]>;

/// The change to the inline data.
pub(crate) enum InlineChange {
    Keep,
    Set(Option<Bytes>),
}

/// The change to the sizes.
pub(crate) enum SizeChange {
    Keep,
    /// Blocks whose contents are in the log got a place, and nothing that a sync of the file's data
    /// waits for has changed.
    Placed,
    /// Dirty data was submitted: the logged size advances as far as it may. With `all`, everything
    /// that was dirty when the submission began is named by this transaction or an earlier one, and
    /// the logged size advances at least to the inode's `floor`. The logged mtime advances too. The
    /// file is named up to byte `reach`, though blocks before that may be dirty again: a named
    /// block never has contents behind the size that is logged with it, and no page is torn.
    Submitted {
        all: bool,
        reach: u64,
    },
    /// A truncation to `size`; `logged` is the size that can be logged at once.
    Truncated {
        size: u64,
        logged: u64,
        now: Timestamp,
    },
    /// Blocks were replaced by those of another file, or by zeros; the file has at least `size`
    /// bytes now. Dirty data of these blocks is dropped.
    Replaced {
        size: u64,
        now: Timestamp,
    },
}

/// The values to restore if the commit fails.
struct Saved {
    attr: crate::types::Attributes,
    disk_size: u64,
    floor: u64,
    promised: u64,
    disk_mtime: Timestamp,
    disk_blocks: u64,
    inline: Option<Bytes>,
    preallocated: PreallocatedChange,
    unplaced: UnplacedChange,
    charge: ChargeBefore,
}

/// Commits one transaction with these changes, each of a different file. `shares` has the counts of
/// the blocks that they release. If it fails, nothing has changed.
pub(crate) fn commit(
    fs: &Filesystem,
    changes: FileChanges<'_>,
    shares: Shares<'_>,
) -> Result<OpSeq, FsError> {
    commit_noting(fs, changes, shares, &mut Submitted::default())
}

/// Commits as `commit` does, and notes what was logged.
pub(crate) fn commit_noting(
    fs: &Filesystem,
    changes: FileChanges<'_>,
    mut shares: Shares<'_>,
    note: &mut Submitted,
) -> Result<OpSeq, FsError> {
    let mut transaction = Transaction::new();
    shares.put_marks(&mut transaction);
    let mut saved: SmallVec<[Saved; 1]> = SmallVec::with_capacity(changes.len());
    let mut counted: SmallVec<[Delta; 1]> = SmallVec::new();
    let mut only_places = true;
    for change in &changes {
        if change.extents.put(change.inode.ino, &mut shares, &mut transaction).is_err() {
            restore(&changes, saved);
            return Err(FsError::TooManyShares);
        }
        for (write, part) in &change.named {
            transaction.name_data(write, *part);
        }
        let mut state = change.inode.state.lock();
        let (units, disk_size) = (state.logged_units(), state.data.disk_size);
        let before = change.apply(&mut state, fs.limits.inline_bytes as u64);
        if state.meta.quota != 0 {
            counted.push(Delta {
                number: state.meta.quota,
                units: state.logged_units() as i64 - units as i64,
                reserved: state.data.charged_since(&before.charge),
                ..Delta::default()
            });
        }
        state.data.preallocated.put(change.inode.ino, &before.preallocated, &mut transaction);
        before.unplaced.put(change.inode.ino, &change.logged, &mut transaction);
        saved.push(before);
        if fs.store.breaks(Canary::SizeAhead) {
            state.data.disk_size = state.attr.size;
        }
        // Only if the size advances by more than a block: the next transaction makes up for it, and
        // write-back comes to an end.
        if fs.store.breaks(Canary::SizeBehind)
            && matches!(change.size, SizeChange::Submitted { all: true, .. })
            && state.data.disk_size > disk_size + crate::data::memory::BLOCK
        {
            state.data.disk_size -= crate::data::memory::BLOCK;
        }
        only_places &= matches!(change.size, SizeChange::Placed) && !state.access_unlogged;
        state.put(&mut transaction);
    }
    shares.put_counts(&mut transaction);
    if only_places {
        transaction.only_places();
    }
    match fs.quotas.commit(&fs.store, transaction, &counted) {
        Ok((op, log_bytes)) => {
            note.log_bytes += log_bytes;
            changes.iter().for_each(|change| change.note(note));
            changes.iter().zip(saved).for_each(|(change, saved)| {
                change.committed(op, saved.attr.atime);
                if !saved.preallocated.is_empty() {
                    let state = change.inode.state.lock();
                    fs.data.room.committed(change.inode.ino, &state.data.preallocated, &saved.preallocated);
                }
            });
            Ok(op)
        }
        Err(error) => {
            restore(&changes, saved);
            Err(error)
        }
    }
}

/// Restores the states of the first files.
fn restore(changes: &[FileChange<'_>], saved: SmallVec<[Saved; 1]>) {
    changes.iter().zip(saved).for_each(|(change, saved)| saved.restore(&mut change.inode.state.lock()));
}

impl<'a> FileChange<'a> {
    /// A change of nothing, to start from.
    pub(crate) fn nothing(inode: &'a Arc<Inode>) -> Self {
        Self {
            inode,
            extents: ExtentChanges::default(),
            named: Vec::new(),
            inline: InlineChange::Keep,
            logged: Logged::new(),
            size: SizeChange::Keep,
        }
    }

    /// Adds new extents, which replace those in `old`.
    pub(crate) fn name(&mut self, old: &[Extent], naming: Naming) {
        if naming.extents.first().is_some_and(|extent| extent.file_block == 0) {
            // Block 0 has left the inode item, in the same transaction.
            self.inline = InlineChange::Set(None);
        }
        let cleared = plan::ranges(&naming.extents);
        self.extents = plan::replace(old, &cleared, naming.extents);
        self.named = naming.named;
    }

    /// The blocks whose logged contents are no longer valid: those that are cleared and, for a
    /// truncation, all behind the new end, even if only later transactions clear the extents.
    fn cut(&self, old_size: u64) -> SmallVec<[Range<u64>; 2]> {
        let mut cut: SmallVec<_> = self.extents.cleared.iter().cloned().collect();
        if let SizeChange::Truncated { size, .. } = self.size
            && size < old_size
        {
            cut.push(size.div_ceil(crate::data::memory::BLOCK)..u64::MAX);
        }
        cut
    }

    /// Makes the state what the inode item must say, and returns the values before.
    fn apply(&self, state: &mut InodeState, inline_max: u64) -> Saved {
        let data = &mut state.data;
        let mut saved = Saved {
            attr: state.attr,
            disk_size: data.disk_size,
            floor: data.floor,
            promised: data.promised,
            disk_mtime: data.disk_mtime,
            disk_blocks: data.disk_blocks,
            inline: data.inline.clone(),
            preallocated: data.preallocated.change(&self.extents.cleared, &self.extents.preallocated),
            unplaced: data.unplaced.change(&self.cut(state.attr.size), &self.logged),
            charge: ChargeBefore::default(),
        };
        // In a damaged image, the count may be too small.
        data.disk_blocks =
            (data.disk_blocks + self.extents.added_blocks).saturating_sub(self.extents.freed_blocks);
        self.extents.cleared.iter().for_each(|range| data.cached.remove(range));
        if let InlineChange::Set(inline) = &self.inline {
            data.inline.clone_from(inline);
        }
        match self.size {
            SizeChange::Keep | SizeChange::Placed => {}
            SizeChange::Submitted { all, reach } => {
                let size = state.attr.size;
                let floor = if all { data.floor } else { 0 };
                data.disk_size = data.next_disk_size(size).max(floor.max(reach).min(size));
                data.disk_mtime = state.attr.mtime;
            }
            SizeChange::Truncated { size, logged, now } => {
                data.disk_size = logged;
                if size < state.attr.size {
                    // A pending block at the new end has yet to be named.
                    let edge = size / crate::data::memory::BLOCK;
                    let waits = data.dirty.contains(edge) || data.in_flight.contains(edge);
                    let left = if waits { edge * crate::data::memory::BLOCK } else { size };
                    data.floor = data.floor.min(left);
                    if let Some(flight) = &mut data.flight {
                        flight.size = flight.size.min(left);
                    }
                    data.promised = data.promised.min(size);
                }
                data.disk_mtime = now;
                data.cached.clear();
                state.attr.size = size;
                state.attr.mtime = now;
                state.attr.ctime = now;
            }
            SizeChange::Replaced { size, now } => {
                state.attr.size = state.attr.size.max(size);
                data.disk_size = data.next_disk_size(state.attr.size);
                data.disk_mtime = now;
                data.cached.clear();
                state.attr.mtime = now;
                state.attr.ctime = now;
            }
        }
        saved.charge = state.data.recharge(state.attr.size, inline_max, &self.extents.cleared);
        saved
    }

    fn note(&self, note: &mut Submitted) {
        let put = self.extents.items.values().flatten().count() as u64;
        note.inodes += 1;
        note.extents += put;
        note.extents_removed += self.extents.items.len() as u64 - put;
        note.blocks_released += self.extents.blocks_released();
        if let InlineChange::Set(Some(contents)) = &self.inline {
            note.inline_bytes += contents.len() as u64;
        }
        note.blocks_in_log += self.logged.len() as u64;
    }

    /// The transaction is committed; its inode item has this access time.
    fn committed(&self, op: OpSeq, atime: Timestamp) {
        let mut state = self.inode.state.lock();
        state.note_access_logged(op, atime);
        let data = &mut state.data;
        if !matches!(self.size, SizeChange::Placed) {
            data.data_op = op;
        }
        data.unplaced.committed();
        // The last item that is put, not the last change: that may be the deletion of an item which
        // a longer one has swallowed.
        if let Some(extent) = self.extents.items.values().rev().flatten().next()
            && let Some(extent_end) = &mut data.extent_end
        {
            *extent_end = extent.end().max(*extent_end);
        }
        if let Some((write, part)) = self.named.last() {
            debug_assert!(write.run().end() >= part.end());
            data.near = NonZeroU64::new(part.end());
        }
        state.attr.blocks = state.data.visible_units(state.attr.size);
    }
}

impl Saved {
    fn restore(self, state: &mut InodeState) {
        state.attr = self.attr;
        state.data.disk_size = self.disk_size;
        state.data.floor = self.floor;
        state.data.promised = self.promised;
        state.data.disk_mtime = self.disk_mtime;
        state.data.disk_blocks = self.disk_blocks;
        state.data.inline = self.inline;
        state.data.preallocated.undo(self.preallocated);
        state.data.unplaced.undo(self.unplaced);
        state.data.restore_charge(self.charge);
    }
}
