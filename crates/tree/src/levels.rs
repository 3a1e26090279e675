//! The tree under construction: one running node for each level, filled from left to right.
//!
//! Each level holds back one full node behind the one being filled. When a sequence of entries ends
//! because an untouched subtree follows, it then ends in two nodes that are both at least half
//! full, rather than in a full node and a crumb. A node that is under a third full and can't take
//! entries from another absorbs what follows it instead: see [`Levels::must_absorb`].

use crate::TreeError;
use crate::writer::Writer;
use std::ops::Range;
use syncline_format::Key;
use syncline_format::node::{Node, NodeBuilder};
use syncline_format::superblock::{Pointer, TreeRoot};

pub(crate) struct Levels {
    node_bytes: u32,
    levels: Vec<Level>,
}

struct Level {
    /// A full node, before `current`; or empty.
    held: NodeBuilder,
    current: NodeBuilder,
}

impl Level {
    fn is_empty(&self) -> bool {
        self.held.is_empty() && self.current.is_empty()
    }

    fn is_underfull(&self) -> bool {
        self.held.is_empty() && self.current.used_bytes() < self.current.capacity_bytes() / 3
    }

    /// The child, if it is the only entry of this level.
    fn only_child(&self) -> Option<Pointer> {
        if self.held.is_empty() && self.current.len() == 1 { self.current.first_child() } else { None }
    }
}

impl Levels {
    pub(crate) fn new(node_bytes: u32) -> Self {
        Self { node_bytes, levels: Vec::new() }
    }

    /// Adds an item, whose length was checked, to the running leaf.
    pub(crate) fn push(&mut self, out: &mut Writer<'_>, key: Key, value: &[u8]) -> Result<(), TreeError> {
        if !self.level(0).current.push(key, value) {
            self.rotate(out, 0)?;
            let fits = self.level(0).current.push(key, value);
            assert!(fits, "four items of the greatest length fit an empty node");
        }
        Ok(())
    }

    /// Adds a node of level `level - 1` to the running node of `level`.
    pub(crate) fn push_child(
        &mut self,
        out: &mut Writer<'_>,
        level: u8,
        key: Key,
        pointer: Pointer,
    ) -> Result<(), TreeError> {
        if !self.level(level).current.push_child(key, pointer) {
            self.rotate(out, level)?;
            let fits = self.level(level).current.push_child(key, pointer);
            assert!(fits, "an empty node has room for a child");
        }
        Ok(())
    }

    /// Adds entries of an old node to the running node of its level; returns the number of copies
    /// made.
    pub(crate) fn push_run(
        &mut self,
        out: &mut Writer<'_>,
        node: &Node,
        mut range: Range<usize>,
    ) -> Result<u64, TreeError> {
        let mut copies = 0;
        loop {
            let copied = self.level(node.level()).current.push_run(node, range.clone());
            copies += u64::from(copied > 0);
            range.start += copied;
            if range.is_empty() {
                return Ok(copies);
            }
            self.rotate(out, node.level())?;
        }
    }

    /// Prepares for an untouched subtree of this level: closes the running nodes up to that level,
    /// so that the subtree can be kept by its pointer. True if one of them is too empty to be
    /// closed: then the subtree must be opened and its entries absorbed (otherwise a tree with many
    /// deletions decays to nearly empty nodes).
    pub(crate) fn must_absorb(&mut self, out: &mut Writer<'_>, level: u8) -> Result<bool, TreeError> {
        for level in 0..=level {
            if self.level(level).is_empty() {
                continue;
            }
            if self.level(level).is_underfull() {
                return Ok(true);
            }
            self.close(out, level, true)?;
        }
        Ok(false)
    }

    /// Closes all levels; returns the root of the finished tree.
    pub(crate) fn finish(&mut self, out: &mut Writer<'_>) -> Result<TreeRoot, TreeError> {
        if self.levels.iter().all(Level::is_empty) {
            let node = out.write(&NodeBuilder::new(self.node_bytes, 0))?;
            return Ok(TreeRoot { node, level: 0 });
        }
        let mut level = 0;
        loop {
            let above_is_empty = self.levels.iter().skip(usize::from(level) + 1).all(Level::is_empty);
            if let Some(node) = self.level(level).only_child()
                && above_is_empty
            {
                return Ok(TreeRoot { node, level: level - 1 });
            }
            // At the right edge of the tree the last node may stay small: the next new items go
            // there.
            self.close(out, level, false)?;
            level += 1;
        }
    }

    /// Writes the running nodes of a level. If `even`, first moves entries to a last node that is
    /// nearly empty.
    fn close(&mut self, out: &mut Writer<'_>, level: u8, even: bool) -> Result<(), TreeError> {
        let Level { held, current } = self.level(level);
        if even
            && !held.is_empty()
            && !current.is_empty()
            && current.used_bytes() < current.capacity_bytes() / 2
        {
            held.balance(current);
        }
        self.rotate(out, level)?;
        self.write_held(out, level)
    }

    /// Writes the held node, then makes the current node the held one.
    fn rotate(&mut self, out: &mut Writer<'_>, level: u8) -> Result<(), TreeError> {
        self.write_held(out, level)?;
        let Level { held, current } = self.level(level);
        std::mem::swap(held, current);
        Ok(())
    }

    fn write_held(&mut self, out: &mut Writer<'_>, level: u8) -> Result<(), TreeError> {
        let held = &mut self.level(level).held;
        let Some(first) = held.first_key() else { return Ok(()) };
        let pointer = out.write(held)?;
        held.clear();
        // The recursion is at most one call per level, and the format allows seventeen: the writer
        // refuses more.
        self.push_child(out, level + 1, first, pointer)
    }

    fn level(&mut self, level: u8) -> &mut Level {
        while self.levels.len() <= usize::from(level) {
            let builder = NodeBuilder::new(self.node_bytes, self.levels.len() as u8);
            self.levels.push(Level { held: builder.clone(), current: builder });
        }
        &mut self.levels[usize::from(level)]
    }
}
