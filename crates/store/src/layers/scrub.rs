//! Support for scrubbing a running store: items from tree nodes that are read from the device.

use super::reads::reaches;
use crate::{Chunk, Store, Unreadable};
use syncline_format::{BlockAddr, Key};

impl Store {
    /// Like [`Store::scan`] from `from` to the end, but reads each tree node on the way from the
    /// device, verifies it and reports it to `visit`. The items are those of one moment. A caller
    /// that goes on to read the blocks that they name must hold a pin ([`Store::pin`]) taken before
    /// the call (rule R2).
    pub async fn scan_device(
        &self,
        mut from: Key,
        max_items: usize,
        visit: &mut (dyn FnMut(Result<BlockAddr, Box<Unreadable>>) + Send),
    ) -> Chunk {
        let (to, max_items) = (Key::MAX, max_items.max(1));
        loop {
            let _pin = self.space.pin();
            let root = self.layers.read().root;
            let below = self.tree.scan_device(root, from, to, max_items, visit).await;
            let limit = reaches(&below, to);
            let layers = self.layers.read();
            if layers.root != root {
                // A checkpoint ended meanwhile: the items it merged are in neither of the two
                // halves read.
                continue;
            }
            let (items, cut) = layers.over(below.items, (from, limit), max_items);
            drop(layers);
            let complete = !cut && limit == to;
            match limit.next() {
                Some(next) if items.is_empty() && !complete => from = next,
                _ => return Chunk { items, complete },
            }
        }
    }
}
