//! A branch: a second store on the same device, that writes only to blocks lent to it, and becomes a
//! snapshot when it is finished.
//!
//! The branch has its own superblock, in memory. All that it writes to the device lies in lent
//! blocks, which nothing durable names: a crash leaves nothing of it. [`Store::adopt_branch`] makes it a
//! snapshot with the one superblock of a checkpoint, so a crash leaves it whole or not at all.
//! Blocks of the snapshot that it began with stay as they are (rule R2): they are not lent.

use crate::aside::Aside;
use crate::format::first_superblock;
use crate::room::{LEAST_SEGMENT_BLOCKS, segment_blocks};
use crate::slots::write_slot;
use crate::snapshots::{Adopted, Replaced, TableChange};
use crate::{FormatOptions, Snapshot, SnapshotError, Store, StoreError, StoreOptions, Transaction};
use std::sync::Arc;
use std::time::{Duration, Instant};
use syncline_device::{Claim, Device, FlushTracker};
use syncline_format::superblock::{
    FEATURE_COUNTED_XATTRS, FEATURE_PARENT_POINTERS, FEATURE_SNAPSHOTS, FEATURE_UNPLACED, LogStart, Pointer,
    Superblock,
};
use syncline_format::{BLOCK_BYTES, BlockAddr, BlockRun};
use syncline_space::{Class, KeptMap, Space};
use syncline_sync::atomic::Ordering;

/// The share of the image that is not lent: one block in this many.
const KEPT_BACK_SHARE: u64 = 32;
/// A branch is lent so many segments of its log at least.
const LEAST_LENT_SEGMENTS: u64 = 4;
/// The generation of a branch's first superblock; the slot beside it has the one before.
const FIRST_GENERATION: u64 = 2;
/// How long a branch waits for readers of the snapshot that it replaces.
const CLAIM_PATIENCE: Duration = Duration::from_secs(10);
/// Pause between two attempts.
const CLAIM_PAUSE: Duration = Duration::from_millis(10);

/// The first state of a branch.
pub enum BranchStart {
    /// The state of a snapshot.
    Snapshot(Snapshot),
    /// A new filesystem with these items.
    Empty(Box<Transaction>),
}

/// A store that is to become a snapshot of another one.
pub struct Branch {
    store: Arc<Store>,
    device: Arc<Aside>,
    /// The blocks that it may write to.
    lent: Vec<BlockRun>,
    /// Where the branch's image ends: it gets no blocks from there on.
    end: BlockAddr,
    /// The snapshot that it began with, which can't be deleted meanwhile.
    base: Option<u64>,
}

impl Branch {
    /// The store, for a filesystem that writes to it.
    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// Blocks that it can still take, beside those that are reserved for what is in memory.
    pub fn free_blocks(&self) -> u64 {
        self.store.space.free_blocks().saturating_sub(self.store.reserved.load(Ordering::Acquire))
    }
}

impl Store {
    /// Opens a branch that may take up to `blocks` blocks, as far as there are free ones. `features`
    /// are features that its contents need.
    pub async fn branch(&self, start: BranchStart, features: u32, blocks: u64) -> Result<Branch, StoreError> {
        self.writable()?;
        let base = match &start {
            BranchStart::Snapshot(snapshot) => Some(self.claim_base(snapshot).await?),
            BranchStart::Empty(_) => None,
        };
        let now = self.geometry();
        let end = match &start {
            BranchStart::Snapshot(snapshot) => snapshot.geometry(now).usable().end(),
            BranchStart::Empty(_) => now.usable().end(),
        };
        // One run must hold a segment of its log.
        let lent = self.lend(end, blocks.max(LEAST_LENT_SEGMENTS * segment_blocks(now.total_blocks)));
        match self.open_branch(start, features, &lent).await {
            Ok((store, device)) => Ok(Branch { store, device, lent, end, base }),
            Err(error) => {
                // Its writes may be in flight, so the blocks stay lent until the image is closed.
                self.unclaim(base).await;
                Err(error)
            }
        }
    }

    /// Lends a branch up to `blocks` blocks more, as far as there are free ones.
    pub fn lend_more(&self, branch: &mut Branch, blocks: u64) {
        let more = self.lend(branch.end, blocks);
        branch.store.space.hand_out_also(&more);
        branch.lent.extend(more);
        branch.lent.sort_unstable();
    }

    /// Free blocks that could be lent.
    pub fn lendable_blocks(&self) -> u64 {
        let total = self.geometry().total_blocks;
        // The next checkpoints of this store need room for their log, nodes and maps.
        let kept_back = total / KEPT_BACK_SHARE + 2 * segment_blocks(total);
        let free = self.space.free_blocks().saturating_sub(self.reserved.load(Ordering::Acquire));
        free.saturating_sub(kept_back)
    }

    /// Takes free blocks before `end` for a branch.
    fn lend(&self, end: BlockAddr, blocks: u64) -> Vec<BlockRun> {
        let mut wanted = self.lendable_blocks().min(blocks);
        let (mut lent, mut beyond) = (Vec::new(), Vec::new());
        while wanted >= LEAST_SEGMENT_BLOCKS {
            let Some(run) = self.space.allocate(Class::Log, wanted, LEAST_SEGMENT_BLOCKS, None) else {
                break;
            };
            // The image was smaller when the snapshot was made, and so is the branch.
            let inside = end.saturating_sub(run.start).min(run.blocks);
            wanted = wanted.saturating_sub(inside);
            let (first, rest) =
                (BlockRun::new(run.start, inside), BlockRun::new(run.start + inside, run.blocks - inside));
            lent.extend((first.blocks > 0).then_some(first));
            beyond.extend((rest.blocks > 0).then_some(rest));
        }
        beyond.into_iter().for_each(|run| self.space.give_back(run));
        lent.sort_unstable();
        lent
    }

    async fn open_branch(
        &self,
        start: BranchStart,
        features: u32,
        lent: &[BlockRun],
    ) -> Result<(Arc<Store>, Arc<Aside>), StoreError> {
        let now = self.superblock();
        let superblock = match &start {
            BranchStart::Snapshot(snapshot) => snapshot.superblock(&now),
            BranchStart::Empty(_) => now.clone(),
        };
        let geometry = match &start {
            BranchStart::Snapshot(snapshot) => snapshot.geometry(now.geometry),
            BranchStart::Empty(_) => now.geometry,
        };
        if geometry.total_blocks * BLOCK_BYTES as u64 > self.device().size_bytes() {
            return Err(StoreError::Unusable("the image is smaller than when the snapshot was made".into()));
        }
        let aside = Arc::new(Aside::new(self.device().clone(), geometry));
        let device: Arc<dyn Device> = aside.clone();
        let tracker = FlushTracker::new(device.clone());
        let superblock = match start {
            BranchStart::Snapshot(_) => {
                let blocks = segment_blocks(geometry.total_blocks);
                let segment = lent.iter().find(|run| run.blocks >= blocks).ok_or(StoreError::NoSpace)?;
                // Under an epoch of its own nothing that lies there counts as its log (rule R3).
                let log = LogStart::first_in(BlockRun::new(segment.start, blocks), 1, 0);
                Superblock { geometry, log, epoch: rand::random(), ..superblock }
            }
            BranchStart::Empty(initial) => {
                let space = Space::format(geometry);
                space.hand_out_only(lent);
                let first = first_superblock(&tracker, &space, &like(&now), *initial).await?;
                Superblock { next_object: now.next_object.max(first.next_object), ..first }
            }
        };
        let features = (now.features | features) & !FEATURE_SNAPSHOTS;
        let superblock = Superblock {
            generation: FIRST_GENERATION,
            features,
            snapshots: Pointer::default(),
            clean: true,
            ..superblock
        };
        let before = Superblock { generation: FIRST_GENERATION - 1, ..superblock.clone() };
        write_slot(&tracker, 1, &before).await?;
        write_slot(&tracker, 0, &superblock).await?;
        let options = StoreOptions {
            read_only: false,
            accept_damaged_log: false,
            discard: false,
            epoch: None,
            only: Some(lent.into()),
            ..self.options.clone()
        };
        let (store, _) = Store::open(device, options, self.spawn.clone()).await?;
        Ok((store, aside))
    }

    /// Makes a finished branch a snapshot, and removes the snapshot `replaced` in the same step. It is
    /// durable when this returns. The branch's filesystem must have been closed.
    pub async fn adopt_branch(
        &self,
        branch: Branch,
        name: &str,
        created_ns: u64,
        replaced: Option<u64>,
    ) -> Result<Snapshot, StoreError> {
        let made = match self.adopt_closed(&branch, name, created_ns, replaced).await {
            Ok(made) => made,
            Err(error) => {
                self.abandon_branch(branch).await;
                return Err(error);
            }
        };
        self.unclaim(branch.base).await;
        Ok(made)
    }

    async fn adopt_closed(
        &self,
        branch: &Branch,
        name: &str,
        created_ns: u64,
        replaced: Option<u64>,
    ) -> Result<Snapshot, StoreError> {
        self.checkpoint.lock().await.table.require_new(name, replaced)?;
        branch.store.close().await?;
        let made = branch.store.superblock();
        if !made.clean {
            return Err(StoreError::Unusable("the branch was not closed; receive it again".into()));
        }
        let maps = [(made.geometry, made.space)];
        let kept = KeptMap::union(&self.tracker, self.geometry(), &maps).await?;
        let snapshot = Snapshot {
            id: 0,
            created_ns,
            total_blocks: made.geometry.total_blocks,
            tree: made.tree,
            space: made.space,
            tree_nodes: made.tree_nodes,
            used_blocks: made.used_blocks,
            objects: made.objects,
            name: name.to_owned(),
        };
        self.next_object.fetch_max(made.next_object, Ordering::Relaxed);
        let rest = kept.without(&branch.lent);
        let adopted = Adopted { snapshot, features: made.features, kept, replaced: None };
        let taken = self.adopt_instead(adopted, replaced).await?;
        rest.into_iter().for_each(|run| self.space.give_back(run));
        Ok(taken)
    }

    /// Adds a snapshot, and removes another one that nobody else has open.
    async fn adopt_instead(&self, adopted: Adopted, replaced: Option<u64>) -> Result<Snapshot, StoreError> {
        if let Some(id) = replaced {
            self.claim_patiently(id).await?;
        }
        let taken = match self.unless_log_left(self.try_adopt(&adopted, replaced).await).await {
            Ok(None) => self.try_adopt(&adopted, replaced).await,
            Ok(Some(done)) => Ok(done),
            Err(error) => Err(error),
        };
        self.release(replaced);
        taken
    }

    async fn try_adopt(&self, adopted: &Adopted, replaced: Option<u64>) -> Result<Snapshot, StoreError> {
        let mut state = self.checkpoint.lock().await;
        let name = &adopted.snapshot.name;
        state.table.require_new(name, replaced)?;
        let mut adopted = adopted.clone();
        if let Some(id) = replaced {
            let rest = state.table.kept_without(&self.tracker, &self.superblock(), Some(id)).await?;
            adopted.replaced = Some(Replaced { id, rest });
        }
        let change = TableChange::Adopt(Box::new(adopted));
        self.run_checkpoint_with(&mut state, false, Some(change)).await?;
        Ok(state.table.find(name)?.clone())
    }

    /// Claims a snapshot alone, when those who are just reading it have ended.
    async fn claim_patiently(&self, id: u64) -> Result<(), StoreError> {
        let begun = Instant::now();
        while !self.device().claim_snapshot(id, Claim::Exclusive)? {
            if begun.elapsed() > CLAIM_PATIENCE {
                let found = self.snapshots().await.into_iter().find(|snapshot| snapshot.id == id);
                let name = found.map_or_else(String::new, |snapshot| snapshot.name);
                return Err(SnapshotError::InUse { name }.into());
            }
            self.spawn.sleep(CLAIM_PAUSE).await;
        }
        Ok(())
    }

    /// Fails if a snapshot of this name can't be made.
    pub async fn require_new_name(&self, name: &str) -> Result<(), StoreError> {
        if !Snapshot::is_free_name(name) {
            return Err(SnapshotError::Name { name: name.to_owned() }.into());
        }
        Ok(self.checkpoint.lock().await.table.require_new(name, None)?)
    }

    /// Gives a branch up. Its blocks are free again when this returns.
    pub async fn abandon_branch(&self, branch: Branch) {
        self.unclaim(branch.base).await;
        branch.store.shut_down_untold("it was given up");
        // This fails; it ends the background tasks.
        let _ = branch.store.close().await;
        // Nothing may be in flight to blocks that others get (rule R2).
        branch.device.end_writing().await;
        branch.lent.into_iter().for_each(|run| self.space.give_back(run));
    }

    /// Keeps a snapshot from being deleted, if it is still there.
    async fn claim_base(&self, snapshot: &Snapshot) -> Result<u64, StoreError> {
        let name = || snapshot.name.clone();
        let mut state = self.checkpoint.lock().await;
        if !state.table.entries.iter().any(|entry| entry.id == snapshot.id) {
            return Err(SnapshotError::NotFound { name: name() }.into());
        }
        if !self.device().claim_snapshot(snapshot.id, Claim::Shared)? {
            return Err(SnapshotError::InUse { name: name() }.into());
        }
        state.bases.push(snapshot.id);
        Ok(snapshot.id)
    }

    async fn unclaim(&self, base: Option<u64>) {
        let Some(id) = base else { return };
        let mut state = self.checkpoint.lock().await;
        if let Some(at) = state.bases.iter().position(|base| *base == id) {
            state.bases.swap_remove(at);
        }
        if !state.bases.contains(&id) {
            self.release(base);
        }
    }

    fn release(&self, base: Option<u64>) {
        if let Some(id) = base
            && let Err(error) = self.device().claim_snapshot(id, Claim::Released)
        {
            tracing::warn!("a snapshot stays in use until the image is closed: {error}");
        }
    }
}

/// A filesystem with the same choices as this one.
fn like(now: &Superblock) -> FormatOptions {
    let has = |feature: u32| now.features & feature != 0;
    FormatOptions {
        node_bytes: now.geometry.node_bytes,
        uuid: now.uuid,
        parent_pointers: has(FEATURE_PARENT_POINTERS),
        data_in_log: has(FEATURE_UNPLACED),
        counted_xattrs: has(FEATURE_COUNTED_XATTRS),
        hash_seed: now.hash_seed,
        created_ns: now.created_ns,
        ..FormatOptions::default()
    }
}
