//! Admission: how long a change waits before it begins, and what it may still fill.

use crate::memtable::ITEM_OVERHEAD_BYTES;
use crate::room::Room;
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

/// What a change is for; decides whether it may draw on the reserve.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Admission {
    /// Adds to the filesystem: refused with `NoSpace` before the reserve is touched.
    Grow,
    /// Changes what is there, and takes little or nothing (rename, attributes): draws on half of what is for those who make room, and
    /// is refused then.
    Change,
    /// Releases space or is needed to do so (unlink, truncate, orphan cleanup): draws on the reserve.
    Shrink,
    /// The same for what was accepted before, for who holds what the placing anew of data may need (leases, a file's write-back), and for
    /// who places it: it does not wait for memory that only comes free after that, and is never refused.
    Finish,
}

/// How much a change may put into memory at most. It is admitted before it is known to the last byte.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ChangeSize {
    /// Items.
    pub items: u64,
    /// Bytes of their values.
    pub bytes: u64,
}

impl ChangeSize {
    /// What most operations on names and attributes stay below.
    pub const ORDINARY: Self = Self { items: 16, bytes: 4096 };

    /// Both together.
    pub(crate) fn and(self, other: Self) -> Self {
        Self { items: self.items + other.items, bytes: self.bytes + other.bytes }
    }

    /// What it takes in a memtable, whose bytes have keys in them.
    pub(crate) fn in_memory(self) -> Self {
        Self { bytes: self.bytes + self.items * ITEM_OVERHEAD_BYTES as u64, ..self }
    }

    /// An ordinary change with so many bytes more, in so many items.
    pub fn with(items: u64, bytes: u64) -> Self {
        Self { items: Self::ORDINARY.items + items, bytes: Self::ORDINARY.bytes + bytes }
    }
}

/// Changes that were admitted and are not committed: a checkpoint will need room for them too.
#[derive(Default)]
pub(crate) struct UnderWay {
    items: AtomicU64,
    bytes: AtomicU64,
    /// Items of those that wait for a write-back, and end nobody knows when.
    lasting: AtomicU64,
    /// Told when one is committed, or will not be.
    ended: Event,
    /// How many have ended so.
    ends: AtomicU64,
    /// Held by whoever is next to get room. How many had ended when one before waited in vain.
    turn: syncline_sync::asynchronous::Mutex<Option<u64>>,
}

impl UnderWay {
    /// Something has ended, and what it was promised can be had by others.
    fn tell_end(&self) {
        self.ends.fetch_add(1, Ordering::AcqRel);
        self.ended.notify(usize::MAX);
    }

    /// What waits for a write-back.
    pub(crate) fn lasting(&self) -> ChangeSize {
        ChangeSize { items: self.lasting.load(Ordering::Acquire), bytes: 0 }
    }

    /// All others together.
    pub(crate) fn size(&self) -> ChangeSize {
        ChangeSize { items: self.items.load(Ordering::Acquire), bytes: self.bytes.load(Ordering::Acquire) }
    }
}

/// Room for one change, until it is dropped: after the commit, or when there will be none.
#[must_use = "the room is kept for as long as this lives"]
pub struct Admitted {
    store: Arc<Store>,
    /// Until it is given back.
    size: Option<ChangeSize>,
}

impl Admitted {
    fn begin(store: &Arc<Store>, size: ChangeSize) -> Self {
        store.under_way.items.fetch_add(size.items, Ordering::AcqRel);
        store.under_way.bytes.fetch_add(size.bytes, Ordering::AcqRel);
        Self { store: store.clone(), size: Some(size) }
    }

    /// Takes it back before anything was begun. Nobody who waits for others to end has to hear of that, least of all the caller.
    fn withdraw(mut self) {
        self.give_back();
    }

    /// True unless that was done before.
    fn give_back(&mut self) -> bool {
        let Some(ChangeSize { items, bytes }) = self.size.take() else { return false };
        self.store.under_way.items.fetch_sub(items, Ordering::AcqRel);
        self.store.under_way.bytes.fetch_sub(bytes, Ordering::AcqRel);
        true
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        if self.give_back() {
            self.store.under_way.tell_end();
        }
    }
}

type Sleep = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Held by whoever is next to get room.
struct Turn<'a> {
    /// How many had ended when one before waited in vain.
    in_vain: MutexGuard<'a, Option<u64>>,
    /// When waiting for others is over.
    over: Sleep,
    /// None of that time went by in waiting for the turn.
    is_whole: bool,
}

/// Room for the nodes that a file changes which has dirty data, until it is dropped. It is taken only beside a snapshot, and known before
/// there is one.
pub(crate) struct Names(Arc<Store>);

impl Names {
    pub(crate) fn begin(store: &Arc<Store>) -> Self {
        store.under_way.lasting.fetch_add(1, Ordering::AcqRel);
        Self(store.clone())
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

/// What is in memory because the device has not taken it yet.
#[derive(Clone, Copy, Debug)]
#[doc(hidden)]
pub struct Backlog {
    /// Log and data that no flush has covered.
    pub unflushed_bytes: u64,
    /// Log that is not sealed.
    pub pending_bytes: usize,
}

/// How long a change waits at most for room that is promised to others, and how often it looks by itself.
const OTHERS_END_MAX: Duration = Duration::from_secs(5);
const OTHERS_END_PAUSE: Duration = Duration::from_millis(50);

/// The same where the caller may hold leases.
const OTHERS_END_SOON_MAX: Duration = Duration::from_millis(200);
const OTHERS_END_SOON_PAUSE: Duration = Duration::from_millis(10);

/// How often, and how long each time, who wants room waits for readers of what was freed: two seconds.
const READERS_END_ROUNDS: u32 = 200;
const READERS_END_PAUSE: Duration = Duration::from_millis(10);

/// Whether who finds no room waits for what others have begun.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Others {
    AreAwaited,
    AreNotAwaited,
}

/// How often a writer that finds no room looks again after a checkpoint.
const CHECKPOINTS_FOR_ROOM: u32 = 2;

impl Store {
    /// Waits until memory and space allow another ordinary transaction of this sort. Call before taking leases; keep what it
    /// returns until the transaction is committed.
    pub async fn admit(self: &Arc<Self>, admission: Admission) -> Result<Admitted, StoreError> {
        self.admit_change(admission, ChangeSize::ORDINARY).await
    }

    /// The same for one that may be as large as `size`.
    pub async fn admit_change(
        self: &Arc<Self>,
        admission: Admission,
        size: ChangeSize,
    ) -> Result<Admitted, StoreError> {
        self.health.writable()?;
        self.throttle(admission).await?;
        match admission {
            Admission::Grow => self.admit_growth(size, Others::AreAwaited).await,
            _ => self.admit_of_reserve(admission, size).await,
        }
    }

    /// The same for what was accepted change by change and now goes in one transaction: refused where there may be no room for a checkpoint
    /// of all of it together. (One by one, each makes room for the next.)
    pub async fn admit_together(self: &Arc<Self>, size: ChangeSize) -> Result<Admitted, StoreError> {
        let admitted = self.admit_change(Admission::Finish, size).await?;
        match self.has_room_for_log_with(size, 0) {
            true => Ok(admitted),
            false => Err(StoreError::NoSpace),
        }
    }

    /// The same for one that adds to the filesystem, and whose caller has waited for others before: for checkpoints alone.
    pub async fn admit_growth_now(self: &Arc<Self>, size: ChangeSize) -> Result<Admitted, StoreError> {
        self.health.writable()?;
        self.throttle(Admission::Grow).await?;
        self.admit_growth(size, Others::AreNotAwaited).await
    }

    /// Promises room to what will be committed in any case, whether or not there is some.
    pub fn promise(self: &Arc<Self>, size: ChangeSize) -> Admitted {
        Admitted::begin(self, size)
    }

    /// Waits until there is room for another change of this size.
    async fn admit_growth(
        self: &Arc<Self>,
        size: ChangeSize,
        others: Others,
    ) -> Result<Admitted, StoreError> {
        // Promised before it is looked whether there is room: of two who look at the same time, neither overlooks the other.
        let admitted = Admitted::begin(self, size);
        if self.room().holds(0) {
            return Ok(admitted);
        }
        admitted.withdraw();
        let mut turn = self.take_turn().await;
        if let Some(admitted) = self.admit_in_turn(&mut turn, size, others, |room| room.holds(0)).await? {
            return Ok(admitted);
        }
        let admitted = Admitted::begin(self, size);
        // It would be awaited itself.
        self.find_room(0, Others::AreNotAwaited).await?;
        Ok(admitted)
    }

    /// Waits until enough of the reserve is left for another change of this size.
    async fn admit_of_reserve(
        self: &Arc<Self>,
        admission: Admission,
        size: ChangeSize,
    ) -> Result<Admitted, StoreError> {
        let admitted = Admitted::begin(self, size);
        let room = self.room();
        if room.least() >= 0 {
            return Ok(admitted);
        }
        self.ask_for_checkpoint();
        let enough = |room: Room| room.and(self.floor_blocks() / 2).least() >= 0;
        if enough(room) {
            return Ok(admitted);
        }
        // What is removed may stay with a snapshot and make no room at all; what deleting that takes must be left.
        let passes = match admission {
            Admission::Finish => true,
            Admission::Change => false,
            _ => !self.space.keeps_any(),
        };
        // What is in memory already needs the rest: a checkpoint gives back what it needs less than the worst case.
        let ended = match passes {
            // Whatever comes of it. Who leaves a log may wait for this one.
            true => self.checkpoint_for_room().await,
            false => self.checkpoint_beside_others().await,
        };
        self.health.writable()?;
        if passes || enough(self.room()) {
            return Ok(admitted);
        }
        self.wait_for_readers(enough).await;
        if enough(self.room()) {
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
            // What others have committed meanwhile.
            self.checkpoint_beside_others().await?;
            self.wait_for_readers(enough).await;
        }
        let admitted = self.admit_in_turn(&mut turn, size, Others::AreAwaited, enough).await?;
        admitted.ok_or(StoreError::NoSpace)
    }

    /// Waits to be next to get room. The time that others are awaited runs from here on: of many who wait in vain each does so beside the
    /// others, and not after them.
    async fn take_turn(&self) -> Turn<'_> {
        let over = self.spawn.sleep(OTHERS_END_MAX);
        match self.under_way.turn.try_lock() {
            Some(in_vain) => Turn { in_vain, over, is_whole: true },
            None => Turn { in_vain: self.under_way.turn.lock().await, over, is_whole: false },
        }
    }

    /// Waits until the room is `enough` with this change, for as long as only what others have begun takes it, and a checkpoint does not give
    /// enough; `None` where it would not be without these. Those who wait do so one after the other, and promise nothing: each would be in the
    /// way of all others. If nobody has ended since one waited in vain, the next does not wait for them again.
    async fn admit_in_turn(
        self: &Arc<Self>,
        turn: &mut Turn<'_>,
        size: ChangeSize,
        others: Others,
        enough: impl Fn(Room) -> bool,
    ) -> Result<Option<Admitted>, StoreError> {
        let ends = || self.under_way.ends.load(Ordering::Acquire);
        let waits = others == Others::AreAwaited && *turn.in_vain != Some(ends());
        let mut checkpointed = false;
        loop {
            let admitted = Admitted::begin(self, size);
            if enough(self.room()) {
                return Ok(Some(admitted));
            }
            if !enough(self.room_with(size)) {
                return Ok(None);
            }
            admitted.withdraw();
            self.require_open()?;
            let ended = self.under_way.ended.listen();
            if enough(self.room_with(self.under_way.size().and(size))) {
                continue;
            }
            if !checkpointed {
                // What is in memory needs less than the worst case, and what was freed is held back until then. If it fails, others may
                // end all the same.
                checkpointed = true;
                self.counters.checkpoints_for_room.fetch_add(1, Ordering::Relaxed);
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

    /// Waits until `ended` is told, or for a while; false when it is `over`. Others may end so often that only time can tell.
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

    /// A checkpoint for room. That the device does not take what another has written is no answer for the caller, if the other can leave that
    /// log soon.
    async fn checkpoint_beside_others(&self) -> Result<(), StoreError> {
        match self.checkpoint_for_room().await {
            Err(StoreError::Device(_)) if self.log_was_left_soon().await => self.checkpoint_for_room().await,
            ended => ended,
        }
    }

    /// Waits until the room is `enough`, if only readers are in the way, who keep what was freed while they read it. Not for long: one of
    /// them may need a lease that the caller has.
    async fn wait_for_readers(&self, enough: impl Fn(Room) -> bool) {
        for _ in 0..READERS_END_ROUNDS {
            self.collect_freed();
            let room = self.room();
            if enough(room) || !enough(room.and(self.space.kept_by_readers())) {
                return;
            }
            self.spawn.sleep(READERS_END_PAUSE).await;
        }
    }

    /// Makes blocks reusable that only readers kept, who have ended.
    pub(crate) fn collect_freed(&self) {
        self.space.collect_with(|runs| runs.iter().for_each(|run| self.tree.forget(*run)));
    }

    /// Waits while memtables of twice the limit, far more unflushed log and data than the background lets be, or a pending log
    /// that nobody gets round to sealing are in memory. A device whose flush takes long makes writers slow by this, and nothing else.
    async fn throttle(&self, admission: Admission) -> Result<(), StoreError> {
        let passes = || admission == Admission::Finish && self.is_leaving_log();
        let fits = || self.layers.read().memory_bytes() < 2 * self.options.memtable_bytes || passes();
        // To listen takes memory and a lock that all share, so whoever need not wait does not.
        while !fits() {
            let ended = self.checkpoint_ended.listen();
            if fits() {
                break;
            }
            self.require_open()?;
            self.ask_for_checkpoint();
            ended.await;
        }
        while !(self.is_drained() || passes()) {
            let drained = self.drained.listen();
            if self.is_drained() || passes() {
                break;
            }
            self.require_open()?;
            self.wake.notify(usize::MAX);
            drained.await;
        }
        Ok(())
    }

    fn is_drained(&self) -> bool {
        let backlog = self.backlog();
        let flushed = backlog.unflushed_bytes < 4 * self.options.unflushed_bytes;
        let sealed = backlog.pending_bytes < self.pending_bytes_max();
        flushed && (sealed || self.breaks(Canary::UnboundedPending))
    }

    /// Fails where nobody is left who would end a wait.
    fn require_open(&self) -> Result<(), StoreError> {
        self.health.writable()?;
        match self.closing.load(Ordering::Acquire) {
            true => Err(StoreError::ReadOnly { reason: "it is being closed".into() }),
            false => Ok(()),
        }
    }

    /// Pending log at which writers wait until it is sealed.
    fn pending_bytes_max(&self) -> usize {
        // Where a measurement has little sealed in the background, half a batch is waited for.
        let least = if self.ablates(Ablation::DirBulk) { PAYLOAD_BYTES_MAX / 4 * 3 } else { 0 };
        self.options.pending_bytes.clamp(least, PAYLOAD_BYTES_MAX / 4 * 3)
    }

    /// What waits for the device. Two numbers of two moments, which is good enough to slow writers down.
    #[doc(hidden)]
    pub fn backlog(&self) -> Backlog {
        let pending = self.commit.numbers();
        let sealed = self.log.numbers().load(Ordering::Acquire);
        Backlog {
            unflushed_bytes: sealed + pending.data.load(Ordering::Acquire),
            pending_bytes: pending.log.load(Ordering::Acquire) as usize,
        }
    }

    /// Waits until `blocks` could be reserved, releasing by checkpoints what frees hold back.
    pub(crate) async fn find_room(&self, blocks: u64, others: Others) -> Result<(), StoreError> {
        for _ in 0..CHECKPOINTS_FOR_ROOM {
            if self.room().holds(blocks) {
                return Ok(());
            }
            self.health.writable()?;
            self.counters.checkpoints_for_room.fetch_add(1, Ordering::Relaxed);
            self.checkpoint_beside_others().await?;
        }
        self.wait_for_readers(|room| room.holds(blocks)).await;
        // What is under way takes less than it might, or nothing. Not for long: it may need a lease that the caller has.
        let mut over = self.spawn.sleep(OTHERS_END_SOON_MAX);
        loop {
            let ended = self.under_way.ended.listen();
            if self.room().holds(blocks) {
                return Ok(());
            }
            let waits = others == Others::AreAwaited && self.room_with(ChangeSize::default()).holds(blocks);
            if !waits || !self.before(&mut over, ended, OTHERS_END_SOON_PAUSE).await {
                break;
            }
        }
        // Some may be kept for the moment that discarding it takes.
        let _batch = self.discarding.batch.lock().await;
        if self.room().holds(blocks) { Ok(()) } else { Err(StoreError::NoSpace) }
    }
}
