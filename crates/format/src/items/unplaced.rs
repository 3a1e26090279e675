//! Contents of file blocks that are logged and have no place on the device yet: `Key(inode,
//! Unplaced, number of the piece)`.
//!
//! A block is two pieces, each an item: with nodes of 16 KiB, one item can't hold a whole block.

use super::extent::FILE_BLOCKS_MAX;
use crate::{BLOCK_BYTES, FormatError};

/// Bytes of a piece.
pub const PIECE_BYTES: usize = BLOCK_BYTES / PIECES as usize;
/// Pieces per block.
pub const PIECES: u64 = 2;

/// A part of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    /// The block in the file.
    pub file_block: u64,
    /// Offset of the piece within the block.
    pub at: usize,
}

impl Piece {
    /// The pieces of a block.
    pub fn of(file_block: u64) -> impl Iterator<Item = Self> {
        (0..PIECES as usize).map(move |index| Self { file_block, at: index * PIECE_BYTES })
    }

    /// The offset of the item's key.
    pub fn offset(self) -> u64 {
        self.file_block * PIECES + (self.at / PIECE_BYTES) as u64
    }

    /// The item's value: the piece without its trailing zeros.
    pub fn encode(self, block: &[u8]) -> &[u8] {
        let piece = &block[self.at..self.at + PIECE_BYTES];
        let len = piece.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
        &piece[..len]
    }

    /// The piece that an item holds, if the item is valid.
    pub fn decode(offset: u64, value: &[u8]) -> Result<Self, FormatError> {
        let field = |field| Err(FormatError::Field { structure: "unplaced", field });
        let file_block = offset / PIECES;
        if file_block >= FILE_BLOCKS_MAX {
            return field("position");
        }
        if value.len() > PIECE_BYTES || value.last() == Some(&0) {
            return field("value length");
        }
        Ok(Self { file_block, at: (offset % PIECES) as usize * PIECE_BYTES })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_layout_is_what_the_document_says() {
        let mut block = vec![0; BLOCK_BYTES];
        (block[0], block[9], block[2050]) = (1, 2, 3);
        let items: Vec<(u64, &[u8])> =
            Piece::of(7).map(|piece| (piece.offset(), piece.encode(&block))).collect();
        assert_eq!(items, [(14, &[1, 0, 0, 0, 0, 0, 0, 0, 0, 2][..]), (15, &[0, 0, 3])]);
    }

    #[test]
    fn impossible_values_are_refused() {
        assert!(Piece::decode(0, &[1; PIECE_BYTES]).is_ok());
        assert!(Piece::decode(0, &[1; PIECE_BYTES + 1]).is_err());
        assert!(Piece::decode(0, &[1, 0]).is_err());
        assert!(Piece::decode(FILE_BLOCKS_MAX * PIECES - 1, &[]).is_ok());
        assert!(Piece::decode(FILE_BLOCKS_MAX * PIECES, &[]).is_err());
    }

    proptest! {
        #[test]
        fn decoding_reverses_encoding(file_block in 0..FILE_BLOCKS_MAX, bytes: Vec<u8>) {
            let mut block = bytes;
            block.resize(BLOCK_BYTES, 0);
            for piece in Piece::of(file_block) {
                prop_assert_eq!(Piece::decode(piece.offset(), piece.encode(&block)), Ok(piece));
            }
        }
    }
}
