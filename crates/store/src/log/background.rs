//! The background task of the log: it seals, bounds how much is not durable, and marks an idle log.

use super::commit::CommitState;
use super::seal::{Cut, LogEnd, Then};
use super::transaction::DataWrites;
use crate::{Canary, OpSeq, Store, StoreError};
use futures_lite::future::or;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;
use syncline_device::Spawn;
use syncline_space::Class;

/// How long the log must have been quiet before a marker is written.
const IDLE: Duration = Duration::from_millis(200);
/// How long a log with nothing to do is left alone unless somebody seals or asks for something.
/// After that the task looks for pins that have ended and kept blocks.
const REST: Duration = Duration::from_secs(10);
/// The longest interval between retries of something that failed; retries begin at [`IDLE`].
const RETRY_MAX: Duration = Duration::from_secs(2);

impl Store {
    fn log_is_full(&self) -> bool {
        self.log.commit.lock().is_full(&self.options)
    }

    /// Seals a long pending log and starts a flush if too much is written but not flushed. True if
    /// there is already more to seal.
    async fn tend_log_once(self: &Arc<Self>) -> bool {
        // The end of a bracket wakes this task.
        let Some(sealing) = self.log.sealing.try_read() else { return false };
        let sealed = self.log_is_full().then(|| self.seal());
        drop(sealing);
        match &sealed {
            Some(Err(StoreError::NoSpace)) => self.ask_for_checkpoint(),
            Some(Err(error)) if self.is_end(error) => {}
            Some(Err(error)) => tracing::error!("sealing in the background: {error}"),
            _ => {}
        }
        match self.breaks(Canary::UnboundedPending) {
            true => drop(self.flush_what_is_sealed().await),
            false => self.start_flush_of_what_is_sealed(),
        }
        self.collect_freed();
        // Something that could not be sealed has to wait for a commit or a checkpoint.
        sealed.is_none_or(|sealed| sealed.is_ok()) && self.log_is_full()
    }

    /// Flushes concurrently with sealing: however long the flush takes, the pending log keeps
    /// becoming batches.
    fn start_flush_of_what_is_sealed(self: &Arc<Self>) {
        let due = self.log.end.numbers().load(Ordering::Acquire) >= self.options.unflushed_bytes;
        if !due || self.log.flushing.swap(true, Ordering::AcqRel) {
            return;
        }
        let store = self.clone();
        self.spawn.spawn(Box::pin(async move {
            let flushed = store.flush_what_is_sealed().await;
            store.log.flushing.store(false, Ordering::Release);
            if flushed {
                // More may have been sealed meanwhile. After a failure, the next tick tries again.
                store.wake.notify(usize::MAX);
            }
        }));
    }

    /// Makes all sealed batches durable if they exceed the limit; true if it did.
    async fn flush_what_is_sealed(&self) -> bool {
        let (unflushed, newest_op) = {
            let log = self.log.end.lock();
            (log.unflushed_bytes, log.sealed.back().map(|sealed| sealed.op_seq))
        };
        let Some(op) = newest_op.filter(|_| unflushed >= self.options.unflushed_bytes) else { return false };
        self.counters.background_flushes.add(1);
        // Callers of fsync see a failure themselves; here it is only counted and logged.
        self.sync(OpSeq(op)).await.is_ok()
    }

    /// When the log is idle after an acknowledgement, writes a batch that calls the one before it
    /// durable, so that one rotten block of data seldom decides about acknowledged batches. The
    /// batch is empty unless something waits for one. No flush.
    fn mark_durable_when_idle(&self) {
        let Some(_sealing) = self.log.sealing.try_read() else { return };
        let mut log = self.log.end.lock();
        let commit = self.log.commit.lock();
        if !self.is_marker_due(&log, &commit) {
            return;
        }
        if !commit.pending.is_empty() {
            // The batch that holds the pending changes says the same.
            log.marked_seq = log.chain.newest_seq();
            drop((commit, log));
            if let Err(error) = self.seal() {
                tracing::debug!("what waits is not sealed while the log is idle: {error}");
            }
            return;
        }
        let (generation, op_seq) = (commit.generation, self.log.last_op.load(Ordering::Acquire));
        drop(commit);
        if !Self::has_room_for_marker(&log) {
            let blocks = self.segment_blocks();
            self.room.space().allocate(Class::Log, blocks, blocks, None);
            return;
        }
        self.counters.markers.add(1);
        let cut =
            Cut { pending: Default::default(), data: DataWrites::new(), generation, op_seq, segment: None };
        log.marked_seq = self.seal_into(&mut log, cut, Then::Nothing).0;
    }

    /// True if an idle log should get a marker now.
    fn is_marker_due(&self, log: &LogEnd, commit: &CommitState) -> bool {
        let newest = log.chain.newest_seq();
        let due = log.durable_seq == newest && log.marked_seq < newest && log.sealed.is_empty();
        let can = !log.stalled && self.health.writable().is_ok();
        let fits = Self::has_room_for_marker(log) || !commit.pending.is_empty();
        due && can && (fits || self.breaks(Canary::IdleSegment))
    }

    /// Segments keep room for a marker. Taking another segment just for a marker would waste it.
    fn has_room_for_marker(log: &LogEnd) -> bool {
        log.chain.segment_wanted(0).is_none()
    }

    /// Looks at the log's state, which decides when to look again.
    fn look_at_log(&self) -> Look {
        let log = self.log.end.lock();
        let commit = self.log.commit.lock();
        let left = log.unflushed_bytes >= self.options.unflushed_bytes || commit.is_full(&self.options);
        Look { newest: log.chain.newest_seq(), left, marker: self.is_marker_due(&log, &commit) }
    }
}

/// The log's state, as far as it decides when to look again.
#[derive(Clone, Copy)]
struct Look {
    newest: u64,
    /// Something failed or could not be done, and is to be tried again.
    left: bool,
    marker: bool,
}

/// Decides how long a log is left alone.
#[derive(Default)]
struct Pace {
    newest: Option<u64>,
    retries: u32,
}

impl Pace {
    /// The time until the next look; `None` until somebody seals something.
    fn next(&mut self, look: Look) -> Option<Duration> {
        let unchanged = self.newest.replace(look.newest) == Some(look.newest);
        if look.left {
            let pause = IDLE.saturating_mul(1 << self.retries.min(8)).min(RETRY_MAX);
            self.retries += 1;
            return Some(pause);
        }
        self.retries = 0;
        (!unchanged || look.marker).then_some(IDLE)
    }
}

/// Seals and flushes until the store closes or is dropped.
pub(crate) async fn tend_log(store: Weak<Store>, spawn: Arc<dyn Spawn>) {
    let mut pace = Pace::default();
    loop {
        let Some(strong) = store.upgrade() else { return };
        // Once writing is no longer possible, stop trying.
        if strong.health.is_over() {
            return;
        }
        // Listen before looking, so that nothing that happens after the look is missed.
        let (asked, drained) = (strong.wake.listen(), strong.log.listen_drained());
        if strong.tend_log_once().await {
            futures_lite::future::yield_now().await;
            continue;
        }
        let pause = pace.next(strong.look_at_log());
        drop(strong);
        // A sealed batch will want a marker. Only a log at rest waits for that event; on a busy log
        // every batch would wake this task.
        let sealed = pause.is_none().then_some(drained);
        let woken = async {
            match sealed {
                Some(sealed) => or(asked, sealed).await,
                None => asked.await,
            }
            false
        };
        let passed = async {
            spawn.sleep(pause.unwrap_or(REST)).await;
            true
        };
        if or(woken, passed).await
            && let Some(strong) = store.upgrade()
        {
            strong.mark_durable_when_idle();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_without_work_rests_until_something_is_sealed() {
        let mut pace = Pace::default();
        let rests = |newest| Look { newest, left: false, marker: false };
        assert_eq!(pace.next(rests(7)), Some(IDLE), "it was just sealed");
        assert_eq!(pace.next(rests(7)), None);
        assert_eq!(pace.next(Look { marker: true, ..rests(7) }), Some(IDLE), "the marker is not late");
        assert_eq!(pace.next(rests(8)), Some(IDLE));
        assert_eq!(pace.next(rests(8)), None);
    }

    #[test]
    fn what_fails_is_tried_again_ever_less_often() {
        let mut pace = Pace::default();
        let left = Look { newest: 7, left: true, marker: false };
        let pauses: Vec<u64> =
            (0..6).filter_map(|_| pace.next(left)).map(|pause| pause.as_millis() as u64).collect();
        assert_eq!(pauses, [200, 400, 800, 1600, 2000, 2000]);
        assert_eq!(pace.next(Look { left: false, ..left }), None);
        assert_eq!(pace.next(left), Some(IDLE), "a new trouble");
    }
}
