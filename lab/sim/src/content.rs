//! The data of the workloads' writes, in blocks that identify themselves ([`block_of`]).

use std::ops::Range;
use syncline_device::BLOCK_BYTES;
use syncline_powercut::{SECTOR_BYTES, block_of};

/// The blocks of a write that promise P9 is about, if it has several.
pub(crate) fn page(offset: u64, len: u64) -> Option<Range<u64>> {
    let block = BLOCK_BYTES as u64;
    let is_page = len.is_power_of_two() && (2 * block..=64 << 10).contains(&len);
    (is_page && offset.is_multiple_of(len)).then(|| offset / block..(offset + len) / block)
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn sectors_differ_from_one_another() {
        let blocks = (0..50).flat_map(|tag| (0..20).map(move |index| shrinking_block_of(tag, index)));
        let sectors: HashSet<Vec<u8>> =
            blocks.flat_map(|block| block.chunks(512).map(<[u8]>::to_vec).collect::<Vec<_>>()).collect();
        assert_eq!(sectors.len(), 50 * 20 * 8);
        assert!(!sectors.contains(&vec![0; 512]));
    }
}
