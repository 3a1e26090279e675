//! Pages of the space map: a radix tree of bitmap pages under index pages, one bit for each block
//! of the image.
//!
//! A page is one block. Its checksum is kept in the pointer to it. Level 0 holds bits; a page of
//! level `l` points to up to [`children`] pages of level `l - 1`. The page with index `i` on level
//! `l` covers the pages `i * children ..` of the level below, and bitmap page `i` covers the blocks
//! `i * BITS ..`. A null pointer represents a subtree in which no block is used. The size of the
//! image alone determines the height of the tree.

use crate::superblock::Pointer;
use crate::{BLOCK_BYTES, BlockAddr, BlockRun, FormatError, Geometry, Metadata, crc};

/// Magic number at the start of every page.
pub const MAGIC: [u8; 4] = *b"SLSP";
/// Words of bits in one bitmap page.
pub const WORDS: usize = 508;
/// Blocks that one bitmap page covers.
pub const BITS: u64 = WORDS as u64 * 64;
/// Pointers in one index page.
const CHILDREN: u64 = 254;
/// The same in an image with two copies of its metadata.
const DUP_CHILDREN: u64 = 169;
/// Greatest level of a root.
pub const MAX_LEVEL: u8 = 3;
/// Largest image whose space can be managed, in blocks (256 TiB); it limits the memory that an
/// image can demand.
pub const MAX_BLOCKS: u64 = 1 << 36;

// Field offsets.
const LEVEL: usize = 4;
const INDEX: usize = 8;
const ADDRESS: usize = 16;
const USED: usize = 24;
const BODY: usize = 32;
const ENTRY_BYTES: usize = 16;
const DUP_ENTRY_BYTES: usize = ENTRY_BYTES + 8;

const _: () = assert!(BODY + WORDS * 8 == BLOCK_BYTES, "a bitmap page fills its block");
const _: () = assert!(BODY + CHILDREN as usize * ENTRY_BYTES == BLOCK_BYTES, "an index page fills its block");
const _: () = assert!(DUP_CHILDREN as usize == (BLOCK_BYTES - BODY) / DUP_ENTRY_BYTES);
const _: () = assert!(LEVEL == MAGIC.len() && USED + 8 == BODY, "the header has no holes");
const _: () = assert!(
    BITS * DUP_CHILDREN.pow(MAX_LEVEL as u32) >= MAX_BLOCKS,
    "the highest tree covers the largest image"
);
const _: () = assert!(
    BITS * CHILDREN.pow(MAX_LEVEL as u32 - 1) <= u32::MAX as u64,
    "the used blocks under any pointer fit its 32-bit count"
);

const STRUCTURE: &str = "space page";

/// The bits of one bitmap page; bit `b` of word `w` stands for block `w * 64 + b` of the page.
pub type Words = [u64; WORDS];

/// Place of a page in the radix tree.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PageId {
    /// Distance from the bitmap pages.
    pub level: u8,
    /// Number among the pages of its level.
    pub index: u64,
}

impl PageId {
    /// The page that points to this one.
    pub fn parent(self, metadata: Metadata) -> Self {
        Self { level: self.level + 1, index: self.index / children(metadata) }
    }
    /// The index of the pointer to this page in its parent.
    pub fn slot(self, metadata: Metadata) -> usize {
        (self.index % children(metadata)) as usize
    }
    /// The page that pointer `slot` of this index page points to.
    pub fn child(self, slot: usize, metadata: Metadata) -> Self {
        Self { level: self.level - 1, index: self.index * children(metadata) + slot as u64 }
    }
}

/// The most pointers in one index page.
pub fn children(metadata: Metadata) -> u64 {
    match metadata {
        Metadata::Single => CHILDREN,
        Metadata::Dup => DUP_CHILDREN,
    }
}

/// Pointer to a child, with the number of used blocks under it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Entry {
    /// Pointer to the child; all zero for a subtree without a used block.
    pub page: Pointer,
    /// Number of used blocks in the subtree.
    pub used: u32,
}

impl Entry {
    /// True for the pointer that represents a subtree without a used block.
    pub fn is_null(self) -> bool {
        self == Self::default()
    }
}

/// Level of the root in an image of this geometry.
pub fn root_level(geometry: Geometry) -> u8 {
    let mut level = 0;
    while level < MAX_LEVEL && pages_at(geometry, level) > 1 {
        level += 1;
    }
    level
}

/// Number of pages on a level, including those represented by a null pointer.
pub fn pages_at(geometry: Geometry, level: u8) -> u64 {
    let pages = geometry.total_blocks.div_ceil(BITS);
    (0..level).fold(pages, |pages, _| pages.div_ceil(children(geometry.metadata)))
}

/// The bits of page `index` that may be set: the blocks that the geometry allows to be allocated.
pub fn usable_in_page(geometry: Geometry, index: u64) -> Option<BlockRun> {
    let usable = geometry.usable();
    let first = index.checked_mul(BITS)?;
    let start = first.max(usable.start);
    let end = first.checked_add(BITS)?.min(usable.end());
    (start < end).then(|| BlockRun::new(start, end - start))
}

/// Writes a bitmap page that will lie at `addr` into `block`, and returns the pointer to it, without a
/// second copy.
///
/// # Panics
/// When `block` is not one block long.
pub fn encode_bitmap(block: &mut [u8], index: u64, addr: BlockAddr, words: &Words) -> Entry {
    let used = words.iter().map(|word| u64::from(word.count_ones())).sum();
    encode_header(block, PageId { level: 0, index }, addr, used);
    for (bytes, word) in block[BODY..].chunks_exact_mut(8).zip(words) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    Entry { page: Pointer::single(addr, crc(block)), used: used as u32 }
}

/// Writes an index page that will lie at `addr` into `block`. Returns the pointer to it, without a second
/// copy, and the number of used blocks under it, which for a root may be more than a pointer's count can
/// hold.
///
/// # Panics
/// When `block` is not one block long or there are more than [`children`] entries.
pub fn encode_index(
    block: &mut [u8],
    id: PageId,
    addr: BlockAddr,
    entries: &[Entry],
    metadata: Metadata,
) -> (Pointer, u64) {
    let used = entries.iter().map(|entry| u64::from(entry.used)).sum();
    encode_header(block, id, addr, used);
    block[BODY..].fill(0);
    let entry_bytes = entry_bytes(metadata);
    for (slot, entry) in entries.iter().enumerate() {
        let bytes = &mut block[BODY + slot * entry_bytes..][..entry_bytes];
        bytes[..8].copy_from_slice(&entry.page.addr.to_le_bytes());
        bytes[8..12].copy_from_slice(&entry.page.checksum.to_le_bytes());
        bytes[12..ENTRY_BYTES].copy_from_slice(&entry.used.to_le_bytes());
        if metadata == Metadata::Dup {
            bytes[ENTRY_BYTES..].copy_from_slice(&entry.page.copy.to_le_bytes());
        }
    }
    (Pointer::single(addr, crc(block)), used)
}

fn entry_bytes(metadata: Metadata) -> usize {
    match metadata {
        Metadata::Single => ENTRY_BYTES,
        Metadata::Dup => DUP_ENTRY_BYTES,
    }
}

fn encode_header(block: &mut [u8], id: PageId, addr: BlockAddr, used: u64) {
    assert_eq!(block.len(), BLOCK_BYTES, "a space page is one block");
    block[..LEVEL].copy_from_slice(&MAGIC);
    block[LEVEL..INDEX].copy_from_slice(&u32::from(id.level).to_le_bytes());
    block[INDEX..ADDRESS].copy_from_slice(&id.index.to_le_bytes());
    block[ADDRESS..USED].copy_from_slice(&addr.to_le_bytes());
    block[USED..BODY].copy_from_slice(&used.to_le_bytes());
}

/// Reads bitmap page `index`, to which `pointer` led, from untrusted bytes; returns its bits and
/// how many of them are set.
pub fn decode_bitmap(
    block: &[u8],
    geometry: Geometry,
    index: u64,
    pointer: Pointer,
) -> Result<(Box<Words>, u64), FormatError> {
    let claimed = check_header(block, PageId { level: 0, index }, pointer)?;
    let mut words = Box::new([0; WORDS]);
    for (word, bytes) in words.iter_mut().zip(block[BODY..].chunks_exact(8)) {
        *word = u64_at(bytes, 0);
    }
    let allowed = usable_in_page(geometry, index).ok_or(field("page index"))?;
    let first = index * BITS;
    let (from, to) = (allowed.start - first, allowed.end() - first);
    let outside = |(number, word): (usize, &u64)| word & !mask(number as u64 * 64, from, to) != 0;
    if words.iter().enumerate().any(outside) {
        return Err(field("bit outside the usable blocks"));
    }
    let used: u64 = words.iter().map(|word| u64::from(word.count_ones())).sum();
    if used != claimed {
        return Err(field("count of used blocks"));
    }
    Ok((words, used))
}

/// Reads the index page `id`, to which `pointer` led, from untrusted bytes; returns its entries,
/// one for each child that the geometry has, and the number of used blocks under them.
pub fn decode_index(
    block: &[u8],
    geometry: Geometry,
    id: PageId,
    pointer: Pointer,
) -> Result<(Vec<Entry>, u64), FormatError> {
    let claimed = check_header(block, id, pointer)?;
    if id.level == 0 || id.level > MAX_LEVEL {
        return Err(field("level"));
    }
    let (metadata, pages_below) = (geometry.metadata, pages_at(geometry, id.level - 1));
    let mut entries = Vec::with_capacity(children(metadata) as usize);
    let pointers = block[BODY..].chunks_exact(entry_bytes(metadata));
    if pointers.remainder().iter().any(|&byte| byte != 0) {
        return Err(field("zeros"));
    }
    for (slot, bytes) in pointers.enumerate() {
        let copy = if metadata == Metadata::Dup { u64_at(bytes, ENTRY_BYTES) } else { 0 };
        let page = Pointer { addr: u64_at(bytes, 0), copy, checksum: u32_at(bytes, 8) };
        let entry = Entry { page, used: u32_at(bytes, 12) };
        if !entry.is_null() && !geometry.has(page, 1) {
            return Err(field("address of a child"));
        }
        if id.child(slot, metadata).index < pages_below {
            entries.push(entry);
        } else if !entry.is_null() {
            return Err(field("child outside the image"));
        }
    }
    let used: u64 = entries.iter().map(|entry| u64::from(entry.used)).sum();
    if used != claimed {
        return Err(field("count of used blocks"));
    }
    Ok((entries, used))
}

/// The page that a block claims to be, and the number of used blocks that it claims to have under
/// it; `None` if it is not a page of this address.
pub fn claimed_page(block: &[u8], addr: BlockAddr) -> Option<(PageId, u64)> {
    let is_one = block.len() == BLOCK_BYTES && block[..LEVEL] == MAGIC && u64_at(block, ADDRESS) == addr;
    let level = u8::try_from(u32_at(block.get(..BODY)?, LEVEL)).ok()?;
    is_one.then(|| (PageId { level, index: u64_at(block, INDEX) }, u64_at(block, USED)))
}

/// Checks everything that both kinds of pages have in common; returns the number of used blocks
/// that the page claims.
fn check_header(block: &[u8], id: PageId, pointer: Pointer) -> Result<u64, FormatError> {
    if block.len() != BLOCK_BYTES {
        return Err(FormatError::Truncated { structure: STRUCTURE });
    }
    if crc(block) != pointer.checksum {
        return Err(FormatError::Checksum { structure: STRUCTURE });
    }
    if block[..LEVEL] != MAGIC {
        return Err(FormatError::Magic { structure: STRUCTURE });
    }
    if u32_at(block, LEVEL) != u32::from(id.level) {
        return Err(field("level"));
    }
    if u64_at(block, INDEX) != id.index {
        return Err(field("page index"));
    }
    if u64_at(block, ADDRESS) != pointer.addr {
        return Err(field("own address"));
    }
    Ok(u64_at(block, USED))
}

/// The bits of the word that starts at block `start` that lie in `from..to`.
fn mask(start: u64, from: u64, to: u64) -> u64 {
    let below = |limit: u64| match limit.saturating_sub(start) {
        count @ 0..64 => (1 << count) - 1,
        _ => u64::MAX,
    };
    below(to) & !below(from)
}

fn field(field: &'static str) -> FormatError {
    FormatError::Field { structure: STRUCTURE, field }
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut value = [0; 8];
    value.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(value)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut value = [0; 4];
    value.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn geometry(total_blocks: u64) -> Geometry {
        Geometry { total_blocks, node_bytes: 16384, metadata: Metadata::Dup }
    }

    fn bitmap(set: &[u64]) -> Words {
        let mut words = [0; WORDS];
        for bit in set {
            words[*bit as usize / 64] |= 1 << (bit % 64);
        }
        words
    }

    /// The pointer that a parent would need for `block` to pass as the page at `addr`.
    fn forged(block: &[u8], addr: BlockAddr) -> Pointer {
        Pointer { addr, copy: addr + 1, checksum: crc(block) }
    }

    #[test]
    fn the_height_follows_from_the_size() {
        assert_eq!(root_level(geometry(4096)), 0);
        assert_eq!(root_level(geometry(BITS)), 0);
        assert_eq!(root_level(geometry(BITS + 1)), 1);
        assert_eq!(root_level(geometry(1 << 28)), 2);
        assert_eq!(root_level(geometry(MAX_BLOCKS)), 3);
        assert_eq!(pages_at(geometry(1 << 28), 0), 8257);
        assert_eq!(pages_at(geometry(1 << 28), 1), 49);
        assert_eq!(pages_at(geometry(MAX_BLOCKS), 3), 1);
    }

    #[test]
    fn a_bitmap_page_decodes_to_itself() {
        let words = bitmap(&[64, 100, 4079]);
        let mut block = [0xff; BLOCK_BYTES];
        let entry = encode_bitmap(&mut block, 0, 77, &words);
        assert_eq!(entry.used, 3);
        assert_eq!(decode_bitmap(&block, geometry(4096), 0, entry.page), Ok((Box::new(words), 3)));
    }

    #[test]
    fn an_index_page_decodes_to_itself() {
        let entry = |addr| Entry { page: Pointer { addr, copy: addr + 1, checksum: 9 }, used: 5 };
        let entries = vec![entry(100), Entry::default(), entry(200)];
        let id = PageId { level: 1, index: 0 };
        let mut block = [0xff; BLOCK_BYTES];
        let (pointer, used) = encode_index(&mut block, id, 77, &entries, Metadata::Dup);
        assert_eq!(used, 10);
        assert_eq!(decode_index(&block, geometry(3 * BITS), id, pointer), Ok((entries, 10)));
    }

    #[test]
    fn an_index_page_has_the_second_copies_of_its_pages_or_none() {
        let id = PageId { level: 1, index: 0 };
        let mut block = [0xff; BLOCK_BYTES];
        for (metadata, copy) in [(Metadata::Single, 0), (Metadata::Dup, 4000)] {
            let geometry = Geometry { metadata, ..geometry(BITS * children(metadata)) };
            assert_eq!(root_level(geometry), 1);
            let page = Pointer { addr: 100, copy, checksum: 9 };
            let entries = vec![Entry { page, used: 5 }; children(metadata) as usize];
            let (pointer, used) = encode_index(&mut block, id, 77, &entries, metadata);
            let pointer = Pointer { copy: 78, ..pointer };
            assert_eq!(decode_index(&block, geometry, id, pointer), Ok((entries, used)));
        }
        for copy in [0, 20, 100, MAX_BLOCKS] {
            let entry = Entry { page: Pointer { addr: 100, copy, checksum: 9 }, used: 5 };
            let (pointer, _) = encode_index(&mut block, id, 77, &[entry], Metadata::Dup);
            let refused = decode_index(&block, geometry(3 * BITS), id, pointer);
            assert_eq!(refused, Err(field("address of a child")), "{copy}");
        }
    }

    #[test]
    fn any_flipped_bit_is_noticed() {
        let mut block = [0; BLOCK_BYTES];
        let entry = encode_bitmap(&mut block, 0, 77, &bitmap(&[64, 100]));
        for bit in (0..BLOCK_BYTES * 8).step_by(11) {
            let mut bad = block;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(decode_bitmap(&bad, geometry(4096), 0, entry.page).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn a_page_in_the_wrong_place_is_refused() {
        let mut block = [0; BLOCK_BYTES];
        let entry = encode_bitmap(&mut block, 1, 77, &bitmap(&[70]));
        let refused = |index, addr| {
            decode_bitmap(&block, geometry(3 * BITS), index, Pointer { addr, ..entry.page }).unwrap_err()
        };
        assert_eq!(refused(2, 77), field("page index"));
        assert_eq!(refused(1, 78), field("own address"));
        let as_index = decode_index(&block, geometry(3 * BITS), PageId { level: 1, index: 1 }, entry.page);
        assert_eq!(as_index, Err(field("level")));
    }

    #[test]
    fn bits_of_blocks_that_are_never_handed_out_are_refused() {
        for (total, index, bit) in
            [(4096, 0, 63), (4096, 0, 4080), (BITS + 4096, 1, 4080), (4096, 0, BITS - 1)]
        {
            let mut block = [0; BLOCK_BYTES];
            let entry = encode_bitmap(&mut block, index, 77, &bitmap(&[bit]));
            let answer = decode_bitmap(&block, geometry(total), index, entry.page);
            assert_eq!(answer, Err(field("bit outside the usable blocks")), "bit {bit} of {total}");
        }
        let mut block = [0; BLOCK_BYTES];
        let entry = encode_bitmap(&mut block, 9, 77, &bitmap(&[]));
        assert_eq!(decode_bitmap(&block, geometry(4096), 9, entry.page), Err(field("page index")));
    }

    #[test]
    fn impossible_pointers_and_counts_are_refused_even_with_a_right_checksum() {
        let geometry = geometry(2 * BITS);
        let id = PageId { level: 1, index: 0 };
        let good = Entry { page: Pointer { addr: 100, copy: 101, checksum: 9 }, used: 5 };
        let mut block = [0; BLOCK_BYTES];
        for bad in [63, geometry.usable().end(), u64::MAX] {
            let entry = Entry { page: Pointer { addr: bad, copy: 101, checksum: 9 }, used: 5 };
            let (pointer, _) = encode_index(&mut block, id, 77, &[good, entry], Metadata::Dup);
            assert_eq!(decode_index(&block, geometry, id, pointer), Err(field("address of a child")));
        }
        let (pointer, _) = encode_index(&mut block, id, 77, &[good, good, good], Metadata::Dup);
        assert_eq!(decode_index(&block, geometry, id, pointer), Err(field("child outside the image")));
        encode_index(&mut block, id, 77, &[good, good], Metadata::Dup);
        block[USED] += 1;
        let refused = decode_index(&block, geometry, id, forged(&block, 77));
        assert_eq!(refused, Err(field("count of used blocks")));
        encode_bitmap(&mut block, 0, 77, &bitmap(&[64]));
        block[USED] += 1;
        let refused = decode_bitmap(&block, geometry, 0, forged(&block, 77));
        assert_eq!(refused, Err(field("count of used blocks")));
        assert!(matches!(
            decode_bitmap(&block[..100], geometry, 0, forged(&block, 77)),
            Err(FormatError::Truncated { .. })
        ));
    }
}
