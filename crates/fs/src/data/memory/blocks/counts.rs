//! What a map of blocks has, and the memory that it keeps alive: the buffers that blocks share.

use super::BlockState;
use crate::data::memory::block::{Block, Buffer};
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::sync::Arc;
use syncline_device::{AlignedBuf, BLOCK_BYTES};

/// Numbers of blocks in the map, by state. A u32 is enough: no memory holds 2^32 blocks.
#[derive(Default)]
pub(super) struct Counts {
    pub dirty: u32,
    pub logged: u32,
    pub flying: u32,
    /// Blocks of memory that dirty contents keep alive.
    pub memory: u32,
    /// Blocks of memory that contents in flight keep alive.
    pub flying_memory: u32,
}

/// Buffers that lost blocks in a change.
pub(super) type Shrunk = SmallVec<[Arc<Buffer>; 2]>;

impl Counts {
    pub(super) fn add(&mut self, contents: &Block, state: BlockState) {
        self.count(state, 1);
        let memory = match contents.buffer() {
            None => 1,
            Some(buffer) => {
                let here = buffer.here();
                buffer.set_here(here + 1);
                if here == 0 { buffer.memory_blocks() } else { 0 }
            }
        };
        *self.memory_of(state) += memory;
    }

    /// Counts a block no more. If it has a part of a buffer, the buffer has shrunk.
    pub(super) fn remove(&mut self, contents: &Block, state: BlockState, shrunk: &mut Shrunk) {
        self.count(state, -1);
        let memory = match contents.buffer() {
            None => 1,
            Some(buffer) => {
                let here = buffer.here() - 1;
                buffer.set_here(here);
                note(shrunk, Some(buffer));
                if here == 0 { buffer.memory_blocks() } else { 0 }
            }
        };
        *self.memory_of(state) -= memory;
    }

    /// Counts a dirty block in another state, in which it is dirty too.
    pub(super) fn change(&mut self, from: BlockState, to: BlockState) {
        self.count(from, -1);
        self.count(to, 1);
    }

    fn count(&mut self, state: BlockState, by: i32) {
        let add = |number: &mut u32, is_one: bool| {
            *number = number.wrapping_add_signed(if is_one { by } else { 0 });
        };
        add(&mut self.dirty, state.is_dirty());
        add(&mut self.logged, state == BlockState::Logged);
        add(&mut self.flying, state.is_flying());
    }

    /// The memory that contents of blocks in this state keep alive.
    fn memory_of(&mut self, state: BlockState) -> &mut u32 {
        if state == BlockState::InFlight { &mut self.flying_memory } else { &mut self.memory }
    }
}

/// Adds a buffer to the list, unless it is the last one there.
pub(super) fn note(shrunk: &mut Shrunk, buffer: Option<&Arc<Buffer>>) {
    if let Some(buffer) = buffer
        && shrunk.last().is_none_or(|last| !Arc::ptr_eq(last, buffer))
    {
        shrunk.push(buffer.clone());
    }
}

/// Makes blocks that were taken out (in order) share no buffer with those that stayed. Blocks that
/// are only a small part of a buffer are copied.
pub(super) fn part_from<'a>(taken: impl Iterator<Item = (u64, &'a mut Block)>) {
    let mut by_buffer: BTreeMap<usize, Vec<(u64, &mut Block)>> = BTreeMap::new();
    for (number, block) in taken {
        if let Some(buffer) = block.buffer()
            && buffer.here() > 0
        {
            by_buffer.entry(Arc::as_ptr(buffer) as usize).or_default().push((number, block));
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
pub(super) fn copy_out(blocks: &mut [(u64, &mut Block)]) {
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
