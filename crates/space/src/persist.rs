//! Writing the space map of a checkpoint, copy-on-write.

use crate::SpaceError;
use crate::bits::push_run;
use crate::frozen::FrozenMap;
use crate::named::Change;
use crate::pages::PageTable;
use crate::policy::Class;
use crate::space::{Space, State};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use syncline_device::{AlignedBuf, FlushTracker, WriteHandle};
use syncline_format::space::{Entry, PageId, WORDS, encode_bitmap, encode_index};
use syncline_format::superblock::SpaceRoot;
use syncline_format::{BLOCK_BYTES, BlockAddr, BlockRun};

/// Maximum number of pages written by one device operation (1 MiB).
const PAGES_PER_WRITE: u64 = 256;

/// A run of the device that is being written. The bytes are kept until a flush covers them (rule
/// R6).
#[derive(Clone)]
pub struct WrittenRun {
    /// The blocks.
    pub run: BlockRun,
    /// The contents.
    pub bufs: Vec<Bytes>,
    /// The write.
    pub handle: WriteHandle,
}

/// The space map that a checkpoint wrote.
pub struct Persisted {
    /// The root to put into the superblock.
    pub root: SpaceRoot,
    /// Blocks that the map names.
    pub used_blocks: u64,
    /// The writes, started but not waited for.
    pub written: Vec<WrittenRun>,
}

impl Space {
    /// Writes the changed pages of `frozen` and the pages above them to new blocks, which the map
    /// itself names, and frees the blocks they replace. The superblock may be written when all of
    /// `written` is durable (rule R1).
    ///
    /// After [`SpaceError::NoSpace`] it may be called again.
    pub async fn persist(
        &self,
        tracker: &Arc<FlushTracker>,
        frozen: &mut FrozenMap,
    ) -> Result<Persisted, SpaceError> {
        if frozen.persisted {
            return Err(SpaceError::AlreadyPersisted { generation: frozen.generation() });
        }
        self.place_pages(frozen)?;
        frozen.persisted = true;
        let mut images = Images::new(&frozen.assigned);
        self.encode(frozen, &mut images);
        let written = images.write(tracker);
        let root = {
            let table = &self.lock().table;
            let root = table.root();
            SpaceRoot { page: table.get(root).page, level: root.level }
        };
        Ok(Persisted { root, used_blocks: frozen.used_blocks(), written })
    }

    /// Finds a block for every page that has to be written. Each block found or freed changes a
    /// bit, which may make one more page change, so this repeats until no further page changes.
    fn place_pages(&self, frozen: &mut FrozenMap) -> Result<(), SpaceError> {
        loop {
            let mut state = self.lock();
            let changed = changed_pages(frozen, &state.table);
            let stale: Vec<PageId> = changed.difference(&frozen.retired).copied().collect();
            for id in &stale {
                let entry = state.table.get(*id);
                if !entry.is_null() {
                    for addr in entry.page.places() {
                        frozen.change(&mut state, BlockRun::new(addr, 1), Change::Unname);
                    }
                }
            }
            frozen.retired.extend(&stale);
            let (root, copies) = (state.table.root(), state.table.metadata.copies() as usize);
            let mut is_done = stale.is_empty();
            for copy in 0..copies {
                let is_homeless = |id: &PageId| {
                    !frozen.assigned[copy].contains_key(id) && (*id == root || needs_block(frozen, *id))
                };
                let homeless: Vec<PageId> = changed.iter().copied().filter(is_homeless).collect();
                is_done &= homeless.is_empty();
                assign_blocks(&mut state, frozen, copy, &homeless)?;
            }
            if is_done {
                return Ok(());
            }
        }
    }

    /// Encodes the pages, children before the parents that hold their checksums, and updates the
    /// table.
    fn encode(&self, frozen: &FrozenMap, images: &mut Images) {
        let changed = changed_pages(frozen, &self.lock().table);
        for id in changed {
            let [first, second] = &frozen.assigned;
            let Some(addr) = first.get(&id).copied() else {
                // The whole subtree is free: a null pointer represents it.
                self.set_pointer(id, Entry::default());
                continue;
            };
            let block = images.block_mut(addr);
            let mut entry = if id.level == 0 {
                match &frozen.pages()[&id.index] {
                    Some(page) => encode_bitmap(block, id.index, addr, page.words()),
                    None => encode_bitmap(block, id.index, addr, &[0; WORDS]),
                }
            } else {
                let (children, metadata) = {
                    let table = &self.lock().table;
                    (table.children(id).to_vec(), table.metadata)
                };
                let (page, used) = encode_index(block, id, addr, &children, metadata);
                // Only a root may name more blocks than a pointer can count, and no page points to
                // the root.
                Entry { page, used: used.min(u64::from(u32::MAX)) as u32 }
            };
            if let Some(&copy) = second.get(&id) {
                let bytes = block.to_vec();
                images.block_mut(copy).copy_from_slice(&bytes);
                entry.page.copy = copy;
            }
            self.set_pointer(id, entry);
        }
    }

    fn set_pointer(&self, id: PageId, entry: Entry) {
        let state = &mut *self.lock();
        let before = state.table.set(id, entry);
        if let Some(in_flight) = &mut state.in_flight {
            in_flight.replaced.push((id, before));
        }
    }
}

/// The pages that differ from the device and those above them, lower levels first. A map that was
/// never written has at least a root.
fn changed_pages(frozen: &FrozenMap, table: &PageTable) -> BTreeSet<PageId> {
    let root = table.root();
    let mut changed: BTreeSet<PageId> =
        frozen.pages().keys().map(|index| PageId { level: 0, index: *index }).collect();
    let mut level = changed.clone();
    while level.first().is_some_and(|id| id.level < root.level) {
        level = level.into_iter().map(|id| id.parent(table.metadata)).collect();
        changed.extend(&level);
    }
    if table.get(root).is_null() {
        changed.insert(root);
    }
    changed
}

/// False for a bitmap page without set bits, which a null pointer represents.
fn needs_block(frozen: &FrozenMap, id: PageId) -> bool {
    id.level > 0 || frozen.pages()[&id.index].as_ref().is_some_and(|page| page.used() > 0)
}

/// Allocates and names a block for one copy of each of these pages, in as few runs as possible.
fn assign_blocks(
    state: &mut State,
    frozen: &mut FrozenMap,
    copy: usize,
    pages: &[PageId],
) -> Result<(), SpaceError> {
    let class = if copy == 0 { Class::Node } else { Class::Copy };
    let mut rest = pages;
    while !rest.is_empty() {
        let want = rest.len() as u64;
        let run = state
            .placement
            .allocate(&mut state.live, class, want, 1, None)
            .ok_or(SpaceError::NoSpace { pages: want })?;
        frozen.change(state, run, Change::Name);
        let (placed, left) = rest.split_at(run.blocks as usize);
        frozen.assigned[copy].extend(placed.iter().copied().zip(run.start..));
        rest = left;
    }
    Ok(())
}

/// The bytes of the pages, grouped into the runs to be written, by first block.
struct Images {
    runs: BTreeMap<BlockAddr, AlignedBuf>,
}

impl Images {
    fn new(assigned: &[BTreeMap<PageId, BlockAddr>; 2]) -> Self {
        let mut blocks: Vec<BlockAddr> = assigned.iter().flat_map(|copy| copy.values().copied()).collect();
        blocks.sort_unstable();
        let mut runs = Vec::new();
        for block in blocks {
            match runs.last() {
                Some(BlockRun { blocks: PAGES_PER_WRITE, .. }) => runs.push(BlockRun::new(block, 1)),
                _ => push_run(&mut runs, BlockRun::new(block, 1)),
            }
        }
        let buf = |run: BlockRun| (run.start, AlignedBuf::zeroed(run.blocks as usize * BLOCK_BYTES));
        Self { runs: runs.into_iter().map(buf).collect() }
    }

    /// The buffer for the page at `addr`.
    fn block_mut(&mut self, addr: BlockAddr) -> &mut [u8] {
        let (start, buf) = self.runs.range_mut(..=addr).next_back().expect("every page placed lies in a run");
        let at = (addr - start) as usize * BLOCK_BYTES;
        &mut buf[at..at + BLOCK_BYTES]
    }

    fn write(self, tracker: &Arc<FlushTracker>) -> Vec<WrittenRun> {
        let write = |(start, buf): (BlockAddr, AlignedBuf)| {
            let run = BlockRun::new(start, (buf.len() / BLOCK_BYTES) as u64);
            let bufs = vec![buf.into_bytes()];
            let handle = tracker.write(run.offset_bytes(), bufs.clone());
            WrittenRun { run, bufs, handle }
        };
        self.runs.into_iter().map(write).collect()
    }
}
