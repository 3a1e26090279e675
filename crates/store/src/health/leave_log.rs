//! Leaving the log: how the store survives a bad sector (the second way of rule R5).
//!
//! When a write of a sealed batch, or of data that one names, fails again after being repeated, the
//! log has a hole: it cannot acknowledge anything from that batch on. So the log is left behind.
//! Data that could not be written is relocated, and a checkpoint puts all changes into the tree
//! and opens a log of a new epoch in a segment of its own. The checkpoint's superblock acknowledges
//! the changes.
//!
//! Until that superblock is durable, a crash leaves the old one and the old log up to the hole, which
//! is all that was acknowledged: nothing is sealed meanwhile, so nothing can be acknowledged besides.
//! Afterwards a crash leaves the new superblock and the new log. Batches left over from the old log
//! do no harm, since its epoch has ended (rule R3).

use crate::checkpoint::Frozen;
use crate::log::{DataWrite, NewSegment, Sealed, Tickets, failed_for_good};
use crate::opening::chain;
use crate::room::LEAST_SEGMENT_BLOCKS;
use crate::{Store, StoreError};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use syncline_device::DeviceError;
use syncline_format::superblock::LogStart;
use syncline_format::{BlockRun, Epoch};
use syncline_sync::OnceLock;
use syncline_sync::atomic::{AtomicBool, Ordering};

/// How many times data is relocated before the device counts as unwritable: the new place may be
/// bad, too.
const ROUNDS_MAX: usize = 4;

/// How many times, and how long each time, a caller that needs room waits for others to leave a
/// log: two seconds in all.
const OTHERS_LEAVE_ROUNDS: u32 = 40;
const OTHERS_LEAVE_PAUSE: Duration = Duration::from_millis(50);

/// Relocates data for a store, which does not know what its items mean.
pub trait Relocate: Send + Sync {
    /// Makes sure that no item refers to blocks of `run` any more; their contents stay readable
    /// meanwhile. Does not wait for a checkpoint.
    fn relocate(&self, run: BlockRun) -> Pin<Box<dyn Future<Output = Result<(), StoreError>> + Send + '_>>;
}

/// A log that a checkpoint opens.
pub(crate) struct NewLog {
    pub(crate) epoch: Epoch,
    pub(crate) start: LogStart,
    segment: NewSegment,
}

impl NewLog {
    /// Takes the segment for good: the superblock that refers to it may be on the device, so nobody
    /// else may get it.
    pub(crate) fn keep_segment(self) -> Option<BlockRun> {
        self.segment.take()
    }
}

/// The state of leaving a log.
#[derive(Default)]
pub(super) struct Leaving {
    /// Held while leaving the log.
    turn: syncline_sync::asynchronous::Mutex<()>,
    /// Data is being relocated so that the log can be left: changes needed for that do not wait
    /// for a flush or a checkpoint, which would come only after them.
    pub(super) now: AtomicBool,
    /// Relocates data where the device refuses it.
    relocation: OnceLock<Arc<dyn Relocate>>,
}

/// While it exists, `Admission::Finish` changes are admitted without waiting for a flush or a
/// checkpoint.
struct Passing<'a>(&'a Store);

impl<'a> Passing<'a> {
    fn begin(store: &'a Store) -> Self {
        store.health.leaving.now.store(true, Ordering::Release);
        store.checkpoint_ended.notify(usize::MAX);
        store.drained.notify(usize::MAX);
        Self(store)
    }
}

impl Drop for Passing<'_> {
    fn drop(&mut self) {
        self.0.health.leaving.now.store(false, Ordering::Release);
    }
}

impl Store {
    /// Sets the object that relocates data where the device refuses it. Without one, only the log
    /// itself can be left.
    pub fn set_relocation(&self, by: Arc<dyn Relocate>) {
        let _ = self.health.leaving.relocation.set(by);
    }

    /// True when a write of a sealed batch failed for a reason other than a failed flush: repeating
    /// it may never help.
    pub(crate) fn has_hole(&self) -> bool {
        let log = self.log.lock();
        // Changes that found no room in the log are still pending, whether or not their data could
        // be written.
        log.sealed.iter().flat_map(Sealed::writes).any(|write| failed_for_good(write))
            || self.commit.lock().writes.iter().any(|data| failed_for_good(data.write()))
    }

    /// Waits a little for others to leave a log that the device refuses; true when they have. The
    /// wait is short: the caller may hold a lease that they need.
    pub(crate) async fn log_was_left_soon(&self) -> bool {
        for _ in 0..OTHERS_LEAVE_ROUNDS {
            if !self.has_hole() && !self.health.is_leaving_log() {
                return true;
            }
            self.spawn.sleep(OTHERS_LEAVE_PAUSE).await;
        }
        false
    }

    /// Passes on the result of an operation that took a checkpoint. If it failed because the device
    /// refused the log, leaves the log and returns `None`: the operation has to be repeated. The
    /// caller holds no lease.
    pub(crate) async fn unless_log_left<T>(
        &self,
        result: Result<T, StoreError>,
    ) -> Result<Option<T>, StoreError> {
        match result {
            Err(StoreError::Device(error)) if self.has_hole() => {
                self.leave_log_after(error).await?;
                Ok(None)
            }
            result => result.map(Some),
        }
    }

    /// Leaves the log for a caller that met the error `first`. If that fails, returns `first`,
    /// which says more; but a lack of room for another log is returned as it is, since room can
    /// still be made. Where everything ends there is no other place.
    pub(crate) async fn leave_log_after(&self, first: DeviceError) -> Result<(), StoreError> {
        let first = StoreError::from(first);
        if self.is_end(&first) {
            return Err(first);
        }
        self.leave_log().await.map_err(|error| match error {
            StoreError::NoSpace => error,
            _ => first,
        })
    }

    /// Makes everything durable, without the log's batches that could not be written.
    pub(crate) async fn leave_log(&self) -> Result<(), StoreError> {
        let _one_at_a_time = self.health.leaving.turn.lock().await;
        let relocated = self.relocate_lost_data().await;
        let mut state = self.checkpoint.lock().await;
        if let Err(error) = relocated {
            self.note_checkpoint_failure(&error);
            return Err(error);
        }
        if !self.has_hole() {
            // Somebody else has left the log, or has written what had failed.
            return self.run_checkpoint(&mut state, false).await;
        }
        self.run_checkpoint_leaving_log(&mut state).await?;
        self.counters.logs_left.add(1);
        tracing::warn!(
            "a part of the device could not be written: its contents were placed elsewhere, and a new log was begun"
        );
        Ok(())
    }

    /// Relocates data that could not be written, and quarantines its old blocks.
    async fn relocate_lost_data(&self) -> Result<(), StoreError> {
        // Relocating data takes ordinary writes, which could wait for room that only this makes.
        let _nobody_waits = Passing::begin(self);
        let mut last = None;
        for _ in 0..ROUNDS_MAX {
            let mut any = false;
            for data in self.named_data() {
                let Err(error) = self.completed(data.write()).await else { continue };
                if !failed_for_good(data.write()) {
                    return Err(error.into());
                }
                self.room.space().quarantine(data.run());
                if self.room.space().names_any(data.run()) {
                    let Some(by) = self.health.leaving.relocation.get() else { return Err(error.into()) };
                    tracing::warn!("{error}; placing this data elsewhere");
                    by.relocate(data.run()).await?;
                    (any, last) = (true, Some(error));
                }
            }
            if !any {
                return Ok(());
            }
        }
        Err(last.expect("a round that did something noted why").into())
    }

    /// All data that batches or pending changes name and no flush covers yet.
    fn named_data(&self) -> Vec<DataWrite> {
        let log = self.log.lock();
        let mut named: Vec<DataWrite> =
            log.sealed.iter().flat_map(|sealed| sealed.data.iter().cloned()).collect();
        named.extend(self.commit.lock().writes.iter().cloned());
        named
    }

    /// Allocates a segment and draws an epoch for a new log.
    pub(crate) fn new_log(&self) -> Result<NewLog, StoreError> {
        let most = self.segment_blocks();
        // The log may not take what the checkpoint that opens it needs.
        let most = if self.has_room_for_log(most) { most } else { LEAST_SEGMENT_BLOCKS };
        let segment = NewSegment::allocate(&self.room.space(), most, LEAST_SEGMENT_BLOCKS)
            .ok_or(StoreError::NoSpace)?;
        let epoch = match self.options.epoch {
            Some(given) => epoch_after(given, self.commit.lock().generation),
            None => rand::random(),
        };
        let run = segment.run();
        // The freeze sets its number and the batch before it.
        let start = LogStart::first_in(run, 0, 0);
        Ok(NewLog { epoch, start, segment })
    }

    /// Waits for the data of the batches that are left behind, until nothing is in flight to their
    /// blocks. Fails if data that could not be written is still needed.
    pub(crate) async fn settle_without_log(
        &self,
        frozen: &Frozen,
        tickets: &mut Tickets,
    ) -> Result<(), StoreError> {
        let (logs, data): (Vec<_>, Vec<_>) = {
            let log = self.log.lock();
            let logs = log.sealed.iter().flat_map(|sealed| [&sealed.log].into_iter().chain(&sealed.copy));
            (logs.cloned().collect(), log.sealed.iter().map(|sealed| sealed.data.clone()).collect())
        };
        if self.group.take_rewrite() {
            // A flush failed, and writes that had completed may be lost with it (rule R6).
            data.iter().flatten().for_each(|data| data.write().rewrite(&self.tracker, &self.room.space()));
        }
        for write in logs {
            let _ = write.wait().await;
            if failed_for_good(&write) {
                self.room.space().quarantine(write.run);
            }
        }
        for data in data.iter().flatten().chain(frozen.unsealed_data()) {
            match self.completed(data.write()).await {
                Ok(ticket) => tickets.add(ticket, &self.tracker),
                Err(error) if frozen.names_any(data.run()) => return Err(error.into()),
                Err(_) => {}
            }
        }
        Ok(())
    }

    /// Switches to the new log once its superblock is durable: the old log's batches are durable
    /// too, since their changes are in the tree.
    pub(crate) fn enter_log(&self, new: NewLog, seq: u64, op: u64, generation: u64) {
        let mut log = self.log.lock();
        let mut left = Vec::new();
        while let Some(sealed) = log.sealed.pop_front() {
            log.unflushed_bytes -= sealed.bytes;
            sealed.writes().for_each(|write| write.close());
            left.push(sealed);
        }
        log.segments.drain(..).for_each(|segment| self.room.space().hold(segment, generation));
        log.segments.extend(new.segment.take());
        log.chain = chain(&self.options, new.epoch, self.segment_blocks(), new.start, op);
        (log.durable_seq, log.marked_seq, log.bytes_since_freeze) = (seq, seq, 0);
        drop(log);
        left.iter().flat_map(|sealed| &sealed.data).for_each(|data| self.retire(data));
        self.drained.notify(usize::MAX);
    }
}

/// For simulations, which name their epochs: a different epoch for each log of a life.
fn epoch_after(mut epoch: Epoch, generation: u64) -> Epoch {
    epoch[8..].iter_mut().zip(generation.to_le_bytes()).for_each(|(byte, more)| *byte ^= more);
    epoch
}
