//! Group commit: the first to ask drives a batch to the device; those who come while it is on its way gather in the
//! next one; all of a group share one flush.
//!
//! One batch is under way at a time; the data of those who gather is already being written meanwhile. A flush is submitted
//! only when every write of its batches, and of every batch before them, has completed (rules R1, R4).
//!
//! A driver that knows of others who were just answered gives them a moment to come back and join. Without that, N
//! writers fall into two groups that take turns, each with a flush of its own.

use crate::inflight::Write;
use crate::seal::Sealed;
use crate::tickets::Tickets;
use crate::trace::{BatchesTrace, Cover, Drive, DurableMark, NO_FLUSH, SyncTrace};
use crate::{Ablation, Canary, OpSeq, Store, StoreError};
use futures_lite::future::{or, poll_once};
use smallvec::SmallVec;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};
use syncline_device::{DeviceError, Durability, Flushed, Ticket, Worker};
use syncline_sync::atomic::{AtomicBool, AtomicU64, Ordering};
use syncline_sync::{Event, Mutex, OnceLock};

/// Failures in a row after which the log, or the tree, counts as unwritable, if they have gone on for long enough.
const FAILURES_MAX: u32 = 3;

/// Failures in a row. A path that is away for a while, or one bad sector that many meet at once, is no end of a device.
#[derive(Default)]
pub(crate) struct Failures {
    count: u32,
    since: Option<Instant>,
}

impl Failures {
    /// One more; true when it is the end.
    pub(crate) fn add(&mut self, patience: Duration) -> bool {
        self.count += 1;
        self.count >= FAILURES_MAX && self.since.get_or_insert_with(Instant::now).elapsed() >= patience
    }

    /// Something succeeded.
    pub(crate) fn end(&mut self) {
        *self = Self::default();
    }
}

/// True when the newest attempt at a write failed, and not because a flush did: repeating it may never help.
pub(crate) fn failed_for_good(write: &Write) -> bool {
    let lost = |error| !matches!(error, DeviceError::Poisoned { .. });
    write.attempt().outcome().is_some_and(|outcome| outcome.is_err_and(lost))
}

/// How long a driver waits at most for those who are expected to join: a quarter of what batches take, within these.
const GATHER_MIN: Duration = Duration::from_micros(150);
const GATHER_MAX: Duration = Duration::from_millis(2);

/// Those who wait for one batch.
#[derive(Default)]
struct Group {
    members: AtomicU64,
    /// Told when somebody joins.
    joined: Event,
    ended: Event,
    result: OnceLock<Ended>,
}

/// How a group ended.
#[derive(Clone)]
struct Ended {
    result: Result<(), StoreError>,
    drive: Drive,
}

struct Stage {
    /// The group that takes in those who come now.
    gathering: Arc<Group>,
    /// Somebody is writing a batch.
    busy: bool,
}

/// Who is gathering, who is writing, who is flushing.
pub(crate) struct GroupCommit {
    stage: Mutex<Stage>,
    /// How many were about when the last batch ended: those it answered and those who were gathering.
    expected: AtomicU64,
    /// What a batch takes from seal to durable, smoothed, in nanoseconds.
    batch_ns: AtomicU64,
    /// A flush failed: everything not durable must be written again before the next (rule R6).
    rewrite: AtomicBool,
    failures: Mutex<Failures>,
    /// Held by whoever drives a batch by itself.
    alone: syncline_sync::asynchronous::Mutex<()>,
}

impl Default for GroupCommit {
    fn default() -> Self {
        Self {
            stage: Mutex::new(Stage { gathering: Arc::default(), busy: false }),
            expected: AtomicU64::new(1),
            batch_ns: AtomicU64::new(0),
            rewrite: AtomicBool::new(false),
            failures: Default::default(),
            alone: syncline_sync::asynchronous::Mutex::new(()),
        }
    }
}

/// The right to write a batch. Dropping it, however that comes about, lets the next one in.
struct Lead<'a>(&'a GroupCommit);

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        let mut stage = self.0.stage.lock();
        stage.busy = false;
        stage.gathering.ended.notify(1);
    }
}

impl GroupCommit {
    fn join(&self) -> Arc<Group> {
        let group = self.stage.lock().gathering.clone();
        group.members.fetch_add(1, Ordering::AcqRel);
        group.joined.notify(1);
        group
    }

    /// Makes the caller the driver of `group` if nobody is writing and the group still gathers.
    fn try_lead(&self, group: &Arc<Group>) -> Option<Lead<'_>> {
        let mut stage = self.stage.lock();
        if stage.busy || !Arc::ptr_eq(&stage.gathering, group) {
            return None;
        }
        stage.busy = true;
        Some(Lead(self))
    }

    /// Makes the caller the driver of a batch of its own. Nobody else drives: `alone` is held.
    fn lead_alone(&self) -> Lead<'_> {
        self.stage.lock().busy = true;
        Lead(self)
    }

    /// Ends the gathering of the current group.
    fn close(&self) {
        self.stage.lock().gathering = Arc::default();
    }

    /// Notes what a batch took.
    fn took(&self, duration: Duration) {
        let (old, new) = (self.batch_ns.load(Ordering::Relaxed), duration.as_nanos() as u64);
        self.batch_ns.store(old - old / 8 + new / 8, Ordering::Relaxed);
    }

    /// Notes how many are about, as a group is answered.
    fn answered(&self, group: &Group) {
        let gathering = self.stage.lock().gathering.members.load(Ordering::Acquire);
        self.expected.store(group.members.load(Ordering::Acquire) + gathering, Ordering::Release);
    }

    /// True once after each such demand.
    pub(crate) fn take_rewrite(&self) -> bool {
        self.rewrite.swap(false, Ordering::AcqRel)
    }

    /// Demands that everything not durable be written again.
    pub(crate) fn demand_rewrite(&self) {
        self.rewrite.store(true, Ordering::Release);
    }
}

impl Store {
    /// Makes everything up to `op` survive any crash. Costs nothing when it is durable already.
    pub async fn sync(&self, op: OpSeq) -> Result<(), StoreError> {
        self.sync_traced(op).await.1
    }

    /// How many syncs were about when the last batch was answered: those that it answered and those that gathered for the next.
    pub fn syncs_about(&self) -> u64 {
        self.group.expected.load(Ordering::Relaxed)
    }

    /// The same, and how it went.
    pub async fn sync_traced(&self, op: OpSeq) -> (SyncTrace, Result<(), StoreError>) {
        if self.is_durable(op) && !self.ablates(Ablation::FlushElide) {
            self.counters.syncs_elided.fetch_add(1, Ordering::Relaxed);
            return (SyncTrace::elided(op.0, *self.durable_mark.lock()), Ok(()));
        }
        let asked = Instant::now();
        let (drove, ended) = if self.ablates(Ablation::FlushGroup) {
            (true, self.drive_alone().await)
        } else {
            let group = self.group.join();
            self.wait_for(&group).await
        };
        self.counters.fsync_latency.record(asked.elapsed());
        (ended.drive.trace(op.0, drove, asked, ended.result.is_err()), ended.result)
    }

    /// How the group ended, and whether the caller drove it.
    async fn wait_for(&self, group: &Arc<Group>) -> (bool, Ended) {
        // Most who come find nobody at work, and drive at once: they have nothing to listen for.
        let mut listener = None;
        loop {
            if let Some(ended) = group.result.get() {
                return (false, ended.clone());
            }
            if let Some(lead) = self.group.try_lead(group) {
                return (true, self.drive(group, lead).await);
            }
            match listener.take() {
                Some(ended) => ended.await,
                None => listener = Some(group.ended.listen()),
            }
        }
    }

    /// For a measurement: takes a batch to the device for one caller only, with a flush of its own.
    async fn drive_alone(&self) -> Ended {
        let _alone = self.group.alone.lock().await;
        let group = Arc::new(Group { members: AtomicU64::new(1), ..Group::default() });
        let lead = self.group.lead_alone();
        self.drive(&group, lead).await
    }

    /// Takes a group's batch to the device and answers all its members.
    async fn drive(&self, group: &Arc<Group>, lead: Lead<'_>) -> Ended {
        // Should this future be dropped half-way, its members must not wait for ever.
        let abandoned = AnswerOnDrop(group);
        let mut drive = Drive::begin();
        if !self.ablates(Ablation::FlushGroup) {
            self.gather(group).await;
        }
        let result = match self.drive_batch(&mut drive).await {
            Err(StoreError::NoSpace) => {
                // No room for a log segment: the checkpoint makes everything durable instead.
                drop(lead);
                self.checkpoint_instead(&mut drive).await
            }
            Err(StoreError::Device(error)) if self.has_hole() => {
                let result = self.leave_log_after(error).await;
                drive.checkpointed = Some(Instant::now());
                (drive.cover, drive.durable) = (Cover::Checkpoint, *self.durable_mark.lock());
                self.group.answered(group);
                drop(lead);
                result
            }
            // Somebody else has left the log meanwhile, and made all of this durable.
            Err(StoreError::Device(_))
                if drive.batches.count > 0 && self.is_durable(OpSeq(drive.batches.op)) =>
            {
                (drive.cover, drive.durable) = (Cover::Checkpoint, *self.durable_mark.lock());
                self.group.answered(group);
                drop(lead);
                Ok(())
            }
            result => {
                // Who gathers meanwhile counts among those who are about, so before the next driver is let in.
                self.group.answered(group);
                drop(lead);
                result
            }
        };
        match &result {
            Ok(()) => self.group.failures.lock().end(),
            Err(error) => self.note_failure(error),
        }
        drive.members = group.members.load(Ordering::Relaxed);
        self.counters.group_sizes.record(drive.members);
        let ended = Ended { result, drive };
        let _ = group.result.set(ended.clone());
        drop(abandoned);
        ended
    }

    async fn checkpoint_instead(&self, drive: &mut Drive) -> Result<(), StoreError> {
        let result = self.checkpoint().await;
        drive.checkpointed = Some(Instant::now());
        (drive.cover, drive.durable) = (Cover::Checkpoint, *self.durable_mark.lock());
        result
    }

    /// Gives those who are about a moment to join.
    async fn gather(&self, group: &Group) {
        let expected = self.group.expected.load(Ordering::Acquire);
        let all_joined = async {
            while group.members.load(Ordering::Acquire) < expected {
                let joined = group.joined.listen();
                if group.members.load(Ordering::Acquire) < expected {
                    joined.await;
                }
            }
        };
        let mut all_joined = pin!(all_joined);
        if poll_once(all_joined.as_mut()).await.is_none() {
            or(all_joined, self.pause()).await;
        }
    }

    /// Lets a moment pass: on the caller's own worker if it has one, since a timer of another thread would wake it late.
    /// Elsewhere (a simulation has no time to measure) the moment is always the same.
    async fn pause(&self) {
        let quarter = Duration::from_nanos(self.group.batch_ns.load(Ordering::Relaxed) / 4);
        let own = Worker::try_current().map(|worker| worker.sleep(quarter.clamp(GATHER_MIN, GATHER_MAX)));
        match own {
            Some(sleep) => sleep.await,
            None => self.spawn.sleep(GATHER_MIN).await,
        }
    }

    async fn drive_batch(&self, drive: &mut Drive) -> Result<(), StoreError> {
        let started = Instant::now();
        self.counters.gather_latency.record(started - drive.begun);
        drive.gathered = Some(started);
        // Closing before sealing: whoever joined had committed before, so its changes are pending or sealed.
        if !self.breaks(Canary::LateJoiner) {
            self.group.close();
        }
        self.give_way();
        let sealed = self.seal_to_flush();
        let (seq, through) = match sealed {
            Ok((seq, through)) => (Ok(seq), through),
            Err(error) => (Err(error), None),
        };
        drive.batches = seq.as_ref().map_or_else(|_| BatchesTrace::default(), |seq| self.batches_up_to(*seq));
        let tickets = match &seq {
            Ok(_) if self.breaks(Canary::FlushEarly) => Ok(Tickets::default()),
            Ok(seq) => self.settle(*seq).await.map_err(StoreError::from),
            Err(error) => Err(error.clone()),
        };
        if self.breaks(Canary::LateJoiner) {
            self.group.close();
        }
        let written = Instant::now();
        drive.written = Some(written);
        let (seq, tickets) = (seq?, tickets?);
        self.give_way();
        let flushed = self.flush(tickets, through).await;
        self.give_way();
        let ended = Instant::now();
        drive.flushed = Some(ended);
        let flushed = flushed?;
        self.counters.write_latency.record(written - started);
        self.counters.flush_latency.record(ended - written);
        self.group.took(ended - started);
        self.batches_durable(seq, flushed);
        drive.covered(flushed.cover);
        drive.durable = match drive.batches.count {
            // Others had flushed all of it, and noted by what.
            0 => *self.durable_mark.lock(),
            _ => DurableMark::flushed(drive.batches.op, seq, flushed),
        };
        Ok(())
    }

    /// The batches up to `seq` that are not known durable.
    fn batches_up_to(&self, seq: u64) -> BatchesTrace {
        let mut batches = BatchesTrace::default();
        let log = self.log.lock();
        log.sealed.iter().take_while(|sealed| sealed.seq <= seq).for_each(|sealed| batches.add(sealed));
        batches
    }

    /// Flushes what `tickets` stand for, unless that went `through` with the batch.
    async fn flush(&self, tickets: Tickets, through: Option<Durability>) -> Result<Flushed, StoreError> {
        if let Some(through) = through
            && let Ok(flushed) = through.await
            && (tickets.confirm(&self.tracker).is_ok() || self.breaks(Canary::ThroughEarly))
        {
            return Ok(flushed);
        }
        match self.options.canary {
            Some(Canary::SkipFlush) => return Ok(NO_FLUSH),
            Some(Canary::FlushEarly | Canary::RedeemFailedFlush) => {
                return Ok(self.tracker.flush_now().await?);
            }
            _ => {}
        }
        let own = self.ablates(Ablation::FlushElide) || self.ablates(Ablation::FlushGroup);
        let outcome = match own {
            true => self.tracker.flush_now().await,
            false => self.tracker.make_durable(tickets.newest()).await,
        };
        let outcome = outcome.map_err(StoreError::from);
        outcome
            .and_then(|flushed| tickets.confirm(&self.tracker).map(|()| flushed))
            .inspect_err(|_| self.group.demand_rewrite())
    }

    /// Waits until all writes of all batches up to `seq` have completed, writing again what failed or was lost; their tickets.
    pub(crate) async fn settle(&self, seq: u64) -> Result<Tickets, DeviceError> {
        let writes: SmallVec<[_; 4]> = {
            let log = self.log.lock();
            if self.group.take_rewrite() {
                let all = log.sealed.iter().flat_map(Sealed::writes);
                all.for_each(|write| write.rewrite(&self.tracker, &self.space));
            }
            let wanted = log.sealed.iter().take_while(|sealed| sealed.seq <= seq);
            wanted.flat_map(|sealed| sealed.writes().cloned()).collect()
        };
        let tickets = self.all_completed(&writes).await?;
        if !tickets.are_lost(&self.tracker) || self.breaks(Canary::RedeemFailedFlush) {
            return Ok(tickets);
        }
        // A write with a flush behind it fails as a flush does, and what had completed before it is lost with it (rule R6).
        writes.iter().for_each(|write| write.rewrite_lost(&self.tracker, &self.space));
        self.all_completed(&writes).await
    }

    /// Waits until these writes have completed, writing again what failed; their tickets.
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
            Err(error) => {
                tracing::warn!("{error}; writing the same bytes there again");
                match self.breaks(Canary::LateRetry) {
                    true => write.restart_unguarded(&self.tracker),
                    false => write.retry(&attempt, &self.tracker, &self.space),
                }
                write.wait().await
            }
            completed => completed,
        }
    }

    /// Counts failures in a row; too many for too long make the filesystem read-only.
    fn note_failure(&self, error: &StoreError) {
        tracing::error!("fsync failed: {error}");
        // Room can still be made.
        if !matches!(error, StoreError::NoSpace) && self.group.failures.lock().add(self.options.patience) {
            self.turn_read_only(&format!(
                "the log could not be written ({error}); unmount, mend the device and mount again to recover"
            ));
        }
    }
}

/// Answers a group whose driver vanished, and wakes its members.
struct AnswerOnDrop<'a>(&'a Arc<Group>);

impl Drop for AnswerOnDrop<'_> {
    fn drop(&mut self) {
        let cancelled = || StoreError::Unusable("the fsync that drove this batch was cancelled".into());
        self.0.result.get_or_init(|| Ended { result: Err(cancelled()), drive: Drive::begin() });
        self.0.ended.notify(usize::MAX);
    }
}
