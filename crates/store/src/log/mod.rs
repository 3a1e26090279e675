//! The log: changes that are committed and not yet sealed, batches on their way to the device, the
//! group of callers that waits for each batch, and how far the history is durable. Others ask it to
//! append changes and to make a position durable.

mod background;
mod commit;
mod cut;
mod data;
mod group;
mod inflight;
mod leave;
mod seal;
mod shown;
mod tickets;
mod transaction;
mod turns;

pub use inflight::DataWrite;
pub use transaction::{OpSeq, Transaction};

pub(crate) use background::tend_log;
pub(crate) use cut::{Unflushed, Unsealed};
pub(crate) use inflight::{Inflight, Write};
pub(crate) use leave::NewLog;
pub(crate) use tickets::Tickets;
pub(crate) use transaction::Changes;

use crate::trace::DurableMark;
use crate::{StoreError, StoreOptions};
use commit::CommitState;
use group::GroupCommit;
use seal::LogEnd;
use shown::Shown;
use syncline_format::superblock::LogStart;
use syncline_format::{Epoch, OBJECTS_END, ObjectId};
use syncline_log::Chain;
use syncline_sync::asynchronous::{MutexGuard, RwLock, RwLockWriteGuard};
use syncline_sync::atomic::{AtomicBool, AtomicU64, Ordering};
use syncline_sync::{Event, EventListener, Mutex};

/// The log of an open store. Its locks are taken in the order `end`, `commit`.
pub(crate) struct Log {
    end: Shown<LogEnd>,
    commit: Shown<CommitState>,
    group: GroupCommit,
    inflight: Inflight,
    last_op: AtomicU64,
    last_change: AtomicU64,
    durable_op: AtomicU64,
    /// The flush or superblock that made `durable_op` durable; advanced before `durable_op` is.
    durable_mark: Mutex<DurableMark>,
    next_object: AtomicU64,
    /// Notified when the number of sealed or pending bytes went down.
    drained: Event,
    /// A background flush of sealed batches is running.
    flushing: AtomicBool,
    /// Held for writing by an open bracket, for reading by a seal.
    sealing: RwLock<()>,
}

/// The position at which a log begins.
pub(crate) struct Beginning {
    pub(crate) epoch: Epoch,
    pub(crate) start: LogStart,
    pub(crate) op_seq: u64,
    pub(crate) generation: u64,
    pub(crate) objects: u64,
    pub(crate) next_object: ObjectId,
}

/// Memory held because the device has not taken its contents yet.
#[derive(Clone, Copy, Debug)]
#[doc(hidden)]
pub struct Backlog {
    /// Log and data not covered by a flush yet.
    pub unflushed_bytes: u64,
    /// Log that is not sealed yet.
    pub pending_bytes: usize,
}

impl Log {
    /// A log without batches.
    pub(crate) fn new(options: &StoreOptions, segment_blocks: u64, begin: Beginning) -> Self {
        let Beginning { epoch, start, op_seq, generation, objects, next_object } = begin;
        let (segment, durable_seq) = (start.segment, start.seq - 1);
        let chain = chain(options, epoch, segment_blocks, start, op_seq);
        let mark = DurableMark { op: op_seq, batch: durable_seq, ..DurableMark::default() };
        Self {
            end: Shown::new(LogEnd::new(chain, segment, durable_seq)),
            commit: Shown::new(CommitState {
                pending: Default::default(),
                writes: Default::default(),
                generation,
                objects,
            }),
            group: Default::default(),
            inflight: Default::default(),
            last_op: AtomicU64::new(op_seq),
            last_change: AtomicU64::new(op_seq),
            durable_op: AtomicU64::new(op_seq),
            durable_mark: Mutex::new(mark),
            next_object: AtomicU64::new(next_object),
            drained: Event::new(),
            flushing: AtomicBool::new(false),
            sealing: RwLock::default(),
        }
    }

    /// Writes that are not known to be durable.
    pub(crate) fn inflight(&self) -> &Inflight {
        &self.inflight
    }

    /// Position of the newest committed transaction.
    pub(crate) fn last_op(&self) -> u64 {
        self.last_op.load(Ordering::Acquire)
    }

    /// Position of the newest committed transaction that changed more than the place of contents.
    pub(crate) fn last_change(&self) -> u64 {
        self.last_change.load(Ordering::Acquire)
    }

    /// True when everything up to `op` survives any crash.
    pub(crate) fn is_durable(&self, op: u64) -> bool {
        op <= self.durable_op.load(Ordering::Acquire)
    }

    /// The flush or superblock that made the newest durable position durable.
    pub(crate) fn durable_mark(&self) -> DurableMark {
        *self.durable_mark.lock()
    }

    /// Notes that everything up to this mark is durable. The mark comes first, so that a caller who
    /// finds an operation durable also finds what made it durable.
    pub(crate) fn advance(&self, mark: DurableMark) {
        self.durable_mark.lock().advance(mark);
        self.durable_op.fetch_max(mark.op, Ordering::AcqRel);
    }

    /// A never-used object id. There are so many that only a damaged image has none left.
    pub(crate) fn new_object(&self) -> Result<ObjectId, StoreError> {
        let next = |next: ObjectId| (next < OBJECTS_END).then(|| next + 1);
        let taken = self.next_object.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
        taken.map_err(|_| StoreError::NoSpace)
    }

    /// Hands out no object id below this one from now on.
    pub(crate) fn keep_numbers_below(&self, end: ObjectId) {
        self.next_object.fetch_max(end, Ordering::Relaxed);
    }

    /// The smallest object id that was never handed out.
    pub(crate) fn next_object(&self) -> ObjectId {
        self.next_object.load(Ordering::Relaxed)
    }

    /// Number of objects that exist.
    pub(crate) fn objects(&self) -> u64 {
        self.commit.lock().objects
    }

    /// Generation of the active memtable.
    pub(crate) fn generation(&self) -> u64 {
        self.commit.lock().generation
    }

    /// The position behind the newest batch.
    pub(crate) fn chain_end(&self) -> LogStart {
        self.end.lock().chain.end()
    }

    /// How much waits for the device. The two numbers are from two moments, which is good enough
    /// for throttling.
    pub(crate) fn backlog(&self) -> Backlog {
        let pending = self.commit.numbers();
        let sealed = self.end.numbers().load(Ordering::Acquire);
        Backlog {
            unflushed_bytes: sealed + pending.data.load(Ordering::Acquire),
            pending_bytes: pending.log.load(Ordering::Acquire) as usize,
        }
    }

    /// Waits until nobody is sealing; nobody begins to while the result lives.
    pub(crate) async fn hold_seals(&self) -> RwLockWriteGuard<'_, ()> {
        self.sealing.write().await
    }

    /// Lets nothing more into the log, until a superblock has what it lacks.
    pub(crate) fn stall(&self) {
        self.end.lock().stalled = true;
    }

    /// Completes when the number of sealed or pending bytes went down.
    pub(crate) fn listen_drained(&self) -> EventListener {
        self.drained.listen()
    }

    /// Wakes those who wait for the log to be drained.
    pub(crate) fn notify_drained(&self) {
        self.drained.notify(usize::MAX);
    }

    /// Demands that everything not durable be written again before the next flush (rule R6).
    pub(crate) fn demand_rewrite(&self) {
        self.group.demand_rewrite();
    }

    /// For the laboratory: see [`crate::Store::lab_alone`].
    pub(crate) async fn lab_alone(&self) -> MutexGuard<'_, ()> {
        self.group.alone.lock().await
    }

    /// For the laboratory: appends changes that count as no transaction, and makes them visible.
    pub(crate) fn lab_put(&self, changes: &Changes, apply: impl FnOnce()) {
        let mut state = self.commit.lock();
        changes.iter().for_each(|(key, value)| state.change(*key, value.as_ref()));
        apply();
    }
}

/// A chain that begins at `start`.
fn chain(options: &StoreOptions, epoch: Epoch, segment_blocks: u64, start: LogStart, op_seq: u64) -> Chain {
    options.lab.chain(Chain::new(epoch, segment_blocks, start, op_seq))
}
