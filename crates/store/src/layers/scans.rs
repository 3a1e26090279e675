//! Items from the memtables and the tree, as of one moment.

use super::{Chunk, Layers};
use crate::StoreError;
use bytes::Bytes;
use syncline_format::{BlockAddr, Key};
use syncline_space::Space;
use syncline_tree::Unreadable;

/// The last key up to which this part of the tree is known, if it was read up to `to`.
fn reaches(part: &syncline_tree::Chunk, to: Key) -> Key {
    match part.items.last() {
        Some((last, _)) if !part.complete => *last,
        _ => to,
    }
}

/// Each reads the tree with a pin, which keeps the nodes below its root from being reused (rule R2).
impl Layers {
    /// The value of `key`.
    pub(crate) async fn get(&self, pins: &Space, key: Key) -> Result<Option<Bytes>, StoreError> {
        let _pin = pins.pin();
        let root = {
            let stack = self.stack.read();
            if let Some(value) = stack.get(&key) {
                return Ok(value.clone());
            }
            stack.root
        };
        Ok(self.tree.get(root, key).await?)
    }

    /// The value of `key` if it is known without waiting for the device.
    pub(crate) fn try_get(&self, pins: &Space, key: Key) -> Option<Result<Option<Bytes>, StoreError>> {
        let _pin = pins.pin();
        let root = {
            let stack = self.stack.read();
            if let Some(value) = stack.get(&key) {
                return Some(Ok(value.clone()));
            }
            stack.root
        };
        Some(self.tree.try_get(root, key)?.map_err(StoreError::from))
    }

    /// See [`crate::Store::scan_near`].
    pub(crate) async fn scan_near(
        &self,
        pins: &Space,
        mut low: Key,
        mut at: Key,
        to: Key,
        max_items: usize,
    ) -> Result<Chunk, StoreError> {
        let max_items = max_items.max(1);
        loop {
            let _pin = pins.pin();
            let root = self.root();
            let below = self.tree.scan_near(root, low, at, to, max_items).await?;
            let limit = reaches(&below, to);
            let stack = self.stack.read();
            if stack.root != root {
                // A checkpoint ended meanwhile: the items it merged are in neither of the two
                // halves read.
                continue;
            }
            let before = if low < at {
                let below = below.items.first().map(|(key, _)| *key).filter(|key| *key <= at);
                stack.floor(low, at).max(below)
            } else {
                None
            };
            let first = before.unwrap_or(at);
            let (items, cut) = if stack.has_any(first, limit) {
                let tree = below.items.into_iter().skip_while(|(key, _)| *key < first);
                stack.over(tree, (first, limit), max_items)
            } else {
                (below.items, false)
            };
            drop(stack);
            let has_before = items.first().is_some_and(|(key, _)| *key <= at);
            if before.is_some() && (first > limit || !has_before) {
                // The last key was removed in memory, or the tree's part ends before it: look at all
                // items from `low` on.
                at = low;
                continue;
            }
            let complete = !cut && limit == to;
            match limit.next() {
                Some(next) if items.is_empty() && !complete => (low, at) = (next, next),
                _ => return Ok(Chunk { items, complete }),
            }
        }
    }

    /// See [`crate::Store::scan_device`].
    pub(crate) async fn scan_device(
        &self,
        pins: &Space,
        mut from: Key,
        max_items: usize,
        visit: &mut (dyn FnMut(Result<BlockAddr, Box<Unreadable>>) + Send),
    ) -> Chunk {
        let (to, max_items) = (Key::MAX, max_items.max(1));
        loop {
            let _pin = pins.pin();
            let root = self.root();
            let below = self.tree.scan_device(root, from, to, max_items, visit).await;
            let limit = reaches(&below, to);
            let stack = self.stack.read();
            if stack.root != root {
                // As in `scan_near`.
                continue;
            }
            let (items, cut) = stack.over(below.items, (from, limit), max_items);
            drop(stack);
            let complete = !cut && limit == to;
            match limit.next() {
                Some(next) if items.is_empty() && !complete => from = next,
                _ => return Chunk { items, complete },
            }
        }
    }

    /// See [`crate::Store::scan_readable`].
    pub(crate) async fn scan_readable(
        &self,
        mut from: Key,
        to: Key,
        max_items: usize,
        unreadable: &mut (dyn FnMut(Unreadable) + Send),
    ) -> Chunk {
        let max_items = max_items.max(1);
        loop {
            let below = self.tree.scan_readable(self.root(), from, to, max_items, unreadable).await;
            let limit = reaches(&below, to);
            let (items, cut) = self.stack.read().over(below.items, (from, limit), max_items);
            let complete = !cut && limit == to;
            match limit.next() {
                Some(next) if items.is_empty() && !complete => from = next,
                _ => return Chunk { items, complete },
            }
        }
    }
}
