//! Views of the store that a check of the whole image needs.

use crate::Store;
use syncline_format::items::extent::Extent;
use syncline_format::node::Node;
use syncline_format::superblock::{Pointer, TreeRoot};
use syncline_format::{BlockRun, Kind};
use syncline_tree::{TreeError, Visitor, Walked};

/// The blocks that an image uses apart from file data, according to its structures.
#[derive(Clone, Debug, Default)]
pub struct Reachable {
    /// Both copies of tree nodes.
    pub nodes: Vec<BlockRun>,
    /// Damage found on the way: the block, and a description.
    pub damaged: Vec<(u64, String)>,
    /// The outcome of the walk.
    pub walked: Walked,
}

impl Store {
    /// Reads every tree node from the device and verifies it.
    pub async fn walk_nodes(&self) -> Reachable {
        let mut reachable = Reachable::default();
        let node_blocks = self.geometry().node_blocks();
        let (mut nodes, mut damaged) = (Vec::new(), Vec::new());
        {
            let mut visit = |_: u8, pointer: Pointer, node: Result<&Node, &TreeError>| {
                nodes.extend(pointer.places().map(|addr| BlockRun::new(addr, node_blocks)));
                if let Err(error) = node {
                    damaged.push((pointer.addr, error.to_string()));
                }
            };
            let root = self.layers.root();
            let visitor: &mut Visitor<'_> = &mut visit;
            reachable.walked = self.layers.tree().walk(root, visitor).await;
        }
        reachable.nodes = nodes;
        reachable.damaged = damaged;
        reachable
    }

    /// Calls `tell` with the blocks that a tree uses, for its nodes and for data.
    pub async fn each_use(&self, root: TreeRoot, tell: &mut (dyn FnMut(BlockRun) + Send)) {
        let blocks = self.geometry().node_blocks();
        let mut visit = |_: u8, pointer: Pointer, node: Result<&Node, &TreeError>| {
            pointer.places().for_each(|addr| tell(BlockRun::new(addr, blocks)));
            let Some(leaf) = node.ok().filter(|node| node.level() == 0) else { return };
            for (key, value) in (0..leaf.len()).map(|index| (leaf.key(index), leaf.value(index))) {
                let is_extent = key.object != 0 && key.kind == Kind::Extent as u8;
                let extent = is_extent.then(|| Extent::decode(key.offset, value).ok()).flatten();
                extent.into_iter().for_each(|extent| tell(extent.run()));
            }
        };
        self.layers.tree().walk(root, &mut visit).await;
    }

    /// The blocks that the space map calls used, ascending, for comparison with what is reachable.
    pub fn named_runs(&self) -> Vec<BlockRun> {
        self.room.space().named_runs()
    }

    /// The pages of the space map itself.
    pub fn space_pages(&self) -> Vec<BlockRun> {
        self.room.space().map_runs()
    }
}
