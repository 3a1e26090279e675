//! File blocks that exist in memory and not yet, or not yet safely, on the device.

use super::numbers::Numbers;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::ops::{Bound, RangeBounds};
use syncline_device::{AlignedBuf, BLOCK_BYTES};

/// Blocks of the pieces in which a payload is copied: 64 KiB, at multiples of that in the file.
const COPY_BLOCKS: u64 = 16;

/// The contents of one block.
pub(crate) enum Block {
    /// A buffer of its own, still changeable: nobody else sees it and its checksum was not taken.
    Owned { buf: AlignedBuf, in_parts: bool },
    /// Block number `index` of a buffer that others share. Never changed (rule R7): writers copy.
    Shared {
        /// A multiple of a block.
        buf: Bytes,
        index: usize,
        in_parts: bool,
    },
}

impl Block {
    /// What was written at once.
    pub(crate) fn whole(buf: AlignedBuf) -> Self {
        Block::Owned { buf, in_parts: false }
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        match self {
            Block::Owned { buf, .. } => buf,
            Block::Shared { buf, index, .. } => &buf[index * BLOCK_BYTES..][..BLOCK_BYTES],
        }
    }

    /// The contents as shared bytes; a copy when the buffer may still change.
    pub(crate) fn to_bytes(&self) -> Bytes {
        match self {
            Block::Owned { buf, .. } => AlignedBuf::copy_from(buf).into_bytes(),
            Block::Shared { buf, index, .. } => buf.slice(index * BLOCK_BYTES..(index + 1) * BLOCK_BYTES),
        }
    }

    /// The same contents, never to be changed again.
    pub(crate) fn freeze(self) -> Block {
        match self {
            Block::Owned { buf, in_parts } => Block::Shared { buf: buf.into_bytes(), index: 0, in_parts },
            shared => shared,
        }
    }

    /// Another handle on frozen contents, or a copy of changeable ones.
    pub(crate) fn share(&self) -> Block {
        match self {
            Block::Owned { in_parts, .. } => {
                Block::Shared { buf: self.to_bytes(), index: 0, in_parts: *in_parts }
            }
            Block::Shared { buf, index, in_parts } => {
                Block::Shared { buf: buf.clone(), index: *index, in_parts: *in_parts }
            }
        }
    }

    /// True when dropping the block would free all the memory that it keeps alive.
    pub(crate) fn is_alone(&self) -> bool {
        self.as_slice().len() == self.buffer_len()
    }

    /// True when it began with a write of a part of it: the kernel's page cache does not have it whole.
    pub(crate) fn is_in_parts(&self) -> bool {
        match self {
            Block::Owned { in_parts, .. } | Block::Shared { in_parts, .. } => *in_parts,
        }
    }

    fn buffer_len(&self) -> usize {
        match self {
            Block::Owned { buf, .. } => buf.len(),
            Block::Shared { buf, .. } => buf.len(),
        }
    }

    /// The contents for changing; copies them first if they are shared.
    fn make_mut(&mut self) -> &mut [u8] {
        if let Block::Shared { in_parts, .. } = self {
            *self = Block::Owned { in_parts: *in_parts, buf: AlignedBuf::copy_from(self.as_slice()) };
        }
        match self {
            Block::Owned { buf, .. } => buf,
            Block::Shared { .. } => unreachable!("was replaced by a copy"),
        }
    }
}

/// Blocks by number.
#[derive(Default)]
pub(crate) struct BlockMap {
    blocks: BTreeMap<u64, Block>,
    /// Of these, the ones whose contents the log has, whole. Few, mostly none.
    logged: Numbers,
}

impl BlockMap {
    pub(crate) fn len(&self) -> u64 {
        self.blocks.len() as u64
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    pub(crate) fn contains(&self, block: u64) -> bool {
        self.blocks.contains_key(&block)
    }

    pub(crate) fn get(&self, block: u64) -> Option<&Block> {
        self.blocks.get(&block)
    }

    pub(crate) fn insert(&mut self, block: u64, contents: Block) {
        self.logged.remove(block);
        self.blocks.insert(block, contents);
    }

    pub(crate) fn remove(&mut self, block: u64) -> Option<Block> {
        self.logged.remove(block);
        self.blocks.remove(&block)
    }

    /// How many of the blocks the log does not have.
    pub(crate) fn unlogged(&self) -> u64 {
        self.len() - self.logged.len()
    }

    /// The first block at or after `block` that the log does not have.
    pub(crate) fn next_unlogged(&self, block: u64) -> Option<u64> {
        self.numbers(block..).find(|&block| !self.logged.contains(block))
    }

    #[cfg(test)]
    pub(crate) fn is_logged(&self, block: u64) -> bool {
        self.logged.contains(block)
    }

    /// Notes that the log has a block, which is frozen and here.
    pub(crate) fn set_logged(&mut self, block: u64) {
        debug_assert!(self.contains(block));
        self.logged.insert(block);
    }

    /// Freezes the blocks that the log does not have, and returns their contents: it is to have them.
    pub(crate) fn log(&mut self) -> Vec<(u64, Bytes)> {
        let mut logged = Vec::new();
        for (&number, block) in &mut self.blocks {
            if self.logged.insert(number) {
                let nothing = Block::Shared { buf: Bytes::new(), index: 0, in_parts: false };
                *block = std::mem::replace(block, nothing).freeze();
                logged.push((number, block.to_bytes()));
            }
        }
        logged
    }

    /// The log does not have these after all.
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

    /// How many of the blocks `range` are here.
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

    /// Forgets everything from `block` on.
    pub(crate) fn truncate(&mut self, block: u64) {
        drop(self.blocks.split_off(&block));
        self.logged.truncate(block);
    }

    /// Changes bytes of a block, which starts from `base` (zeros where there is none) if it is not here yet.
    pub(crate) fn patch(&mut self, block: u64, at: usize, bytes: &[u8], base: Option<&[u8]>) {
        self.logged.remove(block);
        let contents = self.blocks.entry(block).or_insert_with(|| {
            let buf = match base {
                Some(base) => AlignedBuf::copy_from(base),
                None => AlignedBuf::zeroed(BLOCK_BYTES),
            };
            Block::Owned { buf, in_parts: true }
        });
        contents.make_mut()[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// Makes the bytes of a block from `at` on zero, if the block is here.
    pub(crate) fn zero_from(&mut self, block: u64, at: usize) {
        self.logged.remove(block);
        if let Some(contents) = self.blocks.get_mut(&block) {
            contents.make_mut()[at..].fill(0);
        }
    }

    /// Replaces whole blocks from `first` on by `payload`, a multiple of a block. Without a copy if the payload lies at a
    /// multiple of a block in memory, else with one copy in pieces of a size that buffers are kept for.
    pub(crate) fn replace(&mut self, first: u64, payload: &Bytes) {
        if (payload.as_ptr() as usize).is_multiple_of(BLOCK_BYTES) {
            self.share(first, payload);
            return;
        }
        let end = first + (payload.len() / BLOCK_BYTES) as u64;
        let mut block = first;
        while block < end {
            let piece_end = end.min(block - block % COPY_BLOCKS + COPY_BLOCKS);
            let from = (block - first) as usize * BLOCK_BYTES;
            let copy = AlignedBuf::copy_from(&payload[from..][..(piece_end - block) as usize * BLOCK_BYTES]);
            if piece_end - block == 1 {
                self.insert(block, Block::whole(copy));
            } else {
                self.share(block, &copy.into_bytes());
            }
            block = piece_end;
        }
    }

    /// Puts the blocks of one buffer here.
    fn share(&mut self, first: u64, buf: &Bytes) {
        for index in 0..buf.len() / BLOCK_BYTES {
            self.insert(first + index as u64, Block::Shared { buf: buf.clone(), index, in_parts: false });
        }
    }

    /// Takes at most `max` blocks of a range out, frozen, in order.
    pub(crate) fn take(&mut self, first: u64, end: u64, max: u64) -> Vec<(u64, Block)> {
        let all =
            self.next(0).is_none_or(|block| block >= first) && self.last().is_none_or(|block| block < end);
        if all && self.len() <= max {
            self.logged.clear();
            return std::mem::take(&mut self.blocks)
                .into_iter()
                .map(|(block, it)| (block, it.freeze()))
                .collect();
        }
        let range = (Bound::Included(first), Bound::Excluded(end));
        let numbers: Vec<u64> = self.numbers(range).take(max as usize).collect();
        numbers
            .into_iter()
            .filter_map(|block| self.remove(block).map(|contents| (block, contents.freeze())))
            .collect()
    }

    /// Puts blocks (back) where nothing newer is.
    pub(crate) fn restore(&mut self, blocks: impl IntoIterator<Item = (u64, Block)>) {
        for (block, contents) in blocks {
            self.blocks.entry(block).or_insert(contents);
        }
    }
}

/// The fewest buffers that hold these frozen blocks one after the other.
pub(crate) fn gather(blocks: &[(u64, Block)]) -> Vec<Bytes> {
    let mut bufs = Vec::new();
    let mut start = 0;
    while start < blocks.len() {
        let mut end = start + 1;
        while end < blocks.len() && follows(&blocks[end - 1].1, &blocks[end].1) {
            end += 1;
        }
        bufs.push(match &blocks[start].1 {
            Block::Shared { buf, index, .. } => {
                buf.slice(index * BLOCK_BYTES..(index + end - start) * BLOCK_BYTES)
            }
            owned => owned.to_bytes(),
        });
        start = end;
    }
    bufs
}

/// True when `next` lies right after `block` in the same buffer.
fn follows(block: &Block, next: &Block) -> bool {
    match (block, next) {
        (Block::Shared { buf: a, index: i, .. }, Block::Shared { buf: b, index: j, .. }) => {
            a.as_ptr() == b.as_ptr() && a.len() == b.len() && *j == *i + 1
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn payload(blocks: usize, byte: u8) -> Bytes {
        Bytes::from(vec![byte; blocks * BLOCK_BYTES])
    }

    #[test]
    fn a_large_write_is_one_buffer_for_each_piece() {
        let mut map = BlockMap::default();
        map.replace(30, &payload(20, 7));
        let taken = map.take(0, u64::MAX, 1000);
        assert_eq!(taken.len(), 20);
        let bufs = gather(&taken);
        assert_eq!(bufs.iter().map(|buf| buf.len() / BLOCK_BYTES).collect::<Vec<_>>(), [2, 16, 2]);
        assert!(bufs.iter().all(|buf| (buf.as_ptr() as usize).is_multiple_of(BLOCK_BYTES)));
    }

    #[test]
    fn an_aligned_payload_is_not_copied() {
        let buf = AlignedBuf::copy_from(&[9; 16 * BLOCK_BYTES]).into_bytes();
        let mut map = BlockMap::default();
        map.replace(16, &buf);
        let bufs = gather(&map.take(0, u64::MAX, 1000));
        assert_eq!(bufs.len(), 1);
        assert_eq!(bufs[0].as_ptr(), buf.as_ptr());
    }

    #[test]
    fn small_appends_stay_in_one_buffer_until_it_is_frozen() {
        let mut map = BlockMap::default();
        map.patch(3, 0, b"one", None);
        let address = map.get(3).unwrap().as_slice().as_ptr();
        map.patch(3, 3, b"two", None);
        assert_eq!(map.get(3).unwrap().as_slice().as_ptr(), address);
        let taken = map.take(0, u64::MAX, 1);
        assert_eq!(taken[0].1.as_slice().as_ptr(), address, "freezing copies nothing");
        map.restore([(3, taken[0].1.share())]);
        map.patch(3, 6, b"three", None);
        assert_eq!(&taken[0].1.as_slice()[..8], b"onetwo\0\0", "a frozen buffer never changes (R7)");
        assert_eq!(&map.get(3).unwrap().as_slice()[..11], b"onetwothree");
    }

    #[test]
    fn restoring_never_replaces_newer_contents() {
        let mut map = BlockMap::default();
        map.patch(1, 0, b"old", None);
        let taken = map.take(0, u64::MAX, 9);
        map.patch(1, 0, b"new", None);
        map.restore(taken);
        assert_eq!(&map.get(1).unwrap().as_slice()[..3], b"new");
    }

    proptest! {
        /// Patches, whole blocks, truncation and takes against plain bytes.
        #[test]
        fn the_map_follows_plain_bytes(
            steps in proptest::collection::vec((0..5u8, 0..20usize, 0..BLOCK_BYTES, 1..3000usize, any::<u8>()), 1..60)
        ) {
            let mut map = BlockMap::default();
            let mut model: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
            let mut frozen: Vec<(Block, Vec<u8>)> = Vec::new();
            for (what, block, at, len, byte) in steps {
                let number = block as u64;
                match what {
                    0 | 1 => {
                        let len = len.min(BLOCK_BYTES - at);
                        map.patch(number, at, &vec![byte; len], Some(&[byte ^ 0xff; BLOCK_BYTES]));
                        let bytes = model.entry(number).or_insert(vec![byte ^ 0xff; BLOCK_BYTES]);
                        bytes[at..at + len].fill(byte);
                    }
                    2 => {
                        let blocks = 1 + len % 40;
                        map.replace(number, &payload(blocks, byte));
                        for index in 0..blocks as u64 {
                            model.insert(number + index, vec![byte; BLOCK_BYTES]);
                        }
                    }
                    3 => {
                        map.zero_from(number, at);
                        map.truncate(number + 1);
                        model.retain(|&key, _| key <= number);
                        if let Some(bytes) = model.get_mut(&number) {
                            bytes[at..].fill(0);
                        }
                    }
                    _ => {
                        for (number, contents) in map.take(number, number + 10, 4) {
                            let expected = model.remove(&number).expect("the model has it too");
                            prop_assert_eq!(contents.as_slice(), &expected[..]);
                            frozen.push((contents, expected));
                        }
                    }
                }
                prop_assert_eq!(map.numbers(..).collect::<Vec<_>>(), model.keys().copied().collect::<Vec<_>>());
                for (&number, bytes) in &model {
                    prop_assert_eq!(map.get(number).unwrap().as_slice(), &bytes[..]);
                }
            }
            // Rule R7: what was taken is as it was.
            for (contents, expected) in &frozen {
                prop_assert_eq!(contents.as_slice(), &expected[..]);
            }
        }
    }
}
