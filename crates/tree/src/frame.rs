//! A position in an internal node during a tree walk, and reads started ahead of it.

use crate::TreeError;
use crate::tree::{Caching, Reading, Tree};
use std::collections::VecDeque;
use syncline_format::node::Node;
use syncline_format::superblock::{Pointer, TreeRoot};
use syncline_format::{BlockAddr, Key};

/// Facts about a node that are known before it is read; the node is checked against all of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) pointer: Pointer,
    pub(crate) level: u8,
    /// Its first key; `None` for a root.
    pub(crate) first: Option<Key>,
    /// First key of the node after it on its level; `None` for the last.
    pub(crate) bound: Option<Key>,
}

impl Place {
    pub(crate) fn root(root: TreeRoot) -> Self {
        Self { pointer: root.node, level: root.level, first: None, bound: None }
    }

    /// The place of a child of `node`, which itself ends before `bound`.
    pub(crate) fn child(node: &Node, index: usize, bound: Option<Key>) -> Self {
        let (first, pointer) = node.child(index);
        let bound = if index + 1 < node.len() { Some(node.key(index + 1)) } else { bound };
        Self { pointer, level: node.level() - 1, first: Some(first), bound }
    }
}

/// An internal node and how far a walk has come in it.
pub(crate) struct Frame {
    pub(crate) node: Node,
    /// The first key after the node.
    pub(crate) bound: Option<Key>,
    /// The next child to visit.
    pub(crate) next: usize,
    /// The first child not yet considered for reading ahead.
    pub(crate) ahead: usize,
    started: VecDeque<(BlockAddr, Reading)>,
}

impl Frame {
    pub(crate) fn new(node: Node, bound: Option<Key>, next: usize) -> Self {
        Self { node, bound, next, ahead: next, started: VecDeque::new() }
    }

    pub(crate) fn place(&self, index: usize) -> Place {
        Place::child(&self.node, index, self.bound)
    }

    /// Number of reads started and not yet consumed.
    pub(crate) fn started(&self) -> usize {
        self.started.len()
    }

    /// Starts reading the child `index`, and moves `ahead` past it.
    pub(crate) fn read_ahead(&mut self, tree: &Tree, index: usize, caching: Caching) {
        let place = self.place(index);
        if let Some(read) = tree.start_read(place, caching) {
            self.started.push_back((place.pointer.addr, read));
        }
        self.ahead = index + 1;
    }

    /// Steps to the next child; returns its place and its node.
    pub(crate) async fn step(&mut self, tree: &Tree, caching: Caching) -> (Place, Result<Node, TreeError>) {
        let place = self.place(self.next);
        self.next += 1;
        self.ahead = self.ahead.max(self.next);
        let started = match self.started.front() {
            Some((addr, _)) if *addr == place.pointer.addr => self.started.pop_front().map(|(_, read)| read),
            _ => None,
        };
        (place, tree.load(place, started, caching).await)
    }
}
