//! Group commit: the first caller drives a batch to the device; callers that arrive while it is in
//! flight gather in the next group; all members of a group share one flush.
//!
//! Only one batch is in flight at a time; the data of callers that gather is written meanwhile. A
//! flush is submitted only when every write of its batches, and of every batch before them, has
//! completed (rules R1, R4).
//!
//! After answering a group, the next driver gives those callers a moment to come back and join.
//! Without that, N writers split into two groups that alternate, each with a flush of its own.

use super::inflight::Write;
use super::seal::Sealed;
use super::tickets::Tickets;
use super::turns::{Turn, Turns};
use crate::trace::{BatchesTrace, Cover, Drive, DurableMark, SyncTrace};
use crate::{Ablation, Canary, OpSeq, Store, StoreError};
use futures_lite::future::{or, poll_once};
use smallvec::SmallVec;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};
use syncline_device::{DeviceError, Durability, Flushed, Ticket, Worker};
use syncline_sync::atomic::{AtomicBool, AtomicU64, Ordering};
use syncline_sync::{Event, Mutex, OnceLock};

/// Bounds on how long a driver waits for expected callers to join; the wait is a quarter of the
/// usual batch time, within these bounds.
const GATHER_MIN: Duration = Duration::from_micros(150);
const GATHER_MAX: Duration = Duration::from_millis(2);
/// From so many expected callers on, the wait is half of the usual batch time, and at least
/// [`GATHER_MANY_MIN`]. They keep the CPUs busy, so some come late; and small groups make short
/// batches, after which even fewer have come.
const MANY: u64 = 8;
const GATHER_MANY_MIN: Duration = Duration::from_micros(400);

/// The callers that wait for one batch.
#[derive(Default)]
struct Group {
    members: AtomicU64,
    /// Notified when all expected callers have joined.
    complete: Event,
    waiting: Turns,
    /// `None` if its driver gave up before it had ended.
    result: OnceLock<Option<Ended>>,
}

impl Group {
    /// Waits until the group has so many members.
    async fn has(&self, expected: u64) {
        while self.members.load(Ordering::Acquire) < expected {
            let complete = self.complete.listen();
            if self.members.load(Ordering::Acquire) < expected {
                complete.await;
            }
        }
    }
}

/// The result of a group.
#[derive(Clone)]
struct Ended {
    result: Result<(), StoreError>,
    drive: Drive,
}

struct Stage {
    /// The group that new callers join.
    gathering: Arc<Group>,
    /// A batch is being written.
    busy: bool,
}

/// The state of group commit: which group gathers, and whether a batch is in flight.
pub(super) struct GroupCommit {
    stage: Mutex<Stage>,
    /// Number of callers active when the last batch ended: those it answered plus those that were
    /// gathering.
    expected: AtomicU64,
    /// Time that a batch takes from sealing to durable, smoothed, in nanoseconds.
    batch_ns: AtomicU64,
    /// A flush failed: everything not durable must be written again before the next flush (rule
    /// R6).
    rewrite: AtomicBool,
    /// See [`Store::lab_alone`].
    pub(super) alone: syncline_sync::asynchronous::Mutex<()>,
}

impl Default for GroupCommit {
    fn default() -> Self {
        Self {
            stage: Mutex::new(Stage { gathering: Arc::default(), busy: false }),
            expected: AtomicU64::new(1),
            batch_ns: AtomicU64::new(0),
            rewrite: AtomicBool::new(false),
            alone: syncline_sync::asynchronous::Mutex::new(()),
        }
    }
}

/// The right to write a batch. Dropping it, for whatever reason, lets the next driver in.
struct Lead<'a>(&'a GroupCommit);

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        let mut stage = self.0.stage.lock();
        stage.busy = false;
        let next = stage.gathering.clone();
        // The member that is called takes this lock first.
        drop(stage);
        next.waiting.call_one();
    }
}

impl GroupCommit {
    fn join(&self) -> Arc<Group> {
        let group = self.stage.lock().gathering.clone();
        let members = group.members.fetch_add(1, Ordering::AcqRel) + 1;
        // The driver would be woken for nothing by those before.
        if members >= self.expected.load(Ordering::Acquire) {
            group.complete.notify(1);
        }
        group
    }

    /// Makes the caller the driver of `group` if no batch is being written and the group still
    /// gathers.
    fn try_lead(&self, group: &Arc<Group>) -> Option<Lead<'_>> {
        let mut stage = self.stage.lock();
        if stage.busy || !Arc::ptr_eq(&stage.gathering, group) {
            return None;
        }
        stage.busy = true;
        Some(Lead(self))
    }

    /// Closes a group to new callers, if it still gathers.
    fn close(&self, group: &Arc<Group>) {
        let mut stage = self.stage.lock();
        if Arc::ptr_eq(&stage.gathering, group) {
            stage.gathering = Arc::default();
        }
    }

    /// Closes the current group to new callers, if that is due.
    fn close_if(&self, due: bool) {
        if due {
            self.stage.lock().gathering = Arc::default();
        }
    }

    /// Records how long a batch took.
    fn took(&self, duration: Duration) {
        let (old, new) = (self.batch_ns.load(Ordering::Relaxed), duration.as_nanos() as u64);
        self.batch_ns.store(old - old / 8 + new / 8, Ordering::Relaxed);
    }

    /// Records how many callers are active as a group is answered.
    fn answered(&self, group: &Group) {
        let gathering = self.stage.lock().gathering.members.load(Ordering::Acquire);
        self.expected.store(group.members.load(Ordering::Acquire) + gathering, Ordering::Release);
    }

    /// Returns and clears the demand for a rewrite.
    pub(super) fn take_rewrite(&self) -> bool {
        self.rewrite.swap(false, Ordering::AcqRel)
    }

    /// Demands that everything not durable be written again.
    pub(super) fn demand_rewrite(&self) {
        self.rewrite.store(true, Ordering::Release);
    }
}

impl Store {
    /// Makes everything up to `op` survive any crash. Costs nothing if it is durable already.
    pub async fn sync(&self, op: OpSeq) -> Result<(), StoreError> {
        self.sync_traced(op).await.1
    }

    /// Number of syncs active when the last batch was answered: those that it answered and those
    /// that gathered for the next.
    pub fn syncs_about(&self) -> u64 {
        self.log.group.expected.load(Ordering::Relaxed)
    }

    /// Syncs up to `op` and also returns a trace of each stage.
    pub async fn sync_traced(&self, op: OpSeq) -> (SyncTrace, Result<(), StoreError>) {
        if self.is_durable(op) && !self.ablates(Ablation::FlushElide) {
            self.counters.syncs_elided.add(1);
            return (SyncTrace::elided(op.0, self.log.durable_mark()), Ok(()));
        }
        let asked = Instant::now();
        let _alone = self.lab_alone().await;
        let (drove, ended) = loop {
            let group = self.log.group.join();
            if let Some(ended) = self.wait_for(&group).await {
                break ended;
            }
        };
        self.counters.fsync_ns.record(asked.elapsed());
        (ended.drive.trace(op.0, drove, asked, ended.result.is_err()), ended.result)
    }

    /// Waits for the group to end; returns whether the caller drove it, and how it ended. `None` if its
    /// driver gave up: another group takes what it has begun to the device.
    async fn wait_for(&self, group: &Arc<Group>) -> Option<(bool, Ended)> {
        // Most who come find nobody at work, and drive at once: they have nothing to wait for.
        let mut turn: Option<Turn<'_>> = None;
        loop {
            if let Some(ended) = group.result.get() {
                return ended.clone().map(|ended| (false, ended));
            }
            if let Some(lead) = self.log.group.try_lead(group) {
                return Some((true, self.drive(group, lead).await));
            }
            match turn.take() {
                Some(turn) => turn.await,
                None => turn = Some(group.waiting.wait()),
            }
        }
    }

    /// Takes a group's batch to the device and answers all its members.
    async fn drive(&self, group: &Arc<Group>, lead: Lead<'_>) -> Ended {
        // If this future is dropped half-way, the group's members must not wait for ever.
        let abandoned = EndOnDrop { commit: &self.log.group, group };
        let mut drive = Drive::begin();
        self.gather(group).await;
        let result = match self.drive_batch(&mut drive).await {
            Err(StoreError::NoSpace) => {
                // No room for a log segment: the checkpoint makes everything durable instead.
                drop(lead);
                self.checkpoint_instead(&mut drive).await
            }
            Err(StoreError::Device(error)) if self.log.has_hole() => {
                let result = self.leave_log_after(error).await;
                drive.checkpointed = Some(Instant::now());
                (drive.cover, drive.durable) = (Cover::Checkpoint, self.log.durable_mark());
                self.log.group.answered(group);
                drop(lead);
                result
            }
            // Another caller has left the log meanwhile, which made all of this durable.
            Err(StoreError::Device(_))
                if drive.batches.count > 0 && self.is_durable(OpSeq(drive.batches.op)) =>
            {
                (drive.cover, drive.durable) = (Cover::Checkpoint, self.log.durable_mark());
                self.log.group.answered(group);
                drop(lead);
                Ok(())
            }
            result => {
                // Callers that gather meanwhile count as active, so count them before the next
                // driver is let in.
                self.log.group.answered(group);
                drop(lead);
                result
            }
        };
        match &result {
            Ok(()) => self.health.sync_succeeded(),
            Err(error) => self.note_failure(error),
        }
        drive.members = group.members.load(Ordering::Relaxed);
        self.counters.group_size.record(drive.members);
        let ended = Ended { result, drive };
        let _ = group.result.set(Some(ended.clone()));
        drop(abandoned);
        ended
    }

    async fn checkpoint_instead(&self, drive: &mut Drive) -> Result<(), StoreError> {
        let result = self.checkpoint().await;
        drive.checkpointed = Some(Instant::now());
        (drive.cover, drive.durable) = (Cover::Checkpoint, self.log.durable_mark());
        result
    }

    /// Gives expected callers a moment to join.
    async fn gather(&self, group: &Group) {
        // Nobody changes it before this driver answers its group.
        let expected = self.log.group.expected.load(Ordering::Acquire);
        let mut all_joined = pin!(group.has(expected));
        if poll_once(all_joined.as_mut()).await.is_none() {
            or(all_joined, self.pause()).await;
        }
    }

    /// Lets a part of the time pass that a batch takes, by a timer of this thread: one of another
    /// thread would wake it late. (A simulation has only the other kind, and no real time to
    /// measure.)
    async fn pause(&self) {
        if let Some(worker) = Worker::try_current() {
            return worker.sleep(self.part_of_batch(GATHER_MANY_MIN)).await;
        }
        // Threads of this process are sooner back than callers who come through the kernel.
        match syncline_device::moment(self.part_of_batch(GATHER_MIN)) {
            Some(passed) => passed.await,
            None => self.spawn.sleep(GATHER_MIN).await,
        }
    }

    /// The time that a gather may take; at least `many_min` with many callers.
    fn part_of_batch(&self, many_min: Duration) -> Duration {
        let batch = Duration::from_nanos(self.log.group.batch_ns.load(Ordering::Relaxed));
        let (part, least) = if self.syncs_about() < MANY { (4, GATHER_MIN) } else { (2, many_min) };
        (batch / part).clamp(least, GATHER_MAX)
    }

    async fn drive_batch(&self, drive: &mut Drive) -> Result<(), StoreError> {
        let started = Instant::now();
        self.counters.gather_ns.record(started - drive.begun);
        drive.gathered = Some(started);
        // Nothing is sealed in the middle of a bracket.
        let sealing = self.log.sealing.read().await;
        // Close the group before sealing: every member had committed before it joined, so its
        // changes are pending or sealed.
        let closes_late = self.breaks(Canary::LateJoiner);
        self.log.group.close_if(!closes_late);
        self.give_way();
        let (seq, through) = match self.seal_to_flush() {
            Ok((seq, through)) => (Ok(seq), through),
            Err(error) => (Err(error), None),
        };
        drop(sealing);
        drive.batches = seq.as_ref().map_or_else(|_| BatchesTrace::default(), |seq| self.batches_up_to(*seq));
        let tickets = match &seq {
            Ok(seq) => self.lab_settle(*seq).await.map_err(StoreError::from),
            Err(error) => Err(error.clone()),
        };
        self.log.group.close_if(closes_late);
        let written = Instant::now();
        drive.written = Some(written);
        let (seq, tickets) = (seq?, tickets?);
        self.give_way();
        let flushed = self.flush(tickets, through).await;
        self.give_way();
        let ended = Instant::now();
        drive.flushed = Some(ended);
        let flushed = flushed?;
        self.counters.write_ns.record(written - started);
        self.counters.flush_ns.record(ended - written);
        self.log.group.took(ended - started);
        self.batches_durable(seq, flushed);
        drive.covered(flushed.cover);
        drive.durable = match drive.batches.count {
            // Other groups had made all of it durable, and recorded how.
            0 => self.log.durable_mark(),
            _ => DurableMark::flushed(drive.batches.op, seq, flushed),
        };
        Ok(())
    }

    /// The batches up to `seq` that are not known durable.
    fn batches_up_to(&self, seq: u64) -> BatchesTrace {
        let mut batches = BatchesTrace::default();
        let log = self.log.end.lock();
        log.sealed
            .iter()
            .take_while(|sealed| sealed.seq <= seq)
            .for_each(|sealed| sealed.add_to(&mut batches));
        batches
    }

    /// Flushes the writes behind `tickets`, unless a flush went `through` with the batch.
    async fn flush(&self, tickets: Tickets, through: Option<Durability>) -> Result<Flushed, StoreError> {
        if let Some(through) = through
            && let Ok(flushed) = through.await
            && (tickets.confirm(&self.tracker).is_ok() || self.breaks(Canary::ThroughEarly))
        {
            return Ok(flushed);
        }
        match self.lab_flush(&tickets).await {
            Some(flushed) => flushed,
            None => self.make_durable(tickets).await,
        }
    }

    /// Makes the writes behind `tickets` durable, with a flush if none has covered them.
    pub(crate) async fn make_durable(&self, tickets: Tickets) -> Result<Flushed, StoreError> {
        self.confirmed(self.tracker.make_durable(tickets.newest()).await, &tickets)
    }

    /// Passes on the outcome of a flush for `tickets`. If that failed, or an earlier one lost some
    /// of them, everything not durable must be written again (rule R6).
    pub(crate) fn confirmed(
        &self,
        outcome: Result<Flushed, DeviceError>,
        tickets: &Tickets,
    ) -> Result<Flushed, StoreError> {
        let outcome = outcome.map_err(StoreError::from);
        outcome
            .and_then(|flushed| tickets.confirm(&self.tracker).map(|()| flushed))
            .inspect_err(|_| self.log.group.demand_rewrite())
    }

    /// Waits until all writes of all batches up to `seq` have completed, repeating failed or lost
    /// ones; returns their tickets.
    pub(crate) async fn settle(&self, seq: u64) -> Result<Tickets, DeviceError> {
        let writes: SmallVec<[_; 4]> = {
            let log = self.log.end.lock();
            if self.log.group.take_rewrite() {
                let all = log.sealed.iter().flat_map(Sealed::writes);
                all.for_each(|write| write.rewrite(&self.tracker, self.room.space()));
            }
            let wanted = log.sealed.iter().take_while(|sealed| sealed.seq <= seq);
            wanted.flat_map(|sealed| sealed.writes().cloned()).collect()
        };
        let tickets = self.all_completed(&writes).await?;
        if !tickets.are_lost(&self.tracker) || self.breaks(Canary::RedeemFailedFlush) {
            return Ok(tickets);
        }
        // A write with a flush behind it fails as a flush does: writes that had completed before it
        // are lost with it (rule R6).
        writes.iter().for_each(|write| write.rewrite_lost(&self.tracker, self.room.space()));
        self.all_completed(&writes).await
    }

    /// Waits until these writes have completed, repeating failed ones; returns their tickets.
    async fn all_completed(&self, writes: &[Arc<Write>]) -> Result<Tickets, DeviceError> {
        let mut tickets = Tickets::default();
        for write in writes {
            match self.completed(write).await {
                Err(_) if self.breaks(Canary::IgnoreFailedWrite) => {}
                completed => tickets.add(completed?, &self.tracker),
            }
        }
        Ok(tickets)
    }

    /// Waits until a write has completed, repeating it once if it failed.
    pub(crate) async fn completed(&self, write: &Write) -> Result<Ticket, DeviceError> {
        let attempt = write.attempt();
        match attempt.wait().await {
            Err(error) if self.is_end(&error.clone().into()) => Err(error),
            Err(error) => {
                tracing::warn!("{error}; writing the same bytes there again");
                self.lab_retry(write);
                write.retry(&attempt, &self.tracker, self.room.space());
                write.wait().await
            }
            completed => completed,
        }
    }

    /// Counts consecutive failures; too many over too long a time turn the filesystem read-only.
    fn note_failure(&self, error: &StoreError) {
        if self.is_end(error) {
            tracing::debug!("fsync failed: {error}");
            return;
        }
        tracing::error!("fsync failed: {error}");
        // Room can still be made.
        if !matches!(error, StoreError::NoSpace) && self.health.sync_failed(self.options.patience) {
            self.turn_read_only(&format!(
                "the log could not be written ({error}); unmount, {} and mount again to recover",
                error.mending_device()
            ));
        }
    }
}

/// Ends a group, whether or not its driver was dropped, and wakes its members.
struct EndOnDrop<'a> {
    commit: &'a GroupCommit,
    group: &'a Arc<Group>,
}

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        if self.group.result.get().is_none() {
            // Whoever joined it from now on would wait for nobody.
            self.commit.close(self.group);
            let _ = self.group.result.set(None);
        }
        self.group.waiting.call_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;
    use std::task::{Context, Wake, Waker};

    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_driver_is_woken_once_for_all_who_join() {
        let commit = GroupCommit::default();
        commit.expected.store(4, Ordering::Relaxed);
        let group = commit.join();
        let mut all_joined = pin!(group.has(4));
        let wakes = Arc::new(Wakes::default());
        let waker = Waker::from(wakes.clone());
        let mut context = Context::from_waker(&waker);
        assert!(all_joined.as_mut().poll(&mut context).is_pending());
        for (joined, woken) in [(2, 0), (3, 0), (4, 1)] {
            commit.join();
            assert_eq!(wakes.0.load(Ordering::Relaxed), woken, "{joined} members");
        }
        assert!(all_joined.as_mut().poll(&mut context).is_ready());
    }
}
