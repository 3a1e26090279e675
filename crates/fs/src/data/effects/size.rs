//! Size and times: the logged ones follow the data that the transaction names or contains.

use super::{Commit, Effect, FileChange};
use crate::FsError;
use crate::data::memory::progress::Bounds;
use crate::data::memory::{BLOCK, DataState};
use crate::filesystem::Filesystem;
use crate::inode::InodeState;
use crate::types::{Attributes, Timestamp};
use syncline_store::{Canary, OpSeq};

/// The change to the sizes.
#[derive(Debug)]
pub(in crate::data) enum SizeChange {
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

/// The values before the change.
struct Before {
    attr: Attributes,
    size: u64,
    mtime: Timestamp,
    bounds: Bounds,
}

/// The change to size and times.
#[derive(Default)]
pub(super) struct SizeAndTimes(Option<Before>);

impl Effect for SizeAndTimes {
    fn put(
        &mut self,
        change: &FileChange<'_>,
        file: &mut InodeState,
        commit: &mut Commit<'_>,
    ) -> Result<(), FsError> {
        let DataState { logged, progress, .. } = &file.data;
        let (size, mtime) = (logged.size(), logged.mtime());
        let before = Before { attr: file.attr, size, mtime, bounds: progress.bounds() };
        match change.size {
            SizeChange::Keep | SizeChange::Placed => {}
            SizeChange::Submitted { all, reach } => submitted(file, all, reach),
            SizeChange::Truncated { size, logged, now } => truncated(file, size, logged, now),
            SizeChange::Replaced { size, now } => replaced(file, size, now),
        }
        break_rules(change, file, commit.fs, before.size);
        commit.only_places &= matches!(change.size, SizeChange::Placed) && !file.access_unlogged;
        self.0 = Some(before);
        Ok(())
    }

    fn undo(&mut self, file: &mut InodeState) {
        let Some(before) = self.0.take() else { return };
        // Reads move the access time without a lease.
        file.attr = Attributes { atime: file.attr.atime, ..before.attr };
        let DataState { logged, progress, .. } = &mut file.data;
        logged.set_size(before.size);
        logged.set_mtime(before.mtime);
        progress.restore(before.bounds);
    }

    fn committed(&mut self, _fs: &Filesystem, change: &FileChange<'_>, file: &mut InodeState, op: OpSeq) {
        if let Some(before) = &self.0 {
            // The access time that the inode item has.
            file.note_access_logged(op, before.attr.atime);
        }
        if !matches!(change.size, SizeChange::Placed) {
            file.data.logged.set_op(op);
        }
    }
}

fn submitted(file: &mut InodeState, all: bool, reach: u64) {
    let (data, size) = (&mut file.data, file.attr.size);
    let floor = if all { data.progress.floor() } else { 0 };
    data.logged.set_size(data.next_disk_size(size).max(floor.max(reach).min(size)));
    data.logged.set_mtime(file.attr.mtime);
}

fn truncated(file: &mut InodeState, size: u64, logged: u64, now: Timestamp) {
    let data = &mut file.data;
    data.logged.set_size(logged);
    if size < file.attr.size {
        // A pending block at the new end has yet to be named.
        let edge = size / BLOCK;
        let waits = data.blocks.is_pending(edge);
        let left = if waits { edge * BLOCK } else { size };
        data.progress.cut(size, left);
    }
    data.logged.set_mtime(now);
    data.blocks.forget_all_placed();
    (file.attr.size, file.attr.mtime, file.attr.ctime) = (size, now, now);
}

fn replaced(file: &mut InodeState, size: u64, now: Timestamp) {
    file.attr.size = file.attr.size.max(size);
    let data = &mut file.data;
    data.logged.set_size(data.next_disk_size(file.attr.size));
    data.logged.set_mtime(now);
    data.blocks.forget_all_placed();
    (file.attr.mtime, file.attr.ctime) = (now, now);
}

/// Logs a wrong size where a canary asks for it.
fn break_rules(change: &FileChange<'_>, file: &mut InodeState, fs: &Filesystem, size_before: u64) {
    let data = &mut file.data;
    if fs.store.breaks(Canary::SizeAhead) {
        data.logged.set_size(file.attr.size);
    }
    // Only if the size advances by more than a block: the next transaction makes up for it, and
    // write-back comes to an end.
    let ends = matches!(change.size, SizeChange::Submitted { all: true, .. });
    if fs.store.breaks(Canary::SizeBehind) && ends && data.logged.size() > size_before + BLOCK {
        data.logged.set_size(data.logged.size() - BLOCK);
    }
}
