//! Blocks that are cleared only in part.

use crate::FsError;
use crate::data::calls::{read, truncate};
use crate::data::memory::block::Block;
use crate::data::memory::{BLOCK, DataState};
use crate::filesystem::Filesystem;
use crate::inode::Inode;
use bytes::Bytes;
use std::ops::Range;
use std::sync::Arc;
use syncline_device::AlignedBuf;
use syncline_format::BLOCK_BYTES;
use syncline_store::Reservation;

/// A block that is cleared in part.
struct Edge {
    block: u64,
    zeros: Range<usize>,
}

/// The bytes to clear, divided into edge blocks and whole blocks.
pub(super) struct Parts {
    edges: Vec<Edge>,
    /// Blocks that are cleared as a whole; none if the range ends before it starts.
    pub whole: Range<u64>,
}

/// The new state of the edge blocks and of the inline data.
#[derive(Default)]
pub(super) struct NewEdges {
    /// New contents of edge blocks, in order, to be placed.
    pub blocks: Vec<(u64, Block)>,
    pub reservation: Reservation,
    /// Edge blocks that have only zeros now and are removed too.
    pub empty: Vec<u64>,
    /// Edge blocks that are holes.
    pub holes: Vec<u64>,
    /// The new inline data, if it changes.
    pub inline: Option<Option<Bytes>>,
}

impl Parts {
    /// Divides `bytes` for a file of `size` bytes. Past the end of the file there is nothing to
    /// keep.
    pub(super) fn new(bytes: &Range<u64>, size: u64) -> Self {
        let reaches_end = bytes.end >= size;
        let end = if reaches_end { bytes.end.div_ceil(BLOCK) } else { bytes.end / BLOCK };
        let (head, tail) = (bytes.start / BLOCK, bytes.end / BLOCK);
        let mut edges = Vec::new();
        let within = |at: u64, block: u64| (at - block * BLOCK).min(BLOCK) as usize;
        if !bytes.start.is_multiple_of(BLOCK) && bytes.start < size {
            edges.push(Edge { block: head, zeros: within(bytes.start, head)..within(bytes.end, head) });
        }
        let has_tail = !reaches_end && !bytes.end.is_multiple_of(BLOCK);
        if has_tail && edges.first().is_none_or(|edge| edge.block != tail) {
            edges.push(Edge { block: tail, zeros: 0..within(bytes.end, tail) });
        }
        Self { edges, whole: bytes.start.div_ceil(BLOCK)..end }
    }

    /// Reads and reserves what the edges need, before anything changes. `size` is the size of the
    /// file afterwards. Its `writeback` and its lease are held, so that nothing of it changes or is
    /// in flight.
    pub(super) async fn prepare(
        &self,
        fs: &Filesystem,
        inode: &Arc<Inode>,
        size: u64,
    ) -> Result<NewEdges, FsError> {
        let mut new = NewEdges::default();
        if self.whole.contains(&0) && inode.state.lock().data.has_inline() {
            new.inline = Some(None);
        }
        for edge in &self.edges {
            if edge.block == 0
                && let Some(inline) = edge.inline(&inode.state.lock().data, fs.limits.inline_bytes, size)
            {
                new.inline = Some(inline);
                continue;
            }
            let Some(contents) = edge.contents(fs, inode).await? else {
                new.holes.push(edge.block);
                continue;
            };
            match contents {
                Some(contents) => {
                    new.reservation.merge(truncate::room_for_edge(fs, inode, edge.block).await?);
                    new.blocks.push((edge.block, contents));
                }
                None => {
                    new.empty.push(edge.block);
                    if edge.block == 0 && inode.state.lock().data.has_inline() {
                        // Otherwise the old inline data, which the dirty block has replaced, would
                        // show again.
                        new.inline = Some(None);
                    }
                }
            }
        }
        Ok(new)
    }

    /// The largest number of blocks that can be empty afterwards.
    pub(super) fn blocks(&self) -> u64 {
        self.whole.end.saturating_sub(self.whole.start) + self.edges.len() as u64
    }

    /// The edge block behind all blocks that are cleared as a whole, if there is one.
    pub(super) fn tail(&self) -> Option<u64> {
        self.edges.last().map(|edge| edge.block).filter(|&block| block >= self.whole.end)
    }
}

impl Edge {
    /// The new inline data if block 0 lies in the inode item and stays there; for a small file, it
    /// includes dirty data.
    fn inline(&self, data: &DataState, limit: usize, size: u64) -> Option<Option<Bytes>> {
        let small = data.inlines(limit as u64, size);
        if !small && (!data.has_inline() || data.blocks.is_dirty(0)) {
            return None;
        }
        let contents = match small {
            true => data.inline_contents(size),
            false => data.logged.inline().cloned(),
        };
        let mut contents = contents.map_or_else(Vec::new, |bytes| bytes.to_vec());
        self.clear(&mut contents);
        Some(contents.iter().any(|&byte| byte != 0).then(|| contents.into()))
    }

    /// The block with its cleared bytes zeroed: `Some(None)` if only zeros are left, `None` if it
    /// is a hole.
    async fn contents(&self, fs: &Filesystem, inode: &Arc<Inode>) -> Result<Option<Option<Block>>, FsError> {
        let in_memory = inode.state.lock().data.block_in_memory(self.block).map(|known| known.to_bytes());
        let known = match in_memory {
            Some(contents) => Some(contents),
            None => read::read_block(fs, inode, self.block).await?,
        };
        let Some(known) = known else { return Ok(None) };
        let mut contents = vec![0; BLOCK_BYTES];
        contents[..known.len()].copy_from_slice(&known);
        self.clear(&mut contents);
        let left = contents.iter().any(|&byte| byte != 0);
        Ok(Some(left.then(|| Block::whole(AlignedBuf::copy_from(&contents)).freeze())))
    }

    fn clear(&self, contents: &mut [u8]) {
        let end = self.zeros.end.min(contents.len());
        contents[self.zeros.start.min(end)..end].fill(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(bytes: Range<u64>, size: u64) -> (Vec<(u64, Range<usize>)>, Range<u64>) {
        let parts = Parts::new(&bytes, size);
        (parts.edges.into_iter().map(|edge| (edge.block, edge.zeros)).collect(), parts.whole)
    }

    #[test]
    fn edges_lie_around_whole_blocks() {
        assert_eq!(parts(0..8192, 20_000), (vec![], 0..2));
        assert_eq!(parts(100..8192, 20_000), (vec![(0, 100..4096)], 1..2));
        assert_eq!(parts(4096..9000, 20_000), (vec![(2, 0..808)], 1..2));
        assert_eq!(parts(100..9000, 20_000), (vec![(0, 100..4096), (2, 0..808)], 1..2));
        assert_eq!(parts(5000..5100, 20_000).0, [(1, 904..1004)]);
        assert!(parts(5000..5100, 20_000).1.is_empty());
        assert_eq!(parts(4096..5100, 20_000), (vec![(1, 0..1004)], 1..1));
    }

    #[test]
    fn past_the_end_nothing_is_kept() {
        assert_eq!(parts(4096..9000, 9000), (vec![], 1..3));
        assert_eq!(parts(4096..9000, 5000), (vec![], 1..3));
        assert_eq!(parts(5000..9000, 5000), (vec![], 2..3));
        assert_eq!(parts(4999..9000, 5000), (vec![(1, 903..4096)], 2..3));
    }
}
