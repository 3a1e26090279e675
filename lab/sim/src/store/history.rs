//! All committed transactions in order, and the promises about them.

use super::snapshots::Snapshots;
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use syncline_format::Key;

/// Every transaction writes its own number to this key.
pub(crate) const STAMP: Key = Key { object: 99, kind: 2, offset: 0 };

/// A changed item; `None`: it was removed.
pub(crate) type Change = (Key, Option<Bytes>);

/// The history of one life of a store, from the state in which it began.
pub struct StoreHistory {
    start: BTreeMap<Key, Bytes>,
    start_op: u64,
    start_objects: u64,
    grown: Mutex<Grown>,
    /// The snapshots of this life and those from before it.
    pub(super) snapshots: Snapshots,
}

#[derive(Default)]
struct Grown {
    transactions: Vec<Committed>,
    /// All current items.
    items: BTreeMap<Key, Bytes>,
    /// Acknowledgements: from this position of the device log on, this transaction and all before
    /// it must survive.
    promises: Vec<(usize, u64)>,
    newest_tag: u64,
    objects: u64,
}

struct Committed {
    changes: Vec<Change>,
    objects_delta: i64,
}

impl StoreHistory {
    /// A history that starts with these items after transaction `op`.
    pub(crate) fn starting_with(start: BTreeMap<Key, Bytes>, op: u64, objects: u64) -> Self {
        let grown = Grown { items: start.clone(), newest_tag: op << 32, objects, ..Grown::default() };
        let snapshots = Snapshots::default();
        Self { start, start_op: op, start_objects: objects, grown: Mutex::new(grown), snapshots }
    }

    /// Adds these snapshots. Tags used in the life `before`, even for lost data, are not used
    /// again.
    pub(super) fn after(self, before: &Self, snapshots: Snapshots) -> Self {
        let used = before.grown.lock().newest_tag;
        let mut grown = self.grown.into_inner();
        grown.newest_tag = grown.newest_tag.max(used);
        Self { snapshots, grown: Mutex::new(grown), ..self }
    }

    /// Items after transaction `op`, if it is in this history.
    pub(crate) fn items_after(&self, op: u64) -> Option<BTreeMap<Key, Bytes>> {
        (self.start_op..=self.last_op()).contains(&op).then(|| self.state_after(op).0)
    }

    /// The newest transaction.
    pub fn last_op(&self) -> u64 {
        self.start_op + self.grown.lock().transactions.len() as u64
    }

    /// The lowest transaction number that a crash at `position` may recover to.
    pub fn promised_at(&self, position: usize) -> u64 {
        let grown = self.grown.lock();
        let kept = grown.promises.iter().filter(|(given, _)| *given <= position).map(|(_, op)| *op);
        kept.max().unwrap_or(self.start_op)
    }

    /// Items and objects as they were after transaction `op`.
    pub(crate) fn state_after(&self, op: u64) -> (BTreeMap<Key, Bytes>, u64) {
        let grown = self.grown.lock();
        let (mut items, mut objects) = (self.start.clone(), self.start_objects);
        for committed in &grown.transactions[..(op - self.start_op) as usize] {
            committed.changes.iter().for_each(|change| apply(&mut items, change));
            objects = objects.saturating_add_signed(committed.objects_delta);
        }
        (items, objects)
    }

    /// Records a transaction. It must be the next one after the last recorded.
    pub(crate) fn committed(&self, op: u64, changes: Vec<Change>, objects_delta: i64) {
        let mut grown = self.grown.lock();
        assert_eq!(
            op,
            self.start_op + grown.transactions.len() as u64 + 1,
            "transactions are numbered one by one"
        );
        changes.iter().for_each(|change| apply(&mut grown.items, change));
        grown.objects = grown.objects.saturating_add_signed(objects_delta);
        grown.transactions.push(Committed { changes, objects_delta });
    }

    /// Records that everything up to `op` was acknowledged as durable when the device log was at
    /// `position`.
    pub(crate) fn promise(&self, position: usize, op: u64) {
        self.grown.lock().promises.push((position, op));
    }

    /// Current number of objects.
    pub(crate) fn objects(&self) -> u64 {
        self.grown.lock().objects
    }

    /// The current value of a key.
    pub(crate) fn get(&self, key: &Key) -> Option<Bytes> {
        self.grown.lock().items.get(key).cloned()
    }

    /// All current items.
    pub(crate) fn present(&self) -> BTreeMap<Key, Bytes> {
        self.grown.lock().items.clone()
    }

    /// All current items of a range.
    pub(crate) fn range(&self, from: Key, to: Key) -> Vec<(Key, Bytes)> {
        self.grown.lock().items.range(from..=to).map(|(key, value)| (*key, value.clone())).collect()
    }

    /// A tag never used before in this history.
    pub(crate) fn new_tag(&self) -> u64 {
        let mut grown = self.grown.lock();
        grown.newest_tag += 1;
        grown.newest_tag
    }
}

fn apply(items: &mut BTreeMap<Key, Bytes>, (key, value): &Change) {
    match value {
        Some(value) => items.insert(*key, value.clone()),
        None => items.remove(key),
    };
}
