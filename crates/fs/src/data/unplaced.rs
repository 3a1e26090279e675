//! Blocks that a sync has logged whole and that have no place on the device yet.
//!
//! To make a few dirty blocks durable by placing them takes two writes, one for the data and one for the batch that names it. Here
//! the batch has the contents: they are items of their own, one write, and where the device can (`Device::write_through`) the
//! flush goes with it. The blocks stay dirty in memory, marked as logged, and are served from there as before. A task (`ahead`), write-back, or the
//! sync that finds too many of them places them together, in one run, and the transaction that names them removes the items.
//!
//! Invariants. A block has its items exactly if it is in [`Unplaced`] as of the last commit. Where it is, nothing but the items
//! has its newest durable contents, so every transaction that gives the block an extent, makes it a hole, or cuts it
//! off removes them ([`ExtentChanges::cleared`](super::plan::ExtentChanges)); one that only moves what the extents have leaves them alone. A block of
//! the file's inline data, of a file in a quota, or of one with preallocated room is placed as ever.

use super::block::Block;
use super::numbers::Numbers;
use super::submit::Aim;
use super::writeback;
use crate::FsError;
use crate::filesystem::Filesystem;
use crate::inode::{Inode, InodeState};
use crate::types::Ino;
use bytes::Bytes;
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use syncline_device::AlignedBuf;
use syncline_format::items::unplaced::{PIECE_BYTES, PIECES, Piece};
use syncline_format::superblock::FEATURE_UNPLACED;
use syncline_format::{BLOCK_BYTES, Key, Kind};
use syncline_store::{Ablation, Store, Transaction};

/// Most blocks that one sync logs of a file. With more, a write of their own costs less than to write them twice.
const LOGGED_MAX: u64 = 4;
/// Most blocks of a file that have no place; the sync that would have more places them all, in one write.
const UNPLACED_MAX: u64 = 64;
/// Most syncs at a time with which a file's first sync logs its blocks. It is the only one of most files: their blocks would be written twice if they live, and
/// what that saves is a device write that the writes of the others are joined with, and a wait that they have anyway.
const FEW_SYNCS: u64 = 4;
/// Blocks that must be left: on a full image the tree has no room for contents, too.
const ROOM: u64 = 256;
/// Items read at a time.
const ITEMS_EACH: usize = 1024;

/// The blocks of a file that have items.
#[derive(Default)]
pub(crate) struct Unplaced {
    blocks: Numbers,
    /// Of those, the ones of which an item is missing, in a damaged image: nobody can say what they hold.
    broken: Numbers,
    /// The inode item says that there may be some.
    marked: bool,
}

/// What a transaction does to them.
#[derive(Default)]
pub(crate) struct Change {
    gone: Vec<u64>,
    /// Blocks that were broken, and have new contents or none.
    whole: Vec<u64>,
    added: SmallVec<[u64; 2]>,
}

impl Unplaced {
    /// Of an inode item that was read.
    pub(crate) fn marked(marked: bool) -> Self {
        Self { marked, ..Self::default() }
    }

    /// True if the inode item must say that there may be some.
    pub(crate) fn is_marked(&self) -> bool {
        self.marked
    }

    pub(crate) fn contains(&self, block: u64) -> bool {
        self.blocks.contains(block)
    }

    pub(super) fn len(&self) -> u64 {
        self.blocks.len()
    }

    /// The first block of a range that can't be read.
    pub(super) fn broken(&self, range: Range<u64>) -> impl Iterator<Item = u64> + '_ {
        self.broken.within(range)
    }

    #[cfg(test)]
    pub(super) fn blocks(&self) -> impl Iterator<Item = u64> + '_ {
        self.blocks.within(0..u64::MAX)
    }

    /// Clears blocks, then adds others.
    pub(crate) fn change(&mut self, cleared: &[Range<u64>], logged: &[(u64, Bytes)]) -> Change {
        let mut change = Change::default();
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
        self.marked |= !change.added.is_empty();
        change
    }

    /// Takes a change back that was not committed.
    pub(crate) fn undo(&mut self, change: Change) {
        change.added.into_iter().for_each(|block| self.blocks.remove(block));
        for block in change.gone {
            self.blocks.insert(block);
        }
        for block in change.whole {
            self.broken.insert(block);
        }
    }

    /// A change was committed: what comes next may say that there are none.
    pub(crate) fn committed(&mut self) {
        self.marked &= !self.blocks.is_empty();
    }
}

impl Change {
    /// Puts it, and the new contents, into the transaction.
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

/// A part of a block for the memtable: a small one must not keep the block.
fn part_of(contents: &Bytes, part: &[u8]) -> Bytes {
    if part.len() * 4 < contents.len() { Bytes::copy_from_slice(part) } else { contents.slice_ref(part) }
}

fn key(ino: Ino, piece: Piece) -> Key {
    Key::new(ino, Kind::Unplaced, piece.offset())
}

/// True when images like this one can have such items at all.
pub(crate) fn is_possible(store: &Store) -> bool {
    let geometry = store.geometry();
    let known = store.superblock().features & FEATURE_UNPLACED != 0;
    known && geometry.max_value_bytes() >= PIECE_BYTES && !store.ablates(Ablation::DataInLog)
}

/// True when a submission is to log the dirty blocks rather than to place them. The inode's `writeback` and its lease are held.
pub(super) fn is_wanted(fs: &Filesystem, state: &InodeState, aim: Aim) -> bool {
    let data = &state.data;
    let plain = data.inline.is_none() && data.preallocated.blocks() == 0 && data.charge.is_none();
    let large = state.attr.size > fs.limits.inline_bytes as u64;
    if aim != Aim::Log || !fs.logs_data || !plain || !large || !data.in_flight.is_empty() {
        return false;
    }
    if !data.submitted && fs.store.syncs_about() > FEW_SYNCS {
        return false;
    }
    let more = data.dirty.unlogged();
    let few = more <= LOGGED_MAX && data.unplaced.blocks.len() + more <= UNPLACED_MAX;
    few && fs.store.is_roomy(ROOM)
}

/// The unplaced blocks of a file, read from their items: contents, and how many items they are of.
async fn read(fs: &Filesystem, ino: Ino) -> Result<BTreeMap<u64, (AlignedBuf, u64)>, FsError> {
    let corrupt = |detail| FsError::Corrupt { ino, detail };
    let mut blocks: BTreeMap<u64, (AlignedBuf, u64)> = BTreeMap::new();
    let each = |key: Key, value: &Bytes| {
        let piece = Piece::decode(key.offset, value).map_err(corrupt)?;
        let fresh = || (AlignedBuf::zeroed(BLOCK_BYTES), 0);
        let (block, pieces) = blocks.entry(piece.file_block).or_insert_with(fresh);
        *pieces += 1;
        block[piece.at..piece.at + value.len()].copy_from_slice(value);
        Ok(())
    };
    let (from, to) = (Key::new(ino, Kind::Unplaced, 0), Key::new(ino, Kind::Unplaced, u64::MAX));
    fs.each_item(from, to, ITEMS_EACH, each).await?;
    Ok(blocks)
}

/// Makes what an inode that was loaded has unplaced dirty, and logged.
pub(crate) async fn load(fs: &Filesystem, state: &mut InodeState) -> Result<(), FsError> {
    if !state.data.unplaced.is_marked() {
        return Ok(());
    }
    let blocks = read(fs, state.attr.ino).await?;
    let end = state.attr.size.div_ceil(super::BLOCK);
    let data = &mut state.data;
    for (block, (contents, pieces)) in blocks {
        data.unplaced.blocks.insert(block);
        if pieces < PIECES {
            tracing::error!(ino = state.attr.ino, block, "half of the logged contents of a block is missing");
            data.unplaced.broken.insert(block);
            continue;
        }
        // Past the end there are none, but in a damaged image.
        if block < end {
            data.preallocated.take(&(block..block + 1));
            data.dirty.insert(block, Block::whole(contents).freeze());
            data.dirty.set_logged(block);
        }
    }
    state.attr.blocks = state.data.visible_units(state.attr.size);
    Ok(())
}

/// What is read of a block of which an item is missing: neither zeros nor what the block held before (promise P4).
pub(super) fn broken_error(ino: Ino) -> FsError {
    FsError::corrupt(ino, "logged contents of a block", "half of it")
}

/// Fails when blocks of the file can't be read: for those who go by extents, which know nothing of them.
pub(super) fn require_whole(inode: &Inode) -> Result<(), FsError> {
    let whole = inode.state.lock().data.unplaced.broken.is_empty();
    if whole { Ok(()) } else { Err(broken_error(inode.ino)) }
}

/// Gives what is logged whole its place, for those who look at extents.
pub(super) async fn place(fs: &Filesystem, inode: &Arc<Inode>) -> Result<(), FsError> {
    require_whole(inode)?;
    let some = !inode.state.lock().data.unplaced.blocks.is_empty();
    if some && fs.store.writable().is_ok() { writeback::write_back(fs, inode).await } else { Ok(()) }
}

/// Has write-back place what was found with an inode that came into the cache.
pub(crate) fn note_loaded(fs: &Filesystem, inode: &Arc<Inode>) {
    let mut state = inode.state.lock();
    if state.data.has_dirty() && fs.store.writable().is_ok() {
        fs.data.note_dirty(fs, inode, &mut state.data);
    }
}
