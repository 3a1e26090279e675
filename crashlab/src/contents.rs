//! The contents of a file: blocks that versions of a tree share, and a digest that costs nothing to ask
//! for.

use rpds::RedBlackTreeMapSync;
use siphasher::sip128::{Hasher128, SipHasher13};
use std::hash::Hasher;
use std::sync::Arc;

/// Bytes of a block.
pub const BLOCK_BYTES: u64 = 4096;

#[derive(Debug)]
struct Block {
    bytes: Box<[u8]>,
    digest: u128,
}

impl Block {
    /// `None` if all bytes are zero: such blocks are not kept.
    fn new(index: u64, bytes: Box<[u8]>) -> Option<Arc<Self>> {
        if bytes.iter().all(|byte| *byte == 0) {
            return None;
        }
        let mut hasher = SipHasher13::new();
        hasher.write_u64(index);
        hasher.write(&bytes);
        Some(Arc::new(Self { digest: hasher.finish128().as_u128(), bytes }))
    }
}

/// The contents of a file. Cloning is cheap.
#[derive(Clone, Default, Debug)]
pub struct Contents {
    len: u64,
    blocks: RedBlackTreeMapSync<u64, Arc<Block>>,
    /// The sum of the blocks' digests.
    sum: u128,
}

impl Contents {
    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// True for an empty file.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes in blocks that are not all zero.
    pub fn allocated_bytes(&self) -> u64 {
        self.blocks.size() as u64 * BLOCK_BYTES
    }

    /// A digest of length and bytes; holes and zeros are the same.
    pub fn digest(&self) -> u128 {
        self.sum.wrapping_add(u128::from(self.len) << 64 | 1)
    }

    /// Writes bytes, and extends the file if they end behind its end.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) {
        let mut done = 0;
        while done < bytes.len() {
            let (index, at) = place(offset + done as u64);
            let len = (bytes.len() - done).min(BLOCK_BYTES as usize - at);
            let new = &bytes[done..done + len];
            self.change(index, |block| block[at..at + len].copy_from_slice(new));
            done += len;
        }
        if !bytes.is_empty() {
            self.len = self.len.max(offset + bytes.len() as u64);
        }
    }

    /// Cuts the file off, or extends it with zeros.
    pub fn truncate(&mut self, len: u64) {
        if len < self.len {
            self.zero(len, self.len);
        }
        self.len = len;
    }

    /// Zeroes the bytes from `begin` to `end`, and leaves the length alone.
    pub fn zero(&mut self, begin: u64, end: u64) {
        let last = end.min(self.len);
        let indexes: Vec<u64> = match begin < last {
            true => {
                self.blocks.range(begin / BLOCK_BYTES..=(last - 1) / BLOCK_BYTES).map(|(i, _)| *i).collect()
            }
            false => return,
        };
        for index in indexes {
            let start = index * BLOCK_BYTES;
            let from = begin.saturating_sub(start) as usize;
            let to = (last - start).min(BLOCK_BYTES) as usize;
            self.change(index, |block| block[from..to].fill(0));
        }
    }

    /// The bytes from `offset` on, at most `len`.
    pub fn read(&self, offset: u64, len: usize) -> Vec<u8> {
        let end = self.len.min(offset.saturating_add(len as u64));
        let mut bytes = vec![0; end.saturating_sub(offset) as usize];
        if bytes.is_empty() {
            return bytes;
        }
        for (index, block) in self.blocks.range(offset / BLOCK_BYTES..=(end - 1) / BLOCK_BYTES) {
            let start = index * BLOCK_BYTES;
            let (from, to) = (start.max(offset), (start + BLOCK_BYTES).min(end));
            bytes[(from - offset) as usize..(to - offset) as usize]
                .copy_from_slice(&block.bytes[(from - start) as usize..(to - start) as usize]);
        }
        bytes
    }

    /// The blocks that are not all zero: offset and bytes, cut off at the end of the file.
    pub fn pieces(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.blocks.iter().map(|(index, block)| {
            let start = index * BLOCK_BYTES;
            (start, &block.bytes[..(self.len - start).min(BLOCK_BYTES) as usize])
        })
    }

    /// Makes a block, as far as the file goes, that of another file.
    pub fn take_block(&mut self, index: u64, from: &Self) {
        let start = index * BLOCK_BYTES;
        let len = self.len.saturating_sub(start).min(BLOCK_BYTES) as usize;
        let bytes = from.read(start, len);
        self.change(index, |block| {
            block[..bytes.len()].copy_from_slice(&bytes);
            block[bytes.len()..].fill(0);
        });
    }

    fn change(&mut self, index: u64, change: impl FnOnce(&mut [u8])) {
        let old = self.blocks.get(&index);
        let mut bytes =
            old.map_or_else(|| vec![0; BLOCK_BYTES as usize].into_boxed_slice(), |old| old.bytes.clone());
        self.sum = self.sum.wrapping_sub(old.map_or(0, |old| old.digest));
        change(&mut bytes);
        match Block::new(index, bytes) {
            Some(block) => {
                self.sum = self.sum.wrapping_add(block.digest);
                self.blocks.insert_mut(index, block);
            }
            None => drop(self.blocks.remove_mut(&index)),
        }
    }
}

/// The block of an offset, and the place in it.
fn place(offset: u64) -> (u64, usize) {
    (offset / BLOCK_BYTES, (offset % BLOCK_BYTES) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_back_across_blocks_and_holes() {
        let mut contents = Contents::default();
        contents.write(4000, &[7; 200]);
        assert_eq!(contents.len(), 4200);
        assert_eq!(contents.read(3999, 3), [0, 7, 7]);
        assert_eq!(contents.read(4199, 10), [7]);
        assert!(contents.read(5000, 10).is_empty());
        contents.truncate(4100);
        contents.truncate(8192);
        assert_eq!(contents.read(4099, 2), [7, 0], "what was cut off is zero");
        assert_eq!(
            contents.pieces().map(|(at, bytes)| (at, bytes.len())).collect::<Vec<_>>(),
            [(0, 4096), (4096, 4096)]
        );
    }

    #[test]
    fn equal_bytes_have_equal_digests_however_they_came() {
        let mut one = Contents::default();
        one.write(0, &[1; 5000]);
        one.zero(100, 4999);
        let mut other = Contents::default();
        other.truncate(5000);
        other.write(4999, &[1]);
        assert_ne!(one.digest(), other.digest());
        other.write(0, &[1; 100]);
        assert_eq!(one.digest(), other.digest());
        other.truncate(5001);
        assert_ne!(one.digest(), other.digest());
    }
}
