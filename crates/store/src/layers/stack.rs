//! Two memtables over the root of the tree.

use super::memtable::Memtable;
use super::newest::{Newest, take_live};
use bytes::Bytes;
use std::sync::Arc;
use syncline_format::Key;
use syncline_format::superblock::TreeRoot;

/// The three layers of the map; the newest change of a key wins.
pub(super) struct Stack {
    /// Takes new changes.
    pub(super) active: Memtable,
    /// The memtable that the checkpoint in flight is merging into the tree.
    pub(super) frozen: Option<Arc<Memtable>>,
    /// The tree as of the last durable superblock.
    pub(super) root: TreeRoot,
    /// Number of nodes of that tree.
    pub(super) tree_nodes: u64,
}

impl Stack {
    /// Memory that both memtables hold, roughly.
    pub(super) fn memory_bytes(&self) -> usize {
        self.active.bytes() + self.frozen.as_ref().map_or(0, |frozen| frozen.bytes())
    }

    /// True when something in a range, both ends included, has changed in memory.
    pub(super) fn has_any(&self, from: Key, to: Key) -> bool {
        self.active.has_any(from, to) || self.frozen.as_ref().is_some_and(|frozen| frozen.has_any(from, to))
    }

    /// The last key of a range, both ends included, that has changed in memory.
    pub(super) fn floor(&self, from: Key, to: Key) -> Option<Key> {
        let frozen = self.frozen.as_ref().and_then(|frozen| frozen.last_in(from, to));
        self.active.last_in(from, to).max(frozen)
    }

    /// The first `max` items of a range, both ends included, with the changes in memory put over the
    /// items of the tree; and whether more follow.
    pub(super) fn over(
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
    pub(super) fn get(&self, key: &Key) -> Option<&Option<Bytes>> {
        self.active.get(key).or_else(|| self.frozen.as_ref()?.get(key))
    }
}
