//! The known facts about snapshots, and whether they hold after a crash. Contents are checked by
//! the code that made them.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The snapshots by name, each with its contents.
pub(crate) struct Snapshots<C>(Mutex<BTreeMap<String, Life<C>>>);

/// The events of a snapshot's life, as positions in the device log.
pub(crate) struct Life<C> {
    /// Its contents, for a snapshot from an earlier life.
    pub(crate) contents: Option<Arc<C>>,
    /// It is from an earlier life in which its contents were never read.
    pub(crate) unseen: bool,
    /// Times of the history at which it was requested and completed; `ops` are the newest
    /// transactions then.
    pub(crate) moments: (u64, u64),
    pub(crate) ops: (u64, u64),
    /// It may exist from here on.
    asked: usize,
    /// It exists from here on.
    made: Option<usize>,
    /// It may be gone from here on: its removal was requested.
    unwanted: Option<usize>,
    /// It is gone from here on.
    pub(crate) gone: Option<usize>,
}

impl<C> Default for Snapshots<C> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<C> Default for Life<C> {
    fn default() -> Self {
        Self {
            contents: None,
            unseen: false,
            moments: (0, u64::MAX),
            ops: (0, u64::MAX),
            asked: 0,
            made: None,
            unwanted: None,
            gone: None,
        }
    }
}

impl<C> Clone for Life<C> {
    fn clone(&self) -> Self {
        Self { contents: self.contents.clone(), ..*self }
    }
}

impl<C> Snapshots<C> {
    /// A snapshot is requested at this time of the history, after this transaction.
    pub(crate) fn asked(&self, name: &str, position: usize, moment: u64, op: u64) {
        let (moments, ops) = ((moment, u64::MAX), (op, u64::MAX));
        let life = Life { asked: position, moments, ops, ..Life::default() };
        self.0.lock().insert(name.to_owned(), life);
    }

    /// The snapshot was completed by this time of the history and this transaction.
    pub(crate) fn made(&self, name: &str, position: usize, moment: u64, op: u64) {
        self.change(name, |life| (life.made, life.moments.1, life.ops.1) = (Some(position), moment, op));
    }

    /// Its removal is requested.
    pub(crate) fn unwanted(&self, name: &str, position: usize) {
        self.change(name, |life| life.unwanted = Some(position));
    }

    /// It was removed, or creating it failed.
    pub(crate) fn gone(&self, name: &str, position: usize) {
        self.change(name, |life| life.gone = Some(position));
    }

    /// A snapshot whose removal was not requested, if there is any.
    pub(crate) fn any(&self, pick: usize) -> Option<String> {
        let there = self.wanted();
        (!there.is_empty()).then(|| there[pick % there.len()].clone())
    }

    /// The snapshots whose removal was not requested.
    pub(crate) fn wanted(&self) -> Vec<String> {
        let lives = self.0.lock();
        let there = lives.iter().filter(|(_, life)| life.made.is_some() && life.unwanted.is_none());
        there.map(|(name, _)| name.clone()).collect()
    }

    fn change(&self, name: &str, change: impl FnOnce(&mut Life<C>)) {
        change(self.0.lock().get_mut(name).expect("it was asked for"));
    }

    /// The facts about one snapshot.
    pub(crate) fn get(&self, name: &str) -> Option<Life<C>> {
        self.0.lock().get(name).cloned()
    }

    /// Reports a contradiction if these snapshots exist after a crash at `position`.
    pub(crate) fn check(&self, there: &[String], position: usize) -> Result<(), String> {
        self.0.lock().iter().try_for_each(|(name, life)| {
            let wrong = life.contradicts(there.contains(name), position);
            wrong.map_or(Ok(()), |what| Err(format!("snapshot {name} {what}")))
        })
    }

    /// The snapshots with which the next life begins after a crash at `position`, in which these
    /// were seen.
    pub(crate) fn go_on(&self, position: usize, seen: Vec<(String, C)>) -> Self {
        let mut came_back = BTreeMap::new();
        for (name, life) in self.0.lock().iter() {
            came_back.extend(life.goes_on(position).map(|life| (name.clone(), life)));
        }
        for (name, contents) in seen {
            came_back
                .entry(name)
                .and_modify(|life| (life.contents, life.unseen) = (Some(Arc::new(contents)), false));
        }
        Self(Mutex::new(came_back))
    }
}

impl<C> Life<C> {
    /// The facts that remain after a crash at `position`. Only promises are certain: a torn
    /// superblock may be readable at one opening and not at the next.
    fn goes_on(&self, position: usize) -> Option<Self> {
        let before = |at: Option<usize>| at.is_some_and(|at| at <= position);
        let start = |yes: bool| yes.then_some(0);
        (self.asked <= position && !before(self.gone)).then(|| Self {
            contents: self.contents.clone(),
            unseen: self.contents.is_none(),
            made: start(before(self.made)),
            unwanted: start(before(self.unwanted)),
            ..Self::default()
        })
    }

    /// The contradiction, if any, between the facts and whether the snapshot exists after a crash
    /// at `position`.
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
