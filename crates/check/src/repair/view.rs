//! The items of a damaged image, overlaid with the changes of the repair.

use bytes::Bytes;
use siphasher::sip::SipHasher24;
use std::collections::BTreeMap;
use std::sync::Arc;
use syncline_format::items::{HASH_MAX, hash_offsets};
use syncline_format::{Key, Kind};
use syncline_store::{Chunk, Store, Unreadable};

/// Items read at a time.
const ITEMS_EACH: usize = 512;

/// The readable items of an image, and the changes to them.
pub(crate) struct View {
    store: Arc<Store>,
    hasher: SipHasher24,
    /// Changed items; `None` removes one.
    pub(crate) edits: BTreeMap<Key, Option<Bytes>>,
    /// Unreadable tree nodes found so far, by address.
    pub(crate) lost: BTreeMap<u64, Unreadable>,
    /// The key ranges below these nodes: first key, and first key after the range.
    lost_keys: BTreeMap<Key, Option<Key>>,
}

impl View {
    pub(crate) fn new(store: Arc<Store>) -> Self {
        let hasher = SipHasher24::new_with_key(&store.hash_seed());
        Self { store, hasher, edits: BTreeMap::new(), lost: BTreeMap::new(), lost_keys: BTreeMap::new() }
    }

    /// Items of the image, without the changes.
    pub(crate) async fn unchanged(&mut self, from: Key, to: Key, max_items: usize) -> Chunk {
        let (lost, lost_keys) = (&mut self.lost, &mut self.lost_keys);
        let mut note = |node: Unreadable| {
            lost_keys.insert(node.first.unwrap_or(Key::MIN), node.bound);
            lost.insert(node.addr, node);
        };
        self.store.scan_readable(from, to, max_items, &mut note).await
    }

    /// Key ranges lost with nodes that overlap `least..=most`, descending; each with the first key
    /// after it.
    pub(crate) fn lost_within(&self, least: Key, most: Key) -> impl Iterator<Item = (Key, Option<Key>)> + '_ {
        let ranges = self.lost_keys.range(..=most).rev().map(|(first, bound)| (*first, *bound));
        ranges.take_while(move |(_, bound)| bound.is_none_or(|bound| bound > least))
    }

    /// All items of a range, with the changes.
    pub(crate) async fn range(&mut self, from: Key, to: Key) -> BTreeMap<Key, Bytes> {
        let mut items = BTreeMap::new();
        let mut next = Some(from);
        while let Some(start) = next {
            let chunk = self.unchanged(start, to, ITEMS_EACH).await;
            next = chunk.items.last().and_then(|(key, _)| key.next()).filter(|_| !chunk.complete);
            items.extend(chunk.items);
        }
        for (key, value) in self.edits.range(from..=to) {
            match value {
                Some(value) => items.insert(*key, value.clone()),
                None => items.remove(key),
            };
        }
        items
    }

    /// One item, with the changes.
    pub(crate) async fn get(&mut self, key: Key) -> Option<Bytes> {
        if let Some(value) = self.edits.get(&key) {
            return value.clone();
        }
        self.unchanged(key, key, 1).await.items.pop().map(|(_, value)| value)
    }

    /// True if the image has an item of this kind.
    pub(crate) async fn has_any(&mut self, object: u64, kind: Kind) -> bool {
        let (from, to) = (Key::new(object, kind, 0), Key::new(object, kind, u64::MAX));
        !self.unchanged(from, to, 1).await.items.is_empty()
    }

    pub(crate) fn put(&mut self, key: Key, value: impl Into<Bytes>) {
        self.edits.insert(key, Some(value.into()));
    }

    pub(crate) fn delete(&mut self, key: Key) {
        self.edits.insert(key, None);
    }

    /// The hash of a name, as docs/FORMAT.md defines it.
    pub(crate) fn hash(&self, name: &[u8]) -> u64 {
        self.name_hash(name) % (HASH_MAX + 1)
    }

    /// All 64 bits of the hash, to tell names apart.
    pub(crate) fn name_hash(&self, name: &[u8]) -> u64 {
        self.hasher.hash(name)
    }

    /// The items of a kind that may have this name.
    pub(crate) async fn named(&mut self, object: u64, kind: Kind, name: &[u8]) -> BTreeMap<Key, Bytes> {
        let (first, last) = hash_offsets(self.hash(name));
        self.range(Key::new(object, kind, first), Key::new(object, kind, last)).await
    }

    /// The first offset for this name that is not in `taken`.
    pub(crate) fn place(
        &self,
        object: u64,
        kind: Kind,
        name: &[u8],
        taken: &BTreeMap<Key, Bytes>,
    ) -> Option<Key> {
        let (first, last) = hash_offsets(self.hash(name));
        (first..=last).map(|offset| Key::new(object, kind, offset)).find(|key| !taken.contains_key(key))
    }
}
