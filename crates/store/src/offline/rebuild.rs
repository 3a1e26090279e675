//! Writes a new tree and space map beside the old ones of an image, and then switches over.
//!
//! Steps, and what a crash leaves at each: (1) nodes and space pages go to blocks that neither the
//! old image nor any data uses; (2) they are flushed, and read back; (3) a superblock goes to the
//! slot that does not hold the newest good one; (4) flush; (5) a superblock with the same roots
//! goes to the other slot, whose copies may be damaged. Until the superblock of (3) is on the
//! device the old image is as it was; from then on the new one counts.

use super::salvage::Salvaged;
use super::saved::SavedSnapshots;
use crate::checkpoint::write_slot;
use crate::room::{LEAST_SEGMENT_BLOCKS, allocate_nodes, segment_blocks};
use crate::{Store, StoreError};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::Arc;
use syncline_device::{AlignedBuf, Device, FlushTracker};
use syncline_format::node::Node;
use syncline_format::superblock::{LogStart, Pointer, Superblock, TreeRoot};
use syncline_format::{BlockAddr, BlockRun, Crc, FormatError, Key, block_checksums};
use syncline_space::{Class, Space};
use syncline_tree::{Merged, Tree, TreeError};

/// Memory for nodes; the nodes that the next items touch are at the right edge.
const NODE_CACHE_BYTES: usize = 16 << 20;
/// Blocks of data copied at a time.
const COPY_BLOCKS: u64 = 256;

/// Fills a block that stands for lost data, in case somebody looks at it.
const UNREADABLE: &[u8; 32] = b"Syncline: what was here is lost\n";

/// An image that is being built beside the one it replaces.
pub struct Rebuild {
    tracker: Arc<FlushTracker>,
    space: Arc<Space>,
    tree: Arc<Tree>,
    root: TreeRoot,
    old: Superblock,
    op_seq: u64,
    slot: usize,
    generation: u64,
    /// The snapshots of the new image, if their table must be written again.
    snapshots: Option<SavedSnapshots>,
}

impl Rebuild {
    /// Begins with an empty tree on `device`, from which `old` was salvaged. `data` stays where it
    /// is and belongs to the new image; neither it nor `avoid` is written to.
    pub async fn start(
        device: Arc<dyn Device>,
        old: &Store,
        salvaged: &Salvaged,
        data: impl Iterator<Item = BlockRun>,
        avoid: impl Iterator<Item = BlockRun>,
    ) -> Result<Self, StoreError> {
        let mut rebuild = Self::prepare(device, old, salvaged, data, avoid).await?;
        let node = rebuild.tree_blocks();
        let allocate = |copy, _| allocate_nodes(&rebuild.space, copy, node);
        let empty = rebuild.tree.create(rebuild.generation, &allocate).await;
        let empty = empty.map_err(|failed| StoreError::from(failed.error))?;
        rebuild.root = empty.root;
        rebuild.settle(&empty).await?;
        rebuild.give_back(empty.unused.into_iter().chain(empty.freed));
        Ok(rebuild)
    }

    /// Begins with the tree of `old`, which must be sound, plus the changes in its log and `edits`.
    /// Only nodes that change are written, to new places.
    pub async fn start_with(
        device: Arc<dyn Device>,
        old: &Store,
        salvaged: &Salvaged,
        data: impl Iterator<Item = BlockRun>,
        avoid: impl Iterator<Item = BlockRun>,
        edits: &BTreeMap<Key, Option<Bytes>>,
    ) -> Result<Self, StoreError> {
        let mut rebuild = Self::prepare(device, old, salvaged, data, avoid).await?;
        let (root, mut items) = old.layers.root_and_changes();
        rebuild.root = root;
        items.extend(edits.iter().map(|(key, value)| (*key, value.clone())));
        let merged = rebuild.merge(&items).await?;
        rebuild.root = merged.root;
        rebuild.settle(&merged).await?;
        // The nodes it freed belong to the old tree, which must stay until the new one counts.
        rebuild.give_back(merged.unused);
        Ok(rebuild)
    }

    async fn prepare(
        device: Arc<dyn Device>,
        old: &Store,
        salvaged: &Salvaged,
        data: impl Iterator<Item = BlockRun>,
        avoid: impl Iterator<Item = BlockRun>,
    ) -> Result<Self, StoreError> {
        let tracker = FlushTracker::new(device);
        // Blocks that were read may be only in a cache of the device, and the new image refers to them.
        tracker.flush_now().await?;
        require_base(&old.superblock(), salvaged)?;
        let geometry = old.geometry();
        let space = Space::format(geometry);
        avoid.for_each(|run| space.reserve_live(run));
        salvaged.kept().iter().chain(salvaged.table()).for_each(|run| space.reserve_live(*run));
        data.for_each(|run| space.name(run));
        Ok(Self {
            tree: Tree::new(tracker.clone(), geometry, NODE_CACHE_BYTES),
            tracker,
            space,
            root: TreeRoot::default(),
            old: match salvaged.snapshots {
                Some(_) => old.superblock(),
                None => old.superblock().without_snapshots(),
            },
            snapshots: salvaged.snapshots.clone().filter(|saved| saved.moves),
            op_seq: old.last_op().0,
            slot: salvaged.slot,
            generation: salvaged.generation,
        })
    }

    /// Copies data blocks, whatever they hold, to newly allocated blocks, possibly in several runs.
    pub async fn copy(&mut self, run: BlockRun) -> Result<Vec<BlockRun>, StoreError> {
        let mut copies = Vec::new();
        let mut from = run;
        while from.blocks > 0 {
            let want = from.blocks.min(COPY_BLOCKS);
            let to = self.copy_some(from.start, want, 1).await?;
            copies.push(to);
            from = BlockRun::new(from.start + to.blocks, from.blocks - to.blocks);
        }
        Ok(copies)
    }

    /// Allocates at most `most` blocks for extents that must not be readable, and returns them with
    /// checksums that do not match.
    pub async fn unreadable(&mut self, most: u64) -> Result<(BlockRun, Vec<Crc>), StoreError> {
        let run = self.space.allocate(Class::Data, most, 1, None).ok_or(StoreError::NoSpace)?;
        let mut bytes = AlignedBuf::zeroed(run.len_bytes() as usize);
        bytes.chunks_exact_mut(UNREADABLE.len()).for_each(|chunk| chunk.copy_from_slice(UNREADABLE));
        let checksums = block_checksums(&bytes).map(|checksum| !checksum).collect();
        self.tracker.write(run.offset_bytes(), vec![bytes.into_bytes()]).wait().await?;
        self.space.name(run);
        Ok((run, checksums))
    }

    /// Copies a short run of blocks to a run of the same length.
    pub async fn copy_whole(&mut self, run: BlockRun) -> Result<BlockRun, StoreError> {
        self.copy_some(run.start, run.blocks, run.blocks).await
    }

    /// Copies at least `least` and at most `most` blocks, beginning at `start`.
    async fn copy_some(&mut self, start: BlockAddr, most: u64, least: u64) -> Result<BlockRun, StoreError> {
        let to = self.space.allocate(Class::Data, most, least, None).ok_or(StoreError::NoSpace)?;
        let source = BlockRun::new(start, to.blocks);
        let bytes = self.tracker.read(source.offset_bytes(), source.len_bytes() as usize).await?;
        self.tracker.write(to.offset_bytes(), vec![bytes.into_bytes()]).wait().await?;
        self.space.name(to);
        Ok(to)
    }

    /// Adds items whose keys are all greater than those before.
    pub async fn extend(&mut self, items: BTreeMap<Key, Option<Bytes>>) -> Result<(), StoreError> {
        let merged = self.merge(&items).await?;
        self.root = merged.root;
        self.settle(&merged).await?;
        // No superblock ever named the nodes it replaced.
        self.give_back(merged.unused.into_iter().chain(merged.freed));
        Ok(())
    }

    async fn merge(&self, items: &BTreeMap<Key, Option<Bytes>>) -> Result<Merged, StoreError> {
        let allocate = |copy, blocks| allocate_nodes(&self.space, copy, blocks);
        let merged = self.tree.merge(self.root, self.generation, items, &allocate).await;
        merged.map_err(|failed| StoreError::from(failed.error))
    }

    /// Writes the space map, reads the tree back and switches over.
    pub async fn finish(self, objects: u64, next_object: u64) -> Result<(), StoreError> {
        let geometry = self.old.geometry;
        self.tracker.flush_now().await?;
        let mut frozen = self.space.freeze(self.generation);
        let mut bad = None;
        let walked = {
            let mut visit = |_: u8, pointer: Pointer, node: Result<&Node, &TreeError>| match node {
                Ok(_) => {
                    pointer
                        .places()
                        .for_each(|addr| frozen.name(BlockRun::new(addr, geometry.node_blocks())));
                }
                Err(_) => bad = Some(pointer.addr),
            };
            self.tree.walk(self.root, &mut visit).await
        };
        if let Some(addr) = bad {
            return Err(StoreError::Corrupt {
                addr,
                detail: FormatError::Checksum { structure: "tree node" },
            });
        }
        let persisted = self.space.persist(&self.tracker, &mut frozen).await?;
        for written in &persisted.written {
            written.handle.wait().await?;
        }
        let blocks = segment_blocks(geometry.total_blocks);
        let segment =
            self.space.allocate(Class::Log, blocks, LEAST_SEGMENT_BLOCKS, None).ok_or(StoreError::NoSpace)?;
        let old = match &self.snapshots {
            Some(saved) => saved.write_table(self.old, &self.space, &self.tracker).await?,
            None => self.old,
        };
        self.tracker.make_durable(self.tracker.newest_ticket()).await?;
        let superblock = Superblock {
            generation: self.generation,
            epoch: rand::random(),
            tree: self.root,
            space: persisted.root,
            log: LogStart::first_in(segment, old.log.seq, 0),
            next_object,
            op_seq: self.op_seq,
            tree_nodes: walked.nodes,
            used_blocks: persisted.used_blocks,
            objects,
            // There is no log.
            clean: true,
            ..old
        };
        write_slot(&self.tracker, 1 - self.slot, &superblock).await?;
        let again = Superblock { generation: self.generation + 1, ..superblock };
        write_slot(&self.tracker, self.slot, &again).await
    }

    fn tree_blocks(&self) -> u64 {
        self.old.geometry.node_blocks()
    }

    /// Waits for a merge's writes.
    async fn settle(&self, merged: &Merged) -> Result<(), StoreError> {
        for written in &merged.written {
            written.handle.wait().await?;
        }
        Ok(())
    }

    /// Takes back nodes that nothing refers to.
    fn give_back(&self, runs: impl IntoIterator<Item = BlockRun>) {
        for run in runs {
            self.tree.forget(run);
            self.space.give_back(run);
        }
    }
}

/// Refuses a fork of which nobody knows which blocks lie in its base: without them it would lose all that
/// it shares.
fn require_base(superblock: &Superblock, salvaged: &Salvaged) -> Result<(), StoreError> {
    let known = salvaged
        .snapshots
        .as_ref()
        .is_some_and(|saved| saved.entries.iter().any(|entry| entry.id == superblock.base));
    match !superblock.is_fork() || known {
        true => Ok(()),
        false => Err(StoreError::Damaged(
            "it is a fork, and the part of its table of snapshots that tells which blocks lie in its base is damaged; a repair would lose \
             these: mount it with -o ro and copy the files"
                .into(),
        )),
    }
}
