//! All changes since a checkpoint, readable immediately.

use bytes::Bytes;
use std::collections::BTreeMap;
use syncline_format::Key;

/// Cost of an item beside its value: key, share of a tree node, allocation.
pub(crate) const ITEM_OVERHEAD_BYTES: usize = 112;

/// Changed items; `None` is a tombstone.
#[derive(Default)]
pub(crate) struct Memtable {
    items: BTreeMap<Key, Option<Bytes>>,
    bytes: usize,
}

impl Memtable {
    /// Applies a change.
    pub(crate) fn apply(&mut self, key: Key, value: Option<Bytes>) {
        let len = |value: &Option<Bytes>| value.as_ref().map_or(0, Bytes::len);
        self.bytes += len(&value);
        match self.items.insert(key, value) {
            Some(old) => self.bytes -= len(&old),
            None => self.bytes += ITEM_OVERHEAD_BYTES,
        }
    }

    /// The newest change of a key: `Some(None)` if the key was removed.
    pub(crate) fn get(&self, key: &Key) -> Option<&Option<Bytes>> {
        self.items.get(key)
    }

    /// The changes in a range, both ends included, in key order.
    pub(crate) fn range(&self, from: Key, to: Key) -> impl Iterator<Item = (Key, Option<Bytes>)> + '_ {
        let range = (from <= to).then(|| self.items.range(from..=to));
        range.into_iter().flatten().map(|(key, value)| (*key, value.clone()))
    }

    /// True when something in a range, both ends included, has changed.
    pub(super) fn has_any(&self, from: Key, to: Key) -> bool {
        from <= to && self.items.range(from..=to).next().is_some()
    }

    /// The last changed key of a range, both ends included.
    pub(super) fn last_in(&self, from: Key, to: Key) -> Option<Key> {
        (from <= to).then(|| self.items.range(from..=to).next_back()).flatten().map(|(key, _)| *key)
    }

    /// All changes, in key order.
    pub(crate) fn items(&self) -> &BTreeMap<Key, Option<Bytes>> {
        &self.items
    }

    /// Memory held, roughly.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Number of changed items.
    pub(crate) fn len(&self) -> usize {
        self.items.len()
    }

    /// Adds the changes of `older` beneath these.
    pub(crate) fn fold_under(&mut self, older: &Memtable) {
        for (key, value) in &older.items {
            if !self.items.contains_key(key) {
                self.apply(*key, value.clone());
            }
        }
    }
}
