//! A branch: a second store on the same device, that writes only to blocks lent to it, and becomes a
//! snapshot when it is finished.
//!
//! The branch has its own superblock, in memory. All that it writes to the device lies in lent
//! blocks, which nothing durable names: a crash leaves nothing of it. [`Store::adopt_branch`] makes it a
//! snapshot with the one superblock of a checkpoint, so a crash leaves it whole or not at all.
//! Blocks of the snapshot that it began with stay as they are (rule R2): they are not lent.

use crate::format::first_superblock;
use crate::room::{LEAST_SEGMENT_BLOCKS, segment_blocks};
use crate::slots::write_slot;
use crate::snapshots::{Adopted, TableChange};
use crate::{FormatOptions, Snapshot, SnapshotError, Store, StoreError, StoreOptions, Transaction};
use bytes::Bytes;
use std::collections::HashMap;
use std::sync::Arc;
use syncline_device::{AlignedBuf, Claim, Completion, Device, DeviceError, FlushTracker, Operation};
use syncline_format::snapshots::SNAPSHOTS_MAX;
use syncline_format::superblock::{
    FEATURE_COUNTED_XATTRS, FEATURE_PARENT_POINTERS, FEATURE_SNAPSHOTS, FEATURE_UNPLACED, LogStart, Pointer,
    Superblock,
};
use syncline_format::{BLOCK_BYTES, BlockRun, Geometry};
use syncline_space::{Class, KeptMap, Space};
use syncline_sync::atomic::{AtomicBool, AtomicU64, Ordering};
use syncline_sync::{Event, Mutex};

/// The share of the image that is not lent: one block in this many.
const KEPT_BACK_SHARE: u64 = 32;
/// The generation of a branch's first superblock; the slot beside it has the one before.
const FIRST_GENERATION: u64 = 2;

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
    /// The snapshot that it began with, which can't be deleted meanwhile.
    base: Option<u64>,
}

impl Branch {
    /// The store, for a filesystem that writes to it.
    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }
}

impl Store {
    /// Opens a branch that may take up to `blocks` blocks, as far as there are free ones. `features`
    /// are features that its contents need.
    pub async fn branch(&self, start: BranchStart, features: u32, blocks: u64) -> Result<Branch, StoreError> {
        self.writable()?;
        let base = match &start {
            BranchStart::Snapshot(snapshot) => {
                if !self.device().claim_snapshot(snapshot.id, Claim::Shared)? {
                    return Err(SnapshotError::InUse { name: snapshot.name.clone() }.into());
                }
                Some(snapshot.id)
            }
            BranchStart::Empty(_) => None,
        };
        let lent = self.lend(&start, blocks);
        match self.open_branch(start, features, &lent).await {
            Ok((store, device)) => Ok(Branch { store, device, lent, base }),
            Err(error) => {
                // Its writes may be in flight, so the blocks stay lent until the image is closed.
                self.unclaim(base);
                Err(error)
            }
        }
    }

    /// Takes free blocks for a branch.
    fn lend(&self, start: &BranchStart, blocks: u64) -> Vec<BlockRun> {
        let now = self.geometry();
        let end = match start {
            BranchStart::Snapshot(snapshot) => snapshot.geometry(now).usable().end(),
            BranchStart::Empty(_) => now.usable().end(),
        };
        // The next checkpoints of this store need room for their log, nodes and maps.
        let kept_back = now.total_blocks / KEPT_BACK_SHARE + 2 * segment_blocks(now.total_blocks);
        let free = self.space.free_blocks().saturating_sub(self.reserved.load(Ordering::Acquire));
        let mut wanted = free.saturating_sub(kept_back).min(blocks);
        let (mut lent, mut beyond) = (Vec::new(), Vec::new());
        while wanted >= LEAST_SEGMENT_BLOCKS {
            let Some(run) = self.space.allocate(Class::Log, wanted, LEAST_SEGMENT_BLOCKS, None) else {
                break;
            };
            wanted = wanted.saturating_sub(run.blocks);
            // The image was smaller when the snapshot was made, and so is the branch.
            let inside = end.saturating_sub(run.start).min(run.blocks);
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

    /// Makes a finished branch a snapshot. It is durable when this returns. The branch's filesystem
    /// must have been closed.
    pub async fn adopt_branch(
        &self,
        branch: Branch,
        name: &str,
        created_ns: u64,
    ) -> Result<Snapshot, StoreError> {
        let made = match self.adopt_closed(&branch, name, created_ns).await {
            Ok(made) => made,
            Err(error) => {
                self.abandon_branch(branch).await;
                return Err(error);
            }
        };
        self.unclaim(branch.base);
        Ok(made)
    }

    async fn adopt_closed(
        &self,
        branch: &Branch,
        name: &str,
        created_ns: u64,
    ) -> Result<Snapshot, StoreError> {
        self.require_new_name(name).await?;
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
        let change = TableChange::Adopt(Box::new(Adopted { snapshot, features: made.features, kept }));
        let taken = match self.unless_log_left(self.try_adopt(name, change.clone()).await).await? {
            Some(done) => done,
            None => self.try_adopt(name, change).await?,
        };
        rest.into_iter().for_each(|run| self.space.give_back(run));
        Ok(taken)
    }

    async fn try_adopt(&self, name: &str, change: TableChange) -> Result<Snapshot, StoreError> {
        let mut state = self.checkpoint.lock().await;
        state.table.require_new(name)?;
        self.run_checkpoint_with(&mut state, false, Some(change)).await?;
        Ok(state.table.find(name)?.clone())
    }

    /// Fails if a snapshot of this name can't be made.
    pub async fn require_new_name(&self, name: &str) -> Result<(), StoreError> {
        if !Snapshot::is_name(name) {
            return Err(SnapshotError::Name { name: name.to_owned() }.into());
        }
        let state = self.checkpoint.lock().await;
        state.table.require_new(name)?;
        if state.table.entries.len() >= SNAPSHOTS_MAX {
            return Err(SnapshotError::TooMany.into());
        }
        Ok(())
    }

    /// Gives a branch up. Its blocks are free again when this returns.
    pub async fn abandon_branch(&self, branch: Branch) {
        self.unclaim(branch.base);
        branch.store.shut_down_untold("it was given up");
        // This fails; it ends the background tasks.
        let _ = branch.store.close().await;
        // Nothing may be in flight to blocks that others get (rule R2).
        branch.device.end_writing().await;
        branch.lent.into_iter().for_each(|run| self.space.give_back(run));
    }

    fn unclaim(&self, base: Option<u64>) {
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

/// A device whose superblocks are in memory, aside of those of the device below.
struct Aside {
    below: Arc<dyn Device>,
    size_bytes: u64,
    /// The blocks of superblocks, by their offset.
    slots: Mutex<HashMap<u64, Bytes>>,
    writes: Arc<Writes>,
}

/// The writes that are in flight.
#[derive(Default)]
struct Writes {
    in_flight: AtomicU64,
    /// No more writes are let through.
    ended: AtomicBool,
    /// Notified when there is none left.
    none_left: Event,
}

impl Writes {
    /// Counts a write, unless writing has ended.
    fn begin(&self) -> bool {
        self.in_flight.fetch_add(1, Ordering::SeqCst);
        let may = !self.ended.load(Ordering::SeqCst);
        if !may {
            self.end();
        }
        may
    }

    fn end(&self) {
        if self.in_flight.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.none_left.notify(usize::MAX);
        }
    }
}

impl Aside {
    fn new(below: Arc<dyn Device>, geometry: Geometry) -> Self {
        let copies = (0..2).flat_map(|slot| geometry.superblock_copies(slot));
        let zeros = Bytes::from(vec![0; BLOCK_BYTES]);
        let slots = copies.map(|addr| (addr * BLOCK_BYTES as u64, zeros.clone())).collect();
        let size_bytes = geometry.total_blocks * BLOCK_BYTES as u64;
        Self { below, size_bytes, slots: Mutex::new(slots), writes: Arc::default() }
    }

    /// Refuses writes from now on, and waits for those in flight.
    async fn end_writing(&self) {
        self.writes.ended.store(true, Ordering::SeqCst);
        loop {
            let none_left = self.writes.none_left.listen();
            if self.writes.in_flight.load(Ordering::SeqCst) == 0 {
                return;
            }
            none_left.await;
        }
    }

    /// True if the range has a superblock in it.
    fn touches(&self, offset: u64, len_bytes: u64) -> bool {
        self.slots.lock().keys().any(|slot| *slot < offset + len_bytes && offset < slot + BLOCK_BYTES as u64)
    }
}

fn refused(operation: Operation, offset: u64, len_bytes: u64) -> DeviceError {
    DeviceError::io(operation, offset, len_bytes, std::io::ErrorKind::Unsupported.into())
}

impl Device for Aside {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn reads_bypass_caches(&self) -> bool {
        self.below.reads_bypass_caches()
    }

    fn read(&self, offset: u64, buf: AlignedBuf, done: Completion<AlignedBuf>) {
        let length = buf.len() as u64;
        let slot = self.slots.lock().get(&offset).cloned();
        match slot {
            Some(slot) if length == BLOCK_BYTES as u64 => done(Ok(AlignedBuf::copy_from(&slot))),
            None if !self.touches(offset, length) => self.below.read(offset, buf, done),
            _ => done(Err(refused(Operation::Read, offset, length))),
        }
    }

    fn write(&self, offset: u64, bufs: Vec<Bytes>, done: Completion<()>) {
        let length = bufs.iter().map(|buf| buf.len() as u64).sum();
        if !self.touches(offset, length) {
            if !self.writes.begin() {
                return done(Err(refused(Operation::Write, offset, length)));
            }
            let writes = self.writes.clone();
            let ended = move |result| {
                writes.end();
                done(result);
            };
            return self.below.write(offset, bufs, Box::new(ended));
        }
        let whole: Bytes = bufs.concat().into();
        let known = self.slots.lock().get_mut(&offset).filter(|_| whole.len() == BLOCK_BYTES).map(|slot| {
            *slot = whole;
        });
        done(known.ok_or_else(|| refused(Operation::Write, offset, length)));
    }

    fn flush(&self, done: Completion<()>) {
        self.below.flush(done);
    }

    fn submit(&self) {
        self.below.submit();
    }

    fn enlarge(&self, size_bytes: u64, done: Completion<u64>) {
        done(Err(refused(Operation::Write, self.size_bytes, size_bytes)));
    }

    fn claim_snapshot(&self, number: u64, claim: Claim) -> Result<bool, DeviceError> {
        self.below.claim_snapshot(number, claim)
    }

    fn discards(&self) -> bool {
        false
    }

    fn discard(&self, offset: u64, len_bytes: u64, done: Completion<()>) {
        done(Err(refused(Operation::Discard, offset, len_bytes)));
    }
}
