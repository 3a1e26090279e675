//! Reading items in key order, a chunk at a time.

use crate::TreeError;
use crate::frame::{Frame, Place};
use crate::tree::{Caching, Tree};
use bytes::Bytes;
use std::ops::RangeInclusive;
use syncline_format::Key;
use syncline_format::node::Node;
use syncline_format::superblock::TreeRoot;

/// Leaves read ahead at most.
const WINDOW: usize = 8;

/// Some of the items of a range.
#[derive(Clone, Debug, Default)]
pub struct Chunk {
    /// The items, in key order.
    pub items: Vec<(Key, Bytes)>,
    /// True when the range holds nothing after the last of them.
    pub complete: bool,
}

impl Tree {
    /// The first items of the tree `root` with keys from `from` to `to`, both included: `max_items` at most, and at
    /// least one unless there is none.
    pub async fn scan(
        &self,
        root: TreeRoot,
        from: Key,
        to: Key,
        max_items: usize,
    ) -> Result<Chunk, TreeError> {
        let max_items = max_items.max(1);
        let mut chunk = Chunk { items: Vec::new(), complete: from > to };
        let mut stack: Vec<Frame> = Vec::new();
        let mut place = Place::root(root);
        let mut node = self.load(place, None, Caching::Fill).await?;
        let mut items_per_leaf = 0;
        while !chunk.complete {
            if node.level() > 0 {
                let first = node.child_for(from);
                stack.push(Frame::new(node, place.bound, first));
            } else {
                chunk.take(&node, place.bound, from..=to, max_items);
                items_per_leaf = node.len();
                if chunk.complete || chunk.items.len() == max_items {
                    break;
                }
                while stack.pop_if(|frame| frame.next == frame.node.len()).is_some() {}
            }
            let Some(frame) = stack.last_mut() else {
                // Not reached: without a frame the last leaf had no bound, and the chunk is complete.
                chunk.complete = true;
                break;
            };
            self.read_leaves_ahead(frame, to, max_items - chunk.items.len(), items_per_leaf);
            let (next, loaded) = frame.step(self, Caching::Fill).await;
            (place, node) = (next, loaded?);
        }
        Ok(chunk)
    }

    /// Starts to read the leaves that the rest of the chunk will probably need, judging by the last one.
    fn read_leaves_ahead(&self, frame: &mut Frame, to: Key, items_wanted: usize, items_per_leaf: usize) {
        // A first leaf is read alone: most scans end within it.
        if frame.node.level() != 1 || items_per_leaf == 0 {
            return;
        }
        let leaves = items_wanted.div_ceil(items_per_leaf).min(WINDOW);
        let end = frame.node.len().min(frame.next + leaves);
        while frame.ahead < end && frame.node.key(frame.ahead) <= to {
            frame.read_ahead(self, frame.ahead, Caching::Fill);
        }
    }
}

impl Chunk {
    /// Takes the items of a leaf that lie in the range. The next leaf's first key is known from above, so that the end
    /// of the range is seen without reading it.
    fn take(&mut self, leaf: &Node, bound: Option<Key>, range: RangeInclusive<Key>, max_items: usize) {
        for index in leaf.lower_bound(0, *range.start())..leaf.len() {
            if leaf.key(index) > *range.end() {
                self.complete = true;
                return;
            }
            if self.items.len() == max_items {
                return;
            }
            self.items.push(leaf.entry(index));
        }
        self.complete = bound.is_none_or(|bound| bound > *range.end());
    }
}
