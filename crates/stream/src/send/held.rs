//! The contents in the extents of a file. An extent may lie behind the end of its file, where a
//! truncation was cut short, or below a block that is in the log and counts instead of it: neither is
//! contents.

use super::contents::{BLOCK, Range};
use super::decode;
use super::kinds::Kinds;
use crate::StreamError;
use syncline_format::items::inode::{FLAG_UNPLACED, InodeItem};
use syncline_format::items::unplaced::Piece;
use syncline_format::{Key, Kind};
use syncline_fs::types::Ino;
use syncline_fs::{Filesystem, FsError};

/// Which blocks of a file its extents hold, if it has extents there.
#[derive(Default)]
pub(super) struct Held {
    /// The block behind the last one of the file.
    end: u64,
    /// The blocks that are in the log only, in order.
    logged: Vec<u64>,
}

impl Held {
    /// For the file with this item. One without names holds nothing: it is not sent.
    pub async fn by(fs: &Filesystem, ino: Ino, item: &InodeItem<'_>) -> Result<Self, StreamError> {
        if item.nlink == 0 {
            return Ok(Self::default());
        }
        let mut held = Self { end: item.size.div_ceil(BLOCK), logged: Vec::new() };
        if item.flags & FLAG_UNPLACED == 0 {
            return Ok(held);
        }
        let mut pieces = Kinds::from(fs, ino, Kind::Unplaced, 0);
        while let Some((offset, value)) = pieces.next().await? {
            let piece = Piece::decode(offset, &value).map_err(|detail| FsError::Corrupt { ino, detail })?;
            if held.logged.last() != Some(&piece.file_block) {
                held.logged.push(piece.file_block);
            }
        }
        Ok(held)
    }

    /// For the file with this number.
    pub async fn of(fs: &Filesystem, ino: Ino) -> Result<Self, StreamError> {
        match fs.store().get(Key::new(ino, Kind::Inode, 0)).await? {
            Some(value) => Self::by(fs, ino, &decode(ino, &value)?).await,
            None => Ok(Self::default()),
        }
    }

    /// The parts of `first..end` that extents hold.
    pub fn parts(&self, first: u64, end: u64) -> Vec<Range> {
        let end = end.min(self.end);
        let mut parts = Vec::new();
        let mut at = first;
        for block in &self.logged[self.logged.partition_point(|block| *block < first)..] {
            if *block >= end {
                break;
            }
            parts.push((at, *block));
            at = block + 1;
        }
        parts.push((at, end));
        parts.retain(|(first, end)| first < end);
        parts
    }

    /// The blocks that are in the log only.
    pub fn logged(&self) -> &[u64] {
        &self.logged
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_behind_the_end_or_below_the_log_is_not_held() {
        let held = Held { end: 10, logged: vec![0, 3, 4, 9] };
        assert_eq!(held.parts(0, 20), [(1, 3), (5, 9)]);
        assert_eq!(held.parts(3, 5), []);
        assert_eq!(held.parts(2, 4), [(2, 3)]);
        assert_eq!(held.parts(10, 12), []);
        assert_eq!(Held::default().parts(0, 1), []);
    }
}
