//! Inner nodes that are lost, found again by what lies below them, and put back byte for byte.
//!
//! Where the children of a lost node lie, what is left of it says; for the rest all blocks are looked through in which nodes can lie.
//! What is put back has the checksum that the node above, or the superblock, has for it ([`regrow`]), so it is what was there, and
//! may be written in place as the identical rewrites of rule R5 are: a crash on the way leaves the block as lost as it was.

use crate::{Salvaged, Store, StoreError};
use syncline_device::DeviceExt;
use syncline_format::items::extent::Extent;
use syncline_format::node::{Node, header};
use syncline_format::superblock::TreeRoot;
use syncline_format::{BLOCK_BYTES, BlockAddr, BlockRun, Key, Kind};
use syncline_tree::{LostNode, Stray, regrow};

/// Blocks read at a time.
const BLOCKS_EACH: u64 = 256;
/// Items read at a time.
const ITEMS_EACH: usize = 4096;

/// Lost nodes looked at, so that an image made for it can't keep a repair busy for ever.
const TRIES_MAX: usize = 10_000;

/// A node that was put back.
#[derive(Clone, Debug)]
pub struct Regrown {
    /// Where it lies.
    pub addr: BlockAddr,
    /// Its level.
    pub level: u8,
    /// The blocks of it that were written: those that did not hold what they should.
    pub blocks: Vec<BlockAddr>,
}

/// What looks like a node.
struct Strays {
    all: Vec<Stray>,
    /// Those that do not lie where an extent of one of them says that data lies.
    unclaimed: Vec<Stray>,
}

impl Store {
    /// Puts back what it can of the inner nodes that this tree has lost, and those with these roots: on the device of the store,
    /// which should not be the image itself.
    pub async fn regrow_nodes(
        &self,
        salvaged: &Salvaged,
        snapshots: &[TreeRoot],
    ) -> Result<Vec<Regrown>, StoreError> {
        let (mut regrown, mut strays) = (Vec::new(), None);
        let own = self.layers.read().root;
        let mut tries = 0;
        for root in snapshots.iter().copied().chain([own]) {
            // What is put back shows what else is lost below it.
            loop {
                let mut again = false;
                for lost in self.tree.lost_inner_nodes(root).await {
                    tries += 1;
                    if tries > TRIES_MAX {
                        return Ok(regrown);
                    }
                    if let Some(done) = self.regrow_one(&lost, salvaged, &mut strays).await? {
                        again = true;
                        regrown.push(done);
                    }
                }
                if !again {
                    break;
                }
            }
        }
        Ok(regrown)
    }

    /// The first of these nodes' blocks that something else has as well, which can't be in an image that only rotted.
    pub async fn contested(&self, salvaged: &Salvaged, nodes: &[Regrown]) -> Option<BlockAddr> {
        let mut claims = self.data_runs().await;
        claims.extend(self.space_pages());
        claims.extend(salvaged.segments.iter().chain(&salvaged.table));
        let claims = Claims::new(claims);
        nodes.iter().flat_map(|node| &node.blocks).copied().find(|block| claims.contains(*block))
    }

    async fn regrow_one(
        &self,
        lost: &LostNode,
        salvaged: &Salvaged,
        strays: &mut Option<Strays>,
    ) -> Result<Option<Regrown>, StoreError> {
        let (geometry, newest) = (self.geometry(), self.superblock().generation);
        let remains = self.tree.remains(lost).await;
        let mut bytes = regrow(geometry, lost, &remains, &[], newest);
        if bytes.is_none() {
            if strays.is_none() {
                *strays = Some(self.strays(salvaged).await?);
            }
            let Some(Strays { all, unclaimed }) = strays else { return Ok(None) };
            bytes = regrow(geometry, lost, &remains, all, newest)
                .or_else(|| regrow(geometry, lost, &remains, unclaimed, newest));
        }
        let Some(bytes) = bytes else { return Ok(None) };
        let (addr, mut blocks) = (lost.pointer.addr, Vec::new());
        let run = BlockRun::new(addr, geometry.node_blocks());
        if !geometry.contains(run) {
            return Ok(None);
        }
        let there = self.device().read_at(run.offset_bytes(), bytes.len()).await?;
        for (index, block) in (0..run.blocks).zip(there.chunks_exact(BLOCK_BYTES)) {
            let at = index as usize * BLOCK_BYTES;
            let right = bytes.slice(at..at + BLOCK_BYTES);
            if block != right {
                let offset = (addr + index) * BLOCK_BYTES as u64;
                self.device().write_at(offset, vec![right]).await?;
                blocks.push(addr + index);
            }
        }
        // Nothing to write: it has the right bytes, and is refused for what they say.
        Ok((!blocks.is_empty()).then_some(Regrown { addr, level: lost.level, blocks }))
    }

    /// Looks for nodes wherever one can lie: in what the space map names, or a snapshot keeps, and no extent has for its data.
    async fn strays(&self, salvaged: &Salvaged) -> Result<Strays, StoreError> {
        let mut area = match salvaged.space_map {
            true => self.named_runs(),
            false => vec![self.geometry().usable()],
        };
        area.extend(salvaged.kept.iter().flatten());
        area.sort_unstable_by_key(|run| run.start);
        let data = Claims::new(self.data_runs().await);
        let (mut all, mut claimed, mut from) = (Vec::new(), Vec::new(), 0);
        for run in area {
            let mut at = run.start.max(from);
            while at < run.end() {
                let blocks = (run.end() - at).min(BLOCKS_EACH);
                let chunk = BlockRun::new(at, blocks);
                let bytes = self.device().read_at(chunk.offset_bytes(), chunk.len_bytes() as usize).await?;
                for (block, bytes) in (at..).zip(bytes.chunks_exact(BLOCK_BYTES)) {
                    let begins = header(bytes).is_some_and(|(own, _)| own == block);
                    if begins
                        && !data.contains(block)
                        && let Some(node) = self.tree.node_at(block).await
                    {
                        all.extend(Stray::of(&node));
                        claimed.extend(extents(&node));
                    }
                }
                at += blocks;
            }
            from = from.max(run.end());
        }
        let claimed = Claims::new(claimed);
        let unclaimed = all.iter().filter(|stray| !claimed.contains(stray.addr())).copied().collect();
        Ok(Strays { all, unclaimed })
    }

    /// Where data lies, as far as extents can be read.
    async fn data_runs(&self) -> Vec<BlockRun> {
        let (mut runs, mut from) = (Vec::new(), Some(Key::MIN));
        while let Some(start) = from {
            let chunk = self.scan_readable(start, Key::MAX, ITEMS_EACH, &mut |_| {}).await;
            from = chunk.items.last().and_then(|(key, _)| key.next()).filter(|_| !chunk.complete);
            runs.extend(chunk.items.iter().filter_map(|(key, value)| extent(*key, value)));
        }
        runs
    }
}

fn extent(key: Key, value: &[u8]) -> Option<BlockRun> {
    let is_one = key.object != 0 && key.kind == Kind::Extent as u8;
    is_one.then(|| Extent::decode(key.offset, value).ok()).flatten().map(|extent| extent.run())
}

/// Where the extents of a leaf say that data lies.
fn extents(node: &Node) -> impl Iterator<Item = BlockRun> {
    let items = if node.level() == 0 { node.len() } else { 0 };
    (0..items).filter_map(|index| extent(node.key(index), node.value(index)))
}

/// Runs that may overlap, to be asked for single blocks.
struct Claims {
    /// Sorted by the start, each with the greatest end up to there.
    ends: Vec<(BlockAddr, BlockAddr)>,
}

impl Claims {
    fn new(mut runs: Vec<BlockRun>) -> Self {
        runs.sort_unstable_by_key(|run| run.start);
        let mut end = 0;
        let ends = runs.into_iter().map(|run| {
            end = end.max(run.end());
            (run.start, end)
        });
        Self { ends: ends.collect() }
    }

    fn contains(&self, block: BlockAddr) -> bool {
        let after = self.ends.partition_point(|(start, _)| *start <= block);
        after.checked_sub(1).is_some_and(|last| self.ends[last].1 > block)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_may_overlap() {
        let claims = Claims::new(vec![BlockRun::new(10, 20), BlockRun::new(12, 2), BlockRun::new(40, 1)]);
        let inside: Vec<u64> = (0..50).filter(|block| claims.contains(*block)).collect();
        assert_eq!(inside, (10..30).chain([40]).collect::<Vec<_>>());
        assert!(!Claims::new(Vec::new()).contains(0));
    }
}
