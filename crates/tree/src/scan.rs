//! Reading items in key order, a chunk at a time.

use crate::TreeError;
use crate::frame::{Frame, Place};
use crate::tree::{Caching, Tree};
use bytes::Bytes;
use std::ops::RangeInclusive;
use syncline_format::node::Node;
use syncline_format::superblock::TreeRoot;
use syncline_format::{BlockAddr, Key};

/// Maximum number of leaves read ahead.
const WINDOW: usize = 8;

/// Some of the items in a range.
#[derive(Clone, Debug)]
pub struct Chunk {
    /// The items, in key order.
    pub items: Vec<(Key, Bytes)>,
    /// True when the range holds nothing after the last item.
    pub complete: bool,
}

/// A node that could not be read or is damaged, and the range of keys below it.
#[derive(Clone, Debug)]
pub struct Unreadable {
    /// The node's address.
    pub addr: BlockAddr,
    /// The node's level.
    pub level: u8,
    /// The least key below it; `None` for a root.
    pub first: Option<Key>,
    /// The first key after the node; `None` if nothing follows.
    pub bound: Option<Key>,
    /// The error of the node.
    pub error: TreeError,
}

/// Called for each node of a scan, with its error if it is bad; returning an error ends the scan.
type Watch<'a> = dyn FnMut(Place, Option<TreeError>) -> Result<(), TreeError> + Send + 'a;

impl Place {
    fn unreadable(self, error: TreeError) -> Unreadable {
        Unreadable { addr: self.pointer.addr, level: self.level, first: self.first, bound: self.bound, error }
    }
}

impl Tree {
    /// The first items of the tree `root` with keys from `from` to `to`, both included: `max_items`
    /// at most, and at least one unless there is none.
    pub async fn scan(
        &self,
        root: TreeRoot,
        from: Key,
        to: Key,
        max_items: usize,
    ) -> Result<Chunk, TreeError> {
        self.scan_near(root, from, from, to, max_items).await
    }

    /// Scans from the last item at or before `at` that is not before `low`, or from `at` if there is
    /// none.
    pub async fn scan_near(
        &self,
        root: TreeRoot,
        low: Key,
        at: Key,
        to: Key,
        max_items: usize,
    ) -> Result<Chunk, TreeError> {
        let mut watch = |_: Place, error: Option<TreeError>| error.map_or(Ok(()), Err);
        self.scan_past(root, low..=to, at, max_items, Caching::Fill, &mut watch).await
    }

    /// Like `scan`, for a damaged tree: each bad node is reported to `unreadable`, and the scan
    /// continues behind it.
    pub async fn scan_readable(
        &self,
        root: TreeRoot,
        from: Key,
        to: Key,
        max_items: usize,
        unreadable: &mut (dyn FnMut(Unreadable) + Send),
    ) -> Chunk {
        let mut watch = |place: Place, error: Option<TreeError>| {
            error.into_iter().for_each(|error| unreadable(place.unreadable(error)));
            Ok(())
        };
        let scanned = self.scan_past(root, from..=to, from, max_items, Caching::Fill, &mut watch).await;
        scanned.unwrap_or(Chunk { items: Vec::new(), complete: true })
    }

    /// Like `scan_readable`, but reads every node from the device even if it is cached; `visit`
    /// gets the address of each node, or its error.
    pub async fn scan_device(
        &self,
        root: TreeRoot,
        from: Key,
        to: Key,
        max_items: usize,
        visit: &mut (dyn FnMut(Result<BlockAddr, Box<Unreadable>>) + Send),
    ) -> Chunk {
        let mut watch = |place: Place, error: Option<TreeError>| {
            visit(error.map_or(Ok(place.pointer.addr), |error| Err(Box::new(place.unreadable(error)))));
            Ok(())
        };
        let scanned = self.scan_past(root, from..=to, from, max_items, Caching::Bypass, &mut watch).await;
        scanned.unwrap_or(Chunk { items: Vec::new(), complete: true })
    }

    /// Scans from the last key of the range that is not greater than `at`, or else from `at`. `watch`
    /// is called for each node and decides whether to continue after a bad one.
    async fn scan_past(
        &self,
        root: TreeRoot,
        range: RangeInclusive<Key>,
        at: Key,
        max_items: usize,
        caching: Caching,
        watch: &mut Watch<'_>,
    ) -> Result<Chunk, TreeError> {
        let (max_items, to) = (max_items.max(1), *range.end());
        let mut chunk = Chunk { items: Vec::new(), complete: at > to };
        let mut stack: Vec<Frame> = Vec::new();
        let mut place = Place::root(root);
        let mut loaded = self.load(place, None, caching).await;
        let mut items_per_leaf = 0;
        while !chunk.complete {
            watch(place, loaded.as_ref().err().cloned())?;
            match loaded {
                Ok(node) if node.level() > 0 => {
                    // A child's first key is in its parent, so the leaf for `at` has the last key before
                    // it, too.
                    let first = node.child_for(at);
                    stack.push(Frame::new(node, place.bound, first));
                }
                Ok(leaf) => {
                    chunk.take(&leaf, place.bound, &range, at, max_items);
                    items_per_leaf = leaf.len();
                }
                Err(_) => chunk.complete = place.bound.is_none_or(|bound| bound > to),
            }
            if chunk.complete || chunk.items.len() == max_items {
                break;
            }
            while stack.pop_if(|frame| frame.next == frame.node.len()).is_some() {}
            let Some(frame) = stack.last_mut() else {
                // Unreachable: without a frame the last leaf had no bound, so the chunk is
                // complete.
                chunk.complete = true;
                break;
            };
            self.read_leaves_ahead(frame, to, max_items - chunk.items.len(), items_per_leaf, caching);
            (place, loaded) = frame.step(self, caching).await;
        }
        Ok(chunk)
    }

    /// Starts reading the leaves that the rest of the chunk will probably need, judging by the last
    /// leaf.
    fn read_leaves_ahead(
        &self,
        frame: &mut Frame,
        to: Key,
        items_wanted: usize,
        items_per_leaf: usize,
        caching: Caching,
    ) {
        // A first leaf is read alone: most scans end within it.
        if frame.node.level() != 1 || items_per_leaf == 0 {
            return;
        }
        let leaves = items_wanted.div_ceil(items_per_leaf).min(WINDOW);
        let end = frame.node.len().min(frame.next + leaves);
        while frame.ahead < end && frame.node.key(frame.ahead) <= to {
            frame.read_ahead(self, frame.ahead, caching);
        }
    }
}

impl Chunk {
    /// Takes the items of a leaf that lie in the range. The parent gives the next leaf's first key,
    /// so the end of the range is recognized without reading that leaf.
    fn take(
        &mut self,
        leaf: &Node,
        bound: Option<Key>,
        range: &RangeInclusive<Key>,
        at: Key,
        max_items: usize,
    ) {
        let first = match leaf.find(at) {
            Err(index) if index > 0 && leaf.key(index - 1) >= *range.start() => index - 1,
            Ok(index) | Err(index) => index,
        };
        for index in first..leaf.len() {
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
