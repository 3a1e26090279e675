//! A branch: a second store on the same device, that writes only to blocks lent to it, and becomes a
//! snapshot when it is finished.
//!
//! The branch has its own superblock, in memory. All that it writes to the device lies in lent
//! blocks, which nothing durable names: a crash leaves nothing of it. [`Store::adopt_branch`] makes it a
//! snapshot with the one superblock of a checkpoint, so a crash leaves it whole or not at all.
//! Blocks of the snapshot that it began with stay as they are (rule R2): they are not lent.

mod aside;

use self::aside::Aside;
use crate::checkpoint::{Adopted, Replaced, TableChange, write_slot};
use crate::offline::first_superblock;
use crate::opening::load_space;
use crate::room::{LEAST_SEGMENT_BLOCKS, segment_blocks};
use crate::{FormatOptions, Snapshot, SnapshotError, Store, StoreError, StoreOptions, Transaction};
use std::sync::Arc;
use std::time::{Duration, Instant};
use syncline_device::{Claim, Device, FlushTracker};
use syncline_format::superblock::{
    FEATURE_COUNTED_XATTRS, FEATURE_HOLDS, FEATURE_PARENT_POINTERS, FEATURE_UNPLACED, LogStart, Superblock,
};
use syncline_format::{BlockAddr, BlockRun, Geometry};
use syncline_space::{Class, KeptMap, PageReader, Space};

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

    /// Free blocks of the branch that are not reserved for changes in memory.
    pub fn free_blocks(&self) -> u64 {
        self.store.room.unreserved_blocks()
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
        let now = self.superblock();
        let end = now.geometry.usable().end();
        // One run must hold a segment of its log.
        let least = LEAST_LENT_SEGMENTS * segment_blocks(now.geometry.total_blocks);
        let lent = self.lend(end, blocks.max(least));
        let device = Arc::new(Aside::new(self.tracker.clone(), self.spawn.clone(), now.geometry));
        match self.open_branch(&device, start, (&now, features), &lent).await {
            Ok(store) => Ok(Branch { store, device, lent, end, base }),
            Err(error) => {
                self.unclaim(base).await;
                self.take_back(&device, lent).await;
                Err(error)
            }
        }
    }

    /// Lends a branch up to `blocks` blocks more, as far as there are free ones.
    pub fn lend_more(&self, branch: &mut Branch, blocks: u64) {
        let more = self.lend(branch.end, blocks);
        branch.store.room.space().hand_out_also(&more);
        branch.lent.extend(more);
        branch.lent.sort_unstable();
    }

    /// Free blocks that could be lent.
    pub fn lendable_blocks(&self) -> u64 {
        let total = self.geometry().total_blocks;
        // The next checkpoints of this store need room for their log, nodes and maps.
        let kept_back = total / KEPT_BACK_SHARE + 2 * segment_blocks(total);
        self.room.unreserved_blocks().saturating_sub(kept_back)
    }

    /// Takes free blocks before `end` for a branch.
    fn lend(&self, end: BlockAddr, blocks: u64) -> Vec<BlockRun> {
        let most = self.lendable_blocks().min(blocks);
        let (mut wanted, mut in_vain) = (most, 0);
        let (mut lent, mut beyond) = (Vec::new(), Vec::new());
        // Others need blocks meanwhile, too.
        while wanted >= LEAST_SEGMENT_BLOCKS && in_vain <= most {
            let Some(run) = self.room.space().allocate(Class::Log, wanted, LEAST_SEGMENT_BLOCKS, None) else {
                break;
            };
            // The image may have grown since the branch was made.
            let inside = end.saturating_sub(run.start).min(run.blocks);
            wanted = wanted.saturating_sub(inside);
            in_vain += run.blocks - inside;
            let (first, rest) =
                (BlockRun::new(run.start, inside), BlockRun::new(run.start + inside, run.blocks - inside));
            lent.extend((first.blocks > 0).then_some(first));
            beyond.extend((rest.blocks > 0).then_some(rest));
        }
        beyond.into_iter().for_each(|run| self.room.space().give_back(run));
        lent.sort_unstable();
        lent
    }

    async fn open_branch(
        &self,
        aside: &Arc<Aside>,
        start: BranchStart,
        (now, features): (&Superblock, u32),
        lent: &[BlockRun],
    ) -> Result<Arc<Store>, StoreError> {
        let device: Arc<dyn Device> = aside.clone();
        let tracker = FlushTracker::new(device.clone());
        let superblock = match start {
            BranchStart::Snapshot(snapshot) => {
                let (segment, rest) = segment_of(lent, now.geometry).ok_or(StoreError::NoSpace)?;
                let then = snapshot.geometry(now.geometry);
                let superblock = Superblock { geometry: then, ..snapshot.superblock(now) };
                // Under an epoch of its own nothing that lies there counts as its log (rule R3).
                Superblock {
                    log: LogStart::first_in(segment, 1, 0),
                    epoch: rand::random(),
                    ..in_size(&tracker, superblock, now.geometry, &rest).await?
                }
            }
            BranchStart::Empty(initial) => {
                let space = Space::format(now.geometry);
                space.hand_out_only(lent);
                let first = first_superblock(&tracker, &space, &like(now), *initial).await?;
                Superblock { next_object: now.next_object.max(first.next_object), ..first }
            }
        };
        let features = (now.features | features) & !FEATURE_HOLDS;
        let superblock = Superblock { generation: FIRST_GENERATION, features, clean: true, ..superblock };
        let superblock = superblock.without_snapshots();
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
        Ok(store)
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
        self.checkpoint.lock().await.table().require_new(name, replaced)?;
        branch.store.close().await?;
        let made = branch.store.superblock();
        if !made.clean {
            return Err(StoreError::Unusable("the branch was not closed; receive it again".into()));
        }
        let maps = [(made.geometry, made.space)];
        let kept = KeptMap::union(&self.pages(), self.geometry(), &maps).await?;
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
        self.log.keep_numbers_below(made.next_object);
        let rest = kept.without(&branch.lent);
        let adopted = Adopted { snapshot, features: made.features, kept, replaced: None };
        let taken = self.adopt_instead(adopted, replaced).await?;
        rest.into_iter().for_each(|run| self.room.space().give_back(run));
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
        state.table().require_new(name, replaced)?;
        let mut adopted = adopted.clone();
        if let Some(id) = replaced {
            let rest = state.table().kept_without(&self.pages(), &self.superblock(), Some(id)).await?;
            adopted.replaced = Some(Replaced { id, rest });
        }
        let change = TableChange::Adopt(Box::new(adopted));
        self.run_checkpoint_with(&mut state, false, Some(change)).await?;
        Ok(state.table().find(name)?.clone())
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

    /// Fails if a snapshot of this name can't be made in place of the snapshot `replaced`.
    pub async fn require_new_name(&self, name: &str, replaced: Option<u64>) -> Result<(), StoreError> {
        if !Snapshot::is_free_name(name) {
            return Err(SnapshotError::Name { name: name.to_owned() }.into());
        }
        Ok(self.checkpoint.lock().await.table().require_new(name, replaced)?)
    }

    /// Gives a branch up. Its blocks are free again when this returns.
    pub async fn abandon_branch(&self, branch: Branch) {
        self.unclaim(branch.base).await;
        branch.store.shut_down_untold("it was given up");
        // This fails; it ends the background tasks.
        let _ = branch.store.close().await;
        self.take_back(&branch.device, branch.lent).await;
    }

    /// Takes back what was lent.
    async fn take_back(&self, device: &Aside, lent: Vec<BlockRun>) {
        // Nothing may be in flight to blocks that others get (rule R2).
        device.end_writing().await;
        // A superblock that could not be written ends all writing: it may be on the device, and name
        // them.
        if self.writable().is_ok() {
            lent.into_iter().for_each(|run| self.room.space().give_back(run));
        }
    }

    /// Keeps a snapshot from being deleted, if it is still there.
    async fn claim_base(&self, snapshot: &Snapshot) -> Result<u64, StoreError> {
        let name = || snapshot.name.clone();
        let mut state = self.checkpoint.lock().await;
        if !state.table().entries().iter().any(|entry| entry.id == snapshot.id) {
            return Err(SnapshotError::NotFound { name: name() }.into());
        }
        if !self.device().claim_snapshot(snapshot.id, Claim::Shared)? {
            return Err(SnapshotError::InUse { name: name() }.into());
        }
        state.add_base(snapshot.id);
        Ok(snapshot.id)
    }

    async fn unclaim(&self, base: Option<u64>) {
        let Some(id) = base else { return };
        let mut state = self.checkpoint.lock().await;
        if !state.drop_base(id) {
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

/// The first log segment of a branch, cut from the lent runs, and the runs that remain.
fn segment_of(lent: &[BlockRun], now: Geometry) -> Option<(BlockRun, Vec<BlockRun>)> {
    let longest = lent.iter().max_by_key(|run| run.blocks)?;
    let segment = BlockRun::new(longest.start, longest.blocks.min(segment_blocks(now.total_blocks)));
    let behind = |run: &BlockRun| match run.start == segment.start {
        true => BlockRun::new(segment.end(), run.blocks - segment.blocks),
        false => *run,
    };
    let rest = lent.iter().map(behind).filter(|run| run.blocks > 0).collect();
    Some((segment, rest))
}

/// The same state at the image's present size, if the image has grown since. The blocks that its larger
/// space map needs are taken from `lent`.
async fn in_size(
    tracker: &Arc<FlushTracker>,
    then: Superblock,
    now: Geometry,
    lent: &[BlockRun],
) -> Result<Superblock, StoreError> {
    if then.geometry.total_blocks > now.total_blocks {
        return Err(StoreError::Unusable("the image is smaller than when the snapshot was made".into()));
    }
    if then.geometry == now {
        return Ok(then);
    }
    let space = load_space(&PageReader::new(tracker.clone()), &then).await?;
    space.resize_map(now)?;
    space.widen();
    space.hand_out_only(lent);
    let mut frozen = space.freeze(FIRST_GENERATION - 1);
    let persisted = space.persist(tracker, &mut frozen).await?;
    for written in &persisted.written {
        written.handle.wait().await?;
    }
    tracker.make_durable(tracker.newest_ticket()).await?;
    Ok(Superblock { geometry: now, space: persisted.root, used_blocks: persisted.used_blocks, ..then })
}

/// A filesystem with the same choices as this one.
fn like(now: &Superblock) -> FormatOptions {
    let has = |feature: u32| now.features & feature != 0;
    FormatOptions {
        node_bytes: now.geometry.node_bytes,
        metadata: now.geometry.metadata,
        uuid: now.uuid,
        parent_pointers: has(FEATURE_PARENT_POINTERS),
        data_in_log: has(FEATURE_UNPLACED),
        counted_xattrs: has(FEATURE_COUNTED_XATTRS),
        hash_seed: now.hash_seed,
        created_ns: now.created_ns,
        ..FormatOptions::default()
    }
}
