//! The contents of a file's blocks in memory, from the write of a program to their place on the device.
//! Nothing else keeps any.
//!
//! The life of a block (`life`):
//!
//! | state | newest contents | a crash leaves | written | logged | taken off | named | failed |
//! |---|---|---|---|---|---|---|---|
//! | `Dirty` | memory | the contents before | `Dirty` | `Logged` | `InFlight` | `Placed` | `Dirty` |
//! | `Logged` | memory, log | these contents, or those before until a flush covers the batch | `Dirty` | – | `InFlight` | `Placed` | `Dirty` |
//! | `InFlight` | memory; a place that nothing names | the contents before, perhaps those in the log | `Rewritten` | – | – | `Placed` | `Dirty` |
//! | `Rewritten` | memory | as in flight | `Rewritten` | – | – | `Dirty` | `Dirty` |
//! | `Placed` | extent; memory if it was written in parts | these contents, or those before until a flush covers the batch | `Dirty` | – | – | – | – |
//!
//! A block is *taken off* by write-back, which writes it, waits, and names it in a transaction. A sync
//! starts its writes and names them at once, so there a block goes from `Dirty` to `Placed`; the store
//! serves it until it is written. A truncation, a hole or other contents from elsewhere (reflink) end the
//! life of a block in any state. A *failed* write or transaction leaves the block dirty (P5).
//!
//! Blocks that are placed are in a map of their own (`cached`): a file may have thousands of them, and
//! looks for its next dirty block at each sync.
//!
//! Invariant, between changes of the map: if blocks of the map share a buffer, they are all in flight or
//! all dirty. If they are dirty, the map has at least half of that buffer's blocks. So the memory that
//! dirty blocks keep alive is at most twice their contents, whichever blocks of large writes are
//! truncated, punched out or rewritten. When a buffer has lost more than half of its blocks, the rest is
//! copied out of it. Since half of the buffer has gone before that, no more is ever copied than was
//! written.

mod counts;
mod life;

use super::block::{Block, Buffer};
use super::cached::CachedBlocks;
use bytes::Bytes;
use counts::{Counts, Shrunk, copy_out, note, part_from};
pub(crate) use life::BlockState;
use life::Event;
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::collections::btree_map;
use std::ops::{Range, RangeBounds};
use std::sync::Arc;
use syncline_device::{AlignedBuf, BLOCK_BYTES};

/// A payload is copied in pieces of this many blocks (64 KiB), aligned to that size in the file.
const COPY_BLOCKS: u64 = 16;

/// Blocks by number.
#[derive(Default)]
pub(crate) struct Blocks {
    /// The blocks that are not placed.
    map: BTreeMap<u64, Entry>,
    counts: Counts,
    /// Contents of placed blocks that were written in parts.
    pub(super) placed: CachedBlocks,
}

struct Entry {
    contents: Block,
    state: BlockState,
}

/// Blocks that a transaction is to log, with their contents.
pub(crate) type ToLog = SmallVec<[(u64, Bytes); 2]>;

/// Blocks that write-back has written, in order, before they are named: their contents, unless newer
/// ones are dirty.
pub(crate) type Landed = Vec<(u64, Option<Block>)>;

/// What is there.
impl Blocks {
    /// Number of dirty blocks.
    pub(crate) fn dirty(&self) -> u64 {
        self.counts.dirty.into()
    }

    /// Number of dirty blocks that are not in the log.
    pub(crate) fn unlogged(&self) -> u64 {
        (self.counts.dirty - self.counts.logged).into()
    }

    /// Number of blocks in flight.
    pub(crate) fn in_flight(&self) -> u64 {
        self.counts.flying.into()
    }

    /// True if no block is dirty or in flight.
    pub(crate) fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// Blocks of memory that dirty contents keep alive: a shared buffer counts in full while any of
    /// its blocks is here.
    pub(crate) fn memory_blocks(&self) -> u32 {
        self.counts.memory
    }

    /// The same of contents in flight.
    pub(crate) fn flying_memory_blocks(&self) -> u32 {
        self.counts.flying_memory
    }

    /// The state of a block that is in memory.
    pub(crate) fn state_of(&self, block: u64) -> Option<BlockState> {
        let placed = || self.placed.get(block).map(|_| BlockState::Placed);
        self.map.get(&block).map(|entry| entry.state).or_else(placed)
    }

    pub(crate) fn is_dirty(&self, block: u64) -> bool {
        self.map.get(&block).is_some_and(|entry| entry.state.is_dirty())
    }

    pub(crate) fn is_in_flight(&self, block: u64) -> bool {
        self.map.get(&block).is_some_and(|entry| entry.state.is_flying())
    }

    /// True for a block that is dirty or in flight.
    pub(crate) fn is_pending(&self, block: u64) -> bool {
        self.map.contains_key(&block)
    }

    /// The newest contents of a block that is dirty or in flight.
    pub(crate) fn get(&self, block: u64) -> Option<&Block> {
        self.map.get(&block).map(|entry| &entry.contents)
    }

    /// The first block at or after `block` that is dirty or in flight.
    pub(crate) fn next(&self, block: u64) -> Option<u64> {
        self.pending(block..).next()
    }

    /// The first block at or after `block` that is written but neither named nor logged.
    pub(crate) fn next_unnamed(&self, block: u64) -> Option<u64> {
        let mut rest = self.map.range(block..);
        rest.find(|(_, entry)| entry.state != BlockState::Logged).map(|(&block, _)| block)
    }

    /// The first dirty block at or after `block`.
    pub(crate) fn next_dirty(&self, block: u64) -> Option<u64> {
        self.numbers(block..).next()
    }

    /// The last dirty block.
    pub(crate) fn last_dirty(&self) -> Option<u64> {
        self.map.iter().rev().find(|(_, entry)| entry.state.is_dirty()).map(|(&block, _)| block)
    }

    /// Number of dirty blocks of a range.
    pub(crate) fn count(&self, range: impl RangeBounds<u64>) -> u64 {
        self.numbers(range).count() as u64
    }

    /// The dirty blocks of a range, in order.
    pub(crate) fn numbers(&self, range: impl RangeBounds<u64>) -> impl Iterator<Item = u64> + '_ {
        let dirty = self.map.range(range).filter(|(_, entry)| entry.state.is_dirty());
        dirty.map(|(&block, _)| block)
    }

    /// The dirty blocks among `first..end`, last one first.
    pub(crate) fn numbers_backwards(&self, first: u64, end: u64) -> impl Iterator<Item = u64> + '_ {
        let dirty = self.map.range(first..end).rev().filter(|(_, entry)| entry.state.is_dirty());
        dirty.map(|(&block, _)| block)
    }

    /// The blocks of a range that are dirty or in flight, in order.
    pub(crate) fn pending(&self, range: impl RangeBounds<u64>) -> impl Iterator<Item = u64> + '_ {
        self.map.range(range).map(|(&block, _)| block)
    }

    /// The blocks in this state.
    fn in_state(&self, state: BlockState) -> impl Iterator<Item = (u64, &Block)> + '_ {
        let found = self.map.iter().filter(move |(_, entry)| entry.state == state);
        found.map(|(&block, entry)| (block, &entry.contents))
    }

    /// The logged blocks, which are frozen.
    pub(crate) fn logged(&self) -> Vec<(u64, Block)> {
        self.in_state(BlockState::Logged).map(|(number, block)| (number, block.share())).collect()
    }

    /// True when a block is still as [`logged`](Self::logged) returned it: it is in the log and has
    /// not been written since.
    pub(crate) fn has_logged(&self, number: u64, block: &Block) -> bool {
        // `block` keeps its memory alive, so no other contents can have the same address.
        let same = |here: &Block| here.as_slice().as_ptr() == block.as_slice().as_ptr();
        let entry = self.map.get(&number).filter(|entry| entry.state == BlockState::Logged);
        entry.is_some_and(|entry| same(&entry.contents))
    }
}

/// Programs write, and cut off.
impl Blocks {
    /// Makes a block dirty, with these contents.
    pub(crate) fn insert(&mut self, block: u64, contents: Block) {
        let mut shrunk = Shrunk::new();
        self.put(block, contents, &mut shrunk);
        self.settle(shrunk);
    }

    /// Ends the life of a block.
    pub(crate) fn remove(&mut self, block: u64) {
        let mut shrunk = Shrunk::new();
        drop(self.take_out(block, &mut shrunk));
        self.settle(shrunk);
    }

    /// Ends the life of all blocks from `block` on, except placed ones.
    pub(crate) fn truncate(&mut self, block: u64) {
        let mut shrunk = Shrunk::new();
        let gone = self.map.split_off(&block);
        gone.values().for_each(|gone| self.counts.remove(&gone.contents, gone.state, &mut shrunk));
        self.settle(shrunk);
    }

    /// Overwrites bytes of a block. A block that is not dirty yet starts as a copy of `base`, or as
    /// zeros without one.
    pub(crate) fn patch(&mut self, block: u64, at: usize, bytes: &[u8], base: Option<&[u8]>) {
        if !self.is_dirty(block) {
            let buf = match base {
                Some(base) => AlignedBuf::copy_from(base),
                None => AlignedBuf::zeroed(BLOCK_BYTES),
            };
            self.insert(block, Block::Owned { buf, in_parts: true });
        }
        self.change(block, |contents| contents[at..at + bytes.len()].copy_from_slice(bytes));
    }

    /// Zeroes a block from byte `at` on, if the block is here.
    pub(crate) fn zero_from(&mut self, block: u64, at: usize) {
        self.change(block, |contents| contents[at..].fill(0));
    }

    /// Applies `change` to a block if it is here. If others see its contents, a changed copy
    /// replaces it.
    fn change(&mut self, block: u64, change: impl FnOnce(&mut [u8])) {
        let Some(Entry { contents, .. }) = self.map.get_mut(&block) else { return };
        if let Some(own) = contents.get_mut() {
            return change(own);
        }
        let mut buf = AlignedBuf::copy_from(contents.as_slice());
        change(&mut buf);
        let in_parts = contents.is_in_parts();
        self.insert(block, Block::Owned { buf, in_parts });
    }

    /// Replaces whole blocks from `first` on by `payload`, whose length is a multiple of a block. A
    /// payload that is aligned to a block in memory is kept without a copy; any other is copied
    /// once, in pieces of a size that buffers are kept for.
    pub(crate) fn replace(&mut self, first: u64, payload: &Bytes) {
        let mut shrunk = Shrunk::new();
        if (payload.as_ptr() as usize).is_multiple_of(BLOCK_BYTES) {
            self.share(first, payload.clone(), &mut shrunk);
            return self.settle(shrunk);
        }
        let end = first + (payload.len() / BLOCK_BYTES) as u64;
        let mut block = first;
        while block < end {
            let piece_end = end.min(block - block % COPY_BLOCKS + COPY_BLOCKS);
            let from = (block - first) as usize * BLOCK_BYTES;
            let copy = AlignedBuf::copy_from(&payload[from..][..(piece_end - block) as usize * BLOCK_BYTES]);
            if piece_end - block == 1 {
                self.put(block, Block::whole(copy), &mut shrunk);
            } else {
                self.share(block, copy.into_bytes(), &mut shrunk);
            }
            block = piece_end;
        }
        self.settle(shrunk);
    }

    /// Inserts the blocks of one buffer.
    fn share(&mut self, first: u64, bytes: Bytes, shrunk: &mut Shrunk) {
        if bytes.len() == BLOCK_BYTES {
            return self.put(first, Block::Alone { bytes, in_parts: false }, shrunk);
        }
        let buffer = Buffer::new(first, bytes);
        for (index, number) in buffer.numbers().enumerate() {
            self.put(number, Block::Part { buffer: buffer.clone(), index }, shrunk);
        }
    }

    /// The older contents of a block, which were in flight, will not be named. True if there were any.
    pub(crate) fn recall(&mut self, block: u64) -> bool {
        let flying = self.is_in_flight(block);
        if flying {
            self.give_back([block]);
        }
        flying
    }

    /// Forgets the contents of placed blocks of a range: they have changed.
    pub(crate) fn forget_placed(&mut self, range: &Range<u64>) {
        self.placed.remove(range);
    }

    /// Forgets the contents of all placed blocks: they may have changed.
    pub(crate) fn forget_all_placed(&mut self) {
        self.placed.clear();
    }

    fn put(&mut self, number: u64, contents: Block, shrunk: &mut Shrunk) {
        match self.map.entry(number) {
            btree_map::Entry::Vacant(vacant) => {
                self.counts.add(&contents, BlockState::Dirty);
                vacant.insert(Entry { contents, state: BlockState::Dirty });
            }
            btree_map::Entry::Occupied(mut occupied) => {
                let state = after(occupied.get().state, Event::Written);
                self.counts.add(&contents, state);
                let old = occupied.insert(Entry { contents, state });
                self.counts.remove(&old.contents, old.state, shrunk);
            }
        }
    }
}

/// Submissions take dirty blocks, and syncs log them.
impl Blocks {
    /// Freezes the blocks that are not in the log, marks them as logged, and returns their contents
    /// for the log. Each gets a buffer of its own, because the memtable keeps the contents for
    /// longer than this map does. No block is in flight.
    pub(crate) fn log(&mut self) -> ToLog {
        let numbers: SmallVec<[u64; 4]> =
            self.in_state(BlockState::Dirty).map(|(number, _)| number).collect();
        let (mut logged, mut shrunk) = (ToLog::with_capacity(numbers.len()), Shrunk::new());
        for number in numbers {
            if let Some(Entry { contents, state }) = self.take_out(number, &mut shrunk) {
                let contents = if contents.is_alone() { contents.freeze() } else { contents.copy_out() };
                logged.push((number, contents.to_bytes()));
                self.enter(number, contents, after(state, Event::Logged));
            }
        }
        self.settle(shrunk);
        logged
    }

    /// The log does not have these blocks after all.
    pub(crate) fn unlog(&mut self, blocks: impl Iterator<Item = u64>) {
        for block in blocks {
            if self.map.get(&block).is_some_and(|entry| entry.state == BlockState::Logged) {
                self.change_state(block, after(BlockState::Logged, Event::Failed));
            }
        }
    }

    /// Removes at most `max` dirty blocks of a range and returns them frozen, in order.
    pub(crate) fn take(&mut self, first: u64, end: u64, max: u64) -> Vec<(u64, Block)> {
        let is_within = |block: &u64| (first..end).contains(block);
        let ends = (self.map.keys().next(), self.map.keys().next_back());
        let all = ends.0.is_none_or(is_within) && ends.1.is_none_or(is_within);
        if all && self.in_flight() == 0 && self.dirty() <= max {
            self.counts = Counts::default();
            let taken = std::mem::take(&mut self.map).into_iter();
            return taken
                .map(|(number, Entry { contents, .. })| {
                    contents.buffer().inspect(|buffer| buffer.set_here(0));
                    (number, contents.freeze())
                })
                .collect();
        }
        let numbers: Vec<u64> = self.numbers(first..end).take(max as usize).collect();
        self.take_each(numbers)
    }

    /// Removes those of these blocks that are dirty, and returns them frozen. (Only write-back takes
    /// blocks while others are in flight, and it takes others.)
    pub(crate) fn take_each(&mut self, numbers: impl IntoIterator<Item = u64>) -> Vec<(u64, Block)> {
        let mut shrunk = Shrunk::new();
        let mut taken: Vec<(u64, Block)> = Vec::new();
        for number in numbers {
            debug_assert!(!self.is_in_flight(number), "block {number} is taken while it is in flight");
            if self.is_dirty(number)
                && let Some(entry) = self.take_out(number, &mut shrunk)
            {
                taken.push((number, entry.contents.freeze()));
            }
        }
        if shrunk.iter().any(|buffer| buffer.here() > 0) {
            part_from(taken.iter_mut().map(|(number, block)| (*number, block)));
        }
        self.settle(shrunk);
        taken
    }

    /// Puts blocks back that were taken and could not be submitted, except where the map has newer
    /// contents.
    pub(crate) fn restore(&mut self, blocks: impl IntoIterator<Item = (u64, Block)>) {
        self.enter_each(blocks, BlockState::Dirty);
    }

    /// Puts blocks back that are in the log, except where the map has newer contents.
    pub(crate) fn restore_logged(&mut self, blocks: impl IntoIterator<Item = (u64, Block)>) {
        self.enter_each(blocks, BlockState::Logged);
    }
}

/// Write-back has blocks in flight.
impl Blocks {
    /// Write-back has started to write these blocks, which it took.
    pub(crate) fn take_off(&mut self, blocks: impl IntoIterator<Item = (u64, Block)>) {
        self.enter_each(blocks, after(BlockState::Dirty, Event::TakenOff));
    }

    /// Removes blocks that were written and are about to be named, as far as they are still in flight.
    pub(crate) fn land(&mut self, numbers: impl IntoIterator<Item = u64>) -> Landed {
        self.end_flight(numbers, Event::Named)
    }

    fn end_flight(&mut self, numbers: impl IntoIterator<Item = u64>, event: Event) -> Landed {
        let (mut landed, mut shrunk) = (Landed::new(), Shrunk::new());
        for number in numbers {
            match self.map.get(&number).map(|entry| entry.state) {
                Some(BlockState::InFlight) => {
                    let entry = self.take_out(number, &mut shrunk);
                    landed.push((number, entry.map(|entry| entry.contents)));
                }
                Some(state @ BlockState::Rewritten) => {
                    self.change_state(number, after(state, event));
                    landed.push((number, None));
                }
                _ => {}
            }
        }
        if shrunk.iter().any(|buffer| buffer.here() > 0) {
            part_from(landed.iter_mut().filter_map(|(number, block)| Some((*number, block.as_mut()?))));
        }
        self.settle(shrunk);
        landed
    }

    /// Undoes a [`land`](Self::land): the transaction has failed.
    pub(crate) fn unland(&mut self, landed: Landed) {
        for (number, _) in landed.iter().filter(|(_, block)| block.is_none()) {
            self.change_state(*number, BlockState::Rewritten);
        }
        self.take_off(landed.into_iter().filter_map(|(number, block)| Some((number, block?))));
    }

    /// Makes those of these blocks dirty that are in flight: they were not written, or will not be
    /// named.
    pub(crate) fn give_back(&mut self, numbers: impl IntoIterator<Item = u64>) {
        let landed = self.end_flight(numbers, Event::Failed);
        self.restore(landed.into_iter().filter_map(|(number, block)| Some((number, block?))));
    }
}

/// The map and its counts.
impl Blocks {
    /// Adds a block that is not here.
    fn enter(&mut self, number: u64, contents: Block, state: BlockState) {
        self.counts.add(&contents, state);
        self.map.insert(number, Entry { contents, state });
    }

    /// Adds blocks in this state, except where the map has newer contents.
    fn enter_each(&mut self, blocks: impl IntoIterator<Item = (u64, Block)>, state: BlockState) {
        let mut shrunk = Shrunk::new();
        for (number, contents) in blocks {
            // Perhaps not all blocks of its buffer come back.
            note(&mut shrunk, contents.buffer());
            match self.map.entry(number) {
                btree_map::Entry::Vacant(vacant) => {
                    self.counts.add(&contents, state);
                    vacant.insert(Entry { contents, state });
                }
                btree_map::Entry::Occupied(newer) => {
                    let is_flying = newer.get().state.is_flying();
                    debug_assert!(!is_flying, "block {number} comes back while it is in flight");
                }
            }
        }
        self.settle(shrunk);
    }

    fn take_out(&mut self, number: u64, shrunk: &mut Shrunk) -> Option<Entry> {
        let entry = self.map.remove(&number)?;
        self.counts.remove(&entry.contents, entry.state, shrunk);
        Some(entry)
    }

    /// Changes the state of a block that stays dirty.
    fn change_state(&mut self, number: u64, state: BlockState) {
        if let Some(entry) = self.map.get_mut(&number) {
            self.counts.change(entry.state, state);
            entry.state = state;
        }
    }

    /// Copies the remaining blocks out of buffers that have lost more than half of their blocks.
    /// Called only when a change has ended: a write over a whole buffer takes its blocks away one
    /// by one.
    fn settle(&mut self, shrunk: Shrunk) {
        for buffer in shrunk {
            if buffer.here() > 0 && buffer.is_wasted_on(buffer.here()) {
                self.leave(&buffer);
            }
        }
    }

    /// Copies the dirty blocks of `buffer`, each run of neighbours into a new buffer. As long as its
    /// blocks are in flight, the write keeps the buffer in memory anyway.
    fn leave(&mut self, buffer: &Arc<Buffer>) {
        let is_of = |block: &Block| block.buffer().is_some_and(|of| Arc::ptr_eq(of, buffer));
        let found = self.map.range_mut(buffer.numbers());
        let found = found.filter(|(_, entry)| entry.state.is_dirty() && is_of(&entry.contents));
        let mut found: Vec<(u64, &mut Block)> =
            found.map(|(&number, entry)| (number, &mut entry.contents)).collect();
        if found.is_empty() {
            return;
        }
        let copied = found.len() as u32;
        copy_out(&mut found);
        found.iter().filter_map(|(_, block)| block.buffer()).for_each(|copy| copy.set_here(copy.blocks()));
        buffer.set_here(0);
        self.counts.memory = self.counts.memory + copied - buffer.memory_blocks();
    }
}

/// The state after an event that the table has.
fn after(state: BlockState, event: Event) -> BlockState {
    let next = state.after(event);
    debug_assert!(next.is_some(), "{event:?} of a block that is {state:?}");
    next.unwrap_or(state)
}

#[cfg(test)]
mod tests;
