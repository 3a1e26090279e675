//! Pages of space maps that are lost, made again from what the trees use.

use super::{Regrown, extents};
use crate::{Salvaged, Snapshot, Store, StoreError};
use syncline_device::DeviceExt;
use syncline_format::node::Node;
use syncline_format::superblock::{Pointer, TreeRoot};
use syncline_format::{BLOCK_BYTES, BlockRun};
use syncline_space::{SpaceError, TornMap};
use syncline_tree::TreeError;

impl Store {
    /// Puts back what it can of the pages that the space map has lost, and those of these snapshots, on the device of the store,
    /// which should not be the image itself. For a tree that has lost a node it is not known what it uses.
    pub async fn regrow_pages(
        &self,
        salvaged: &Salvaged,
        snapshots: &[Snapshot],
    ) -> Result<Vec<Regrown>, StoreError> {
        if salvaged.space_map && salvaged.kept.is_some() {
            return Ok(Vec::new());
        }
        let superblock = self.superblock();
        let present = (superblock.geometry, superblock.tree, superblock.space);
        let earlier = snapshots.iter().map(|it| (it.geometry(superblock.geometry), it.tree, it.space));
        let mut regrown = Vec::new();
        for (geometry, tree, root) in std::iter::once(present).chain(earlier) {
            // What one map has got back the next does not miss.
            let mut torn = match TornMap::read(&self.tracker, geometry, root).await {
                Ok(Some(torn)) => torn,
                Ok(None) | Err(SpaceError::RootLevel { .. } | SpaceError::TooLarge { .. }) => continue,
                Err(error) => return Err(error.into()),
            };
            if !self.name_all(tree, &mut torn).await {
                continue;
            }
            for page in torn.regrow().await? {
                let at = BlockRun::new(page.addr, 1);
                if self.device().read_at(at.offset_bytes(), BLOCK_BYTES).await?[..] != page.bytes[..] {
                    self.device().write_at(at.offset_bytes(), vec![page.bytes]).await?;
                    regrown.push(Regrown { addr: page.addr, level: page.level, blocks: vec![page.addr] });
                }
            }
        }
        Ok(regrown)
    }

    /// Says what a tree uses; false if a node of it is lost.
    async fn name_all(&self, root: TreeRoot, torn: &mut TornMap) -> bool {
        let (blocks, mut whole) = (self.geometry().node_blocks(), true);
        let mut visit = |_: u8, pointer: Pointer, node: Result<&Node, &TreeError>| {
            let Ok(node) = node else {
                whole = false;
                return;
            };
            torn.name(BlockRun::new(pointer.addr, blocks));
            extents(node).for_each(|run| torn.name(run));
        };
        self.tree.walk(root, &mut visit).await;
        whole
    }
}
