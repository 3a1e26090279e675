//! All changes since a checkpoint, readable immediately.

use super::newest::{Newest, take_live};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::Arc;
use syncline_format::Key;
use syncline_format::superblock::TreeRoot;

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
    fn has_any(&self, from: Key, to: Key) -> bool {
        from <= to && self.items.range(from..=to).next().is_some()
    }

    /// The last changed key of a range, both ends included.
    fn last_in(&self, from: Key, to: Key) -> Option<Key> {
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

/// The three layers of the map; the newest change of a key wins.
#[derive(Default)]
pub(crate) struct Layers {
    /// Takes new changes.
    pub(crate) active: Memtable,
    /// The memtable that the checkpoint in flight is merging into the tree.
    pub(crate) frozen: Option<Arc<Memtable>>,
    /// The tree as of the last durable superblock.
    pub(crate) root: TreeRoot,
    /// Number of nodes of that tree.
    pub(crate) tree_nodes: u64,
}

impl Layers {
    /// Memory that both memtables hold, roughly.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.active.bytes() + self.frozen.as_ref().map_or(0, |frozen| frozen.bytes())
    }

    /// True when something in a range, both ends included, has changed in memory.
    pub(crate) fn has_any(&self, from: Key, to: Key) -> bool {
        self.active.has_any(from, to) || self.frozen.as_ref().is_some_and(|frozen| frozen.has_any(from, to))
    }

    /// The last key of a range, both ends included, that has changed in memory.
    pub(crate) fn floor(&self, from: Key, to: Key) -> Option<Key> {
        let frozen = self.frozen.as_ref().and_then(|frozen| frozen.last_in(from, to));
        self.active.last_in(from, to).max(frozen)
    }

    /// The first `max` items of a range, both ends included, with the changes in memory put over the
    /// items of the tree; and whether more follow.
    pub(crate) fn over(
        &self,
        tree: impl IntoIterator<Item = (Key, Bytes)>,
        (from, to): (Key, Key),
        max: usize,
    ) -> (Vec<(Key, Bytes)>, bool) {
        let active = self.active.range(from, to);
        let frozen = self.frozen.iter().flat_map(|frozen| frozen.range(from, to));
        let tree = tree.into_iter().map(|(key, value)| (key, Some(value)));
        take_live(Newest::new(active, Newest::new(frozen, tree)), max)
    }

    /// The newest change of a key in memory.
    pub(crate) fn get(&self, key: &Key) -> Option<&Option<Bytes>> {
        self.active.get(key).or_else(|| self.frozen.as_ref()?.get(key))
    }
}
