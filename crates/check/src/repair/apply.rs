//! Applying a plan: as transactions, or by building tree and space map anew.

use crate::blocks::BlockSet;
use crate::error::CheckError;
use crate::repair::planner::Planner;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::Arc;
use syncline_device::{Device, Spawn};
use syncline_format::items::extent::Extent;
use syncline_format::superblock::Pointer;
use syncline_format::{BlockRun, Key, Kind};
use syncline_store::{Admission, Rebuild, Salvaged, Store, StoreError, StoreOptions, Transaction};

/// Items of one transaction, in bytes: far below what a log batch may hold.
const TRANSACTION_BYTES: usize = 8 << 20;
/// Items that go into a new tree at a time.
const ITEMS_EACH: usize = 8192;

type Edits = BTreeMap<Key, Option<Bytes>>;

/// Commits the changed items to an image whose structures are sound. Both superblock slots are written on the way.
pub(crate) async fn commit(
    device: &Arc<dyn Device>,
    spawn: &Arc<dyn Spawn>,
    planner: Planner,
) -> Result<(), CheckError> {
    let (store, _) = Store::open(device.clone(), StoreOptions::default(), spawn.clone()).await?;
    // So that these numbers are never handed out again.
    for planned in planner.created {
        let number = store.new_object();
        debug_assert_eq!(number, planned, "nothing else makes objects here");
    }
    let mut transaction = Transaction::new();
    let objects = planner.inodes.len() as i64;
    transaction.count_objects(objects - store.objects() as i64);
    let mut bytes = 0;
    for (key, value) in planner.view.edits {
        bytes += value.as_ref().map_or(0, Bytes::len) + 64;
        match value {
            Some(value) => transaction.put(key, value),
            None => transaction.delete(key),
        }
        if bytes > TRANSACTION_BYTES {
            store.admit(Admission::Shrink).await?;
            store.commit(std::mem::take(&mut transaction))?;
            bytes = 0;
        }
    }
    // Last: whoever is cut off before this leaves a leak, not a block in use that is free.
    planner.freed.into_iter().for_each(|run| transaction.free(run));
    store.admit(Admission::Shrink).await?;
    store.commit(transaction)?;
    store.close().await?;
    Ok(())
}

/// Builds tree and space map anew, and opens and closes the image once: that writes the other superblock slot, too.
pub(crate) async fn rebuild(
    device: &Arc<dyn Device>,
    spawn: &Arc<dyn Spawn>,
    store: Arc<Store>,
    salvaged: Salvaged,
    mut planner: Planner,
) -> Result<(), CheckError> {
    let mut avoid = structures(&store, &salvaged).await;
    planner.seen.runs().for_each(|run| {
        avoid.add(run);
    });
    let mut generous = BlockSet::new(store.geometry().total_blocks);
    avoid.runs().for_each(|run| {
        generous.add(run);
    });
    if salvaged.space_map {
        // What is lost below a bad node lies there, too; somebody may yet get at it by other means.
        store.named_runs().into_iter().for_each(|run| {
            generous.add(run);
        });
    }
    match build(&store, &salvaged, &mut planner, &generous).await {
        Err(StoreError::NoSpace) => build(&store, &salvaged, &mut planner, &avoid).await?,
        built => built?,
    }
    drop((planner, store));
    let (store, _) = Store::open(device.clone(), StoreOptions::default(), spawn.clone()).await?;
    store.close().await?;
    Ok(())
}

/// The blocks that the old image needs besides data.
async fn structures(store: &Arc<Store>, salvaged: &Salvaged) -> BlockSet {
    let geometry = store.geometry();
    let mut blocks = BlockSet::new(geometry.total_blocks);
    for run in store.walk_nodes().await.nodes {
        blocks.add(run);
    }
    for run in store.space_pages().into_iter().chain(salvaged.segments.iter().copied()) {
        blocks.add(run);
    }
    let Pointer { addr, .. } = store.superblock().space.page;
    blocks.add(BlockRun::new(addr, 1));
    blocks
}

async fn build(
    store: &Arc<Store>,
    salvaged: &Salvaged,
    planner: &mut Planner,
    avoid: &BlockSet,
) -> Result<(), StoreError> {
    let device = store.device().clone();
    let mut rebuild = Rebuild::start(device, store, salvaged, planner.kept.runs(), avoid.runs()).await?;
    let mut edits = planner.view.edits.clone();
    for (object, extent) in &planner.copies {
        copy(&mut rebuild, *object, extent, &mut edits).await?;
    }
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
    rebuild.finish(planner.inodes.len() as u64, planner.next_object).await
}

/// Gives an extent blocks of its own. What they hold is copied as it is, and the checksums stay: what could be read
/// still can, and what could not still can't.
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
