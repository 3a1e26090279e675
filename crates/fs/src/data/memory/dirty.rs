//! File blocks in memory that are not yet, or not yet safely, on the device.
//!
//! Invariant, between changes of a map: if blocks of the map share a buffer, the map has at least
//! half of that buffer's blocks. So the memory that the map keeps alive is at most twice its
//! contents, whichever blocks of large writes are truncated, punched out or rewritten. When a
//! buffer has lost more than half of its blocks, the rest is copied out of it. Since half of the
//! buffer has gone before that, no more is ever copied than was written.

use super::block::{Block, Buffer};
use super::numbers::Numbers;
use bytes::Bytes;
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;
use syncline_device::{AlignedBuf, BLOCK_BYTES};

/// A payload is copied in pieces of this many blocks (64 KiB), aligned to that size in the file.
const COPY_BLOCKS: u64 = 16;

/// Blocks by number.
#[derive(Default)]
pub(crate) struct BlockMap {
    blocks: BTreeMap<u64, Block>,
    /// The blocks among them whose contents are in the log. Few, mostly none.
    logged: Numbers,
    /// Blocks of memory that the contents keep alive. There is no memory for 2^32 of them.
    memory_blocks: u32,
}

/// Blocks that a transaction is to log, with their contents.
pub(crate) type ToLog = SmallVec<[(u64, Bytes); 2]>;

/// Buffers that lost blocks in a change.
type Shrunk = SmallVec<[Arc<Buffer>; 2]>;

impl BlockMap {
    pub(crate) fn len(&self) -> u64 {
        self.blocks.len() as u64
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Blocks of memory that the contents keep alive: a shared buffer counts in full while any of
    /// its blocks is here.
    pub(crate) fn memory_blocks(&self) -> u32 {
        self.memory_blocks
    }

    pub(crate) fn contains(&self, block: u64) -> bool {
        self.blocks.contains_key(&block)
    }

    pub(crate) fn get(&self, block: u64) -> Option<&Block> {
        self.blocks.get(&block)
    }

    pub(crate) fn insert(&mut self, block: u64, contents: Block) {
        let mut shrunk = Shrunk::new();
        self.put(block, contents, &mut shrunk);
        self.settle(shrunk);
    }

    pub(crate) fn remove(&mut self, block: u64) -> Option<Block> {
        let mut shrunk = Shrunk::new();
        let contents = self.take_out(block, &mut shrunk);
        self.settle(shrunk);
        contents
    }

    /// Number of blocks that are not in the log.
    pub(crate) fn unlogged(&self) -> u64 {
        self.len() - self.logged.len()
    }

    /// The first block at or after `block` that is not in the log.
    pub(crate) fn next_unlogged(&self, block: u64) -> Option<u64> {
        self.numbers(block..).find(|&block| !self.logged.contains(block))
    }

    #[cfg(test)]
    pub(crate) fn is_logged(&self, block: u64) -> bool {
        self.logged.contains(block)
    }

    /// The blocks that are not in the log.
    fn unlogged_numbers(&self) -> SmallVec<[u64; 4]> {
        let mut logged = self.logged.within(0..u64::MAX).peekable();
        self.blocks.keys().copied().filter(|block| logged.next_if_eq(block).is_none()).collect()
    }

    /// Marks a block as logged. It must be frozen and in this map.
    pub(crate) fn set_logged(&mut self, block: u64) {
        debug_assert!(self.contains(block));
        self.logged.insert(block);
    }

    /// Freezes the blocks that are not in the log, marks them as logged, and returns their contents
    /// for the log. Each gets a buffer of its own, because the memtable keeps the contents for
    /// longer than this map does.
    pub(crate) fn log(&mut self) -> ToLog {
        let numbers = self.unlogged_numbers();
        let (mut logged, mut shrunk) = (ToLog::with_capacity(numbers.len()), Shrunk::new());
        for number in numbers {
            if let Some(block) = self.take_out(number, &mut shrunk) {
                let frozen = if block.is_alone() { block.freeze() } else { block.copy_out() };
                logged.push((number, frozen.to_bytes()));
                self.put(number, frozen, &mut shrunk);
                self.logged.insert(number);
            }
        }
        self.settle(shrunk);
        logged
    }

    /// The logged blocks, which are frozen.
    pub(crate) fn logged(&self) -> Vec<(u64, Block)> {
        let numbers = self.logged.within(0..u64::MAX);
        numbers.filter_map(|number| Some((number, self.blocks.get(&number)?.share()))).collect()
    }

    /// True when a block is still as [`logged`](Self::logged) returned it: it is in the log and has
    /// not been written since.
    pub(crate) fn has_logged(&self, number: u64, block: &Block) -> bool {
        // `block` keeps its memory alive, so no other contents can have the same address.
        let same = |here: &Block| here.as_slice().as_ptr() == block.as_slice().as_ptr();
        self.logged.contains(number) && self.blocks.get(&number).is_some_and(same)
    }

    /// Removes the logged mark of `blocks`: the log does not have them after all.
    pub(crate) fn unlog(&mut self, blocks: impl Iterator<Item = u64>) {
        blocks.for_each(|block| self.logged.remove(block));
    }

    /// The first block at or after `block`.
    pub(crate) fn next(&self, block: u64) -> Option<u64> {
        self.blocks.range(block..).next().map(|(&block, _)| block)
    }

    /// The last block.
    pub(crate) fn last(&self) -> Option<u64> {
        self.blocks.last_key_value().map(|(&block, _)| block)
    }

    /// Number of blocks of `range` that are here.
    pub(crate) fn count(&self, range: impl RangeBounds<u64>) -> u64 {
        self.blocks.range(range).count() as u64
    }

    /// The blocks of a range, in order.
    pub(crate) fn numbers(&self, range: impl RangeBounds<u64>) -> impl Iterator<Item = u64> + '_ {
        self.blocks.range(range).map(|(&block, _)| block)
    }

    /// The blocks `first..end` that are here, last one first.
    pub(crate) fn numbers_backwards(&self, first: u64, end: u64) -> impl Iterator<Item = u64> + '_ {
        self.blocks.range(first..end).rev().map(|(&block, _)| block)
    }

    /// Removes all blocks from `block` on.
    pub(crate) fn truncate(&mut self, block: u64) {
        let mut shrunk = Shrunk::new();
        let gone = self.blocks.split_off(&block);
        gone.values().for_each(|block| self.uncount(block, &mut shrunk));
        self.logged.truncate(block);
        self.settle(shrunk);
    }

    /// Overwrites bytes of a block. A block that is not here yet starts as a copy of `base`, or as
    /// zeros without one.
    pub(crate) fn patch(&mut self, block: u64, at: usize, bytes: &[u8], base: Option<&[u8]>) {
        self.logged.remove(block);
        if !self.contains(block) {
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
        self.logged.remove(block);
        self.change(block, |contents| contents[at..].fill(0));
    }

    /// Applies `change` to a block if it is here. If others see its contents, a changed copy
    /// replaces it.
    fn change(&mut self, block: u64, change: impl FnOnce(&mut [u8])) {
        let Some(contents) = self.blocks.get_mut(&block) else { return };
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

    /// Removes at most `max` blocks of a range and returns them frozen, in order.
    pub(crate) fn take(&mut self, first: u64, end: u64, max: u64) -> Vec<(u64, Block)> {
        let all =
            self.next(0).is_none_or(|block| block >= first) && self.last().is_none_or(|block| block < end);
        if all && self.len() <= max {
            self.logged.clear();
            self.memory_blocks = 0;
            let blocks = std::mem::take(&mut self.blocks).into_iter();
            return blocks
                .map(|(number, block)| {
                    block.buffer().inspect(|buffer| buffer.set_here(0));
                    (number, block.freeze())
                })
                .collect();
        }
        let range = (Bound::Included(first), Bound::Excluded(end));
        let numbers: Vec<u64> = self.numbers(range).take(max as usize).collect();
        self.take_each(numbers)
    }

    /// Removes those of these blocks that are here, and returns them frozen.
    pub(crate) fn take_each(&mut self, numbers: impl IntoIterator<Item = u64>) -> Vec<(u64, Block)> {
        let mut shrunk = Shrunk::new();
        let mut taken: Vec<(u64, Block)> = Vec::new();
        for number in numbers {
            if let Some(block) = self.take_out(number, &mut shrunk) {
                taken.push((number, block.freeze()));
            }
        }
        if shrunk.iter().any(|buffer| buffer.here() > 0) {
            part_from(&mut taken);
        }
        self.settle(shrunk);
        taken
    }

    /// Inserts blocks, except where the map has newer contents.
    pub(crate) fn restore(&mut self, blocks: impl IntoIterator<Item = (u64, Block)>) {
        let mut shrunk = Shrunk::new();
        for (number, block) in blocks {
            // Perhaps not all blocks of its buffer come back.
            note(&mut shrunk, block.buffer());
            if !self.contains(number) {
                self.count_in(&block);
                self.blocks.insert(number, block);
            }
        }
        self.settle(shrunk);
    }

    /// Inserts blocks that are in the log, except where the map has newer contents.
    pub(crate) fn restore_logged(&mut self, blocks: Vec<(u64, Block)>) {
        for (number, block) in blocks {
            if !self.contains(number) {
                self.insert(number, block);
                self.logged.insert(number);
            }
        }
    }

    fn put(&mut self, number: u64, block: Block, shrunk: &mut Shrunk) {
        self.logged.remove(number);
        self.count_in(&block);
        if let Some(old) = self.blocks.insert(number, block) {
            self.uncount(&old, shrunk);
        }
    }

    fn take_out(&mut self, number: u64, shrunk: &mut Shrunk) -> Option<Block> {
        self.logged.remove(number);
        let block = self.blocks.remove(&number)?;
        self.uncount(&block, shrunk);
        Some(block)
    }

    fn count_in(&mut self, block: &Block) {
        match block.buffer() {
            None => self.memory_blocks += 1,
            Some(buffer) => {
                let here = buffer.here();
                buffer.set_here(here + 1);
                self.memory_blocks += if here == 0 { buffer.memory_blocks() } else { 0 };
            }
        }
    }

    fn uncount(&mut self, block: &Block, shrunk: &mut Shrunk) {
        match block.buffer() {
            None => self.memory_blocks -= 1,
            Some(buffer) => {
                let here = buffer.here() - 1;
                buffer.set_here(here);
                self.memory_blocks -= if here == 0 { buffer.memory_blocks() } else { 0 };
                note(shrunk, Some(buffer));
            }
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

    /// Copies the blocks of `buffer` that are here, each run of neighbours into a new buffer.
    fn leave(&mut self, buffer: &Arc<Buffer>) {
        let is_of = |block: &Block| block.buffer().is_some_and(|of| Arc::ptr_eq(of, buffer));
        let found = self.blocks.range_mut(buffer.numbers()).filter(|(_, block)| is_of(block));
        let mut found: Vec<(u64, &mut Block)> = found.map(|(&number, block)| (number, block)).collect();
        let copied = found.len() as u32;
        copy_out(&mut found);
        found.iter().filter_map(|(_, block)| block.buffer()).for_each(|copy| copy.set_here(copy.blocks()));
        buffer.set_here(0);
        self.memory_blocks = self.memory_blocks + copied - buffer.memory_blocks();
    }
}

/// Adds a buffer to the list, unless it is the last one there.
fn note(shrunk: &mut Shrunk, buffer: Option<&Arc<Buffer>>) {
    if let Some(buffer) = buffer
        && shrunk.last().is_none_or(|last| !Arc::ptr_eq(last, buffer))
    {
        shrunk.push(buffer.clone());
    }
}

/// Makes blocks that were taken out (in order) share no buffer with those that stayed. Blocks that
/// are only a small part of a buffer are copied.
fn part_from(taken: &mut [(u64, Block)]) {
    let mut by_buffer: BTreeMap<usize, Vec<(u64, &mut Block)>> = BTreeMap::new();
    for (number, block) in taken {
        if let Some(buffer) = block.buffer()
            && buffer.here() > 0
        {
            by_buffer.entry(Arc::as_ptr(buffer) as usize).or_default().push((*number, block));
        }
    }
    for mut blocks in by_buffer.into_values() {
        let Some(buffer) = blocks[0].1.buffer().cloned() else { continue };
        if buffer.is_wasted_on(blocks.len() as u64) {
            copy_out(&mut blocks);
            continue;
        }
        let apart = buffer.apart();
        for (_, block) in blocks {
            if let Block::Part { buffer, .. } = block {
                *buffer = apart.clone();
            }
        }
    }
}

/// Replaces blocks (in order) by copies. Neighbours get one common buffer, so that they can be
/// written from one.
fn copy_out(blocks: &mut [(u64, &mut Block)]) {
    for run in blocks.chunk_by_mut(|(a, _), (b, _)| a + 1 == *b) {
        if let [(_, block)] = run {
            **block = block.copy_out();
            continue;
        }
        let mut copy = AlignedBuf::for_read(run.len() * BLOCK_BYTES);
        for (piece, (_, block)) in copy.chunks_exact_mut(BLOCK_BYTES).zip(&*run) {
            piece.copy_from_slice(block.as_slice());
        }
        let buffer = Buffer::new(run[0].0, copy.into_bytes());
        for (index, (_, block)) in run.iter_mut().enumerate() {
            **block = Block::Part { buffer: buffer.clone(), index };
        }
    }
}

#[cfg(test)]
mod tests;
