//! Preallocated blocks: ranges of a file without extents, and their sum by inode.

use std::collections::BTreeMap;
use std::ops::Range;
use syncline_format::items::preallocation::{Preallocation, decode_sum};
use syncline_format::{Geometry, Key};

/// The number of blocks by which the preallocations exceed the room that data leaves.
pub(crate) fn excess(geometry: Geometry, data: u64, preallocated: u64) -> u64 {
    preallocated.saturating_sub(geometry.usable().blocks.saturating_sub(data))
}

/// The sums of preallocated blocks in the image, by inode.
#[derive(Default)]
pub(crate) struct Sums(BTreeMap<u64, u64>);

impl Sums {
    /// Takes an item of object 0; returns false if it can't be a sum.
    pub(crate) fn item(&mut self, key: Key, value: &[u8]) -> bool {
        let Ok(blocks) = decode_sum(value) else { return false };
        key.offset > 0 && self.0.insert(key.offset, blocks).is_none()
    }

    /// Takes out the sum of one inode.
    pub(crate) fn take(&mut self, inode: u64) -> u64 {
        self.0.remove(&inode).unwrap_or(0)
    }

    /// Sums that were not taken: their inodes were not found.
    pub(crate) fn rest(&mut self) -> BTreeMap<u64, u64> {
        std::mem::take(&mut self.0)
    }
}

/// The parts of a file covered by extents or preallocations, filled as its items are read.
#[derive(Default)]
pub(crate) struct Covered {
    /// Covered by extents; adjacent ranges are joined.
    extents: Vec<Range<u64>>,
    /// First file block after the last preallocation.
    end: u64,
    /// Preallocated blocks.
    pub(crate) blocks: u64,
}

impl Covered {
    /// Adds the file blocks of an extent.
    pub(crate) fn extent(&mut self, blocks: Range<u64>) {
        match self.extents.last_mut() {
            Some(last) if last.end == blocks.start => last.end = blocks.end,
            _ => self.extents.push(blocks),
        }
    }

    /// Adds a preallocation, after all extents; returns false if something else covers part of it.
    pub(crate) fn preallocation(&mut self, item: Preallocation) -> bool {
        let apart = item.file_block >= self.end
            && !self.extents.iter().any(|it| it.start < item.end() && item.file_block < it.end);
        if apart {
            self.end = item.end();
            self.blocks += item.blocks;
        }
        apart
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_lies_on_a_preallocated_block() {
        let mut covered = Covered::default();
        covered.extent(0..32);
        covered.extent(32..40);
        covered.extent(100..101);
        let mut add = |file_block, blocks| covered.preallocation(Preallocation { file_block, blocks });
        assert!(add(40, 60));
        assert!(!add(99, 1), "there is one already");
        assert!(!add(100, 1), "there is an extent");
        assert!(add(101, 9));
        assert!(!add(50, 1));
        assert_eq!(covered.blocks, 69);
    }
}
