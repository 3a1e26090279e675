//! Blocks whose contents are in the log and that have no place on the device yet.
//!
//! Making a few dirty blocks durable by placing them takes two writes: the data, and the batch that
//! names it. Here the batch has the contents, as items of their own: that is one write, and where
//! the device can (`Device::write_through`) the flush goes with it. The blocks stay dirty in
//! memory, marked as logged, and are served from there as before. A task (`ahead`), write-back, or
//! the sync that finds too many of them places them together, in one run; the transaction that
//! names them removes the items.
//!
//! Invariants. A block has its items exactly if it is in [`Unplaced`] as of the last commit. Its
//! newest durable contents are then in the items and nowhere else, so every transaction that gives
//! the block an extent, makes it a hole, or cuts it off removes them
//! (`effects/logged.rs`). A transaction that only moves the
//! contents of extents leaves them alone. A block of the file's inline data, of a file in a quota,
//! or of one with preallocated room is not logged like this but placed.

use super::numbers::Numbers;
use crate::FsError;
use crate::inode::Inode;
use crate::types::Ino;
use bytes::Bytes;
use smallvec::SmallVec;
use std::ops::Range;
use syncline_format::items::unplaced::{PIECE_BYTES, Piece};
use syncline_format::superblock::FEATURE_UNPLACED;
use syncline_format::{Key, Kind};
use syncline_store::{Ablation, Store, Transaction};

/// A file's blocks that have items.
#[derive(Default)]
pub(crate) struct Unplaced {
    blocks: Numbers,
    /// The blocks whose item is missing, in a damaged image: their contents are unknown.
    broken: Numbers,
    /// The inode item says that there may be such blocks.
    marked: bool,
}

/// The change that a transaction makes to a file's unplaced blocks.
#[derive(Default)]
pub(crate) struct UnplacedChange {
    gone: Vec<u64>,
    /// Blocks that were broken, and get new contents or are removed.
    whole: Vec<u64>,
    added: SmallVec<[u64; 2]>,
    /// The inode item did not say before that there may be such blocks.
    marks: bool,
}

impl Unplaced {
    /// The state for an inode item that was read, before the blocks are loaded.
    pub(crate) fn marked(marked: bool) -> Self {
        Self { marked, ..Self::default() }
    }

    /// True if the inode item must say that there may be such blocks.
    pub(crate) fn is_marked(&self) -> bool {
        self.marked
    }

    pub(crate) fn contains(&self, block: u64) -> bool {
        self.blocks.contains(block)
    }

    pub(in crate::data) fn len(&self) -> u64 {
        self.blocks.len()
    }

    /// The blocks of a range that can't be read.
    pub(in crate::data) fn broken(&self, range: Range<u64>) -> impl Iterator<Item = u64> + '_ {
        self.broken.within(range)
    }

    #[cfg(test)]
    pub(in crate::data) fn blocks(&self) -> impl Iterator<Item = u64> + '_ {
        self.blocks.within(0..u64::MAX)
    }

    /// Adds a block whose items were found, `whole` if none is missing.
    pub(in crate::data) fn found(&mut self, block: u64, whole: bool) {
        self.blocks.insert(block);
        if !whole {
            self.broken.insert(block);
        }
    }

    /// Clears blocks, then adds others.
    pub(crate) fn change(&mut self, cleared: &[Range<u64>], logged: &[(u64, Bytes)]) -> UnplacedChange {
        let mut change = UnplacedChange::default();
        if !self.blocks.is_empty() {
            for range in cleared.iter().filter(|range| !range.is_empty()) {
                change.gone.extend(self.blocks.within(range.clone()));
            }
            change.gone.iter().for_each(|&block| self.blocks.remove(block));
        }
        if !self.broken.is_empty() {
            let new = change.gone.iter().copied().chain(logged.iter().map(|(block, _)| *block));
            change.whole = new.filter(|block| self.broken.contains(*block)).collect();
            change.whole.iter().for_each(|&block| self.broken.remove(block));
        }
        change
            .added
            .extend(logged.iter().map(|(block, _)| *block).filter(|block| self.blocks.insert(*block)));
        change.marks = !self.marked && !change.added.is_empty();
        self.marked |= change.marks;
        change
    }

    /// Undoes a change that was not committed.
    pub(crate) fn undo(&mut self, change: UnplacedChange) {
        change.added.into_iter().for_each(|block| self.blocks.remove(block));
        for block in change.gone {
            self.blocks.insert(block);
        }
        for block in change.whole {
            self.broken.insert(block);
        }
        self.marked &= !change.marks;
    }

    /// A change was committed: if no blocks are left, the next inode item says so.
    pub(crate) fn committed(&mut self) {
        self.marked &= !self.blocks.is_empty();
    }
}

impl UnplacedChange {
    /// Puts the change, and the new contents, into the transaction.
    pub(crate) fn put(&self, ino: Ino, logged: &[(u64, Bytes)], transaction: &mut Transaction) {
        for piece in self.gone.iter().flat_map(|&block| Piece::of(block)) {
            transaction.delete(key(ino, piece));
        }
        for (block, contents) in logged {
            for piece in Piece::of(*block) {
                transaction.put(key(ino, piece), part_of(contents, piece.encode(contents)));
            }
        }
    }
}

/// A part of a block for the memtable. A small one is copied, so that it does not keep the whole
/// block in memory.
fn part_of(contents: &Bytes, part: &[u8]) -> Bytes {
    if part.len() * 4 < contents.len() { Bytes::copy_from_slice(part) } else { contents.slice_ref(part) }
}

fn key(ino: Ino, piece: Piece) -> Key {
    Key::new(ino, Kind::Unplaced, piece.offset())
}

/// True when this image can have such items at all.
pub(crate) fn is_possible(store: &Store) -> bool {
    let geometry = store.geometry();
    let known = store.superblock().features & FEATURE_UNPLACED != 0;
    known && geometry.max_value_bytes() >= PIECE_BYTES && !store.ablates(Ablation::DataInLog)
}

/// The error for reading a block of which an item is missing: it must read neither as zeros nor as
/// the block's older contents (promise P4).
pub(in crate::data) fn broken_error(ino: Ino) -> FsError {
    FsError::corrupt(ino, "logged contents of a block", "half of it")
}

/// Fails when blocks of the file can't be read. For operations that work on extents, which do not
/// show this.
pub(in crate::data) fn require_whole(inode: &Inode) -> Result<(), FsError> {
    let whole = inode.state.lock().data.logged.unplaced().broken.is_empty();
    if whole { Ok(()) } else { Err(broken_error(inode.ino)) }
}
