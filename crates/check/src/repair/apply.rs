//! Carries out a plan, on an overlay that leaves the image unchanged.

use crate::blocks::BlockSet;
use crate::repair::planner::Planner;
use crate::repair::unreadable;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::Arc;
use syncline_format::items::extent::Extent;
use syncline_format::{BlockRun, Key, Kind};
use syncline_store::{Rebuild, Salvaged, Store, StoreError, read_snapshots};

/// Items added to a new tree at a time.
const ITEMS_EACH: usize = 8192;

type Edits = BTreeMap<Key, Option<Bytes>>;

/// Writes the space map and the tree. With `anew`, writes every node of the tree; otherwise, only the changed
/// nodes. Overwrites neither the blocks in `used` nor the blocks that the image needs, and returns both sets as one.
pub(crate) async fn build(
    store: &Arc<Store>,
    salvaged: &Salvaged,
    planner: &mut Planner,
    anew: bool,
    used: Option<&BlockSet>,
) -> Result<BlockSet, StoreError> {
    let mut needed = structures(store, salvaged).await;
    let runs = planner.seen.runs().chain(used.iter().flat_map(|used| used.runs()));
    runs.for_each(|run| {
        needed.add(run);
    });
    let mut generous = BlockSet::new(store.geometry().total_blocks);
    needed.runs().for_each(|run| {
        generous.add(run);
    });
    if salvaged.space_map {
        // Items lost below a bad node lie in these blocks too, and may still be recoverable by
        // other means.
        store.named_runs().into_iter().for_each(|run| {
            generous.add(run);
        });
    }
    match attempt(store, salvaged, planner, &generous, anew).await {
        Err(StoreError::NoSpace) => attempt(store, salvaged, planner, &needed, anew).await?,
        built => built?,
    }
    Ok(needed)
}

/// The blocks that the old image needs, apart from data.
async fn structures(store: &Arc<Store>, salvaged: &Salvaged) -> BlockSet {
    let geometry = store.geometry();
    let mut blocks = BlockSet::new(geometry.total_blocks);
    let kept = salvaged.kept().iter().chain(salvaged.table()).copied();
    let nodes = store.walk_nodes().await.nodes;
    for run in
        nodes.into_iter().chain(store.space_pages()).chain(salvaged.segments.iter().copied()).chain(kept)
    {
        blocks.add(run);
    }
    for addr in store.superblock().space.page.places() {
        blocks.add(BlockRun::new(addr, 1));
    }
    // A snapshot's blocks stay even if its space map does not name them.
    for snapshot in read_snapshots(store.device()).await.map(|(_, all)| all).unwrap_or_default() {
        store
            .each_use(snapshot.tree, &mut |run| {
                blocks.add(run);
            })
            .await;
    }
    blocks
}

async fn attempt(
    store: &Arc<Store>,
    salvaged: &Salvaged,
    planner: &mut Planner,
    avoid: &BlockSet,
    anew: bool,
) -> Result<(), StoreError> {
    let device = store.device().clone();
    let (data, avoid) = (planner.kept.runs(), avoid.runs());
    let rebuild = match anew {
        false => Rebuild::start_with(device, store, salvaged, data, avoid, &planner.view.edits).await?,
        true => {
            let mut rebuild = Rebuild::start(device, store, salvaged, data, avoid).await?;
            fill(&mut rebuild, planner).await?;
            rebuild
        }
    };
    rebuild.finish(planner.inodes.len() as u64, planner.next_object).await
}

/// Puts all items into a new tree, in order.
async fn fill(rebuild: &mut Rebuild, planner: &mut Planner) -> Result<(), StoreError> {
    let mut edits = planner.view.edits.clone();
    for (object, extent) in &planner.copies {
        copy(rebuild, *object, extent, &mut edits).await?;
    }
    unreadable::place(rebuild, planner, &mut edits).await?;
    let mut from = Some(Key::MIN);
    while let Some(start) = from {
        let chunk = planner.view.unchanged(start, Key::MAX, ITEMS_EACH).await;
        let last = chunk.items.last().map(|(key, _)| *key).filter(|_| !chunk.complete);
        let mut items: Edits = chunk.items.into_iter().map(|(key, value)| (key, Some(value))).collect();
        for (key, value) in edits.range(start..=last.unwrap_or(Key::MAX)) {
            items.insert(*key, value.clone());
        }
        items.retain(|_, value| value.is_some());
        rebuild.extend(items).await?;
        from = last.and_then(|key| key.next());
    }
    Ok(())
}

/// Gives an extent its own blocks. Their contents are copied unchanged and the checksums stay, so
/// data that could be read still can, and data that could not still can't.
async fn copy(
    rebuild: &mut Rebuild,
    object: u64,
    extent: &Extent,
    edits: &mut Edits,
) -> Result<(), StoreError> {
    edits.insert(Key::new(object, Kind::Extent, extent.file_block), None);
    if extent.packed.is_some() {
        let moved = Extent { addr: rebuild.copy_whole(extent.run()).await?.start, ..extent.clone() };
        edits.insert(Key::new(object, Kind::Extent, extent.file_block), Some(moved.encode().into()));
        return Ok(());
    }
    let mut file_block = extent.file_block;
    for run in rebuild.copy(extent.run()).await? {
        let Some(part) = extent.slice(file_block, file_block + run.blocks) else { break };
        let moved = Extent { addr: run.start, ..part };
        edits.insert(Key::new(object, Kind::Extent, file_block), Some(moved.encode().into()));
        file_block += run.blocks;
    }
    Ok(())
}
