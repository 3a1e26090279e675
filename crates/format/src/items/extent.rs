//! Extents of a file: `Key(inode, Extent, first file block)`.

use super::{Cursor, inode::SIZE_MAX};
use crate::{BLOCK_BYTES, BlockAddr, BlockRun, Crc, FormatError};

/// Most blocks of one extent item. Items never cross a multiple of this in the file, so that an overwrite of an aligned
/// piece replaces whole items, and a reader of block `b` has only to look from `b` rounded down.
pub const EXTENT_BLOCKS_MAX: u64 = 32;
/// Number of the first block that no file can have.
pub const FILE_BLOCKS_MAX: u64 = SIZE_MAX / BLOCK_BYTES as u64 + 1;
/// Bytes of the value before the checksums.
pub const FIXED_BYTES: usize = 12;
/// Other extents may lie on some of the same blocks: [`super::shared`] has their reference counts.
const FLAG_SHARED: u16 = 1;

const STRUCTURE: &str = "extent";

/// A run of file blocks that lies in one run of device blocks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Extent {
    /// First block in the file: the offset of the item's key.
    pub file_block: u64,
    /// First block on the device.
    pub addr: BlockAddr,
    /// CRC32C of each block: one to [`EXTENT_BLOCKS_MAX`].
    pub checksums: Vec<Crc>,
    /// Other extents may lie on some of the same blocks. Without this mark none does.
    pub shared: bool,
}

impl Extent {
    /// Number of blocks.
    pub fn blocks(&self) -> u64 {
        self.checksums.len() as u64
    }

    /// First file block after the extent.
    pub fn end(&self) -> u64 {
        self.file_block + self.blocks()
    }

    /// Where it lies on the device.
    pub fn run(&self) -> BlockRun {
        BlockRun::new(self.addr, self.blocks())
    }

    /// The part of the extent that lies in the file blocks `first..end`, if any.
    pub fn slice(&self, first: u64, end: u64) -> Option<Extent> {
        let first = first.max(self.file_block);
        let end = end.min(self.end());
        if first >= end {
            return None;
        }
        let skip = first - self.file_block;
        Some(Extent {
            file_block: first,
            addr: self.addr + skip,
            checksums: self.checksums[skip as usize..(end - self.file_block) as usize].to_vec(),
            shared: self.shared,
        })
    }

    /// The item's value.
    pub fn encode(&self) -> Vec<u8> {
        let blocks = u16::try_from(self.checksums.len()).expect("an extent has at most 32 blocks");
        let mut value = Vec::with_capacity(FIXED_BYTES + 4 * self.checksums.len());
        value.extend_from_slice(&self.addr.to_le_bytes());
        value.extend_from_slice(&blocks.to_le_bytes());
        let flags = if self.shared { FLAG_SHARED } else { 0 };
        value.extend_from_slice(&flags.to_le_bytes());
        self.checksums.iter().for_each(|crc| value.extend_from_slice(&crc.to_le_bytes()));
        value
    }

    /// Reads the value of the item at `file_block`. Whether the address lies in the filesystem is for those to check who
    /// know its size.
    pub fn decode(file_block: u64, value: &[u8]) -> Result<Self, FormatError> {
        let mut cursor = Cursor::new(value, STRUCTURE);
        let addr = cursor.u64()?;
        let blocks = u64::from(cursor.u16()?);
        let flags = cursor.u16()?;
        if flags & !FLAG_SHARED != 0 {
            return Err(cursor.field("flags"));
        }
        if blocks == 0 || file_block % EXTENT_BLOCKS_MAX + blocks > EXTENT_BLOCKS_MAX {
            return Err(cursor.field("length"));
        }
        if file_block >= FILE_BLOCKS_MAX || addr.checked_add(blocks).is_none() {
            return Err(cursor.field("position"));
        }
        let mut checksums = Vec::with_capacity(blocks as usize);
        for _ in 0..blocks {
            checksums.push(cursor.u32()?);
        }
        if !cursor.is_empty() {
            return Err(cursor.field("value length"));
        }
        Ok(Self { file_block, addr, checksums, shared: flags & FLAG_SHARED != 0 })
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
        Extent { file_block: 35, addr: 0x1122_3344, checksums: vec![0xaabb_ccdd, 7], shared: false }
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
        refused(35, &|value| value[..8].fill(0xff));
        refused(63, &|_| {}); // would cross a multiple of 32
        refused(FILE_BLOCKS_MAX, &|_| {});
        refused(u64::MAX, &|_| {});
    }

    #[test]
    fn slices_keep_addresses_and_checksums_together() {
        let extent = Extent { file_block: 10, addr: 100, checksums: vec![0, 1, 2, 3], shared: true };
        let middle = extent.slice(11, 13).unwrap();
        assert_eq!(middle, Extent { file_block: 11, addr: 101, checksums: vec![1, 2], shared: true });
        assert_eq!(extent.slice(0, 99).unwrap(), extent);
        assert_eq!(extent.slice(0, 10), None);
        assert_eq!(extent.slice(14, 20), None);
    }

    proptest! {
        #[test]
        fn decoding_never_panics_and_reverses_encoding(block: u64, value: Vec<u8>) {
            if let Ok(extent) = Extent::decode(block, &value) {
                prop_assert_eq!(extent.encode(), value);
            }
        }
    }
}
