//! A tree on a memory device, with an allocator that tracks the blocks in use and rejects misuse.

#![allow(dead_code, reason = "each test program uses a part of it")]

use bytes::Bytes;
use futures_lite::future::block_on;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use syncline_device::{FlushTracker, MemoryDevice};
use syncline_format::node::Node;
use syncline_format::superblock::TreeRoot;
use syncline_format::{BlockAddr, BlockRun, Geometry, Key, Metadata};
use syncline_tree::{MergeFailed, Merged, Tree, TreeError};

pub type Changes = BTreeMap<Key, Option<Bytes>>;
pub type Model = BTreeMap<Key, Bytes>;

pub struct Bench {
    pub device: Arc<MemoryDevice>,
    pub tracker: Arc<FlushTracker>,
    pub geometry: Geometry,
    pub tree: Arc<Tree>,
    pub root: TreeRoot,
    pub generation: u64,
    pub space: Space,
}

/// Free blocks, allocated first-fit in runs of a limited length.
pub struct Space {
    used: Mutex<Vec<bool>>,
    usable: BlockRun,
    node_blocks: u64,
    pub longest_run_nodes: u64,
    /// Number of nodes that may still be allocated.
    pub nodes_left: Mutex<u64>,
}

impl Space {
    pub fn allocate(&self, wanted: u64) -> Option<BlockRun> {
        assert!(wanted > 0 && wanted.is_multiple_of(self.node_blocks), "{wanted} blocks wanted");
        let mut left = self.nodes_left.lock().unwrap();
        let wanted = (wanted / self.node_blocks).min(self.longest_run_nodes).min(*left) * self.node_blocks;
        let mut used = self.used.lock().unwrap();
        let free = |addr: u64| !used[addr as usize];
        let mut start = self.usable.start;
        while start + self.node_blocks <= self.usable.end() && wanted > 0 {
            let length =
                (0..wanted).take_while(|at| start + at < self.usable.end() && free(start + at)).count();
            let blocks = length as u64 / self.node_blocks * self.node_blocks;
            if blocks > 0 {
                used[start as usize..(start + blocks) as usize].fill(true);
                *left -= blocks / self.node_blocks;
                return Some(BlockRun::new(start, blocks));
            }
            start += length as u64 + 1;
        }
        None
    }

    pub fn release(&self, run: BlockRun) {
        assert!(run.blocks.is_multiple_of(self.node_blocks), "{run:?} is not made of whole nodes");
        let mut used = self.used.lock().unwrap();
        for addr in run.start..run.end() {
            assert!(std::mem::take(&mut used[addr as usize]), "block {addr} freed twice");
        }
        *self.nodes_left.lock().unwrap() += run.blocks / self.node_blocks;
    }

    pub fn used_blocks(&self) -> BTreeSet<BlockAddr> {
        let used = self.used.lock().unwrap();
        (0..used.len() as u64).filter(|&addr| used[addr as usize]).collect()
    }
}

impl Bench {
    /// A tree whose nodes have one copy.
    pub fn new(node_bytes: u32, total_blocks: u64, cache_bytes: usize) -> Self {
        Self::with(Metadata::Single, node_bytes, total_blocks, cache_bytes)
    }

    pub fn with(metadata: Metadata, node_bytes: u32, total_blocks: u64, cache_bytes: usize) -> Self {
        let device = MemoryDevice::new(total_blocks * 4096);
        let tracker = FlushTracker::new(device.clone());
        let geometry = Geometry { total_blocks, node_bytes, metadata }.check().unwrap();
        let tree = Tree::new(tracker.clone(), geometry, cache_bytes);
        let space = Space {
            used: Mutex::new(vec![false; total_blocks as usize]),
            usable: geometry.usable(),
            node_blocks: geometry.node_blocks(),
            longest_run_nodes: u64::MAX,
            nodes_left: Mutex::new(u64::MAX / 2),
        };
        let mut bench =
            Self { device, tracker, geometry, tree, root: TreeRoot::default(), generation: 1, space };
        let created = block_on(bench.tree.create(1, &|_, wanted| bench.space.allocate(wanted))).unwrap();
        bench.adopt(created);
        bench
    }

    /// Merges into the current root and makes the result current.
    pub fn merge(&mut self, changes: &Changes) -> Result<(), TreeError> {
        let merged = self.merge_only(changes);
        match merged {
            Ok(merged) => {
                self.adopt(merged);
                Ok(())
            }
            Err(failed) => {
                for run in failed.allocated {
                    self.space.release(run);
                }
                Err(failed.error)
            }
        }
    }

    pub fn merge_only(&mut self, changes: &Changes) -> Result<Merged, MergeFailed> {
        self.generation += 1;
        block_on(
            self.tree.merge(self.root, self.generation, changes, &|_, wanted| self.space.allocate(wanted)),
        )
    }

    pub fn adopt(&mut self, merged: Merged) {
        let mut nodes = 0;
        for written in &merged.written {
            block_on(written.handle.wait()).unwrap();
            let bytes: usize = written.bufs.iter().map(Bytes::len).sum();
            assert_eq!(bytes as u64, written.run.len_bytes());
            assert!(bytes <= 1 << 20, "a write of {bytes} bytes");
            nodes += written.bufs.len() as u64;
        }
        assert_eq!(nodes, merged.nodes_written * self.geometry.metadata.copies());
        self.root = merged.root;
        for run in merged.freed.into_iter().chain(merged.unused) {
            self.space.release(run);
            self.tree.forget(run);
        }
    }

    /// A tree on the same device with an empty cache.
    pub fn cold(&self, cache_bytes: usize) -> Arc<Tree> {
        Tree::new(self.tracker.clone(), self.geometry, cache_bytes)
    }

    /// Checks the whole tree: its items, and that exactly its nodes are in use.
    pub fn check(&self, model: &Model) {
        let items = all_items(&self.tree, self.root, 100);
        let difference = items.iter().zip(model).find(|(item, wanted)| item != wanted);
        assert!(
            difference.is_none() && items.len() == model.len(),
            "{} for {} items: {difference:?}",
            items.len(),
            model.len()
        );
        let shape = Shape::of(&self.tree, self.root);
        assert_eq!(shape.items, model.len());
        let node_blocks = self.geometry.node_blocks();
        let blocks: BTreeSet<_> = shape.places.iter().flat_map(|&addr| addr..addr + node_blocks).collect();
        assert_eq!(blocks.len() as u64, shape.places.len() as u64 * node_blocks, "a node has two parents");
        assert_eq!(blocks, self.space.used_blocks(), "blocks in use are not those of the tree's nodes");
        shape.check_fill(self.geometry, self.root);
    }
}

/// Figures gathered by a walk.
#[derive(Default)]
pub struct Shape {
    pub nodes: Vec<BlockAddr>,
    /// All copies of the nodes.
    pub places: Vec<BlockAddr>,
    pub items: usize,
    /// For each level, the bytes used in each node, in key order.
    pub used_bytes: BTreeMap<u8, Vec<usize>>,
    pub children_of_root: usize,
}

impl Shape {
    pub fn of(tree: &Tree, root: TreeRoot) -> Self {
        let mut shape = Self::default();
        let mut visit =
            |level: u8, pointer: syncline_format::superblock::Pointer, node: Result<&Node, &TreeError>| {
                let node = node.unwrap();
                assert_eq!((node.addr(), node.level()), (pointer.addr, level));
                if pointer == root.node {
                    shape.children_of_root = node.len();
                }
                shape.nodes.push(pointer.addr);
                shape.places.extend(pointer.places());
                shape.items += if level == 0 { node.len() } else { 0 };
                shape.used_bytes.entry(level).or_default().push(node.used_bytes());
            };
        let walked = block_on(tree.walk(root, &mut visit));
        assert_eq!((walked.nodes, walked.bad_nodes), (shape.nodes.len() as u64, 0));
        shape
    }

    /// Asserts that no node except the last of its level is less than about a quarter full, and
    /// that a root has two children.
    fn check_fill(&self, geometry: Geometry, root: TreeRoot) {
        for (level, nodes) in &self.used_bytes {
            for used in nodes.iter().rev().skip(1) {
                assert!(*used >= geometry.node_bytes as usize / 4, "level {level}: {nodes:?}");
            }
        }
        assert!(root.level == 0 || self.children_of_root > 1, "the root should have been shrunk");
    }

    /// Mean fill of the leaves.
    pub fn leaf_fill(&self, geometry: Geometry) -> f64 {
        let leaves = &self.used_bytes[&0];
        leaves.iter().sum::<usize>() as f64 / (leaves.len() * geometry.node_bytes as usize) as f64
    }
}

/// All items, read in chunks.
pub fn all_items(tree: &Tree, root: TreeRoot, chunk_items: usize) -> Model {
    let mut items = Model::new();
    let mut from = Key::MIN;
    loop {
        let chunk = block_on(tree.scan(root, from, Key::MAX, chunk_items)).unwrap();
        assert!(chunk.items.len() <= chunk_items);
        assert!(chunk.complete || chunk.items.len() == chunk_items, "a chunk stopped early");
        let next = chunk.items.last().and_then(|(key, _)| key.next());
        for (key, value) in chunk.items {
            assert!(key >= from);
            assert!(items.insert(key, value).is_none());
        }
        match next {
            Some(next) if !chunk.complete => from = next,
            _ => return items,
        }
    }
}

pub fn apply(model: &mut Model, changes: &Changes) {
    for (key, value) in changes {
        match value {
            Some(value) => model.insert(*key, value.clone()),
            None => model.remove(key),
        };
    }
}

/// A reproducible stream of numbers (SplitMix64).
pub struct Numbers(pub u64);

impl Numbers {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

pub fn key(number: u64) -> Key {
    Key { object: number / 100, kind: (number % 100 / 30) as u8, offset: number }
}

pub fn value(number: u64, len: usize) -> Bytes {
    (0..len).map(|at| (number as usize).wrapping_mul(31).wrapping_add(at) as u8).collect::<Vec<_>>().into()
}
