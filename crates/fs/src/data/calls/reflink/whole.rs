//! Everything that the items of a file say about its contents, for a copy that one transaction makes.

use super::take_over::{Blocks, Span};
use crate::FsError;
use crate::data::extents::shares::{Shares, hold};
use crate::data::memory::{BLOCK, DataState, UNITS, unplaced};
use crate::filesystem::Filesystem;
use crate::inode::Inode;
use crate::types::{Attributes, FileType, Ino};
use bytes::Bytes;
use std::sync::Arc;
use syncline_format::items::extent::Extent;
use syncline_format::{Key, Kind};
use syncline_store::{OpSeq, Transaction};

/// The contents of a settled file up to its end. (Its lease and its `writeback` are held, and nothing of it is
/// dirty.)
pub(crate) struct WholeFile {
    extents: Vec<Extent>,
    blocks: Blocks,
    inline: Option<Bytes>,
}

/// The contents of the copy. The counts of their blocks are locked.
pub(crate) struct SharedFile<'a> {
    extents: Vec<Extent>,
    inline: Option<Bytes>,
    shares: Shares<'a>,
}

impl WholeFile {
    /// Looks up the extents and the inline contents; an inode that is no regular file has none. `None` if there are
    /// more extents than one transaction takes over.
    pub(crate) async fn of(fs: &Filesystem, file: &Arc<Inode>) -> Result<Option<Self>, FsError> {
        unplaced::require_whole(file)?;
        let (size, inline) = {
            let state = file.state.lock();
            let size = if file.file_type == FileType::Regular { state.attr.size } else { 0 };
            (size, state.data.logged.inline().cloned())
        };
        let count = size.div_ceil(BLOCK);
        let mut blocks = Blocks { from: 0, to: 0, count, bytes: size };
        let extents = whole(file, size).source(fs, &mut blocks).await?;
        Ok((blocks.count == count).then_some(Self { extents, blocks, inline }))
    }

    /// 512-byte units of the blocks and the inline contents.
    pub(crate) fn units(&self) -> u64 {
        let parts = self.extents.iter().filter_map(|extent| extent.slice(0, self.blocks.count));
        units(parts.map(|part| part.charged_blocks()).sum(), self.inline.as_ref())
    }

    /// Blocks that naming the extents once more may take.
    pub(crate) fn names(&self) -> u64 {
        super::take_over::names_of(&self.extents)
    }

    /// Adds a reference to each block. `None` if a block can't have more. The caller holds all the room that it needs:
    /// a removal that gives room back waits for the counts.
    pub(crate) async fn share<'a>(
        mut self,
        fs: &'a Filesystem,
        file: &Arc<Inode>,
    ) -> Result<Option<SharedFile<'a>>, FsError> {
        let mut shares = hold(fs, &self.extents).await?;
        if !self.extents.is_empty() {
            shares.hold_still(fs).await;
        }
        let extents = whole(file, self.blocks.bytes).share(&mut self.extents, &self.blocks, &mut shares);
        Ok(extents.map(|extents| SharedFile { extents, inline: self.inline, shares }))
    }
}

/// All bytes of a file.
fn whole(file: &Arc<Inode>, len: u64) -> Span<'_> {
    Span { from: file, from_offset: 0, to: file, to_offset: 0, len }
}

fn units(blocks: u64, inline: Option<&Bytes>) -> u64 {
    blocks * UNITS + inline.map_or(0, |inline| inline.len().div_ceil(512) as u64)
}

impl SharedFile<'_> {
    /// 512-byte units that the copy takes.
    pub(crate) fn units(&self) -> u64 {
        units(self.extents.iter().map(Extent::charged_blocks).sum(), self.inline.as_ref())
    }

    /// The state of the copy's data. `attr` has its size, times and units.
    pub(crate) fn state(&self, attr: &Attributes) -> DataState {
        DataState::load(attr, self.inline.clone(), false, OpSeq::default())
    }

    /// Puts the extents of the copy, the marks of the file's extents and the counts of both.
    pub(crate) fn put(&self, transaction: &mut Transaction, copy: Ino) {
        self.shares.put_marks(transaction);
        for extent in &self.extents {
            transaction.put(Key::new(copy, Kind::Extent, extent.file_block), extent.encode());
        }
        self.shares.put_counts(transaction);
    }
}
