//! Extents of a file: `Key(inode, Extent, first file block)`.

use super::{Cursor, inode::SIZE_MAX};
use crate::{BLOCK_BYTES, BlockAddr, BlockRun, Crc, FormatError};

/// Maximum number of blocks in one extent item. Items never cross a multiple of this in the file,
/// so an overwrite of an aligned piece replaces whole items, and a reader of block `b` only has to
/// look from `b` rounded down.
pub const EXTENT_BLOCKS_MAX: u64 = 32;
/// Number of the first block beyond the largest possible file.
pub const FILE_BLOCKS_MAX: u64 = SIZE_MAX / BLOCK_BYTES as u64 + 1;
/// Bytes of the value before the checksums, in an extent that is not compressed.
pub const FIXED_BYTES: usize = 12;
/// Other extents may lie on some of the same blocks: [`super::shared`] has their reference counts.
const FLAG_SHARED: u16 = 1;
/// The blocks hold a unit compressed with LZ4.
const FLAG_LZ4: u16 = 1 << 1;
/// The blocks hold a unit compressed with Zstandard.
const FLAG_ZSTD: u16 = 1 << 2;

/// Additional bytes before the checksums, in an extent that is compressed.
const PACKED_BYTES: usize = 8;

const STRUCTURE: &str = "extent";

/// How a unit of file data is compressed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Algorithm {
    /// The LZ4 block format.
    Lz4,
    /// One Zstandard frame.
    Zstd,
}

/// The part of an extent that describes a compressed unit: up to [`EXTENT_BLOCKS_MAX`] file blocks
/// that were compressed together, of which the extent covers some.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Packed {
    /// The compression algorithm.
    pub algorithm: Algorithm,
    /// Bytes of the compressed unit; zeros follow in its last block.
    pub bytes: u32,
    /// Blocks of the whole decoded unit; more than it takes on the device.
    pub unit_blocks: u64,
    /// Blocks of the unit before those that the extent covers.
    pub skip: u64,
    /// File blocks that the extent covers.
    pub blocks: u64,
}

/// A run of file blocks that lies in one run of device blocks, either uncompressed or compressed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Extent {
    /// First block in the file: the offset of the item's key.
    pub file_block: u64,
    /// First block on the device.
    pub addr: BlockAddr,
    /// CRC32C of each block on the device: one to [`EXTENT_BLOCKS_MAX`].
    pub checksums: Vec<Crc>,
    /// Other extents may lie on some of the same blocks. Without this mark none does.
    pub shared: bool,
    /// The blocks hold a compressed unit, and nothing else.
    pub packed: Option<Packed>,
}

impl Extent {
    /// File blocks stored uncompressed in as many device blocks, which nothing else uses.
    pub fn plain(file_block: u64, addr: BlockAddr, checksums: Vec<Crc>) -> Self {
        Self { file_block, addr, checksums, shared: false, packed: None }
    }

    /// Number of file blocks.
    pub fn blocks(&self) -> u64 {
        self.packed.map_or(self.checksums.len() as u64, |packed| packed.blocks)
    }

    /// Blocks by which the inode's count includes this extent: the file blocks it covers, or the
    /// device blocks it lies on if these are fewer.
    pub fn charged_blocks(&self) -> u64 {
        self.blocks().min(self.checksums.len() as u64)
    }

    /// First file block after the extent.
    pub fn end(&self) -> u64 {
        self.file_block + self.blocks()
    }

    /// The device blocks of the extent.
    pub fn run(&self) -> BlockRun {
        BlockRun::new(self.addr, self.checksums.len() as u64)
    }

    /// The device blocks of the file blocks `first..end` and their checksums, if the extent has all
    /// of them uncompressed.
    pub fn whole(&self, first: u64, end: u64) -> Option<(BlockRun, &[Crc])> {
        let skip = first.checked_sub(self.file_block).filter(|_| self.packed.is_none())?;
        let checksums = self.checksums.get(skip as usize..end.checked_sub(self.file_block)? as usize)?;
        Some((BlockRun::new(self.addr + skip, checksums.len() as u64), checksums))
    }

    /// The part of the extent that lies in the file blocks `first..end`, if any. A part of a
    /// compressed extent lies on all blocks of the unit.
    pub fn slice(&self, first: u64, end: u64) -> Option<Extent> {
        let first = first.max(self.file_block);
        let end = end.min(self.end());
        if first >= end {
            return None;
        }
        let skip = first - self.file_block;
        if let Some(packed) = self.packed {
            let packed = Packed { skip: packed.skip + skip, blocks: end - first, ..packed };
            return Some(Extent { file_block: first, packed: Some(packed), ..self.clone() });
        }
        Some(Extent {
            file_block: first,
            addr: self.addr + skip,
            checksums: self.checksums[skip as usize..(end - self.file_block) as usize].to_vec(),
            shared: self.shared,
            packed: None,
        })
    }

    /// The item's value.
    pub fn encode(&self) -> Vec<u8> {
        let small = |blocks: u64| u8::try_from(blocks).expect("an extent has at most 32 blocks");
        let mut value = Vec::with_capacity(FIXED_BYTES + PACKED_BYTES + 4 * self.checksums.len());
        value.extend_from_slice(&self.addr.to_le_bytes());
        value.extend_from_slice(&u16::from(small(self.blocks())).to_le_bytes());
        let algorithm = match self.packed.map(|packed| packed.algorithm) {
            None => 0,
            Some(Algorithm::Lz4) => FLAG_LZ4,
            Some(Algorithm::Zstd) => FLAG_ZSTD,
        };
        let flags = algorithm | if self.shared { FLAG_SHARED } else { 0 };
        value.extend_from_slice(&flags.to_le_bytes());
        if let Some(packed) = self.packed {
            value.extend_from_slice(&packed.bytes.to_le_bytes());
            value.extend_from_slice(&[small(packed.unit_blocks), small(packed.skip), 0, 0]);
        }
        self.checksums.iter().for_each(|crc| value.extend_from_slice(&crc.to_le_bytes()));
        value
    }

    /// The end of the extent of the item at `file_block`, for callers that search one among many;
    /// the one found is then decoded and checked. `None` if the length is certainly wrong.
    pub fn end_of(file_block: u64, value: &[u8]) -> Option<u64> {
        let mut cursor = Cursor::new(value.get(8..)?, STRUCTURE);
        let (blocks, flags) = (u64::from(cursor.u16().ok()?), cursor.u16().ok()?);
        let is_packed = flags & !FLAG_SHARED != 0;
        let fits = is_packed || value.len() as u64 == FIXED_BYTES as u64 + 4 * blocks;
        let within = blocks > 0 && file_block % EXTENT_BLOCKS_MAX + blocks <= EXTENT_BLOCKS_MAX;
        if fits && within { file_block.checked_add(blocks) } else { None }
    }

    /// Reads the value of the item at `file_block`. Whether the address lies in the filesystem is
    /// checked by callers that know its size.
    pub fn decode(file_block: u64, value: &[u8]) -> Result<Self, FormatError> {
        let mut cursor = Cursor::new(value, STRUCTURE);
        let addr = cursor.u64()?;
        let blocks = u64::from(cursor.u16()?);
        let flags = cursor.u16()?;
        let algorithm = match flags & !FLAG_SHARED {
            0 => None,
            FLAG_LZ4 => Some(Algorithm::Lz4),
            FLAG_ZSTD => Some(Algorithm::Zstd),
            _ => return Err(cursor.field("flags")),
        };
        if blocks == 0 || file_block % EXTENT_BLOCKS_MAX + blocks > EXTENT_BLOCKS_MAX {
            return Err(cursor.field("length"));
        }
        if file_block >= FILE_BLOCKS_MAX || addr.checked_add(EXTENT_BLOCKS_MAX).is_none() {
            return Err(cursor.field("position"));
        }
        let packed = algorithm.map(|algorithm| Packed::decode(algorithm, blocks, &mut cursor)).transpose()?;
        let stored = packed.map_or(blocks, |packed| packed.stored_blocks());
        let checksums = cursor.u32s(stored as usize)?.collect();
        if !cursor.is_empty() {
            return Err(cursor.field("value length"));
        }
        Ok(Self { file_block, addr, checksums, shared: flags & FLAG_SHARED != 0, packed })
    }
}

impl Packed {
    /// Blocks that the compressed unit takes on the device.
    pub fn stored_blocks(&self) -> u64 {
        u64::from(self.bytes).div_ceil(BLOCK_BYTES as u64)
    }

    fn decode(algorithm: Algorithm, blocks: u64, cursor: &mut Cursor<'_>) -> Result<Self, FormatError> {
        let bytes = cursor.u32()?;
        let (unit_blocks, skip) = (u64::from(cursor.u8()?), u64::from(cursor.u8()?));
        if cursor.u16()? != 0 {
            return Err(cursor.field("zeros"));
        }
        let packed = Self { algorithm, bytes, unit_blocks, skip, blocks };
        if unit_blocks > EXTENT_BLOCKS_MAX || skip + blocks > unit_blocks {
            return Err(cursor.field("unit"));
        }
        // A unit that compression does not make smaller is stored uncompressed.
        if bytes == 0 || packed.stored_blocks() >= unit_blocks {
            return Err(cursor.field("compressed length"));
        }
        Ok(packed)
    }
}

/// Start of the piece of the file whose extent items may contain `block`.
pub fn piece_start(block: u64) -> u64 {
    block - block % EXTENT_BLOCKS_MAX
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sample() -> Extent {
        Extent::plain(35, 0x1122_3344, vec![0xaabb_ccdd, 7])
    }

    fn packed() -> Extent {
        let packed = Packed { algorithm: Algorithm::Zstd, bytes: 4097, unit_blocks: 30, skip: 3, blocks: 10 };
        Extent { packed: Some(packed), ..sample() }
    }

    #[test]
    fn the_layout_is_what_the_document_says() {
        let expected = [
            0x44, 0x33, 0x22, 0x11, 0, 0, 0, 0, // address
            2, 0, // blocks
            0, 0, // flags
            0xdd, 0xcc, 0xbb, 0xaa, 7, 0, 0, 0, // checksums
        ];
        assert_eq!(sample().encode(), expected);
        assert_eq!(Extent::decode(35, &expected).unwrap(), sample());
        let mut marked = expected;
        marked[10] = 1;
        assert_eq!(Extent::decode(35, &marked).unwrap(), Extent { shared: true, ..sample() });
    }

    #[test]
    fn the_whole_of_some_blocks_is_what_their_slice_has() {
        let extent = Extent::plain(35, 100, vec![1, 2, 3]);
        for (first, end) in [(35, 38), (36, 37), (37, 38), (34, 36), (37, 39), (38, 40), (37, 36)] {
            let within = first >= 35 && end <= 38 && first < end;
            let slice = extent.slice(first, end).filter(|_| within);
            let expected = slice.as_ref().map(|slice| (slice.run(), &slice.checksums[..]));
            assert_eq!(extent.whole(first, end), expected, "{first}..{end}");
        }
        assert_eq!(packed().whole(35, 36), None);
    }

    #[test]
    fn impossible_values_are_refused() {
        let good = sample().encode();
        let refused = |file_block, change: &dyn Fn(&mut Vec<u8>)| {
            let mut value = good.clone();
            change(&mut value);
            assert!(Extent::decode(file_block, &value).is_err());
        };
        refused(35, &|value| value.truncate(19));
        refused(35, &|value| value.push(0));
        refused(35, &|value| value.truncate(3));
        refused(35, &|value| value[8] = 0);
        refused(35, &|value| value[8] = 33);
        refused(35, &|value| value[10] = 2);
        refused(35, &|value| value[10] = 6);
        refused(35, &|value| value[10] = 8);
        refused(35, &|value| value[..8].fill(0xff));
        refused(63, &|_| {}); // would cross a multiple of 32
        refused(FILE_BLOCKS_MAX, &|_| {});
        refused(u64::MAX, &|_| {});
    }

    #[test]
    fn a_compressed_unit_is_laid_out_as_the_document_says() {
        let expected = [
            0x44, 0x33, 0x22, 0x11, 0, 0, 0, 0, // address
            10, 0, // file blocks
            4, 0, // flags
            1, 0x10, 0, 0, // bytes of the compressed unit
            30, 3, 0, 0, // its blocks when decoded, those before the extent
            0xdd, 0xcc, 0xbb, 0xaa, 7, 0, 0, 0, // checksums
        ];
        assert_eq!(packed().encode(), expected);
        assert_eq!(Extent::decode(35, &expected).unwrap(), packed());
        let refused = |at: usize, byte: u8| {
            let mut value = expected;
            value[at] = byte;
            assert!(Extent::decode(35, &value).is_err(), "byte {at} must not be {byte}");
        };
        refused(10, 6);
        refused(8, 0);
        refused(8, 28);
        refused(12, 0); // one block less than there are checksums
        refused(14, 0xff);
        refused(16, 33);
        refused(16, 12);
        refused(17, 21);
        refused(18, 1);
        let mut useless = expected;
        (useless[8], useless[16], useless[17]) = (2, 2, 0);
        assert!(Extent::decode(35, &useless).is_err(), "it saves no block");
    }

    #[test]
    fn a_part_of_a_compressed_unit_lies_on_all_of_its_blocks() {
        let middle = packed().slice(37, 40).unwrap();
        assert_eq!((middle.file_block, middle.blocks(), middle.charged_blocks()), (37, 3, 2));
        assert_eq!((middle.run(), &middle.checksums), (packed().run(), &packed().checksums));
        assert_eq!(middle.packed.unwrap().skip, 5);
        assert_eq!(middle.slice(39, 99).unwrap().packed.unwrap().skip, 7);
        assert_eq!(middle.slice(39, 99).unwrap().charged_blocks(), 1);
        assert_eq!(Extent::decode(37, &middle.encode()).unwrap(), middle);
    }

    #[test]
    fn slices_keep_addresses_and_checksums_together() {
        let extent = Extent { shared: true, ..Extent::plain(10, 100, vec![0, 1, 2, 3]) };
        let middle = extent.slice(11, 13).unwrap();
        assert_eq!(middle, Extent { shared: true, ..Extent::plain(11, 101, vec![1, 2]) });
        assert_eq!(extent.slice(0, 99).unwrap(), extent);
        assert_eq!(extent.slice(0, 10), None);
        assert_eq!(extent.slice(14, 20), None);
    }

    proptest! {
        #[test]
        fn decoding_never_panics_and_reverses_encoding(block: u64, value: Vec<u8>) {
            if let Ok(extent) = Extent::decode(block, &value) {
                prop_assert_eq!(Extent::end_of(block, &value), Some(extent.end()));
                prop_assert_eq!(extent.encode(), value);
            }
        }
    }
}
