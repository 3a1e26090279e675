//! Verifies the snapshots of a store after a crash.

use super::history::{STAMP, StoreHistory};
use super::verify::{all_items, difference, number, placed_in, verify_data, verify_space};
use crate::lab::World;
use bytes::Bytes;
use std::collections::BTreeMap;
use syncline_format::Key;
use syncline_store::{Snapshot, Store, StoreOptions};

type Items = BTreeMap<Key, Bytes>;

/// The snapshots by name. The contents of a snapshot from this life follow from its stamp.
pub(super) type Snapshots = crate::snapshots::Snapshots<Items>;

/// Compares the snapshots of a recovered store with the known ones; returns the snapshots with
/// which the next life begins.
pub(super) async fn verify(
    world: &World,
    store: &Store,
    history: &StoreHistory,
    position: usize,
) -> Result<Snapshots, String> {
    let there = store.snapshots().await;
    let names: Vec<String> = there.iter().map(|snapshot| snapshot.name.clone()).collect();
    history.snapshots.check(&names, position)?;
    let mut seen = Vec::new();
    for snapshot in there {
        let name = snapshot.name.clone();
        let items =
            verify_one(world, history, &snapshot).await.map_err(|what| format!("snapshot {name}: {what}"))?;
        seen.push((name, items));
    }
    Ok(history.snapshots.go_on(position, seen))
}

async fn verify_one(world: &World, history: &StoreHistory, snapshot: &Snapshot) -> Result<Items, String> {
    let options = StoreOptions { node_cache_bytes: 1 << 20, ..StoreOptions::default() };
    let (device, spawn) = (world.device.clone(), world.spawn.clone());
    let (view, _) = Store::open_snapshot(device, options, spawn, &snapshot.name)
        .await
        .map_err(|error| format!("does not open: {error}"))?;
    let found = all_items(&view).await?;
    let op = found.get(&STAMP).map(|value| number(value)).ok_or("the stamp is gone")?;
    let life = history.snapshots.get(&snapshot.name).ok_or("nobody asked for it")?;
    let expected = match life.contents {
        Some(items) => Items::clone(&items),
        None if life.unseen => found.clone(),
        None => history.items_after(op).ok_or(format!("it is of transaction {op}, which never was"))?,
    };
    if let Some(difference) = difference(&found, &expected) {
        return Err(difference);
    }
    let placed = placed_in(&found)?;
    for data in &placed {
        verify_data(&view, data).await?;
    }
    verify_space(&view, placed.iter().map(|data| data.run).collect()).await?;
    Ok(found)
}
