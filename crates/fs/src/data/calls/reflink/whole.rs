//! Everything that the items of a file say about its contents, for a copy that one transaction makes.

use super::take_over::{Blocks, Span};
use crate::FsError;
use crate::data::extents::shares::{Shares, hold};
use crate::data::memory::{BLOCK, DataState, UNITS, unplaced};
use crate::filesystem::Filesystem;
use crate::inode::Inode;
use crate::types::{Attributes, Ino};
use bytes::Bytes;
use std::sync::Arc;
use syncline_format::items::extent::Extent;
use syncline_format::{Key, Kind};
use syncline_store::{OpSeq, Transaction};

/// The contents of a file as its copy will have them. The counts of its blocks are locked.
pub(crate) struct SharedContents<'a> {
    extents: Vec<Extent>,
    inline: Option<Bytes>,
    shares: Shares<'a>,
}

impl<'a> SharedContents<'a> {
    /// Adds a reference to each block of a file up to its end. The file is settled: its lease and its
    /// `writeback` are held, and nothing of it is dirty. `None` if it has more extents than one transaction
    /// takes over, or if a block can't have more references.
    pub(crate) async fn of(fs: &'a Filesystem, file: &Arc<Inode>) -> Result<Option<Self>, FsError> {
        unplaced::require_whole(file)?;
        let (size, inline) = {
            let state = file.state.lock();
            (state.attr.size, state.data.logged.inline().cloned())
        };
        let count = size.div_ceil(BLOCK);
        let span = Span { from: file, from_offset: 0, to: file, to_offset: 0, len: size };
        let mut blocks = Blocks { from: 0, to: 0, count, bytes: size };
        let mut source = span.source(fs, &mut blocks).await?;
        if blocks.count < count {
            return Ok(None);
        }
        let mut shares = hold(fs, &source).await?;
        if !source.is_empty() {
            shares.hold_still(fs).await;
        }
        let extents = span.share(&mut source, &blocks, &mut shares);
        Ok(extents.map(|extents| Self { extents, inline, shares }))
    }

    /// 512-byte units of the blocks and of the contents in the inode item.
    pub(crate) fn units(&self) -> u64 {
        let blocks: u64 = self.extents.iter().map(Extent::charged_blocks).sum();
        blocks * UNITS + self.inline.as_ref().map_or(0, |inline| inline.len().div_ceil(512) as u64)
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

    /// Blocks that naming these extents once more may take.
    pub(crate) fn names(&self) -> u64 {
        super::take_over::names_of(&self.extents)
    }
}
