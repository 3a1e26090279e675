//! Superblocks, records of forks and records of keys.

use super::from_bytes;
use arbitrary::Arbitrary;
use syncline_crypt::KeyRecord;
use syncline_format::fork::{self, ForkRecord};
use syncline_format::superblock::Superblock;
use syncline_format::{BLOCK_BYTES, crc};

/// Bytes for a block, and whether magic number, version and checksum are corrected.
#[derive(Arbitrary, Debug)]
struct Input<'a> {
    sealed: bool,
    bytes: &'a [u8],
}

/// End of the last field; the bytes after it are unused.
const FIELDS_END: usize = 292;

/// Decodes a superblock.
///
/// - It never panics, whatever the bytes.
/// - A decoded superblock encodes to a block that decodes to the same.
/// - That block equals the one that was read, except for bytes that docs/FORMAT.md calls unused:
///   those after the fields, and the upper bytes of numbers stored in fewer.
/// - Roots and the log are inside the image; the sizes are legal.
pub fn superblock(bytes: &[u8]) {
    let Some(input) = from_bytes::<Input<'_>>(bytes) else { return };
    let mut block = [0; BLOCK_BYTES];
    let len = input.bytes.len().min(BLOCK_BYTES);
    block[..len].copy_from_slice(&input.bytes[..len]);
    if input.sealed {
        block[..8].copy_from_slice(b"SYNCLINE");
        block[12..16].copy_from_slice(&1u32.to_le_bytes());
        let checksum = crc(&block[12..]);
        block[8..12].copy_from_slice(&checksum.to_le_bytes());
    }
    assert!(Superblock::decode(input.bytes).is_err() || input.bytes.len() == BLOCK_BYTES);
    fork(block, input.sealed);
    keys(block, input.sealed);
    let Ok(decoded) = Superblock::decode(&block) else { return };
    let again = decoded.encode();
    assert_eq!(Superblock::decode(&again).as_ref(), Ok(&decoded));
    let same = |from: usize, to: usize| assert_eq!(block[from..to], again[from..to], "bytes {from} to {to}");
    same(0, 8);
    same(12, 108);
    same(112, FIELDS_END);
    let geometry = decoded.geometry.check().expect("a geometry that was checked");
    assert!(geometry.has(decoded.tree.node, geometry.node_blocks()));
    assert!(geometry.has(decoded.space.page, 1));
    let log = decoded.log;
    assert!(geometry.contains(log.segment) && (log.segment.start..log.segment.end()).contains(&log.addr));
    assert!(decoded.used_blocks <= geometry.total_blocks && decoded.tree_nodes <= geometry.total_blocks);
}

/// Decodes the record of a fork: a decoded one encodes to the very block.
fn fork(mut block: [u8; BLOCK_BYTES], sealed: bool) {
    if sealed {
        block[..8].copy_from_slice(&fork::MAGIC);
        let checksum = crc(&block[12..]);
        block[8..12].copy_from_slice(&checksum.to_le_bytes());
    }
    let Ok(decoded) = ForkRecord::decode(&block) else { return };
    assert_eq!(decoded.encode(), Some(block));
}

/// Decodes the record of the keys of an encrypted image, likewise.
fn keys(mut block: [u8; BLOCK_BYTES], sealed: bool) {
    if sealed {
        block[..8].copy_from_slice(b"SYNCKEYS");
        block[12..16].copy_from_slice(&1u32.to_le_bytes());
        let checksum = crc(&block[12..]);
        block[8..12].copy_from_slice(&checksum.to_le_bytes());
    }
    let Ok(decoded) = KeyRecord::decode(&block) else { return };
    assert_eq!(decoded.encode(), block);
}
