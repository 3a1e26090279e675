//! The number of the file's blocks, and what is known in memory about its extents.

use super::{Commit, Effect, FileChange};
use crate::FsError;
use crate::filesystem::Filesystem;
use crate::inode::InodeState;
use std::num::NonZeroU64;
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
        self.0 = Some(data.disk_blocks);
        // In a damaged image, the count may be too small.
        data.disk_blocks = (data.disk_blocks + extents.added_blocks).saturating_sub(extents.freed_blocks);
        extents.cleared.iter().for_each(|range| data.cached.remove(range));
        Ok(())
    }

    fn undo(&mut self, file: &mut InodeState) {
        if let Some(before) = self.0.take() {
            file.data.disk_blocks = before;
        }
    }

    fn committed(&mut self, _fs: &Filesystem, change: &FileChange<'_>, file: &mut InodeState, _op: OpSeq) {
        let data = &mut file.data;
        // The last item that is put, not the last change: that may be the deletion of an item which
        // a longer one has swallowed.
        if let Some(extent) = change.extents.items.values().rev().flatten().next()
            && let Some(extent_end) = &mut data.extent_end
        {
            *extent_end = extent.end().max(*extent_end);
        }
        if let Some((write, part)) = change.named.last() {
            debug_assert!(write.run().end() >= part.end());
            data.near = NonZeroU64::new(part.end());
        }
        file.attr.blocks = file.data.visible_units(file.attr.size);
    }
}
