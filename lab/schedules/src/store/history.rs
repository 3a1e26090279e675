//! The committed transactions in the store's order, and the promises about them.

use super::base::{self, Items};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use syncline_format::{BlockRun, Crc, Key};

/// A changed item; `None`: it was removed.
pub(super) type Change = (Key, Option<Bytes>);

/// The history of one life. Nothing waits under its lock, and locking it is not a step.
pub(super) struct History(Mutex<State>);

#[derive(Default)]
struct State {
    /// By transaction number; the numbers count up by one across all tasks.
    changes: BTreeMap<u64, Vec<Change>>,
    /// From this position of the device's record on, this transaction and all before it must
    /// survive.
    promises: Vec<(usize, u64)>,
    /// Snapshots by name.
    snapshots: BTreeMap<String, Snapshot>,
    tags: u64,
}

/// A snapshot that a task requested.
#[derive(Clone, Default)]
pub(super) struct Snapshot {
    /// It exists from this position on.
    pub(super) made: Option<usize>,
    /// It may be gone from this position on: its deletion was requested.
    pub(super) unwanted: Option<usize>,
    /// The newest transaction that it must contain.
    pub(super) least_op: u64,
}

impl History {
    pub(super) fn beginning() -> Self {
        Self(Mutex::default())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn committed(&self, op: u64, changes: Vec<Change>) {
        let before = self.state().changes.insert(op, changes);
        assert!(before.is_none(), "two transactions have number {op}");
    }

    pub(super) fn promise(&self, position: usize, op: u64) {
        self.state().promises.push((position, op));
    }

    pub(super) fn promises(&self) -> Vec<(usize, u64)> {
        self.state().promises.clone()
    }

    /// The lowest transaction number that a power cut at `position` may leave.
    pub(super) fn promised_at(&self, position: usize) -> u64 {
        let state = self.state();
        let given = state.promises.iter().filter(|(given, _)| *given <= position).map(|(_, op)| *op);
        given.max().unwrap_or(base::get().op)
    }

    /// The newest transaction.
    pub(super) fn last_op(&self) -> u64 {
        self.state().changes.last_key_value().map_or(base::get().op, |(op, _)| *op)
    }

    /// All items after transaction `op`.
    pub(super) fn items_after(&self, op: u64) -> Items {
        let mut items = base::get().items.clone();
        for (key, value) in self.state().changes.range(..=op).flat_map(|(_, changes)| changes) {
            match value {
                Some(value) => items.insert(*key, value.clone()),
                None => items.remove(key),
            };
        }
        items
    }

    /// A tag that no data has yet.
    pub(super) fn new_tag(&self) -> u64 {
        let mut state = self.state();
        state.tags += 1;
        state.tags
    }

    pub(super) fn change_snapshot(&self, name: &str, change: impl FnOnce(&mut Snapshot)) {
        change(self.state().snapshots.entry(name.to_owned()).or_default());
    }

    pub(super) fn snapshots(&self) -> BTreeMap<String, Snapshot> {
        self.state().snapshots.clone()
    }
}

/// The location of data, as encoded in the item that names it.
#[derive(Clone, Debug)]
pub(super) struct Placed {
    pub(super) run: BlockRun,
    pub(super) tag: u64,
    pub(super) checksums: Vec<Crc>,
}

impl Placed {
    pub(super) fn encode(&self) -> Bytes {
        let mut bytes = Vec::new();
        for number in [self.run.start, self.run.blocks, self.tag] {
            bytes.extend(number.to_le_bytes());
        }
        self.checksums.iter().for_each(|checksum| bytes.extend(checksum.to_le_bytes()));
        bytes.into()
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let number = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        let checksums =
            bytes.get(24..)?.chunks_exact(4).map(|c| u32::from_le_bytes([c[0], c[1], c[2], c[3]]));
        Some(Self {
            run: BlockRun::new(number(0)?, number(8)?),
            tag: number(16)?,
            checksums: checksums.collect(),
        })
    }
}
