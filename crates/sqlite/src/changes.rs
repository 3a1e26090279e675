//! What was written to a file and not committed: blocks, and the size.

use crate::cache::{BLOCK_BYTES, Block};
use std::collections::BTreeMap;
use std::sync::Arc;

const BYTES: u64 = BLOCK_BYTES as u64;

/// Changes of a file over a base, which is what the file has without them.
#[derive(Debug)]
pub(crate) struct Changes {
    blocks: BTreeMap<u64, Block>,
    base_size: u64,
    /// The bytes of the base that no truncation has cut off. The bytes behind them read as zeros.
    kept: u64,
    size: u64,
}

impl Changes {
    /// No changes over a base of this size.
    pub(crate) fn none(base_size: u64) -> Self {
        Self { blocks: BTreeMap::new(), base_size, kept: base_size, size: base_size }
    }

    pub(crate) fn are_none(&self) -> bool {
        self.blocks.is_empty() && self.size == self.base_size && self.kept == self.base_size
    }

    /// Size of the file with the changes.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// The size to which the base must be cut, if it must be.
    pub(crate) fn cut(&self) -> Option<u64> {
        (self.kept < self.base_size).then_some(self.kept)
    }

    /// Memory of the changed blocks.
    pub(crate) fn bytes(&self) -> u64 {
        self.blocks.len() as u64 * BYTES
    }

    /// A changed block.
    pub(crate) fn get(&self, block: u64) -> Option<&Block> {
        if self.blocks.is_empty() { None } else { self.blocks.get(&block) }
    }

    /// True if a block, unless it was changed, is that of the base. Otherwise it is zeros.
    pub(crate) fn is_based(&self, block: u64) -> bool {
        block * BYTES < self.kept
    }

    /// Writes. `old` returns what the file has in a block now.
    pub(crate) fn write<E>(
        &mut self,
        data: &[u8],
        offset: u64,
        mut old: impl FnMut(&Self, u64) -> Result<Block, E>,
    ) -> Result<(), E> {
        for (block, within, piece) in pieces(data, offset) {
            let new = if piece.len() == BLOCK_BYTES {
                Arc::from(piece)
            } else {
                let mut bytes = old(self, block)?.to_vec();
                bytes[within..within + piece.len()].copy_from_slice(piece);
                Arc::from(bytes)
            };
            self.blocks.insert(block, new);
        }
        self.size = self.size.max(offset + data.len() as u64);
        Ok(())
    }

    /// Sets the size.
    pub(crate) fn set_size<E>(
        &mut self,
        size: u64,
        mut old: impl FnMut(&Self, u64) -> Result<Block, E>,
    ) -> Result<(), E> {
        if size < self.size {
            let (last, within) = (size / BYTES, (size % BYTES) as usize);
            // If the file grows again, the bytes behind the old end read as zeros.
            let edge = match within {
                0 => None,
                _ => {
                    let mut bytes = old(self, last)?.to_vec();
                    bytes[within..].fill(0);
                    Some(Arc::from(bytes))
                }
            };
            self.blocks.split_off(&last);
            self.blocks.extend(edge.map(|edge| (last, edge)));
            self.kept = self.kept.min(size);
        }
        self.size = size;
        Ok(())
    }

    /// The changed blocks in their order, as runs of neighbours of at most `most` bytes, without what
    /// lies behind the end of the file.
    pub(crate) fn runs(&self, most: usize) -> Runs<'_> {
        Runs { blocks: self.blocks.range(..).peekable(), size: self.size, most, joined: Vec::new() }
    }

    /// Takes the changes as done: the base has them now.
    pub(crate) fn take(&mut self) -> BTreeMap<u64, Block> {
        let size = self.size;
        std::mem::replace(self, Self::none(size)).blocks
    }
}

/// The blocks that a range of bytes touches: number, place within the block, bytes.
pub(crate) fn pieces(mut data: &[u8], mut offset: u64) -> impl Iterator<Item = (u64, usize, &[u8])> {
    std::iter::from_fn(move || {
        let within = (offset % BYTES) as usize;
        let (piece, rest) = data.split_at(data.len().min(BLOCK_BYTES - within));
        let found = (offset / BYTES, within, piece);
        data = rest;
        offset += piece.len() as u64;
        (!piece.is_empty()).then_some(found)
    })
}

/// See [`Changes::runs`].
pub(crate) struct Runs<'a> {
    blocks: std::iter::Peekable<std::collections::btree_map::Range<'a, u64, Block>>,
    size: u64,
    most: usize,
    joined: Vec<u8>,
}

impl Runs<'_> {
    /// The next run, with its offset.
    pub(crate) fn next(&mut self) -> Option<(u64, &[u8])> {
        let (&first, block) = self.blocks.next()?;
        let rest = usize::try_from(self.size.saturating_sub(first * BYTES)).unwrap_or(usize::MAX);
        self.joined.clear();
        self.joined.extend_from_slice(block);
        let mut next = first + 1;
        while self.joined.len() + BLOCK_BYTES <= self.most {
            let Some((_, block)) = self.blocks.next_if(|(block, _)| **block == next) else { break };
            self.joined.extend_from_slice(block);
            next += 1;
        }
        let len = self.joined.len().min(rest);
        Some((first * BYTES, &self.joined[..len]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, SeedableRng};

    /// A file in plain memory, and the same one as a base with changes.
    struct Both {
        plain: Vec<u8>,
        base: Vec<u8>,
        changes: Changes,
    }

    impl Both {
        fn block(base: &[u8], changes: &Changes, block: u64) -> Block {
            if let Some(block) = changes.get(block) {
                return block.clone();
            }
            let mut bytes = vec![0; BLOCK_BYTES];
            if changes.is_based(block) {
                let start = block as usize * BLOCK_BYTES;
                let there = base.len().min(start + BLOCK_BYTES) - start;
                bytes[..there].copy_from_slice(&base[start..start + there]);
            }
            bytes.into()
        }

        fn write(&mut self, data: &[u8], offset: usize) {
            self.plain.resize(self.plain.len().max(offset + data.len()), 0);
            self.plain[offset..offset + data.len()].copy_from_slice(data);
            let base = &self.base;
            self.changes
                .write(data, offset as u64, |changes, block| {
                    Ok::<_, std::convert::Infallible>(Self::block(base, changes, block))
                })
                .unwrap();
        }

        fn set_size(&mut self, size: usize) {
            self.plain.resize(size, 0);
            let base = &self.base;
            self.changes
                .set_size(size as u64, |changes, block| {
                    Ok::<_, std::convert::Infallible>(Self::block(base, changes, block))
                })
                .unwrap();
        }

        fn seen(&self) -> Vec<u8> {
            let blocks = self.changes.size().div_ceil(BYTES);
            let mut bytes: Vec<u8> = (0..blocks)
                .flat_map(|block| Self::block(&self.base, &self.changes, block).to_vec())
                .collect();
            bytes.truncate(self.changes.size() as usize);
            bytes
        }

        /// Applies the changes to the base as a commit does.
        fn commit(&mut self) {
            if let Some(cut) = self.changes.cut() {
                self.base.truncate(cut as usize);
            }
            let mut runs = self.changes.runs(3 * BLOCK_BYTES);
            while let Some((offset, bytes)) = runs.next() {
                let (start, end) = (offset as usize, offset as usize + bytes.len());
                self.base.resize(self.base.len().max(end), 0);
                self.base[start..end].copy_from_slice(bytes);
            }
            self.base.resize(self.changes.size() as usize, 0);
            self.changes.take();
            assert!(self.changes.are_none());
        }
    }

    #[test]
    fn a_file_with_changes_reads_like_one_that_was_written() {
        for seed in 0..100 {
            let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
            let base: Vec<u8> = (0..random.random_range(0..30_000)).map(|_| random.random()).collect();
            let changes = Changes::none(base.len() as u64);
            let mut both = Both { plain: base.clone(), base, changes };
            for _ in 0..60 {
                match random.random_range(0..10) {
                    0 => both.set_size(random.random_range(0..40_000)),
                    1 => both.commit(),
                    2..6 => {
                        let (offset, len) = (random.random_range(0..40_000), random.random_range(1..9000));
                        both.write(&vec![random.random(); len], offset);
                    }
                    _ => {
                        let block = random.random_range(0..10);
                        both.write(&[random.random(); BLOCK_BYTES], block * BLOCK_BYTES);
                    }
                }
                assert!(both.seen() == both.plain, "seed {seed}");
            }
            both.commit();
            assert!(both.base == both.plain, "seed {seed}");
        }
    }

    #[test]
    fn neighbours_are_one_run() {
        let mut changes = Changes::none(0);
        let none = |_: &Changes, _| Ok::<Block, std::convert::Infallible>(vec![0; BLOCK_BYTES].into());
        changes.write(&[1; 2 * BLOCK_BYTES], 0, none).unwrap();
        changes.write(&[2; 100], 5 * BYTES, none).unwrap();
        let mut runs = changes.runs(64 << 10);
        assert_eq!(runs.next().map(|(offset, bytes)| (offset, bytes.len())), Some((0, 2 * BLOCK_BYTES)));
        assert_eq!(runs.next().map(|(offset, bytes)| (offset, bytes.len())), Some((5 * BYTES, 100)));
        assert!(runs.next().is_none());
    }
}
