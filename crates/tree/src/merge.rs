//! Writes the tree that results from changes to an old one, in one pass along both.
//!
//! The pass descends only where a change falls. Subtrees in between are kept by pointer, and the
//! items between two changes of one leaf move as a whole run. New nodes are written as they fill,
//! so that memory does not grow with the tree.

use crate::frame::{Frame, Place};
use crate::levels::Levels;
use crate::tree::{Caching, Tree};
use crate::writer::{Allocate, Writer, WrittenRun};
use crate::{MergeFailed, TreeError};
use bytes::Bytes;
use std::collections::{BTreeMap, btree_map};
use std::iter::Peekable;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;
use syncline_format::node::Node;
use syncline_format::superblock::{Pointer, TreeRoot};
use syncline_format::{BlockAddr, BlockRun, Key};

/// Leaves read ahead.
const WINDOW: usize = 16;

/// A tree that was written, perhaps not durably yet: see [`WrittenRun`].
pub struct Merged {
    /// The new tree. It may be read once its writes have completed.
    pub root: TreeRoot,
    /// The writes that must succeed and be flushed before a superblock may name the root (rule R1).
    pub written: Vec<WrittenRun>,
    /// Blocks of nodes that only the old tree has, in runs of whole nodes, ascending.
    pub freed: Vec<BlockRun>,
    /// Blocks that were allocated but not used; nothing was ever written there.
    pub unused: Vec<BlockRun>,
    /// Number of new nodes.
    pub nodes_written: u64,
    /// Number of nodes that only the old tree has.
    pub nodes_freed: u64,
}

type Changes = BTreeMap<Key, Option<Bytes>>;

impl Tree {
    /// Writes the tree that results from applying `changes` (`None` deletes) to `root`.
    ///
    /// The future must be driven to completion: if it is dropped halfway, the blocks that it
    /// allocated are lost until the next mount.
    pub async fn merge(
        &self,
        root: TreeRoot,
        generation: u64,
        changes: &Changes,
        allocate: &Allocate<'_>,
    ) -> Result<Merged, MergeFailed> {
        // Enough for small merges, with every change alone in its leaf. Larger merges ask again as
        // often as needed.
        let nodes = (changes.len() as u64).saturating_mul(u64::from(root.level) + 1).saturating_add(1);
        let mut merger = Merger::new(self, changes, Writer::new(self, generation, nodes, allocate));
        let result = if changes.is_empty() { Ok(root) } else { merger.run(root).await };
        merger.end(result).await
    }

    /// Writes the first, empty tree.
    pub async fn create(&self, generation: u64, allocate: &Allocate<'_>) -> Result<Merged, MergeFailed> {
        let changes = Changes::new();
        let mut merger = Merger::new(self, &changes, Writer::new(self, generation, 1, allocate));
        let result = merger.levels.finish(&mut merger.out);
        merger.end(result).await
    }
}

struct Merger<'a> {
    tree: &'a Tree,
    changes: &'a Changes,
    /// The changes not yet applied.
    pending: Peekable<btree_map::Iter<'a, Key, Option<Bytes>>>,
    levels: Levels,
    out: Writer<'a>,
    /// Old nodes that are not part of the new tree.
    freed: Vec<Pointer>,
    items_kept: u64,
    copies: u64,
}

impl<'a> Merger<'a> {
    fn new(tree: &'a Tree, changes: &'a Changes, out: Writer<'a>) -> Self {
        Self {
            tree,
            changes,
            pending: changes.iter().peekable(),
            levels: Levels::new(tree.geometry.get().node_bytes),
            out,
            freed: Vec::new(),
            items_kept: 0,
            copies: 0,
        }
    }

    async fn run(&mut self, root: TreeRoot) -> Result<TreeRoot, TreeError> {
        let place = Place::root(root);
        let node = self.tree.load(place, None, Caching::Peek).await?;
        let mut stack: Vec<Frame> = Vec::new();
        self.enter(place, node, &mut stack).await?;
        while let Some(frame) = stack.last_mut() {
            if frame.next == frame.node.len() {
                stack.pop();
                continue;
            }
            let touched = touched_child(frame, self.pending.peek().map(|(key, _)| **key));
            let untouched = frame.next..touched;
            if !untouched.is_empty() && !self.levels.must_absorb(&mut self.out, frame.node.level() - 1)? {
                self.levels.push_run(&mut self.out, &frame.node, untouched)?;
                frame.next = touched;
                continue;
            }
            self.read_ahead(frame);
            let (place, node) = frame.step(self.tree, Caching::Peek).await;
            self.enter(place, node?, &mut stack).await?;
            self.out.count_turn();
            if self.out.turn_is_over() {
                self.out.pause().await?;
            }
        }
        let root = self.levels.finish(&mut self.out)?;
        self.shrink(root).await
    }

    /// Opens a node: rebuilds a leaf, or puts an internal node on the stack.
    async fn enter(&mut self, place: Place, node: Node, stack: &mut Vec<Frame>) -> Result<(), TreeError> {
        if node.level() > 0 {
            self.freed.push(place.pointer);
            stack.push(Frame::new(node, place.bound, 0));
            return Ok(());
        }
        let last = place.pointer.addr.max(place.pointer.copy);
        if let Some(first) = node.first_key()
            && last + self.tree.geometry.get().node_blocks() <= self.tree.border.load(Relaxed)
            && !self.changes_something(place, &node)
            && !self.levels.must_absorb(&mut self.out, 0)?
        {
            while self.next_change(place.bound).is_some() {}
            return self.levels.push_child(&mut self.out, 1, first, place.pointer);
        }
        self.freed.push(place.pointer);
        self.rebuild(place, &node).await
    }

    /// Streams a leaf's items and the changes that fall into it to the running leaf.
    async fn rebuild(&mut self, place: Place, leaf: &Node) -> Result<(), TreeError> {
        let mut at = 0;
        while let Some((key, value)) = self.next_change(place.bound) {
            let position = leaf.lower_bound(at, key);
            self.keep(leaf, at..position)?;
            let replaces = position < leaf.len() && leaf.key(position) == key;
            at = position + usize::from(replaces);
            if let Some(value) = value {
                self.put(key, value)?;
            }
            if self.out.turn_is_over() {
                self.out.pause().await?;
            }
        }
        self.keep(leaf, at..leaf.len())
    }

    fn keep(&mut self, leaf: &Node, range: Range<usize>) -> Result<(), TreeError> {
        if !range.is_empty() {
            self.items_kept += range.len() as u64;
            self.copies += self.levels.push_run(&mut self.out, leaf, range)?;
        }
        Ok(())
    }

    fn put(&mut self, key: Key, value: &[u8]) -> Result<(), TreeError> {
        let max_bytes = self.tree.geometry.get().max_value_bytes();
        if value.len() > max_bytes {
            return Err(TreeError::ValueTooLarge { key, len_bytes: value.len(), max_bytes });
        }
        self.levels.push(&mut self.out, key, value)
    }

    /// Takes the next change before `bound`.
    fn next_change(&mut self, bound: Option<Key>) -> Option<(Key, Option<&'a Bytes>)> {
        let (key, value) = self.pending.next_if(|(key, _)| bound.is_none_or(|bound| **key < bound))?;
        Some((*key, value.as_ref()))
    }

    /// False if the changes that fall into this leaf leave it as it is, such as deletes of keys
    /// that do not exist.
    fn changes_something(&self, place: Place, leaf: &Node) -> bool {
        let mut at = 0;
        for (key, value) in
            self.pending.clone().take_while(|(key, _)| place.bound.is_none_or(|bound| **key < bound))
        {
            at = leaf.lower_bound(at, *key);
            let old = (at < leaf.len() && leaf.key(at) == *key).then(|| leaf.value(at));
            if old != value.as_deref() {
                return true;
            }
        }
        false
    }

    /// Starts reading the leaves that changes fall into.
    fn read_ahead(&self, frame: &mut Frame) {
        if frame.node.level() != 1 {
            return;
        }
        let Some(&(&pending, _)) = self.pending.clone().peek() else { return };
        while frame.started() < WINDOW && frame.ahead < frame.node.len() {
            let from = if frame.ahead == 0 { pending } else { pending.max(frame.node.key(frame.ahead)) };
            let change = self.changes.range(from..).next().map(|(key, _)| *key);
            match change.filter(|&key| frame.bound.is_none_or(|bound| key < bound)) {
                Some(key) => {
                    let child = frame.node.child_for(key).max(frame.ahead);
                    frame.read_ahead(self.tree, child, Caching::Peek);
                }
                None => frame.ahead = frame.node.len(),
            }
        }
    }

    /// Replaces a root that has one child by that child. Only an old node can be such a root: a new
    /// one has more children.
    async fn shrink(&mut self, mut root: TreeRoot) -> Result<TreeRoot, TreeError> {
        while root.level > 0 && !self.out.has_placed(root.node.addr) {
            let node = self.tree.load(Place::root(root), None, Caching::Peek).await?;
            if node.len() > 1 {
                break;
            }
            self.freed.push(root.node);
            root = TreeRoot { node: node.child(0).1, level: root.level - 1 };
        }
        Ok(root)
    }

    async fn end(mut self, result: Result<TreeRoot, TreeError>) -> Result<Merged, MergeFailed> {
        self.tree.counters.items_kept.fetch_add(self.items_kept, Relaxed);
        self.tree.counters.copies.fetch_add(self.copies, Relaxed);
        let root = match result {
            Ok(root) => root,
            Err(error) => return Err(MergeFailed { error, allocated: self.out.abandon().await }),
        };
        self.out.finish();
        Ok(Merged {
            root,
            written: self.out.written,
            nodes_freed: self.freed.len() as u64,
            freed: runs(&self.freed, self.tree.geometry.get().node_blocks()),
            unused: self.out.unused,
            nodes_written: self.out.nodes_written,
        })
    }
}

/// The first child from `frame.next` on that the next change falls into; the number of children if
/// there is none.
fn touched_child(frame: &Frame, change: Option<Key>) -> usize {
    match change.filter(|&key| frame.bound.is_none_or(|bound| key < bound)) {
        Some(key) => frame.node.child_for(key).max(frame.next),
        None => frame.node.len(),
    }
}

/// The nodes as runs: sorted, with neighbours joined.
fn runs(nodes: &[Pointer], node_blocks: u64) -> Vec<BlockRun> {
    let mut places: Vec<BlockAddr> = nodes.iter().flat_map(|node| node.places()).collect();
    places.sort_unstable();
    let mut runs: Vec<BlockRun> = Vec::new();
    for addr in places {
        match runs.last_mut() {
            Some(run) if run.end() == addr => run.blocks += node_blocks,
            _ => runs.push(BlockRun::new(addr, node_blocks)),
        }
    }
    runs
}
