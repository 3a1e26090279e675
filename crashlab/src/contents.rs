//! The contents of a file: blocks that versions of a tree share, and a digest that costs nothing to ask
//! for.

use crate::Error;
use crate::blocks::{BLOCK_BYTES, BLOCKS, Bytes};
use rpds::RedBlackTreeMapSync;
use siphasher::sip128::{Hasher128, SipHasher13};
use std::borrow::Cow;
use std::hash::Hasher;
use std::sync::Arc;

#[derive(Debug)]
struct Block {
    bytes: Bytes,
    digest: u128,
}

impl Block {
    /// `None` if all bytes are zero: such blocks are not kept.
    fn new(index: u64, bytes: Box<[u8]>) -> Result<Option<Arc<Self>>, Error> {
        if bytes.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        let mut hasher = SipHasher13::new();
        hasher.write_u64(index);
        hasher.write(&bytes);
        let digest = hasher.finish128().as_u128();
        Ok(Some(Arc::new(Self { bytes: BLOCKS.keep(bytes)?, digest })))
    }
}

/// The contents of a file. Cloning is cheap. An error means that the blocks beyond those in memory have no place;
/// a change is then done in part.
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
    pub fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        let mut done = 0;
        while done < bytes.len() {
            let (index, at) = place(offset + done as u64);
            let len = (bytes.len() - done).min(BLOCK_BYTES as usize - at);
            let new = &bytes[done..done + len];
            self.change(index, |block| block[at..at + len].copy_from_slice(new))?;
            done += len;
        }
        if !bytes.is_empty() {
            self.len = self.len.max(offset + bytes.len() as u64);
        }
        Ok(())
    }

    /// Cuts the file off, or extends it with zeros.
    pub fn truncate(&mut self, len: u64) -> Result<(), Error> {
        if len < self.len {
            self.zero(len, self.len)?;
        }
        self.len = len;
        Ok(())
    }

    /// Zeroes the bytes from `begin` to `end`, and leaves the length alone.
    pub fn zero(&mut self, begin: u64, end: u64) -> Result<(), Error> {
        let last = end.min(self.len);
        let indexes: Vec<u64> = match begin < last {
            true => {
                self.blocks.range(begin / BLOCK_BYTES..=(last - 1) / BLOCK_BYTES).map(|(i, _)| *i).collect()
            }
            false => return Ok(()),
        };
        for index in indexes {
            let start = index * BLOCK_BYTES;
            let from = begin.saturating_sub(start) as usize;
            let to = (last - start).min(BLOCK_BYTES) as usize;
            match to - from < BLOCK_BYTES as usize {
                true => self.change(index, |block| block[from..to].fill(0))?,
                false => self.set(index, None),
            }
        }
        Ok(())
    }

    /// The bytes from `offset` on, at most `len`.
    pub fn read(&self, offset: u64, len: usize) -> Result<Vec<u8>, Error> {
        let end = self.len.min(offset.saturating_add(len as u64));
        let mut bytes = vec![0; end.saturating_sub(offset) as usize];
        if bytes.is_empty() {
            return Ok(bytes);
        }
        for (index, block) in self.blocks.range(offset / BLOCK_BYTES..=(end - 1) / BLOCK_BYTES) {
            let start = index * BLOCK_BYTES;
            let (from, to) = (start.max(offset), (start + BLOCK_BYTES).min(end));
            bytes[(from - offset) as usize..(to - offset) as usize]
                .copy_from_slice(&block.bytes.read()?[(from - start) as usize..(to - start) as usize]);
        }
        Ok(bytes)
    }

    /// The blocks that are not all zero: offset and bytes, cut off at the end of the file.
    pub fn pieces(&self) -> impl Iterator<Item = Result<(u64, Cow<'_, [u8]>), Error>> {
        self.blocks.iter().map(|(index, block)| {
            let start = index * BLOCK_BYTES;
            let len = (self.len - start).min(BLOCK_BYTES) as usize;
            Ok((start, cut_off(block.bytes.read()?, len)))
        })
    }

    /// Makes a block, as far as the file goes, that of another file.
    pub fn take_block(&mut self, index: u64, from: &Self) -> Result<(), Error> {
        let start = index * BLOCK_BYTES;
        let len = self.len.saturating_sub(start).min(BLOCK_BYTES) as usize;
        let bytes = from.read(start, len)?;
        self.change(index, |block| {
            block[..bytes.len()].copy_from_slice(&bytes);
            block[bytes.len()..].fill(0);
        })
    }

    fn change(&mut self, index: u64, change: impl FnOnce(&mut [u8])) -> Result<(), Error> {
        let mut bytes = match self.blocks.get(&index) {
            Some(old) => old.bytes.read()?.into_owned(),
            None => vec![0; BLOCK_BYTES as usize],
        };
        change(&mut bytes);
        self.set(index, Block::new(index, bytes.into())?);
        Ok(())
    }

    fn set(&mut self, index: u64, block: Option<Arc<Block>>) {
        let digest = |block: Option<&Arc<Block>>| block.map_or(0, |block| block.digest);
        self.sum =
            self.sum.wrapping_sub(digest(self.blocks.get(&index))).wrapping_add(digest(block.as_ref()));
        match block {
            Some(block) => self.blocks.insert_mut(index, block),
            None => drop(self.blocks.remove_mut(&index)),
        }
    }
}

/// The first bytes.
fn cut_off(bytes: Cow<'_, [u8]>, len: usize) -> Cow<'_, [u8]> {
    match bytes {
        Cow::Borrowed(bytes) => Cow::Borrowed(&bytes[..len]),
        Cow::Owned(mut bytes) => {
            bytes.truncate(len);
            Cow::Owned(bytes)
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
        contents.write(4000, &[7; 200]).unwrap();
        assert_eq!(contents.len(), 4200);
        assert_eq!(contents.read(3999, 3).unwrap(), [0, 7, 7]);
        assert_eq!(contents.read(4199, 10).unwrap(), [7]);
        assert!(contents.read(5000, 10).unwrap().is_empty());
        contents.truncate(4100).unwrap();
        contents.truncate(8192).unwrap();
        assert_eq!(contents.read(4099, 2).unwrap(), [7, 0], "what was cut off is zero");
        assert_eq!(
            contents
                .pieces()
                .map(|piece| piece.unwrap())
                .map(|(at, bytes)| (at, bytes.len()))
                .collect::<Vec<_>>(),
            [(0, 4096), (4096, 4096)]
        );
    }

    #[test]
    fn equal_bytes_have_equal_digests_however_they_came() {
        let mut one = Contents::default();
        one.write(0, &[1; 5000]).unwrap();
        one.zero(100, 4999).unwrap();
        let mut other = Contents::default();
        other.truncate(5000).unwrap();
        other.write(4999, &[1]).unwrap();
        assert_ne!(one.digest(), other.digest());
        other.write(0, &[1; 100]).unwrap();
        assert_eq!(one.digest(), other.digest());
        other.truncate(5001).unwrap();
        assert_ne!(one.digest(), other.digest());
    }
}
