//! Room reserved for a file's blocks: `Key(inode, Preallocation, first file block)`, and its total:
//! `Key(0, Preallocation, inode)`.

use super::Cursor;
use super::extent::FILE_BLOCKS_MAX;
use crate::FormatError;

const STRUCTURE: &str = "preallocation";

/// File blocks without an extent for which room is reserved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Preallocation {
    /// First block in the file: the offset of the item's key.
    pub file_block: u64,
    /// Number of blocks: at least one.
    pub blocks: u64,
}

impl Preallocation {
    /// First file block after the run.
    pub fn end(&self) -> u64 {
        self.file_block + self.blocks
    }

    /// The item's value.
    pub fn encode(&self) -> Vec<u8> {
        self.blocks.to_le_bytes().to_vec()
    }

    /// Reads the value of the item at `file_block`.
    pub fn decode(file_block: u64, value: &[u8]) -> Result<Self, FormatError> {
        let blocks = decode_sum(value)?;
        match file_block.checked_add(blocks) {
            Some(end) if end <= FILE_BLOCKS_MAX => Ok(Self { file_block, blocks }),
            _ => Err(FormatError::Field { structure: STRUCTURE, field: "position" }),
        }
    }
}

/// The value of the item with an inode's total.
pub fn encode_sum(blocks: u64) -> Vec<u8> {
    blocks.to_le_bytes().to_vec()
}

/// Reads an inode's total: at least one block.
pub fn decode_sum(value: &[u8]) -> Result<u64, FormatError> {
    let mut cursor = Cursor::new(value, STRUCTURE);
    let blocks = cursor.u64()?;
    if blocks == 0 || blocks > FILE_BLOCKS_MAX {
        return Err(cursor.field("blocks"));
    }
    if !cursor.is_empty() {
        return Err(cursor.field("value length"));
    }
    Ok(blocks)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_layout_is_what_the_document_says() {
        let item = Preallocation { file_block: 7, blocks: 0x0102 };
        assert_eq!(item.encode(), [2, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(encode_sum(0x0102), item.encode());
        assert_eq!(item.end(), 7 + 0x0102);
    }

    #[test]
    fn impossible_values_are_refused() {
        for value in [&[][..], &[0; 8], &[1, 0, 0, 0, 0, 0, 0], &[1, 0, 0, 0, 0, 0, 0, 0, 0], &[0xff; 8]] {
            assert!(Preallocation::decode(0, value).is_err(), "{value:?}");
            assert!(decode_sum(value).is_err(), "{value:?}");
        }
        let one = 1u64.to_le_bytes();
        assert!(Preallocation::decode(FILE_BLOCKS_MAX - 1, &one).is_ok());
        assert!(Preallocation::decode(FILE_BLOCKS_MAX, &one).is_err());
        assert!(Preallocation::decode(u64::MAX, &one).is_err());
    }

    proptest! {
        #[test]
        fn decoding_never_panics_and_reverses_encoding(block: u64, value: Vec<u8>) {
            if let Ok(item) = Preallocation::decode(block, &value) {
                prop_assert_eq!(item.encode(), value);
            }
        }
    }
}
