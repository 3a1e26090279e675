//! Data blocks that identify themselves: every byte follows from a tag and the block's number, so
//! any other block is recognised at once, whichever of its sectors are wrong.

use syncline_device::BLOCK_BYTES;

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
        let blocks = (0..50).flat_map(|tag| (0..20).map(move |index| block_of(tag, index)));
        let sectors: HashSet<Vec<u8>> =
            blocks.flat_map(|block| block.chunks(512).map(<[u8]>::to_vec).collect::<Vec<_>>()).collect();
        assert_eq!(sectors.len(), 50 * 20 * 8);
        assert!(!sectors.contains(&vec![0; 512]));
    }
}
