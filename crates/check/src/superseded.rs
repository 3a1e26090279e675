//! File blocks with newer contents in the log. Nobody reads the old contents in their place, and the
//! place is free once the new contents have one of their own. So damage there costs nothing, like
//! damage of a free block.

use std::ops::Range;
use syncline_format::items::extent::Extent;
use syncline_format::items::inode::{FLAG_UNPLACED, InodeItem};
use syncline_format::items::unplaced::Piece;
use syncline_format::{BLOCK_BYTES, Key, Kind};
use syncline_store::Store;

/// The file blocks that can't be read without block `index` of an extent. A compressed unit is read
/// whole.
pub(crate) fn readers_of(extent: &Extent, index: u64) -> Range<u64> {
    match extent.packed {
        Some(_) => extent.file_block..extent.end(),
        None => extent.file_block + index..extent.file_block + index + 1,
    }
}

/// True if every read of these blocks of a file is served from the log.
pub(crate) async fn are_superseded(store: &Store, object: u64, blocks: Range<u64>) -> bool {
    let Ok(Some(value)) = store.get(Key::new(object, Kind::Inode, 0)).await else { return false };
    // Otherwise a mount does not look for logged contents.
    let counts = InodeItem::decode(&value).is_ok_and(|inode| {
        inode.flags & FLAG_UNPLACED != 0 && blocks.end <= inode.size.div_ceil(BLOCK_BYTES as u64)
    });
    if !counts {
        return false;
    }
    for piece in blocks.flat_map(Piece::of) {
        let offset = piece.offset();
        match store.get(Key::new(object, Kind::Unplaced, offset)).await {
            Ok(Some(value)) if Piece::decode(offset, &value).is_ok() => {}
            _ => return false,
        }
    }
    true
}
