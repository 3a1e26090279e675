//! Judges the state that a power cut leaves of a life of the store.

use super::base::{EXTENT, FIRST_OBJECT, Items};
use super::history::{History, Placed};
use super::setup::{Laboratory, options, seeded};
use crate::control::Control;
use rand::Rng;
use rand::seq::IndexedRandom;
use rand_chacha::ChaCha8Rng;
use std::sync::Arc;
use syncline_device::{BLOCK_BYTES, MemoryDevice};
use syncline_format::Key;
use syncline_sim::{CrashImages, block_of, verify_space};
use syncline_store::Store;

/// Power cuts of a life: at moments of promises, and at random moments.
const CUTS: (usize, usize) = (2, 1);

/// Judges images of power cuts during the life and the final state.
pub(super) async fn judge(
    control: &Control,
    laboratory: &Laboratory,
    history: &History,
    rng: &mut ChaCha8Rng,
) {
    laboratory.faults.mend();
    let Laboratory { setup, store, recording, before, .. } = laboratory;
    store.refuse_allocations(0, 0);
    let living = recording.position();
    let newest = history.last_op();
    let closed = store.close().await;
    assert!(closed.is_ok() || setup.faulty, "it does not close: {closed:?}");
    if closed.is_ok() {
        history.promise(recording.position(), newest);
    }
    let promises = history.promises();
    let chosen = promises.choose_multiple(rng, CUTS.0).map(|(position, _)| (*position, true));
    let mut cuts: Vec<(usize, bool)> = chosen.collect();
    cuts.extend((0..CUTS.1).map(|_| (rng.random_range(0..=living), false)));
    if rng.random_range(0..4) == 0 {
        cuts.push((recording.position(), true));
    }
    cuts.sort_unstable();
    cuts.dedup();
    let mut images = CrashImages::new(before, recording.events(), rng.random());
    for &(position, promised) in &cuts {
        // At the moment of a promise the worst case is tested: only flushed writes survive.
        let image =
            if promised { images.cut(position).image(&[]) } else { images.at(position, rng.random()) };
        let told = judge_image(laboratory, history, position, image, rng.random()).await;
        if let Err(what) = told {
            panic!("a power cut at event {position} of {}: {what}; {setup:?}", recording.position());
        }
    }
    control.judged(cuts.len() as u64, promises.len() as u64);
}

async fn judge_image(
    laboratory: &Laboratory,
    history: &History,
    position: usize,
    image: Arc<MemoryDevice>,
    seed: u64,
) -> Result<(), String> {
    let options = options(laboratory.setup, &mut seeded(seed));
    let opened = Store::open(image, options, laboratory.spawn.clone()).await;
    let (store, _) = opened.map_err(|error| format!("the image does not open: {error}"))?;
    let op = store.last_op().0;
    let (least, most) = (history.promised_at(position), history.last_op());
    if !(least..=most).contains(&op) {
        return Err(format!("transaction {op} came back; {least} was promised, {most} the last"));
    }
    require_items(&store, &history.items_after(op))
        .await
        .map_err(|what| format!("after transaction {op}: {what}"))?;
    require_snapshots(&store, history, position).await?;
    store.close().await.map_err(|error| format!("it does not close: {error}"))
}

/// Checks that the store has exactly these items, the data that they name, and no other blocks in
/// use.
async fn require_items(store: &Store, expected: &Items) -> Result<(), String> {
    let found = all_items(store).await?;
    if let Some(key) = found.keys().chain(expected.keys()).find(|key| found.get(*key) != expected.get(*key)) {
        return Err(format!("{key:?} is {:?}, not {:?}", found.get(key), expected.get(key)));
    }
    let mut runs = Vec::new();
    for (key, value) in found.iter().filter(|(key, _)| key.kind == EXTENT) {
        let placed = Placed::decode(value).ok_or(format!("{key:?} is no extent"))?;
        require_data(store, &placed).await?;
        runs.push(placed.run);
    }
    verify_space(store, runs).await
}

async fn require_snapshots(store: &Store, history: &History, position: usize) -> Result<(), String> {
    let known = history.snapshots();
    let there = store.snapshots().await;
    for (name, snapshot) in &known {
        let wanted = snapshot.made.is_some_and(|made| made <= position)
            && snapshot.unwanted.is_none_or(|unwanted| unwanted > position);
        if wanted && !there.iter().any(|found| found.name == *name) {
            return Err(format!("snapshot {name} is gone"));
        }
    }
    for snapshot in there {
        let name = &snapshot.name;
        let life = known.get(name).ok_or(format!("nobody asked for snapshot {name}"))?;
        let view = store
            .look_at_snapshot(&snapshot, &store.pages())
            .await
            .map_err(|error| format!("snapshot {name}: {error}"))?;
        let found = all_items(&view).await.map_err(|what| format!("snapshot {name}: {what}"))?;
        let mut states = (life.least_op..=history.last_op()).map(|op| history.items_after(op));
        let Some(expected) = states.find(|state| *state == found) else {
            return Err(format!(
                "snapshot {name} has what never was, after {} or later: {found:?}",
                life.least_op
            ));
        };
        require_items(&view, &expected).await.map_err(|what| format!("snapshot {name}: {what}"))?;
    }
    Ok(())
}

async fn all_items(store: &Store) -> Result<Items, String> {
    let (mut items, mut from) = (Items::new(), Key::MIN);
    loop {
        let chunk = store.scan(from, Key::MAX, 200).await.map_err(|error| format!("scan: {error}"))?;
        let last = chunk.items.last().map(|(key, _)| *key);
        items.extend(chunk.items);
        match last.and_then(Key::next) {
            Some(next) if !chunk.complete => from = next,
            _ => return Ok(items),
        }
    }
}

/// Checks that the data reads as it was written.
pub(super) async fn require_data(store: &Store, placed: &Placed) -> Result<(), String> {
    // The inode is only named in the log.
    let read = store.read_data(FIRST_OBJECT, placed.run, &placed.checksums).await;
    let bytes = read.map_err(|error| format!("data {:#x} at {:?}: {error}", placed.tag, placed.run))?;
    let wrong =
        bytes.chunks(BLOCK_BYTES).zip(0..).find(|(block, index)| **block != block_of(placed.tag, *index));
    match wrong {
        Some((_, index)) => {
            Err(format!("block {index} of data {:#x} at {:?} is another's", placed.tag, placed.run))
        }
        None => Ok(()),
    }
}
