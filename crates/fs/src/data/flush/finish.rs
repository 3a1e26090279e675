//! Finishing a submission: the commit, and what follows from it for each file.

use super::ahead;
use super::transact;
use crate::FsError;
use crate::data::effects::FileChange;
use crate::data::extents::place::{self, Placement};
use crate::data::extents::shares::Shares;
use crate::data::memory::block::Block;
use crate::filesystem::Filesystem;
use crate::inode::Inode;
use crate::receipt::Submitted;
use smallvec::SmallVec;
use std::sync::Arc;

/// A submission between the start of its writes and its commit.
pub(super) struct Started<'a> {
    pub inode: &'a Arc<Inode>,
    pub taken: Vec<(u64, Block)>,
    /// Blocks that stay dirty and are marked as logged.
    pub logged: SmallVec<[u64; 4]>,
    pub placements: Vec<Placement>,
    pub change: FileChange<'a>,
}

/// Commits the transaction of these submissions.
pub(super) fn finish(
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
            let taken = self.taken.iter().map(|(number, block)| (*number, block));
            fs.data.cached.add(self.inode, taken, fs.options.kept_bytes_max);
        }
        let mut state = self.inode.state.lock();
        let size = state.attr.size;
        let data = &mut state.data;
        data.add_reservation(None);
        data.progress.note_submitted();
        fs.data.queue.account(data);
        state.attr.blocks = state.data.visible_units(size);
        drop(state);
        if !self.logged.is_empty() {
            ahead::begin(fs, self.inode, self.logged.len() as u64);
        }
    }

    /// After a failed commit: the data is dirty as before and will be relocated.
    pub(super) fn undo(&mut self, fs: &Filesystem) {
        place::abandon(fs, &self.placements);
        let mut state = self.inode.state.lock();
        state.data.blocks.restore(std::mem::take(&mut self.taken));
        state.data.blocks.unlog(self.logged.drain(..));
        // Write-back may have found the inode clean meanwhile and taken it off its list.
        fs.data.queue.note_dirty(fs, self.inode, &mut state.data);
    }
}
