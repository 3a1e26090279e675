//! Starting a submission: which extents it replaces, its writes, and its part of the transaction.
//!
//! All that has to be waited for (room, the extents to replace, the counts of shared blocks) comes
//! first. From the first block that is taken on, nothing waits, up to the commit in `finish`.

use super::choose;
use super::finish::{self, Started};
use crate::FsError;
use crate::data::effects::{FileChange, InlineChange, SizeChange};
use crate::data::extents::place::{self, Naming};
use crate::data::extents::room::make_up_reservation;
use crate::data::extents::{lookup, shares};
use crate::data::memory::ranges::number_ranges;
use crate::data::memory::submission::Aim;
use crate::filesystem::Filesystem;
use crate::inode::Inode;
use crate::receipt::Submitted;
use smallvec::SmallVec;
use std::ops::Range;
use std::sync::Arc;
use syncline_format::items::extent::Extent;

/// The part of a file to submit in one transaction. The file's `writeback` and its lease (for
/// writing) are held.
pub(crate) struct Submission<'a> {
    pub inode: &'a Arc<Inode>,
    /// The range of dirty blocks, up to the end that `begin_submission` returned or further.
    pub blocks: Range<u64>,
    pub aim: Aim,
}

/// Submits dirty data of several files in one transaction.
pub(in crate::data) async fn submit(
    fs: &Filesystem,
    files: &[Submission<'_>],
    note: &mut Submitted,
) -> Result<(), FsError> {
    submit_as(fs, files, true, note).await
}

/// Submits the first part of a file's dirty data. More parts follow while the lease is held, and
/// `submit` takes the last.
pub(in crate::data) async fn submit_part(
    fs: &Filesystem,
    part: Submission<'_>,
    note: &mut Submitted,
) -> Result<(), FsError> {
    submit_as(fs, &[part], false, note).await
}

/// With `all`, the submissions end with this transaction.
async fn submit_as(
    fs: &Filesystem,
    files: &[Submission<'_>],
    all: bool,
    note: &mut Submitted,
) -> Result<(), FsError> {
    let mut old: SmallVec<[_; 1]> = SmallVec::with_capacity(files.len());
    for file in files {
        if choose::is_logged(fs, &file.inode.state.lock(), file.aim, files.len()) {
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
            Some(old) => start_writes(fs, file, &old, all),
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
    finish::finish(fs, started, shares, note)
}

/// The extents that the file's dirty blocks will replace.
async fn overlapped(fs: &Filesystem, file: &Submission<'_>) -> Result<Vec<Extent>, FsError> {
    let ranges = {
        let state = file.inode.state.lock();
        let known_end = state.data.layout.extent_end();
        let end = file.blocks.end.min(known_end).max(file.blocks.start);
        number_ranges(state.data.blocks.numbers(file.blocks.start..end))
    };
    lookup::overlapping(&fs.store, file.inode.ino, &ranges).await
}

/// Takes the blocks, starts their writes and works out what the transaction says about them.
fn start_writes<'a>(
    fs: &Filesystem,
    file: &Submission<'a>,
    old: &[Extent],
    all: bool,
) -> Result<Started<'a>, FsError> {
    let inode = file.inode;
    let mut state = inode.state.lock();
    let size = state.attr.size;
    let data = &mut state.data;
    let mut change =
        FileChange { size: SizeChange::Submitted { all, reach: 0 }, ..FileChange::nothing(inode) };
    if data.inlines(fs.limits.inline_bytes as u64, size) {
        change.inline = InlineChange::Set(data.inline_contents(size));
        let taken = data.blocks.take(0, 1, 1);
        return Ok(Started { inode, taken, logged: SmallVec::new(), placements: Vec::new(), change });
    }
    let near = data.layout.near();
    let (taken, mut reservation) = data.take_dirty(size, file.blocks.clone());
    drop(state);
    let placements = match place::place(fs, &mut reservation, &taken, near) {
        Ok(placements) => placements,
        Err(error) => {
            inode.state.lock().data.blocks.restore(taken);
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
    change.logged = inode.state.lock().data.blocks.log();
    let logged = change.logged.iter().map(|(number, _)| *number).collect();
    Started { inode, taken: Vec::new(), logged, placements: Vec::new(), change }
}
