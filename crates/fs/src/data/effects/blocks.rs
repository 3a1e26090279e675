//! The number of the file's blocks, and what is known in memory about its extents.

use super::{Commit, Effect, FileChange};
use crate::FsError;
use crate::filesystem::Filesystem;
use crate::inode::InodeState;
use syncline_store::OpSeq;

/// The file's number of blocks before the change.
#[derive(Default)]
pub(super) struct Blocks(Option<u64>);

impl Effect for Blocks {
    fn put(
        &mut self,
        change: &FileChange<'_>,
        file: &mut InodeState,
        _commit: &mut Commit<'_>,
    ) -> Result<(), FsError> {
        let (data, extents) = (&mut file.data, &change.extents);
        let before = data.logged.blocks();
        // In a damaged image, the count may be too small.
        data.logged.set_blocks((before + extents.added_blocks).saturating_sub(extents.freed_blocks));
        self.0 = Some(before);
        extents.cleared.iter().for_each(|range| data.blocks.forget_placed(range));
        Ok(())
    }

    fn undo(&mut self, file: &mut InodeState) {
        if let Some(before) = self.0.take() {
            file.data.logged.set_blocks(before);
        }
    }

    fn committed(&mut self, _fs: &Filesystem, change: &FileChange<'_>, file: &mut InodeState, _op: OpSeq) {
        let data = &mut file.data;
        // The last item that is put, not the last change: that may be the deletion of an item which
        // a longer one has swallowed.
        if let Some(extent) = change.extents.items.values().rev().flatten().next() {
            data.layout.reach(extent.end());
        }
        if let Some((write, part)) = change.named.last() {
            debug_assert!(write.run().end() >= part.end());
            data.layout.set_near(part.end());
        }
        file.attr.blocks = file.data.visible_units(file.attr.size);
    }
}
