//! What is known of the snapshots of a store, and whether it holds after a crash.

use super::history::{STAMP, StoreHistory};
use super::verify::{all_items, difference, number, placed_in, verify_data, verify_space};
use crate::lab::World;
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use syncline_format::Key;
use syncline_store::{Snapshot, Store, StoreOptions};

type Items = BTreeMap<Key, Bytes>;

/// The snapshots by name.
#[derive(Default)]
pub(crate) struct Snapshots(Mutex<BTreeMap<String, Life>>);

/// What happened to a snapshot, in positions of the device log.
#[derive(Clone, Default)]
struct Life {
    /// Contents, for one of an earlier life; of one of this life its stamp tells.
    items: Option<Items>,
    /// It is of an earlier life, in which nobody saw it.
    unseen: bool,
    /// It may exist from here on.
    asked: usize,
    /// It exists from here on.
    made: Option<usize>,
    /// It may be gone from here on.
    unwanted: Option<usize>,
    /// It is gone from here on.
    gone: Option<usize>,
}

impl Snapshots {
    /// One is asked for.
    pub(crate) fn asked(&self, name: &str, position: usize) {
        self.0.lock().insert(name.to_owned(), Life { asked: position, ..Life::default() });
    }

    /// It was made.
    pub(crate) fn made(&self, name: &str, position: usize) {
        self.change(name, |life| life.made = Some(position));
    }

    /// Its removal is asked for.
    pub(crate) fn unwanted(&self, name: &str, position: usize) {
        self.change(name, |life| life.unwanted = Some(position));
    }

    /// It was removed, or was never made.
    pub(crate) fn gone(&self, name: &str, position: usize) {
        self.change(name, |life| life.gone = Some(position));
    }

    /// One that nobody asked to be removed, if there is any.
    pub(crate) fn any(&self, pick: usize) -> Option<String> {
        let lives = self.0.lock();
        let there: Vec<_> =
            lives.iter().filter(|(_, life)| life.made.is_some() && life.unwanted.is_none()).collect();
        (!there.is_empty()).then(|| there[pick % there.len()].0.clone())
    }

    fn change(&self, name: &str, change: impl FnOnce(&mut Life)) {
        change(self.0.lock().get_mut(name).expect("it was asked for"));
    }

    fn get(&self, name: &str) -> Option<Life> {
        self.0.lock().get(name).cloned()
    }
}

impl Life {
    /// What is known of it after a crash at `position`. Only what was promised is certain: half a superblock may be read at one
    /// opening and not at the next.
    fn goes_on(&self, position: usize) -> Option<Self> {
        let before = |at: Option<usize>| at.is_some_and(|at| at <= position);
        let start = |yes: bool| yes.then_some(0);
        (self.asked <= position && !before(self.gone)).then(|| Self {
            items: self.items.clone(),
            unseen: self.items.is_none(),
            asked: 0,
            made: start(before(self.made)),
            unwanted: start(before(self.unwanted)),
            gone: None,
        })
    }

    /// Says what is wrong with its being there, or not, after a crash at `position`.
    fn contradicts(&self, there: bool, position: usize) -> Option<&'static str> {
        let before = |at: Option<usize>| at.is_some_and(|at| at <= position);
        match there {
            true if self.asked > position => Some("is there before anybody asked for it"),
            true if before(self.gone) => Some("is there though it was removed"),
            false if before(self.made) && !before(self.unwanted) => Some("is gone though it was made"),
            _ => None,
        }
    }
}

/// Compares the snapshots of a recovered store with what is known of them; what the next life begins with.
pub(super) async fn verify(
    world: &World,
    store: &Store,
    history: &StoreHistory,
    position: usize,
) -> Result<Snapshots, String> {
    let there = store.snapshots().await;
    for (name, life) in history.snapshots.0.lock().iter() {
        if let Some(what) = life.contradicts(there.iter().any(|snapshot| snapshot.name == *name), position) {
            return Err(format!("snapshot {name} {what}"));
        }
    }
    let mut came_back = BTreeMap::new();
    for (name, life) in history.snapshots.0.lock().iter() {
        came_back.extend(life.goes_on(position).map(|life| (name.clone(), life)));
    }
    for snapshot in there {
        let name = snapshot.name.clone();
        let items =
            verify_one(world, history, &snapshot).await.map_err(|what| format!("snapshot {name}: {what}"))?;
        came_back.entry(name).and_modify(|life| (life.items, life.unseen) = (Some(items), false));
    }
    Ok(Snapshots(Mutex::new(came_back)))
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
    let expected = match life.items {
        Some(items) => items,
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
