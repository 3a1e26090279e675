//! Restores lost inner nodes byte for byte from the nodes below them; `pages` does the same for
//! pages of space maps.
//!
//! The remains of a lost node tell where its children lie; for the rest, all blocks that can hold
//! nodes are searched. A restored node has the checksum that its parent or the superblock records
//! for it ([`regrow`]). So it is exactly what was there, and may be written in place like the
//! identical rewrites of rule R5: a crash on the way leaves the block as lost as it was.

mod pages;

use crate::{Salvaged, Snapshot, Store, StoreError};
use std::collections::{BTreeSet, HashSet};
use syncline_device::DeviceExt;
use syncline_format::items::extent::Extent;
use syncline_format::node::{Node, header};
use syncline_format::superblock::{Pointer, TreeRoot};
use syncline_format::{BLOCK_BYTES, BlockAddr, BlockRun, Key, Kind};
use syncline_space::KeptMap;
use syncline_tree::{LostNode, Stray, TreeError, regrow};

/// Blocks read at a time.
const BLOCKS_EACH: u64 = 256;
/// Items read at a time.
const ITEMS_EACH: usize = 4096;

/// Limit of lost nodes tried, so that a crafted image can't keep a repair busy for ever.
const TRIES_MAX: usize = 10_000;

/// A tree node or space map page that was restored.
#[derive(Clone, Debug)]
pub struct Regrown {
    /// Where it lies.
    pub addr: BlockAddr,
    /// Its level in its tree or map.
    pub level: u8,
    /// The blocks of it that were rewritten because they held something else.
    pub blocks: Vec<BlockAddr>,
}

/// Everything that looks like a node.
struct Strays {
    all: Vec<Stray>,
    /// Where extents in any of these nodes say that data lies.
    claimed: Claims,
}

/// A tree in the image.
struct Owner {
    root: TreeRoot,
    /// The generation of the checkpoint that wrote it last.
    newest: u64,
    /// The snapshot that the tree belongs to.
    snapshot: Option<Snapshot>,
    /// The blocks that its space map names, which include all its nodes. The outer `None` means not
    /// loaded yet, the inner one that the map can't be read.
    named: Option<Option<KeptMap>>,
}

impl Store {
    /// Restores as many lost inner nodes as it can, of this tree and of these snapshots, on the
    /// store's device, which should not be the image itself.
    pub async fn regrow_nodes(
        &self,
        salvaged: &Salvaged,
        snapshots: &[Snapshot],
    ) -> Result<Vec<Regrown>, StoreError> {
        let (mut regrown, mut strays) = (Vec::new(), None);
        let mut owners = self.owners(snapshots);
        // A node shared by several trees is tried once, and again only after something was restored
        // that may lie below it.
        let (mut tries, mut failed) = (0, HashSet::new());
        loop {
            let mut again = false;
            for owner in &mut owners {
                for lost in self.layers.tree().lost_inner_nodes(owner.root).await {
                    let Pointer { addr, checksum } = lost.pointer;
                    if failed.contains(&(addr, checksum)) {
                        continue;
                    }
                    tries += 1;
                    if tries > TRIES_MAX {
                        return Ok(regrown);
                    }
                    match self.regrow_one(&lost, owner, salvaged, &mut strays).await? {
                        Some(done) => {
                            again = true;
                            failed.clear();
                            regrown.push(done);
                        }
                        None => {
                            failed.insert((addr, checksum));
                        }
                    }
                }
                // Kept for a thousand snapshots, these maps would take much memory.
                owner.named = None;
            }
            // A restored node shows what else is lost below it.
            if !again {
                return Ok(regrown);
            }
        }
    }

    /// All trees of the image.
    fn owners(&self, snapshots: &[Snapshot]) -> Vec<Owner> {
        let (root, newest) = (self.layers.root(), self.superblock().generation);
        let mut owners = vec![Owner { root, newest, snapshot: None, named: None }];
        owners.extend(snapshots.iter().map(|it| {
            let (root, newest, snapshot) = (it.tree, it.id, Some(it.clone()));
            Owner { root, newest, snapshot, named: None }
        }));
        owners
    }

    async fn read_named(&self, owner: &mut Owner, salvaged: &Salvaged) {
        if owner.named.is_some() {
            return;
        }
        let geometry = self.geometry();
        owner.named = Some(match &owner.snapshot {
            Some(snapshot) => {
                let map = [(snapshot.geometry(geometry), snapshot.space)];
                KeptMap::union(&self.tracker, geometry, &map).await.ok()
            }
            None => salvaged.space_map.then(|| self.room.space().named_map()),
        });
    }

    /// The first block of these nodes and pages that something else uses as well, which can't
    /// happen in an image that has only rotted. With `and_nodes`, other nodes count too: for a
    /// store that does not contain these nodes.
    pub async fn contested(
        &self,
        salvaged: &Salvaged,
        snapshots: &[Snapshot],
        nodes: &[Regrown],
        and_nodes: bool,
    ) -> Option<BlockAddr> {
        let wanted: BTreeSet<BlockAddr> = nodes.iter().flat_map(|node| &node.blocks).copied().collect();
        let met = |run: BlockRun| wanted.range(run.start..run.end()).next().copied();
        let pages = self.space_pages();
        let fixed = pages.iter().chain(&salvaged.segments).chain(salvaged.table()).copied().find_map(met);
        let mut found = fixed;
        self.each_data_run(&mut |run| found = found.or_else(|| met(run))).await;
        let blocks = self.geometry().node_blocks();
        let mut visit = |_: u8, pointer: Pointer, node: Result<&Node, &TreeError>| {
            let Ok(node) = node else { return };
            let own = and_nodes.then(|| BlockRun::new(pointer.addr, blocks));
            found = found.or_else(|| own.into_iter().chain(extents(node)).find_map(met));
        };
        let own = self.layers.root();
        for root in snapshots.iter().map(|snapshot| snapshot.tree).chain(and_nodes.then_some(own)) {
            self.layers.tree().walk(root, &mut visit).await;
        }
        found
    }

    async fn regrow_one(
        &self,
        lost: &LostNode,
        owner: &mut Owner,
        salvaged: &Salvaged,
        strays: &mut Option<Strays>,
    ) -> Result<Option<Regrown>, StoreError> {
        let (geometry, newest) = (self.geometry(), owner.newest);
        let remains = self.layers.tree().remains(lost).await;
        let mut bytes = regrow(geometry, lost, &remains, std::iter::empty(), newest);
        if bytes.is_none() {
            if strays.is_none() {
                *strays = Some(self.strays(salvaged).await?);
            }
            self.read_named(owner, salvaged).await;
            let Some(Strays { all, claimed }) = strays else { return Ok(None) };
            // Nodes of other versions may lie between those that belong here, so candidates about
            // which more is known are tried first.
            let named = |it: &&Stray| owner.named.iter().flatten().any(|map| map.contains(it.addr()));
            let known = |it: &&Stray| remains.have_key_of(it);
            let unclaimed = |it: &&Stray| !claimed.contains(it.addr());
            bytes = regrow(geometry, lost, &remains, all.iter().filter(named).filter(known), newest)
                .or_else(|| regrow(geometry, lost, &remains, all.iter().filter(named), newest))
                .or_else(|| {
                    let some = all.iter().filter(named).filter(unclaimed);
                    regrow(geometry, lost, &remains, some, newest)
                })
                .or_else(|| regrow(geometry, lost, &remains, all.iter().filter(known), newest))
                .or_else(|| regrow(geometry, lost, &remains, all.iter(), newest))
                .or_else(|| regrow(geometry, lost, &remains, all.iter().filter(unclaimed), newest));
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
        // Nothing to write: the node has the right bytes, and is rejected for its contents.
        if blocks.is_empty() {
            return Ok(None);
        }
        if let Some(strays) = strays {
            strays.all.extend(self.layers.tree().stray_at(addr).await);
        }
        Ok(Some(Regrown { addr, level: lost.level, blocks }))
    }

    /// Searches for nodes wherever one can lie: in blocks that the space map names or a snapshot
    /// keeps, and that no extent claims for data.
    async fn strays(&self, salvaged: &Salvaged) -> Result<Strays, StoreError> {
        let mut area = match salvaged.space_map {
            true => self.named_runs(),
            false => vec![self.geometry().usable()],
        };
        area.extend(salvaged.kept().iter().chain(salvaged.table()));
        area.sort_unstable_by_key(|run| run.start);
        let mut data = Vec::new();
        self.each_data_run(&mut |run| data.push(run)).await;
        let data = Claims::new(data);
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
                        && let Some(node) = self.layers.tree().node_at(block).await
                    {
                        all.extend(Stray::of(&node));
                        claimed.extend(extents(&node));
                    }
                }
                at += blocks;
            }
            from = from.max(run.end());
        }
        Ok(Strays { all, claimed: Claims::new(claimed) })
    }

    /// Visits the runs where data lies, as far as extents can be read.
    async fn each_data_run(&self, visit: &mut (dyn FnMut(BlockRun) + Send)) {
        let mut from = Some(Key::MIN);
        while let Some(start) = from {
            let chunk = self.scan_readable(start, Key::MAX, ITEMS_EACH, &mut |_| {}).await;
            from = chunk.items.last().and_then(|(key, _)| key.next()).filter(|_| !chunk.complete);
            chunk.items.iter().filter_map(|(key, value)| extent(*key, value)).for_each(&mut *visit);
        }
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

/// Runs, possibly overlapping, that can be queried for single blocks.
struct Claims {
    /// Sorted by start; each entry has the greatest end of all runs up to it.
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
