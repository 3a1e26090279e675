//! The differences between two trees of one image: cheap where they share nodes, as a tree and an
//! older state of it do.

use crate::TreeError;
use crate::frame::Place;
use crate::tree::{Caching, Tree};
use bytes::Bytes;
use std::cmp::Ordering;
use std::collections::{HashSet, VecDeque};
use syncline_format::Key;
use syncline_format::superblock::TreeRoot;

/// An item that exists in only one of two trees, or has different values in them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Difference {
    /// Its key.
    pub key: Key,
    /// Its value in the first tree.
    pub before: Option<Bytes>,
    /// Its value in the second.
    pub after: Option<Bytes>,
}

impl Tree {
    /// Calls `visit` for each difference between the trees `before` and `after`, in key order.
    /// Reads only the nodes that they do not share; memory use grows with the number of these.
    pub async fn differences(
        &self,
        before: TreeRoot,
        after: TreeRoot,
        visit: &mut (dyn FnMut(Difference) + Send),
    ) -> Result<(), TreeError> {
        let (mut left, mut right) = (vec![Place::root(before)], vec![Place::root(after)]);
        let (mut left_level, mut right_level) = (before.level, after.level);
        loop {
            if left_level == right_level {
                drop_shared(&mut left, &mut right);
            }
            // Descend in the higher tree first, until both are at the same level.
            match (left_level, right_level) {
                (0, 0) => break,
                (l, r) if l >= r => {
                    left = self.children(&left).await?;
                    left_level -= 1;
                    if l == r {
                        right = self.children(&right).await?;
                        right_level -= 1;
                    }
                }
                _ => {
                    right = self.children(&right).await?;
                    right_level -= 1;
                }
            }
        }
        self.compare(left, right, visit).await
    }

    async fn children(&self, nodes: &[Place]) -> Result<Vec<Place>, TreeError> {
        let mut children = Vec::new();
        for place in nodes {
            let node = self.load(*place, None, Caching::Peek).await?;
            children.extend((0..node.len()).map(|index| Place::child(&node, index, place.bound)));
        }
        Ok(children)
    }

    /// Compares the items of two lists of leaves. No leaf is in both trees any more, so an item
    /// that is in only one list is in only one tree.
    async fn compare(
        &self,
        left: Vec<Place>,
        right: Vec<Place>,
        visit: &mut (dyn FnMut(Difference) + Send),
    ) -> Result<(), TreeError> {
        let (mut left, mut right) = (Items::new(left), Items::new(right));
        loop {
            left.fill(self).await?;
            right.fill(self).await?;
            let order = match (left.next.front(), right.next.front()) {
                (None, None) => return Ok(()),
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some((left, _)), Some((right, _))) => left.cmp(right),
            };
            let before = if order.is_le() { left.next.pop_front() } else { None };
            let after = if order.is_ge() { right.next.pop_front() } else { None };
            let Some(key) = before.as_ref().or(after.as_ref()).map(|(key, _)| *key) else { continue };
            let (before, after) = (before.map(|(_, value)| value), after.map(|(_, value)| value));
            if before != after {
                visit(Difference { key, before, after });
            }
        }
    }
}

/// Drops the nodes that are in both lists.
fn drop_shared(left: &mut Vec<Place>, right: &mut Vec<Place>) {
    let name = |place: &Place| (place.pointer.addr, place.pointer.checksum);
    let in_left: HashSet<_> = left.iter().map(name).collect();
    let shared: HashSet<_> = right.iter().map(name).filter(|place| in_left.contains(place)).collect();
    left.retain(|place| !shared.contains(&name(place)));
    right.retain(|place| !shared.contains(&name(place)));
}

/// The items of a list of leaves, one leaf at a time.
struct Items {
    leaves: std::vec::IntoIter<Place>,
    next: VecDeque<(Key, Bytes)>,
}

impl Items {
    fn new(leaves: Vec<Place>) -> Self {
        Self { leaves: leaves.into_iter(), next: VecDeque::new() }
    }

    /// Moves to the next leaf when there is no item left.
    async fn fill(&mut self, tree: &Tree) -> Result<(), TreeError> {
        while self.next.is_empty() {
            let Some(place) = self.leaves.next() else { return Ok(()) };
            let leaf = tree.load(place, None, Caching::Peek).await?;
            let value = |index| Bytes::copy_from_slice(leaf.value(index));
            self.next.extend((0..leaf.len()).map(|index| (leaf.key(index), value(index))));
        }
        Ok(())
    }
}
