//! Compares a recovered store with its history.

use super::history::{STAMP, StoreHistory};
use super::{EXTENT, Placed, snapshots};
use crate::block_of;
use crate::lab::World;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::Arc;
use syncline_device::{BLOCK_BYTES, Device, MemoryDevice};
use syncline_format::{BlockRun, Key};
use syncline_powercut::tear::get;
use syncline_store::Store;

type Items = BTreeMap<Key, Bytes>;

/// Checks that the store holds exactly the state after some transaction no older than the promise
/// at `position`. Returns a history that starts there.
pub(super) async fn verify(
    world: &World,
    store: &Store,
    history: &StoreHistory,
    position: usize,
) -> Result<StoreHistory, String> {
    let found = all_items(store).await?;
    let op = found.get(&STAMP).map(|value| number(value)).ok_or("the stamp is gone")?;
    let (least, most) = (history.promised_at(position), history.last_op());
    if !(least..=most).contains(&op) {
        return Err(format!("transaction {op} came back; {least} was promised, {most} the last"));
    }
    if store.last_op().0 != op {
        return Err(format!("the store says transaction {}, its items say {op}", store.last_op().0));
    }
    let (expected, objects) = history.state_after(op);
    if let Some(difference) = difference(&found, &expected) {
        return Err(format!("after transaction {op}: {difference}"));
    }
    if store.objects() != objects {
        return Err(format!("{} objects counted, not {objects}", store.objects()));
    }
    let placed = placed_in(&found)?;
    for data in &placed {
        verify_data(store, data).await.map_err(|what| format!("after transaction {op}: {what}"))?;
    }
    verify_space(store, placed.iter().map(|data| data.run).collect()).await?;
    let snapshots = snapshots::verify(world, store, history, position).await?;
    Ok(StoreHistory::starting_with(expected, op, objects).after(history, snapshots))
}

/// Checks that all named data can be read. Nothing may be changing meanwhile.
pub(super) async fn verify_present(store: &Store, history: &StoreHistory) -> Result<(), String> {
    for data in placed_in(&history.present())? {
        verify_data(store, &data).await?;
    }
    Ok(())
}

/// Checks that all named data is on the device, except data still held in memory. No operation may
/// be in flight.
pub(super) fn compare_device(
    store: &Store,
    history: &StoreHistory,
    image: &Arc<MemoryDevice>,
) -> Result<(), String> {
    let device: Arc<dyn Device> = image.clone();
    for data in placed_in(&history.present())? {
        if store.holds_write(data.run) {
            continue;
        }
        let found = get(&device, data.run.offset_bytes(), data.run.len_bytes() as usize);
        let wrong =
            found.chunks(BLOCK_BYTES).zip(0..).find(|(block, index)| **block != block_of(data.tag, *index));
        if let Some((_, index)) = wrong {
            return Err(format!(
                "block {index} of data {:#x} at {:?} is not on the device",
                data.tag, data.run
            ));
        }
    }
    Ok(())
}

/// The data that the items refer to.
pub(super) fn placed_in(items: &Items) -> Result<Vec<Placed>, String> {
    let extents = items.iter().filter(|(key, _)| key.kind == EXTENT);
    extents.map(|(key, value)| Placed::decode(value).ok_or(format!("{key:?} is no extent"))).collect()
}

pub(super) fn number(value: &[u8]) -> u64 {
    value.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

pub(super) async fn all_items(store: &Store) -> Result<Items, String> {
    let mut items = Items::new();
    let mut from = Key::MIN;
    loop {
        let chunk = store.scan(from, Key::MAX, 100).await.map_err(|error| format!("scan: {error}"))?;
        let last = chunk.items.last().map(|(key, _)| *key);
        items.extend(chunk.items);
        match last.and_then(Key::next) {
            Some(next) if !chunk.complete => from = next,
            _ => return Ok(items),
        }
    }
}

/// Describes the first key at which two maps differ.
pub(super) fn difference(found: &Items, expected: &Items) -> Option<String> {
    let keys = found.keys().chain(expected.keys());
    let wrong = keys.filter(|key| found.get(*key) != expected.get(*key)).min()?;
    let show = |items: &Items| {
        items.get(wrong).map(|value| String::from_utf8_lossy(&value[..value.len().min(40)]).into_owned())
    };
    Some(format!("{wrong:?} is {:?}, not {:?}", show(found), show(expected)))
}

pub(super) async fn verify_data(store: &Store, data: &Placed) -> Result<(), String> {
    // The inode is only named in the log.
    let read = store.read_data(STAMP.object, data.run, &data.checksums).await;
    let bytes = read.map_err(|error| format!("data {:#x} at {:?}: {error}", data.tag, data.run))?;
    let wrong =
        bytes.chunks(BLOCK_BYTES).zip(0..).find(|(block, index)| **block != block_of(data.tag, *index));
    match wrong {
        Some((_, index)) => {
            Err(format!("block {index} of data {:#x} at {:?} is another's", data.tag, data.run))
        }
        None => Ok(()),
    }
}

/// Checks that the space map names exactly the blocks that are referred to, and that no block is
/// referred to twice.
pub async fn verify_space(store: &Store, data: Vec<BlockRun>) -> Result<(), String> {
    let reachable = store.walk_nodes().await;
    if let Some((addr, what)) = reachable.damaged.first() {
        return Err(format!("node at block {addr}: {what}"));
    }
    let mut owners: BTreeMap<u64, &'static str> = BTreeMap::new();
    let kinds = [("data", data), ("tree", reachable.nodes), ("space map", store.space_pages())];
    for (owner, runs) in kinds {
        for block in runs.into_iter().flat_map(|run| run.start..run.end()) {
            if let Some(other) = owners.insert(block, owner) {
                return Err(format!("block {block} belongs to {other} and to {owner}"));
            }
        }
    }
    for block in store.named_runs().into_iter().flat_map(|run| run.start..run.end()) {
        if owners.remove(&block).is_none() {
            return Err(format!("block {block} is named and belongs to nobody"));
        }
    }
    match owners.first_key_value() {
        Some((block, owner)) => Err(format!("block {block} belongs to {owner} and is not named")),
        None => Ok(()),
    }
}
