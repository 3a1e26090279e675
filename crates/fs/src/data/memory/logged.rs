//! What transactions have said about a file's data, and so what its inode item says.

use super::UNITS;
use super::unplaced::Unplaced;
use crate::types::{Attributes, Timestamp};
use bytes::Bytes;
use syncline_store::OpSeq;

/// A file's data as it was logged.
pub(crate) struct Logged {
    /// Apart from a truncation that grows the file, the size never passes a block that no transaction
    /// has named or logged.
    size: u64,
    /// The mtime that belongs to the last logged write.
    mtime: Timestamp,
    /// Number of blocks that the extents are charged for.
    blocks: u64,
    /// Inline contents: the beginning of block 0, zeros follow.
    inline: Option<Bytes>,
    /// Blocks whose contents are in the log and that have no place yet.
    unplaced: Unplaced,
    /// Newest operation that logged contents, extents or the size. An fdatasync waits until it is durable.
    /// (Placing blocks whose contents are in the log does not count.)
    op: OpSeq,
}

impl Logged {
    /// The values of an inode item that was read; `unplaced` if it says that there may be blocks
    /// without a place.
    pub(super) fn load(attr: &Attributes, inline: Option<Bytes>, unplaced: bool, last_op: OpSeq) -> Self {
        // Copied, so that it does not keep the tree node in memory. The item bounds its length.
        let inline = inline.filter(|data| !data.is_empty()).map(|data| Bytes::copy_from_slice(&data));
        Self {
            size: attr.size,
            mtime: attr.mtime,
            blocks: attr.blocks.saturating_sub(inline_units(inline.as_deref())) / UNITS,
            inline,
            unplaced: Unplaced::marked(unplaced),
            op: last_op,
        }
    }

    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    pub(crate) fn mtime(&self) -> Timestamp {
        self.mtime
    }

    pub(in crate::data) fn blocks(&self) -> u64 {
        self.blocks
    }

    pub(in crate::data) fn inline(&self) -> Option<&Bytes> {
        self.inline.as_ref()
    }

    /// 512-byte units of the inline contents.
    pub(in crate::data) fn inline_units(&self) -> u64 {
        inline_units(self.inline.as_deref())
    }

    pub(crate) fn unplaced(&self) -> &Unplaced {
        &self.unplaced
    }

    pub(in crate::data) fn unplaced_mut(&mut self) -> &mut Unplaced {
        &mut self.unplaced
    }

    pub(crate) fn op(&self) -> OpSeq {
        self.op
    }

    pub(in crate::data) fn set_size(&mut self, size: u64) {
        self.size = size;
    }

    pub(in crate::data) fn set_mtime(&mut self, mtime: Timestamp) {
        self.mtime = mtime;
    }

    pub(in crate::data) fn set_blocks(&mut self, blocks: u64) {
        self.blocks = blocks;
    }

    /// Sets the inline contents and returns those before.
    pub(in crate::data) fn set_inline(&mut self, inline: Option<Bytes>) -> Option<Bytes> {
        std::mem::replace(&mut self.inline, inline)
    }

    pub(in crate::data) fn set_op(&mut self, op: OpSeq) {
        self.op = op;
    }
}

fn inline_units(inline: Option<&[u8]>) -> u64 {
    inline.map_or(0, |data| data.len().div_ceil(512) as u64)
}
