//! What a change of a file's data means for everything that depends on it: its effects.
//!
//! A transaction (`flush/transact`) runs the effects of each file in the order of [`Effects::each`]. An
//! effect changes the file's state and puts its items into the transaction, undoes this if the
//! transaction fails, and does the rest once it is committed. A caller that changes data describes the change
//! as a [`FileChange`], and need not know its effects.

mod blocks;
mod commit;
mod inline;
mod logged;
mod preallocation;
mod quota;
mod shares;
mod size;

pub(in crate::data) use commit::Commit;
pub(in crate::data) use inline::InlineChange;
pub(in crate::data) use size::SizeChange;

use crate::FsError;
use crate::data::extents::place::Naming;
use crate::data::extents::plan::{self, ExtentChanges};
use crate::data::memory::blocks::ToLog;
use crate::filesystem::Filesystem;
use crate::inode::{Inode, InodeState};
use crate::receipt::Submitted;
use smallvec::SmallVec;
use std::sync::Arc;
use syncline_format::BlockRun;
use syncline_format::items::extent::Extent;
use syncline_store::{DataWrite, OpSeq};

/// The change that a transaction makes to the data of one file, whose lease is held for writing.
pub(in crate::data) struct FileChange<'a> {
    pub inode: &'a Arc<Inode>,
    pub extents: ExtentChanges,
    /// Blocks that the new extents name.
    pub named: Vec<(DataWrite, BlockRun)>,
    pub inline: InlineChange,
    /// Dirty blocks whose contents the transaction has.
    pub logged: ToLog,
    pub size: SizeChange,
}

/// The changes of a transaction: of one file, mostly.
pub(in crate::data) type FileChanges<'a> = SmallVec<[FileChange<'a>; 1]>;

impl<'a> FileChange<'a> {
    /// A change of nothing, to start from.
    pub(in crate::data) fn nothing(inode: &'a Arc<Inode>) -> Self {
        Self {
            inode,
            extents: ExtentChanges::default(),
            named: Vec::new(),
            inline: InlineChange::Keep,
            logged: ToLog::new(),
            size: SizeChange::Keep,
        }
    }

    /// Adds new extents, which replace those in `old`.
    pub(in crate::data) fn name(&mut self, old: &[Extent], naming: Naming) {
        if naming.extents.first().is_some_and(|extent| extent.file_block == 0) {
            // Block 0 has left the inode item, in the same transaction.
            self.inline = InlineChange::Set(None);
        }
        let cleared = plan::ranges(&naming.extents);
        self.extents = plan::replace(old, &cleared, naming.extents);
        self.named = naming.named;
    }

    /// Adds the change to the counts of a submission.
    pub(in crate::data) fn note(&self, note: &mut Submitted) {
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
}

/// One effect of a change, which remembers what it takes to undo it. The file's state is locked during
/// each call.
trait Effect {
    /// Looks at the file before any effect has changed it.
    fn look(&mut self, _file: &InodeState) {}

    /// Makes the file's state what it is after the change, and puts the items of the effect.
    fn put(
        &mut self,
        change: &FileChange<'_>,
        file: &mut InodeState,
        commit: &mut Commit<'_>,
    ) -> Result<(), FsError>;

    /// Undoes `put` after the transaction has failed. Does nothing if there was no `put`.
    fn undo(&mut self, file: &mut InodeState);

    /// The transaction is committed, as operation `op`.
    fn committed(&mut self, _fs: &Filesystem, _change: &FileChange<'_>, _file: &mut InodeState, _op: OpSeq) {}
}

/// The effects of a change to one file.
#[derive(Default)]
pub(in crate::data) struct Effects {
    preallocation: preallocation::Preallocation,
    logged: logged::LoggedBlocks,
    blocks: blocks::Blocks,
    inline: inline::Inline,
    size: size::SizeAndTimes,
    quota: quota::Quota,
}

impl Effects {
    /// All effects, in order. Logged blocks that a truncation cuts off depend on the size before it. The
    /// quota depends on everything before it.
    fn each(&mut self) -> [&mut dyn Effect; 6] {
        let Self { preallocation, logged, blocks, inline, size, quota } = self;
        [preallocation, logged, blocks, inline, size, quota]
    }

    /// Puts the change of a file, its effects and its inode item into the transaction.
    pub(in crate::data) fn put(
        &mut self,
        change: &FileChange<'_>,
        commit: &mut Commit<'_>,
    ) -> Result<(), FsError> {
        change.extents.put(change.inode.ino, commit.transaction());
        change.named.iter().for_each(|(write, part)| commit.transaction().name_data(write, *part));
        shares::put(change, commit)?;
        let mut file = change.inode.state.lock();
        self.each().into_iter().for_each(|effect| effect.look(&file));
        self.each().into_iter().try_for_each(|effect| effect.put(change, &mut file, commit))?;
        file.put(commit.transaction());
        Ok(())
    }

    /// Makes the file's state what it was before `put`.
    pub(in crate::data) fn undo(&mut self, change: &FileChange<'_>) {
        let mut file = change.inode.state.lock();
        self.each().into_iter().rev().for_each(|effect| effect.undo(&mut file));
    }

    /// The transaction is committed, as operation `op`.
    pub(in crate::data) fn committed(&mut self, fs: &Filesystem, change: &FileChange<'_>, op: OpSeq) {
        let mut file = change.inode.state.lock();
        self.each().into_iter().for_each(|effect| effect.committed(fs, change, &mut file, op));
    }
}
