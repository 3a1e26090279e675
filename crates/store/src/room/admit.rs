//! Admission: how long a change waits before it begins, and how much space it may still take.

use super::Room;
use super::count::Headroom;
use crate::layers::ITEM_OVERHEAD_BYTES;
use crate::{Ablation, Canary, Store, StoreError};
use futures_lite::future::or;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use syncline_format::batch::PAYLOAD_BYTES_MAX;
use syncline_sync::asynchronous::MutexGuard;
use syncline_sync::atomic::{AtomicU64, Ordering};
use syncline_sync::{Event, EventListener};

/// The purpose of a change; decides whether it may draw on the reserve.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Admission {
    /// Adds to the filesystem: refused with `NoSpace` before the reserve is touched.
    Grow,
    /// Changes existing state and takes little or no space (rename, attributes): draws on half of
    /// the floor (the part of the reserve for changes that make room), and is refused beyond that.
    Change,
    /// Releases space or is needed to do so (unlink, truncate): draws on the reserve.
    Shrink,
    /// Like `Shrink`, for removing an inode without names. It does not wait for a standstill to end:
    /// a writer without room waits for it and holds the lease that the standstill needs. Nobody can
    /// see on which side of the snapshot it is.
    Remove,
    /// Like `Shrink`, but for work that must go through: changes that were accepted earlier,
    /// changes that hold leases or write-backs of files, which relocating data may need, and the
    /// relocation itself. It does not wait for memory that becomes free only after that work, and is
    /// never refused.
    Finish,
}

/// Upper bound of the memory that a change may take. A change is admitted before its exact size is
/// known.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ChangeSize {
    /// Number of items.
    pub items: u64,
    /// Bytes of their values.
    pub bytes: u64,
}

impl ChangeSize {
    /// An upper bound for most operations on names and attributes.
    pub const ORDINARY: Self = Self { items: 16, bytes: 4096 };

    /// The sum of both.
    pub(crate) fn and(self, other: Self) -> Self {
        Self { items: self.items + other.items, bytes: self.bytes + other.bytes }
    }

    /// The size in a memtable, whose byte count includes keys.
    pub(crate) fn in_memory(self) -> Self {
        Self { bytes: self.bytes + self.items * ITEM_OVERHEAD_BYTES as u64, ..self }
    }

    /// An ordinary change plus `items` more items with `bytes` more bytes.
    pub fn with(items: u64, bytes: u64) -> Self {
        Self { items: Self::ORDINARY.items + items, bytes: Self::ORDINARY.bytes + bytes }
    }
}

/// Changes that are admitted but not committed yet: the next checkpoint will need room for them
/// too.
#[derive(Default)]
pub(super) struct UnderWay {
    items: AtomicU64,
    bytes: AtomicU64,
    /// Items of changes that wait for a write-back and end at no predictable time.
    lasting: AtomicU64,
    /// Notified when a change is committed or given up.
    ended: Event,
    /// How many changes have ended.
    ends: AtomicU64,
    /// How many have begun, without those that were withdrawn.
    begins: AtomicU64,
    /// Held by the caller that is next to get room. Its value is the number of `ends` when an
    /// earlier caller waited in vain.
    turn: syncline_sync::asynchronous::Mutex<Option<u64>>,
    /// One more than the [`moves`](Self::moves) when a caller that may hold leases waited in vain.
    soon_in_vain: AtomicU64,
}

impl UnderWay {
    /// Counts an ended change and wakes those who wait for the room that it had been promised.
    fn tell_end(&self) {
        self.ends.fetch_add(1, Ordering::AcqRel);
        self.ended.notify(usize::MAX);
    }

    /// How many changes have begun or ended. As long as it stays the same, so do those under way.
    fn moves(&self) -> u64 {
        self.begins.load(Ordering::Acquire) + self.ends.load(Ordering::Acquire)
    }

    /// Changes that wait for a write-back.
    pub(super) fn lasting(&self) -> ChangeSize {
        ChangeSize { items: self.lasting.load(Ordering::Acquire), bytes: 0 }
    }

    /// All other changes together.
    pub(super) fn size(&self) -> ChangeSize {
        ChangeSize { items: self.items.load(Ordering::Acquire), bytes: self.bytes.load(Ordering::Acquire) }
    }
}

/// Room for one change. Dropped after the commit, or when the change is given up.
#[must_use = "the room is kept for as long as this lives"]
pub struct Admitted {
    room: Arc<Room>,
    /// `None` once the room has been given back.
    size: Option<ChangeSize>,
}

impl Admitted {
    fn begin(room: &Arc<Room>, size: ChangeSize) -> Self {
        room.under_way.items.fetch_add(size.items, Ordering::AcqRel);
        room.under_way.bytes.fetch_add(size.bytes, Ordering::AcqRel);
        room.under_way.begins.fetch_add(1, Ordering::AcqRel);
        Self { room: room.clone(), size: Some(size) }
    }

    /// Gives the room back before the change has begun. Waiters for ended changes need not hear of
    /// it, least of all the caller.
    fn withdraw(mut self) {
        self.room.under_way.begins.fetch_sub(1, Ordering::AcqRel);
        self.give_back();
    }

    /// Gives the room back; false if that was done before.
    fn give_back(&mut self) -> bool {
        let Some(ChangeSize { items, bytes }) = self.size.take() else { return false };
        self.room.under_way.items.fetch_sub(items, Ordering::AcqRel);
        self.room.under_way.bytes.fetch_sub(bytes, Ordering::AcqRel);
        true
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        if self.give_back() {
            self.room.under_way.tell_end();
        }
    }
}

type Sleep = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The turn of the caller that is next to get room.
struct Turn<'a> {
    /// The number of `ends` when an earlier caller waited in vain.
    in_vain: MutexGuard<'a, Option<u64>>,
    /// Completes when waiting for others is over.
    over: Sleep,
    /// True if none of the waiting time was spent waiting for the turn.
    is_whole: bool,
}

/// Room for the nodes that change when a file's dirty data is named, held until it is dropped. The
/// room is counted only while there is a snapshot, but it is tracked before one exists.
pub(super) struct Names(Arc<Room>);

impl Names {
    pub(super) fn begin(room: &Arc<Room>) -> Self {
        room.under_way.lasting.fetch_add(1, Ordering::AcqRel);
        Self(room.clone())
    }
}

impl Drop for Names {
    fn drop(&mut self) {
        self.0.under_way.lasting.fetch_sub(1, Ordering::AcqRel);
        if self.0.space.keeps_any() {
            self.0.under_way.tell_end();
        }
    }
}

/// How long a change waits at most for room that is promised to others, and how often it polls
/// meanwhile.
const OTHERS_END_MAX: Duration = Duration::from_secs(5);
const OTHERS_END_PAUSE: Duration = Duration::from_millis(50);

/// As `OTHERS_END_MAX` and `OTHERS_END_PAUSE`, for callers that may hold leases.
const OTHERS_END_SOON_MAX: Duration = Duration::from_millis(200);
const OTHERS_END_SOON_PAUSE: Duration = Duration::from_millis(10);

/// How many times, and how long each time, a caller that needs room waits for readers of freed
/// blocks: two seconds in all.
const READERS_END_ROUNDS: u32 = 200;
const READERS_END_PAUSE: Duration = Duration::from_millis(10);

/// Whether a caller that finds no room waits for changes that others have begun.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Others {
    AreAwaited,
    AreNotAwaited,
}

/// How many checkpoints a writer that finds no room takes before it gives up.
const CHECKPOINTS_FOR_ROOM: u32 = 2;

impl Store {
    /// Waits until memory and space allow another ordinary transaction of this kind. Call before
    /// taking leases, and keep the returned value until the transaction is committed.
    pub async fn admit(self: &Arc<Self>, admission: Admission) -> Result<Admitted, StoreError> {
        self.admit_change(admission, ChangeSize::ORDINARY).await
    }

    /// Like `admit`, for a transaction that may be as large as `size`.
    pub async fn admit_change(
        self: &Arc<Self>,
        admission: Admission,
        size: ChangeSize,
    ) -> Result<Admitted, StoreError> {
        self.health.writable()?;
        if !matches!(admission, Admission::Remove | Admission::Finish) {
            self.pass_gate().await;
        }
        self.throttle(admission).await?;
        match admission {
            Admission::Grow => self.admit_growth(size, Others::AreAwaited).await,
            _ => self.admit_of_reserve(admission, size).await,
        }
    }

    /// Admits changes that were accepted one by one and now go into one transaction: `NoSpace`
    /// where there may be no room for one checkpoint of all of them. (Committed one by one, each
    /// makes room for the next.)
    pub async fn admit_together(self: &Arc<Self>, size: ChangeSize) -> Result<Admitted, StoreError> {
        let admitted = self.admit_change(Admission::Finish, size).await?;
        match self.has_room_for_log_with(size, 0) {
            true => Ok(admitted),
            false => Err(StoreError::NoSpace),
        }
    }

    /// Like `admit_change` for a change that adds to the filesystem, when the caller has
    /// already waited for others: it waits for checkpoints only.
    pub async fn admit_growth_now(self: &Arc<Self>, size: ChangeSize) -> Result<Admitted, StoreError> {
        self.health.writable()?;
        self.throttle(Admission::Grow).await?;
        self.admit_growth(size, Others::AreNotAwaited).await
    }

    /// Promises room to a change that will be committed in any case, whether or not there is room.
    pub fn promise(self: &Arc<Self>, size: ChangeSize) -> Admitted {
        Admitted::begin(&self.room, size)
    }

    /// Waits until there is room for another change of this size.
    async fn admit_growth(
        self: &Arc<Self>,
        size: ChangeSize,
        others: Others,
    ) -> Result<Admitted, StoreError> {
        // Promise the room before checking it, so that two concurrent callers both see each other.
        let admitted = Admitted::begin(&self.room, size);
        if self.headroom().holds(0) || self.holds_off_checkpoints() {
            return Ok(admitted);
        }
        admitted.withdraw();
        let mut turn = self.take_turn().await;
        if let Some(admitted) = self.admit_in_turn(&mut turn, size, others, |room| room.holds(0)).await? {
            return Ok(admitted);
        }
        let admitted = Admitted::begin(&self.room, size);
        // This promise must not wait for itself.
        self.find_room(0, Others::AreNotAwaited).await?;
        Ok(admitted)
    }

    /// Waits until enough of the reserve is left for another change of this size.
    async fn admit_of_reserve(
        self: &Arc<Self>,
        admission: Admission,
        size: ChangeSize,
    ) -> Result<Admitted, StoreError> {
        let admitted = Admitted::begin(&self.room, size);
        let room = self.headroom();
        if room.least() >= 0 || self.holds_off_checkpoints() {
            return Ok(admitted);
        }
        self.ask_for_checkpoint();
        let enough = |room: Headroom| room.and(self.floor_blocks() / 2).least() >= 0;
        if enough(room) {
            return Ok(admitted);
        }
        // With a snapshot, removing something may free no room at all, so the blocks that deleting
        // takes must be left.
        let passes = match admission {
            Admission::Finish => true,
            Admission::Change => false,
            _ => !self.room.space.keeps_any(),
        };
        // Memory already needs the rest in the worst case; a checkpoint gives back whatever it
        // needs less than that.
        let ended = match passes {
            // Proceed even if it failed: the task that leaves the log may be waiting for this change.
            true => self.checkpoint_for_room().await,
            false => self.checkpoint_beside_others().await,
        };
        self.health.writable()?;
        if passes || enough(self.headroom()) {
            return Ok(admitted);
        }
        self.wait_for_readers(enough).await;
        if enough(self.headroom()) {
            return Ok(admitted);
        }
        admitted.withdraw();
        ended?;
        let mut turn = self.take_turn().await;
        for _ in 0..CHECKPOINTS_FOR_ROOM {
            let admitted = self.admit_in_turn(&mut turn, size, Others::AreAwaited, enough).await?;
            if let Some(admitted) = admitted {
                return Ok(admitted);
            }
            // A checkpoint of the changes that others have committed meanwhile.
            self.checkpoint_beside_others().await?;
            self.wait_for_readers(enough).await;
        }
        let admitted = self.admit_in_turn(&mut turn, size, Others::AreAwaited, enough).await?;
        admitted.ok_or(StoreError::NoSpace)
    }

    /// Waits to be next to get room. The time limit for waiting on others starts now, so several
    /// callers that wait in vain time out side by side and not one after the other.
    async fn take_turn(&self) -> Turn<'_> {
        let over = self.spawn.sleep(OTHERS_END_MAX);
        match self.room.under_way.turn.try_lock() {
            Some(in_vain) => Turn { in_vain, over, is_whole: true },
            None => Turn { in_vain: self.room.under_way.turn.lock().await, over, is_whole: false },
        }
    }

    /// Waits until there is `enough` room with this change included, as long as only changes that
    /// others have begun take that room and a checkpoint does not yield it. Returns `None` if the
    /// room would not suffice even without those changes. Callers wait one at a time and promise
    /// nothing meanwhile: each would be in the way of all others. If no change has ended since an
    /// earlier caller waited in vain, the next caller does not wait for them again.
    async fn admit_in_turn(
        self: &Arc<Self>,
        turn: &mut Turn<'_>,
        size: ChangeSize,
        others: Others,
        enough: impl Fn(Headroom) -> bool,
    ) -> Result<Option<Admitted>, StoreError> {
        let ends = || self.room.under_way.ends.load(Ordering::Acquire);
        let waits = others == Others::AreAwaited && *turn.in_vain != Some(ends());
        let mut checkpointed = false;
        loop {
            let admitted = Admitted::begin(&self.room, size);
            if enough(self.headroom()) {
                return Ok(Some(admitted));
            }
            if !enough(self.headroom_with(size)) {
                return Ok(None);
            }
            admitted.withdraw();
            self.health.require_open()?;
            let ended = self.room.under_way.ended.listen();
            if enough(self.headroom_with(self.room.under_way.size().and(size))) {
                continue;
            }
            if !checkpointed {
                // Memory needs less than the worst case, and freed blocks are held back until a
                // checkpoint. Even if the checkpoint fails, other changes may still end.
                checkpointed = true;
                self.counters.checkpoints_for_room.add(1);
                let _ = self.checkpoint_beside_others().await;
                continue;
            }
            if !waits || !self.before(&mut turn.over, ended, OTHERS_END_PAUSE).await {
                if waits && turn.is_whole {
                    *turn.in_vain = Some(ends());
                }
                return Err(StoreError::NoSpace);
            }
        }
    }

    /// Waits for `ended` or for `pause`; false once `over` has completed. The time limit is needed
    /// because others may end all the time without making enough room.
    async fn before(&self, over: &mut Sleep, ended: EventListener, pause: Duration) -> bool {
        let over = async {
            over.await;
            false
        };
        let woken = async {
            or(ended, self.spawn.sleep(pause)).await;
            true
        };
        or(over, woken).await
    }

    /// A checkpoint for room. If it fails because the device refused another caller's write, that
    /// is no answer for this caller as long as that log can be left soon; the checkpoint is then
    /// tried again.
    async fn checkpoint_beside_others(&self) -> Result<(), StoreError> {
        match self.checkpoint_for_room().await {
            Err(StoreError::Device(_)) if self.log_was_left_soon().await => self.checkpoint_for_room().await,
            ended => ended,
        }
    }

    /// Waits until there is `enough` room, if only readers stand in the way by keeping freed blocks
    /// that they are reading. The wait is short: a reader may need a lease that the caller holds.
    async fn wait_for_readers(&self, enough: impl Fn(Headroom) -> bool) {
        for _ in 0..READERS_END_ROUNDS {
            self.collect_freed();
            let room = self.headroom();
            if enough(room) || !enough(room.and(self.room.space.kept_by_readers())) {
                return;
            }
            self.spawn.sleep(READERS_END_PAUSE).await;
        }
    }

    /// Makes freed blocks reusable that only readers kept who are done by now.
    pub(crate) fn collect_freed(&self) {
        self.room.space.collect_with(|runs| runs.iter().for_each(|run| self.layers.tree().forget(*run)));
    }

    /// Waits while memory holds memtables of twice the limit, far more unflushed log and data than
    /// the background aims for, or a pending log that is not getting sealed. A device with slow
    /// flushes throttles writers here and nowhere else.
    async fn throttle(&self, admission: Admission) -> Result<(), StoreError> {
        let passes = || {
            self.holds_off_checkpoints() || (admission == Admission::Finish && self.health.is_leaving_log())
        };
        let fits = || self.layers.memory_bytes() < 2 * self.options.memtable_bytes || passes();
        // Listening takes memory and a shared lock, so callers that need not wait skip it.
        while !fits() {
            let ended = self.checkpoint.listen_ended();
            if fits() {
                break;
            }
            self.health.require_open()?;
            self.ask_for_checkpoint();
            ended.await;
        }
        while !(self.is_drained() || passes()) {
            let drained = self.log.listen_drained();
            if self.is_drained() || passes() {
                break;
            }
            self.health.require_open()?;
            self.wake.notify(usize::MAX);
            drained.await;
        }
        Ok(())
    }

    fn is_drained(&self) -> bool {
        let backlog = self.log.backlog();
        let flushed = backlog.unflushed_bytes < 4 * self.options.unflushed_bytes;
        let sealed = backlog.pending_bytes < self.pending_bytes_max();
        flushed && (sealed || self.breaks(Canary::UnboundedPending))
    }

    /// Size of the pending log at which writers wait until it is sealed.
    fn pending_bytes_max(&self) -> usize {
        match self.ablates(Ablation::DirBulk) {
            // Little is sealed in the background, so writers wait only for more than half a batch.
            true => PAYLOAD_BYTES_MAX / 4 * 3,
            false => self.options.pending_bytes.min(PAYLOAD_BYTES_MAX / 4 * 3),
        }
    }

    /// Waits until `blocks` could be reserved, taking checkpoints to release freed blocks.
    pub(super) async fn find_room(&self, blocks: u64, others: Others) -> Result<(), StoreError> {
        for _ in 0..CHECKPOINTS_FOR_ROOM {
            if self.headroom().holds(blocks) {
                return Ok(());
            }
            self.health.writable()?;
            self.counters.checkpoints_for_room.add(1);
            self.checkpoint_beside_others().await?;
        }
        self.wait_for_readers(|room| room.holds(blocks)).await;
        // Changes under way may take less than they were promised, or nothing. The wait is short:
        // such a change may need a lease that the caller holds. If they are the same for which
        // somebody waited in vain, nobody waits again: on a full image hundreds of writes to one
        // file may come one after the other.
        let moves = || self.room.under_way.moves() + 1;
        let others = match self.room.under_way.soon_in_vain.load(Ordering::Acquire) == moves() {
            true => Others::AreNotAwaited,
            false => others,
        };
        let mut over = self.spawn.sleep(OTHERS_END_SOON_MAX);
        loop {
            let ended = self.room.under_way.ended.listen();
            if self.headroom().holds(blocks) {
                return Ok(());
            }
            let waits =
                others == Others::AreAwaited && self.headroom_with(ChangeSize::default()).holds(blocks);
            if !waits {
                break;
            }
            if !self.before(&mut over, ended, OTHERS_END_SOON_PAUSE).await {
                self.room.under_way.soon_in_vain.store(moves(), Ordering::Release);
                break;
            }
        }
        // Some blocks may be unavailable just while they are being discarded.
        let _batch = self.room.discarding.batch.lock().await;
        if self.headroom().holds(blocks) { Ok(()) } else { Err(StoreError::NoSpace) }
    }
}
