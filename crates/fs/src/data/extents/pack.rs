//! Compressing blocks that write-back has taken: unit by unit, with nothing of the file locked.

use super::place::{Cargo, PackedUnit};
use crate::data::memory::block::Block;
use crate::filesystem::Filesystem;
use crate::inode::Inode;
use std::ops::Range;
use syncline_device::AlignedBuf;
use syncline_format::BLOCK_BYTES;
use syncline_format::items::extent::{Algorithm, EXTENT_BLOCKS_MAX, piece_start};
use syncline_format::items::inode::compression_of;

/// The algorithm with which the inode asks for new data to be compressed, if it does.
pub(in crate::data) fn algorithm(inode: &Inode) -> Option<Algorithm> {
    compression_of(inode.state.lock().meta.flags)
}

/// Divides frozen blocks (in order) into lots: units that compression makes smaller are compressed,
/// other blocks stay as they are. With `whole`, only complete units are tried.
pub(in crate::data) async fn pack<'a>(
    fs: &Filesystem,
    inode: &Inode,
    algorithm: Algorithm,
    whole: bool,
    blocks: &'a [(u64, Block)],
) -> Vec<Cargo<'a>> {
    let mut cargo: Vec<Cargo<'a>> = Vec::new();
    let mut plain = 0..0;
    for range in units(blocks) {
        let least = if whole { EXTENT_BLOCKS_MAX as usize } else { 2 };
        let tries = range.len() >= least && inode.state.lock().data.layout.is_packing_worth_a_try();
        let packed = match tries {
            true => Some(pack_unit(fs, inode, algorithm, &blocks[range.clone()])),
            false => None,
        };
        let tried = packed.is_some();
        match packed.flatten() {
            None => plain.end = range.end,
            Some(packed) => {
                cargo.push(Cargo { blocks: &blocks[plain], packed: None });
                plain = range.end..range.end;
                cargo.push(Cargo { blocks: &blocks[range], packed: Some(packed) });
            }
        }
        if tried {
            // Each unit takes a good part of a millisecond, and other tasks need this thread too.
            futures_lite::future::yield_now().await;
        }
    }
    cargo.push(Cargo { blocks: &blocks[plain], packed: None });
    cargo
}

/// The ranges of consecutive file blocks that one extent could cover.
fn units(blocks: &[(u64, Block)]) -> Vec<Range<usize>> {
    let mut units: Vec<Range<usize>> = Vec::new();
    for (index, (number, _)) in blocks.iter().enumerate() {
        let follows = index > 0 && blocks[index - 1].0 + 1 == *number;
        match units.last_mut() {
            Some(last) if follows && !number.is_multiple_of(EXTENT_BLOCKS_MAX) => last.end = index + 1,
            _ => units.push(index..index + 1),
        }
    }
    units
}

fn pack_unit(
    fs: &Filesystem,
    inode: &Inode,
    algorithm: Algorithm,
    blocks: &[(u64, Block)],
) -> Option<PackedUnit> {
    debug_assert_eq!(piece_start(blocks[0].0), piece_start(blocks[blocks.len() - 1].0));
    let mut unit = Vec::with_capacity(blocks.len() * BLOCK_BYTES);
    blocks.iter().for_each(|(_, block)| unit.extend_from_slice(block.as_slice()));
    let Some(bytes) = syncline_codec::pack(algorithm, &unit) else {
        fs.counters.units_unshrunk.add(1);
        inode.state.lock().data.layout.note_unshrunk();
        return None;
    };
    inode.state.lock().data.layout.note_shrunk();
    let len = bytes.len();
    let mut contents = AlignedBuf::zeroed(len.next_multiple_of(BLOCK_BYTES));
    contents[..len].copy_from_slice(&bytes);
    fs.counters.units_packed.add(1);
    fs.counters.packed_bytes_in.add(unit.len() as u64);
    fs.counters.packed_bytes_out.add(contents.len() as u64);
    let bytes = u32::try_from(len).ok()?;
    Some(PackedUnit { algorithm, bytes, contents: contents.into_bytes() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_end_at_gaps_and_where_extents_must() {
        let block = || Block::whole(AlignedBuf::zeroed(BLOCK_BYTES));
        let numbers = [3, 4, 5, 30, 31, 32, 33, 64];
        let blocks: Vec<(u64, Block)> = numbers.into_iter().map(|number| (number, block())).collect();
        assert_eq!(units(&blocks), [0..3, 3..5, 5..7, 7..8]);
    }
}
