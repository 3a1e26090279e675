//! Blocks of the table of snapshots.

use super::from_bytes;
use arbitrary::Arbitrary;
use syncline_format::snapshots::{MAGIC, Snapshot, decode_block, encode_block};
use syncline_format::superblock::Pointer;
use syncline_format::{BLOCK_BYTES, Geometry, Metadata, crc};

/// Bytes for a block, with their offset, and whether magic number and own address are corrected.
#[derive(Arbitrary, Debug)]
struct Input<'a> {
    sealed: bool,
    dup: bool,
    addr: u16,
    blocks: u32,
    bytes: &'a [u8],
}

/// Decodes a block whose checksum matches its pointer.
///
/// - It never panics, whatever the bytes.
/// - A decoded block encodes to a block that decodes to the same.
/// - Names are valid, or those of holds; trees, maps and the next block are inside the image, and no snapshot is
///   larger than it.
pub fn snapshots(bytes: &[u8]) {
    let Some(input) = from_bytes::<Input<'_>>(bytes) else { return };
    let total_blocks = Geometry::MIN_BLOCKS + u64::from(input.blocks);
    let metadata = if input.dup { Metadata::Dup } else { Metadata::Single };
    let geometry = Geometry { total_blocks, node_bytes: 16384, metadata };
    let mut block = [0; BLOCK_BYTES];
    let len = input.bytes.len().min(BLOCK_BYTES);
    block[..len].copy_from_slice(&input.bytes[..len]);
    let addr = u64::from(input.addr);
    if input.sealed {
        block[..8].copy_from_slice(&MAGIC);
        block[8..16].copy_from_slice(&addr.to_le_bytes());
    }
    let pointer = Pointer::single(addr, crc(&block));
    assert!(decode_block(&block[1..], geometry, pointer).is_err());
    let Ok((entries, next)) = decode_block(&block, geometry, pointer) else { return };
    for entry in &entries {
        assert!(Snapshot::is_name(&entry.name) || entry.hold().is_some());
        assert!(entry.total_blocks <= total_blocks);
        let then = entry.geometry(geometry);
        assert!(then.has(entry.tree.node, then.node_blocks()));
        assert!(then.has(entry.space.page, 1));
    }
    assert!(next == Pointer::default() || geometry.has(next, 1));
    let mut again = [0; BLOCK_BYTES];
    let pointer = encode_block(&mut again, addr, next, &entries, metadata);
    assert_eq!(decode_block(&again, geometry, pointer), Ok((entries, next)));
}
