//! Frames: aligned groups of blocks, each with room for one tree node.
//!
//! Scattered free blocks are of little use to a checkpoint, since a node takes several contiguous
//! ones. So the free space reserved for nodes is counted in frames of which no block is in use, and
//! allocations that can do with less are kept out of the last of these.

use syncline_format::Geometry;

/// The first segment of a log has at least this many blocks, even where nodes are smaller.
const LEAST_BLOCKS: u64 = 4;

/// The size of a frame: a power of two of at most 16 blocks, so that a word of the map holds only
/// whole frames.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frames {
    blocks: u64,
}

impl Frames {
    /// The frames of an image with nodes of this size.
    pub(crate) fn of(geometry: Geometry) -> Self {
        Self { blocks: geometry.node_blocks().max(LEAST_BLOCKS) }
    }

    /// Blocks per frame.
    pub(crate) fn blocks(self) -> u64 {
        self.blocks
    }

    /// The bits of those frames in a word of which no block is in use; in `used`, blocks in use
    /// have their bit set.
    pub(crate) fn whole(self, used: u64) -> u64 {
        let mut first = !used;
        let mut width = 1;
        while width < self.blocks {
            first &= first >> width;
            width *= 2;
        }
        // Bit n now says that none of block n and the following ones is in use; only bits at the
        // start of a frame count.
        first &= u64::MAX / ((1 << self.blocks) - 1);
        // Subtracting each first bit from the bit behind its frame sets all bits of the frame.
        (first << self.blocks).wrapping_sub(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use syncline_format::Metadata;

    #[test]
    fn a_frame_is_whole_when_no_block_of_it_is_in_use() {
        for blocks in [1, 2, 4, 8, 16] {
            let frames = Frames::of(Geometry {
                total_blocks: 4096,
                node_bytes: blocks * 4096,
                metadata: Metadata::Dup,
            });
            let size = frames.blocks();
            let plain = |used: u64| {
                let ones = (1 << size) - 1;
                let starts = (0..64).step_by(size as usize);
                starts.filter(|at| used >> at & ones == 0).fold(0, |whole, at| whole | ones << at)
            };
            let mut used = 0x9e37_79b9_7f4a_7c15_u64;
            for round in 0..1000 {
                // Ever sparser words, and none at all.
                used = used.wrapping_mul(0xd120_0000_0002_77a5).rotate_left(29) ^ round;
                for used in
                    [used, used & used.rotate_left(7) & used.rotate_left(31), 0, u64::MAX, 1 << (round % 64)]
                {
                    assert_eq!(frames.whole(used), plain(used), "{used:#x}, frames of {size}");
                }
            }
        }
    }
}
