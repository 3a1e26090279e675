//! Pages: the pieces of a file that no submission cuts, so that none comes back torn (promise P9).
//!
//! A page is an aligned piece of 64 KiB, or any aligned piece within one whose length is a power of
//! two. A write(2) of a page makes all its blocks dirty at once. If every submission takes all dirty
//! blocks of 64 KiB or none, one transaction names or logs all blocks of the write, and a crash leaves
//! all of them or none. The logged size must not end within the page either.

use super::{BLOCK, DataState};

/// Blocks of the largest page: 64 KiB.
const PAGE_BLOCKS: u64 = 16;

/// The first block of the page in which `block` lies.
pub(in crate::data) fn page_start(block: u64) -> u64 {
    block - block % PAGE_BLOCKS
}

/// The end of the page in which `block` lies, in blocks.
pub(in crate::data) fn page_end(block: u64) -> u64 {
    page_start(block) + PAGE_BLOCKS
}

/// True for a write of a page.
pub(in crate::data) fn is_page(offset: u64, len: u64) -> bool {
    let is_size = len.is_power_of_two() && (BLOCK..=PAGE_BLOCKS * BLOCK).contains(&len);
    is_size && offset.is_multiple_of(len)
}

impl DataState {
    /// The end of a round over `blocks`, which has `max` dirty blocks, or a few more: it ends between
    /// pages.
    pub(in crate::data) fn round_end(&self, blocks: std::ops::Range<u64>, max: u64) -> u64 {
        if self.blocks.dirty() < max {
            return blocks.end;
        }
        let last = self.blocks.numbers(blocks.clone()).nth(max.saturating_sub(1) as usize);
        last.map_or(blocks.end, |last| page_end(last).min(blocks.end))
    }

    /// Where a size that is logged may end at most, `block` being the first block that is neither
    /// named nor logged. It does not advance into that block's page: a part of the page may have been
    /// named before.
    pub(in crate::data) fn size_limit(logged: u64, block: u64) -> u64 {
        let page = page_start(block) * BLOCK;
        if logged <= page { page } else { block * BLOCK }
    }

    /// How far the logged size may reach with a transaction that names blocks which write-back took,
    /// `landed`, in order: over each page that it took, though some of its blocks may be dirty again.
    /// They are named with what they held when the file had the flight's size.
    pub(in crate::data) fn reach(&self, landed: &[u64]) -> u64 {
        let (size, logged) = (self.progress.flight_size(), self.logged.size());
        let mut at = logged / BLOCK;
        while let Some(block) = self.blocks.next_unnamed(at) {
            let (first, end) = (page_start(block), page_end(block));
            let here = landed.partition_point(|&number| number < first);
            if landed.get(here).is_none_or(|&number| number >= end) {
                return size.min(Self::size_limit(logged, block));
            }
            if size <= end * BLOCK {
                break;
            }
            at = end;
        }
        size
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::memory::block::Block;
    use crate::types::{Attributes, FileType, Timestamp};
    use syncline_device::AlignedBuf;

    fn dirty(blocks: impl IntoIterator<Item = u64>) -> DataState {
        let time = Timestamp { seconds: 0, nanoseconds: 0 };
        let attr = Attributes {
            ino: 2,
            file_type: FileType::Regular,
            permissions: 0o600,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 0,
            blocks: 0,
            atime: time,
            mtime: time,
            ctime: time,
            btime: time,
        };
        let mut data = DataState::new(&attr);
        for block in blocks {
            data.blocks.insert(block, Block::whole(AlignedBuf::zeroed(BLOCK as usize)));
        }
        data
    }

    #[test]
    fn a_round_ends_between_pages() {
        let data = dirty(3..40);
        assert_eq!(data.round_end(0..48, 1), 16);
        assert_eq!(data.round_end(0..48, 13), 16);
        assert_eq!(data.round_end(0..48, 14), 32);
        assert_eq!(data.round_end(16..48, 100), 48);
        assert_eq!(data.round_end(0..u64::MAX, 37), 48);
        assert_eq!(dirty([]).round_end(0..16, 4), 16);
    }

    #[test]
    fn a_size_reaches_over_pages_that_were_taken_and_not_into_others() {
        let blocks = |size: u64| size * BLOCK;
        let mut data = dirty([20]);
        data.progress.take_off(blocks(32), 0);
        let landed: Vec<u64> = (0..32).collect();
        assert_eq!(data.reach(&landed), blocks(32), "block 20 was written again");
        assert_eq!(data.reach(&landed[..16]), blocks(16));
        data.progress.take_off(5000, 0);
        assert_eq!(data.reach(&landed[..2]), 5000);
        let data = dirty([2, 20]);
        assert_eq!(data.reach(&[]), 0);
        // What has been named of a page shows only as a whole.
        assert_eq!(dirty([20]).next_disk_size(blocks(32)), blocks(16));
        let mut data = dirty([20]);
        data.logged.set_size(blocks(18));
        assert_eq!(data.next_disk_size(blocks(32)), blocks(20));
    }
}
