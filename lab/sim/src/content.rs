//! Data blocks that identify themselves: every byte follows from a tag and the block's number, so
//! any other block is recognised at once, whichever of its sectors are wrong.

use crate::SECTOR_BYTES;
use std::ops::Range;
use syncline_device::BLOCK_BYTES;

/// The blocks of a write that promise P9 is about, if it has several.
pub(crate) fn page(offset: u64, len: u64) -> Option<Range<u64>> {
    let block = BLOCK_BYTES as u64;
    let is_page = len.is_power_of_two() && (2 * block..=64 << 10).contains(&len);
    (is_page && offset.is_multiple_of(len)).then(|| offset / block..(offset + len) / block)
}

/// The bytes of block `index` of the data with this tag. No two sectors of any two blocks are
/// equal, and none is zero.
pub fn block_of(tag: u64, index: u64) -> Vec<u8> {
    let mut state = mix(tag.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ index.rotate_left(40));
    let mut block = Vec::with_capacity(BLOCK_BYTES);
    while block.len() < BLOCK_BYTES {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        block.extend_from_slice(&mix(state).to_le_bytes());
    }
    block
}

/// Like `block_of`, with bytes that compress.
pub(crate) fn shrinking_block_of(tag: u64, index: u64) -> Vec<u8> {
    let block = block_of(tag, index);
    let sectors = block.chunks(SECTOR_BYTES);
    sectors.flat_map(|sector| sector[..16].iter().copied().cycle().take(SECTOR_BYTES)).collect()
}

/// The data of a write with this tag: blocks that no other write has. The data of every second tag
/// compresses.
pub(crate) fn contents_of(tag: u64, len: usize) -> Vec<u8> {
    let shrinks = tag.is_multiple_of(2);
    let block = |index| {
        let block = block_of(tag, index);
        if shrinks { block[..64].iter().copied().cycle().take(BLOCK_BYTES).collect() } else { block }
    };
    (0..).flat_map(block).take(len).collect()
}

/// The finalizer of splitmix64.
fn mix(mut value: u64) -> u64 {
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn sectors_differ_from_one_another() {
        let blocks = (0..25).flat_map(|tag| (0..20).map(move |index| block_of(tag, index)));
        let shrinking = (25..50).flat_map(|tag| (0..20).map(move |index| shrinking_block_of(tag, index)));
        let blocks = blocks.chain(shrinking);
        let sectors: HashSet<Vec<u8>> =
            blocks.flat_map(|block| block.chunks(512).map(<[u8]>::to_vec).collect::<Vec<_>>()).collect();
        assert_eq!(sectors.len(), 50 * 20 * 8);
        assert!(!sectors.contains(&vec![0; 512]));
    }
}
