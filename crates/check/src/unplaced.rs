//! Data in the log: contents of file blocks without a place, two items for each block.

use crate::object::REGULAR;
use syncline_format::items::unplaced::{PIECES, Piece};
use syncline_format::{BLOCK_BYTES, FormatError};

/// The facts of an inode item that these items must agree with.
#[derive(Clone, Copy)]
pub(crate) struct Owner {
    pub(crate) file_type: u8,
    pub(crate) size: u64,
    /// The inode item says that there may be data in the log.
    pub(crate) marked: bool,
}

/// The pieces of a file seen so far, in key order.
#[derive(Default)]
pub(crate) struct Pieces {
    /// A first piece whose block's second piece has not been seen yet.
    open: Option<u64>,
    lone: Vec<u64>,
}

/// The fault of an item.
pub(crate) enum Wrong {
    Malformed(FormatError),
    Stray(&'static str),
}

impl Pieces {
    /// Takes an item into account if it is sound.
    pub(crate) fn item(&mut self, owner: Owner, offset: u64, value: &[u8]) -> Result<(), Wrong> {
        let piece = Piece::decode(offset, value).map_err(Wrong::Malformed)?;
        if owner.file_type != REGULAR {
            return Err(Wrong::Stray("in an inode that is no regular file"));
        }
        if !owner.marked {
            return Err(Wrong::Stray("which the inode item does not tell of"));
        }
        if piece.file_block >= owner.size.div_ceil(BLOCK_BYTES as u64) {
            return Err(Wrong::Stray("past the end of the file"));
        }
        match self.open.take() {
            Some(open) if open + 1 == offset && !offset.is_multiple_of(PIECES) => return Ok(()),
            Some(open) => self.lone.push(open),
            None => {}
        }
        if offset.is_multiple_of(PIECES) {
            self.open = Some(offset);
        } else {
            self.lone.push(offset);
        }
        Ok(())
    }

    /// Offsets of pieces whose counterpart is missing.
    pub(crate) fn lone(&mut self) -> Vec<u64> {
        self.lone.extend(self.open.take());
        std::mem::take(&mut self.lone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_without_one_of_its_pieces_is_told() {
        let owner = Owner { file_type: REGULAR, size: 5 * 4096, marked: true };
        let mut pieces = Pieces::default();
        for offset in [0, 1, 3, 4, 6, 7, 8] {
            assert!(pieces.item(owner, offset, &[1]).is_ok());
        }
        assert_eq!(pieces.lone(), [3, 4, 8]);
        assert!(matches!(pieces.item(owner, 10, &[1]), Err(Wrong::Stray("past the end of the file"))));
        assert!(matches!(pieces.item(owner, 0, &[0]), Err(Wrong::Malformed(_))));
        assert!(pieces.item(Owner { marked: false, ..owner }, 0, &[1]).is_err());
    }
}
