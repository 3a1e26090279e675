//! Pages of the space map.

use super::from_bytes;
use arbitrary::Arbitrary;
use syncline_format::space::{
    BITS, MAX_BLOCKS, PageId, children, decode_bitmap, decode_index, encode_bitmap, encode_index, pages_at,
    root_level, usable_in_page,
};
use syncline_format::superblock::Pointer;
use syncline_format::{BLOCK_BYTES, BlockRun, Geometry, Metadata, crc};

/// A page: its place in the map of an image of some size, and its bytes.
#[derive(Arbitrary, Debug)]
struct Input<'a> {
    blocks: u64,
    dup: bool,
    level: u8,
    index: u8,
    /// The header and the count of used blocks are corrected.
    sealed: bool,
    /// Offset of the bytes in the page's body.
    at: u16,
    body: &'a [u8],
}

/// Decodes a page as a bitmap page or an index page.
///
/// - It never panics, whatever the bytes, the place and the size of the image.
/// - The format is canonical: a decoded page encodes to the bytes that were read.
/// - No bit is set for a block that can't be allocated, no pointer leads outside the image, and
///   counts match the bits.
pub fn space_page(bytes: &[u8]) {
    let Some(input) = from_bytes::<Input<'_>>(bytes) else { return };
    let total_blocks = Geometry::MIN_BLOCKS + input.blocks % (MAX_BLOCKS - Geometry::MIN_BLOCKS + 1);
    let metadata = if input.dup { Metadata::Dup } else { Metadata::Single };
    let geometry = Geometry { total_blocks, node_bytes: 4096, metadata };
    let level = input.level % 5;
    let id = PageId { level, index: input.index.into() };
    let mut block = [0; BLOCK_BYTES];
    let at = 32 + usize::from(input.at) % (BLOCK_BYTES - 32);
    let len = input.body.len().min(BLOCK_BYTES - at);
    block[at..at + len].copy_from_slice(&input.body[..len]);
    let addr = 100;
    if input.sealed {
        seal(&mut block, id, addr, metadata);
    } else {
        let len = input.body.len().min(BLOCK_BYTES);
        block[..len].copy_from_slice(&input.body[..len]);
    }
    let pointer = Pointer::single(addr, crc(&block));
    assert!(root_level(geometry) <= 3 && pages_at(geometry, root_level(geometry)) == 1);
    if level == 0 {
        bitmap(&block, geometry, id.index, pointer);
    } else {
        index(&block, geometry, id, pointer);
    }
}

/// Corrects the header and the count.
fn seal(block: &mut [u8; BLOCK_BYTES], id: PageId, addr: u64, metadata: Metadata) {
    let used: u64 = if id.level == 0 {
        block[32..].iter().map(|byte| u64::from(byte.count_ones())).sum()
    } else {
        let entry_bytes = 8 * metadata.copies() as usize + 8;
        let counts = block[32..].chunks_exact(entry_bytes).map(|entry| &entry[12..16]);
        counts.map(|count| u64::from(u32::from_le_bytes(count.try_into().expect("four bytes")))).sum()
    };
    block[..4].copy_from_slice(b"SLSP");
    block[4..8].copy_from_slice(&u32::from(id.level).to_le_bytes());
    block[8..16].copy_from_slice(&id.index.to_le_bytes());
    block[16..24].copy_from_slice(&addr.to_le_bytes());
    block[24..32].copy_from_slice(&used.to_le_bytes());
}

fn bitmap(block: &[u8], geometry: Geometry, index: u64, pointer: Pointer) {
    let Ok((words, used)) = decode_bitmap(block, geometry, index, pointer) else { return };
    let mut again = [0xff; BLOCK_BYTES];
    let entry = encode_bitmap(&mut again, index, pointer.addr, &words);
    assert_eq!(again, block);
    assert_eq!((entry.page, u64::from(entry.used)), (pointer, used));
    let usable = usable_in_page(geometry, index).expect("a page that was accepted covers something");
    for (word, bits) in words.iter().enumerate().filter(|(_, bits)| **bits != 0) {
        let first = index * BITS + word as u64 * 64;
        let run = BlockRun::new(first + u64::from(bits.trailing_zeros()), 1);
        let last = BlockRun::new(first + 63 - u64::from(bits.leading_zeros()), 1);
        assert!(geometry.contains(run) && geometry.contains(last));
        assert!(run.start >= usable.start && last.end() <= usable.end());
    }
}

fn index(block: &[u8], geometry: Geometry, id: PageId, pointer: Pointer) {
    let Ok((entries, used)) = decode_index(block, geometry, id, pointer) else { return };
    let mut again = [0xff; BLOCK_BYTES];
    assert_eq!(encode_index(&mut again, id, pointer.addr, &entries, geometry.metadata), (pointer, used));
    assert_eq!(again, block);
    assert!(entries.len() as u64 <= children(geometry.metadata));
    for entry in entries.iter().filter(|entry| !entry.is_null()) {
        assert!(geometry.has(entry.page, 1));
    }
}
