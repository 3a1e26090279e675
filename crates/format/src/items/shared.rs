//! Reference counts of blocks that several extents lie on: `Key(0, Shared, first block)`.
//!
//! A block without a count has one reference if an extent lies on it, and none otherwise.

use super::Cursor;
use crate::{BlockAddr, BlockRun, FormatError};

/// Maximum number of blocks in one item. Items never cross a multiple of this on the device, so a
/// lookup of block `b` only has to start from `b` rounded down.
pub const SHARED_BLOCKS_MAX: u64 = 1024;
/// The smallest count that an item may have: a single reference needs no item.
pub const COUNT_MIN: u32 = 2;

const STRUCTURE: &str = "reference count";

/// Blocks with the same number of references.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SharedRun {
    /// The blocks: at most [`SHARED_BLOCKS_MAX`]. The first one is the offset of the item's key.
    pub run: BlockRun,
    /// Number of extents that each of the blocks belongs to: [`COUNT_MIN`] or more.
    pub count: u32,
}

impl SharedRun {
    /// The item's value.
    pub fn encode(&self) -> Vec<u8> {
        let blocks = u32::try_from(self.run.blocks).expect("an item has at most 1024 blocks");
        [blocks.to_le_bytes(), self.count.to_le_bytes()].concat()
    }

    /// Reads the value of the item at block `start`. Whether the blocks lie in the filesystem is
    /// checked by callers that know its size.
    pub fn decode(start: BlockAddr, value: &[u8]) -> Result<Self, FormatError> {
        let mut cursor = Cursor::new(value, STRUCTURE);
        let blocks = u64::from(cursor.u32()?);
        let count = cursor.u32()?;
        if blocks == 0 || start % SHARED_BLOCKS_MAX + blocks > SHARED_BLOCKS_MAX {
            return Err(cursor.field("length"));
        }
        if start.checked_add(blocks).is_none() {
            return Err(cursor.field("position"));
        }
        if count < COUNT_MIN {
            return Err(cursor.field("count"));
        }
        if !cursor.is_empty() {
            return Err(cursor.field("value length"));
        }
        Ok(Self { run: BlockRun::new(start, blocks), count })
    }
}

/// Start of the piece of the device whose items may contain `block`.
pub fn piece_start(block: BlockAddr) -> BlockAddr {
    block - block % SHARED_BLOCKS_MAX
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_layout_is_what_the_document_says() {
        let sample = SharedRun { run: BlockRun::new(1030, 5), count: 0x0102 };
        let expected = [5, 0, 0, 0, 2, 1, 0, 0];
        assert_eq!(sample.encode(), expected);
        assert_eq!(SharedRun::decode(1030, &expected).unwrap(), sample);
    }

    #[test]
    fn impossible_values_are_refused() {
        let value = |blocks: u32, count: u32| [blocks.to_le_bytes(), count.to_le_bytes()].concat();
        assert!(SharedRun::decode(1024, &value(1024, 2)).is_ok());
        for (start, bad) in [
            (1024, value(1025, 2)),
            (1025, value(1024, 2)),
            (1024, value(0, 2)),
            (1024, value(1, 1)),
            (1024, value(1, 0)),
            (1024, value(1, 2)[..7].to_vec()),
            (1024, [value(1, 2), vec![0]].concat()),
            (u64::MAX, value(1, 2)),
        ] {
            assert!(SharedRun::decode(start, &bad).is_err(), "{start} {bad:?}");
        }
    }

    proptest! {
        #[test]
        fn decoding_never_panics_and_reverses_encoding(start: u64, value: Vec<u8>) {
            if let Ok(shared) = SharedRun::decode(start, &value) {
                prop_assert_eq!(shared.encode(), value);
            }
        }
    }
}
