//! The layers: two memtables over the tree. Others ask them to read, to scan, and to take changes;
//! a checkpoint freezes the upper memtable and puts the tree that it made in its place.

mod memtable;
mod newest;
mod reads;
mod scans;
mod stack;

pub use reads::Chunk;

pub(crate) use memtable::{ITEM_OVERHEAD_BYTES, Memtable};

use crate::StoreError;
use bytes::Bytes;
use stack::Stack;
use std::collections::BTreeMap;
use std::sync::Arc;
use syncline_format::Key;
use syncline_format::superblock::TreeRoot;
use syncline_sync::RwLock;
use syncline_tree::Tree;

/// The memtables and the tree below them.
pub(crate) struct Layers {
    tree: Arc<Tree>,
    stack: RwLock<Stack>,
}

/// Sizes of the layers at one moment.
pub(crate) struct Sizes {
    /// Items and bytes of the active memtable.
    pub(crate) active: (usize, usize),
    /// Items and bytes of the frozen memtable.
    pub(crate) frozen: Option<(usize, usize)>,
    /// Nodes of the tree.
    pub(crate) tree_nodes: u64,
}

impl Layers {
    /// Layers that begin with these changes over the tree at `root`, which has `tree_nodes` nodes.
    pub(crate) fn new(tree: Arc<Tree>, active: Memtable, root: TreeRoot, tree_nodes: u64) -> Self {
        Self { tree, stack: RwLock::new(Stack { active, frozen: None, root, tree_nodes }) }
    }

    /// The tree. A root read from the layers has its nodes only while a pin keeps them.
    pub(crate) fn tree(&self) -> &Arc<Tree> {
        &self.tree
    }

    /// The root of the tree as of the last durable superblock.
    pub(crate) fn root(&self) -> TreeRoot {
        self.stack.read().root
    }

    /// The root, and the number of nodes of its tree.
    pub(crate) fn root_and_nodes(&self) -> (TreeRoot, u64) {
        let stack = self.stack.read();
        (stack.root, stack.tree_nodes)
    }

    /// The root, if nothing has changed in memory since.
    pub(crate) fn settled_root(&self) -> Option<TreeRoot> {
        let stack = self.stack.read();
        (stack.active.len() == 0 && stack.frozen.is_none()).then_some(stack.root)
    }

    /// Makes changes visible; returns the bytes that the active memtable holds then.
    pub(crate) fn apply(&self, changes: impl IntoIterator<Item = (Key, Option<Bytes>)>) -> usize {
        let mut stack = self.stack.write();
        for (key, value) in changes {
            stack.active.apply(key, value);
        }
        stack.active.bytes()
    }

    /// The sizes of all layers.
    pub(crate) fn sizes(&self) -> Sizes {
        let size = |memtable: &Memtable| (memtable.len(), memtable.bytes());
        let stack = self.stack.read();
        let frozen = stack.frozen.as_deref().map(size);
        Sizes { active: size(&stack.active), frozen, tree_nodes: stack.tree_nodes }
    }

    /// Memory that both memtables hold, roughly.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.stack.read().memory_bytes()
    }

    /// The root, and the changes of the active memtable.
    pub(crate) fn root_and_changes(&self) -> (TreeRoot, BTreeMap<Key, Option<Bytes>>) {
        let stack = self.stack.read();
        (stack.root, stack.active.items().clone())
    }

    /// Items whose keys are `wanted`, put since the last checkpoint and not removed since.
    pub(crate) fn recent_items(&self, wanted: impl Fn(Key) -> bool) -> Vec<(Key, Bytes)> {
        let stack = self.stack.read();
        let older = stack.frozen.iter().flat_map(|frozen| frozen.items());
        let all = older.chain(stack.active.items()).filter(|(key, _)| wanted(**key));
        let newest: BTreeMap<Key, Option<Bytes>> = all.map(|(key, value)| (*key, value.clone())).collect();
        newest.into_iter().filter_map(|(key, value)| Some((key, value?))).collect()
    }

    /// Reads the leaves that a checkpoint of the active memtable would change.
    pub(crate) async fn read_what_changes(&self) -> Result<(), StoreError> {
        let (keys, root) = {
            let stack = self.stack.read();
            (stack.active.items().keys().copied().collect::<Vec<_>>(), stack.root)
        };
        for key in keys {
            self.tree.get(root, key).await?;
        }
        Ok(())
    }

    /// Freezes the active memtable and begins another one. The caller holds the locks that keep
    /// commits out.
    pub(crate) fn freeze(&self) -> Arc<Memtable> {
        let mut stack = self.stack.write();
        let memtable = Arc::new(std::mem::take(&mut stack.active));
        stack.frozen = Some(memtable.clone());
        memtable
    }

    /// Replaces the frozen memtable by the tree into which it was merged. Readers see what `also`
    /// changes and the new root at the same moment.
    pub(crate) fn adopt(&self, root: TreeRoot, tree_nodes: u64, also: impl FnOnce()) {
        let mut stack = self.stack.write();
        (stack.root, stack.tree_nodes, stack.frozen) = (root, tree_nodes, None);
        also();
    }

    /// Puts the frozen memtable back under the newer changes.
    pub(crate) fn fold_back(&self, frozen: &Memtable) {
        let mut stack = self.stack.write();
        stack.active.fold_under(frozen);
        stack.frozen = None;
    }
}
