//! Support for scrubbing a running store: items from tree nodes that are read from the device.

use crate::newest::{Newest, take_live};
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
            let limit = match below.items.last() {
                Some((last, _)) if !below.complete => *last,
                _ => to,
            };
            let layers = self.layers.read();
            if layers.root != root {
                // A checkpoint ended meanwhile: the items it merged are in neither of the two
                // halves read.
                continue;
            }
            let active = layers.active.range(from, limit);
            let frozen = layers.frozen.iter().flat_map(|frozen| frozen.range(from, limit));
            let tree = below.items.into_iter().map(|(key, value)| (key, Some(value)));
            let (items, cut) = take_live(Newest::new(active, Newest::new(frozen, tree)), max_items);
            drop(layers);
            let complete = !cut && limit == to;
            match limit.next() {
                Some(next) if items.is_empty() && !complete => from = next,
                _ => return Chunk { items, complete },
            }
        }
    }
}
