//! Restores lost pages of space maps from what the trees use.

use super::{Regrown, extents};
use crate::{Salvaged, Snapshot, Store, StoreError};
use syncline_device::DeviceExt;
use syncline_format::node::Node;
use syncline_format::superblock::{Pointer, TreeRoot};
use syncline_format::{BLOCK_BYTES, BlockRun};
use syncline_space::{PageSearch, SpaceError, TornMap};
use syncline_tree::TreeError;

impl Store {
    /// Restores as many lost pages as it can, of the space map and of the maps of these snapshots,
    /// on the store's device, which should not be the image itself. If a tree has lost a node, its
    /// use of blocks is unknown, and its map is skipped.
    pub async fn regrow_pages(
        &self,
        salvaged: &Salvaged,
        snapshots: &[Snapshot],
    ) -> Result<Vec<Regrown>, StoreError> {
        if salvaged.space_map && salvaged.has_all_snapshots() {
            return Ok(Vec::new());
        }
        let superblock = self.superblock();
        let present = (superblock.geometry, superblock.tree, superblock.space);
        // If the blocks that snapshots keep could be read, all their maps can.
        let torn = if salvaged.has_all_snapshots() { &[] } else { snapshots };
        let earlier = torn.iter().map(|it| (it.geometry(superblock.geometry), it.tree, it.space));
        let mut search = PageSearch::new(self.tracker.clone(), superblock.geometry);
        let mut regrown = Vec::new();
        for (geometry, tree, root) in std::iter::once(present).chain(earlier) {
            // A page restored for one map is no longer missing for the next.
            let mut torn = match TornMap::read(&self.tracker, geometry, root).await {
                Ok(Some(torn)) => torn,
                Ok(None) | Err(SpaceError::RootLevel { .. } | SpaceError::TooLarge { .. }) => continue,
                Err(error) => return Err(error.into()),
            };
            if !self.each_use(tree, &mut |run| torn.name(run)).await {
                continue;
            }
            for page in torn.regrow(&mut search).await? {
                let at = BlockRun::new(page.addr, 1);
                if self.device().read_at(at.offset_bytes(), BLOCK_BYTES).await?[..] != page.bytes[..] {
                    self.device().write_at(at.offset_bytes(), vec![page.bytes]).await?;
                    regrown.push(Regrown { addr: page.addr, level: page.level, blocks: vec![page.addr] });
                }
            }
        }
        Ok(regrown)
    }

    /// Calls `tell` with the blocks that a tree uses, for its nodes and for data; false if a node
    /// is lost.
    pub async fn each_use(&self, root: TreeRoot, tell: &mut (dyn FnMut(BlockRun) + Send)) -> bool {
        let (blocks, mut whole) = (self.geometry().node_blocks(), true);
        let mut visit = |_: u8, pointer: Pointer, node: Result<&Node, &TreeError>| {
            tell(BlockRun::new(pointer.addr, blocks));
            match node {
                Ok(node) => extents(node).for_each(&mut *tell),
                Err(_) => whole = false,
            }
        };
        self.layers.tree().walk(root, &mut visit).await;
        whole
    }
}
