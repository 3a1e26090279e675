//! Background tasks: sealing and bounding what is not durable, and starting checkpoints.

use crate::seal::{Cut, Then};
use crate::trim::tend_discards;
use crate::{Canary, OpSeq, Store, StoreError};
use futures_lite::future::or;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;
use syncline_device::Spawn;
use syncline_space::Class;

/// How long nothing must have been sealed before a marker is written.
const IDLE: Duration = Duration::from_millis(200);

impl Store {
    /// Starts the tasks; they end when the store closes or is dropped.
    pub(crate) fn start_background(self: &Arc<Self>, spawn: &Arc<dyn Spawn>) {
        spawn.spawn(Box::pin(tend_log(Arc::downgrade(self), spawn.clone())));
        spawn.spawn(Box::pin(tend_checkpoints(Arc::downgrade(self), spawn.clone())));
        if self.options.discard && self.device().discards() {
            self.space.remember_freed();
            spawn.spawn(Box::pin(tend_discards(Arc::downgrade(self))));
        }
    }

    fn log_is_full(&self) -> bool {
        self.commit.lock().is_full(&self.options)
    }

    /// Seals a long pending log, and sees to it that what was written without a flush gets one. True if there is more to seal
    /// already.
    async fn tend_log_once(self: &Arc<Self>) -> bool {
        let sealed = self.log_is_full().then(|| self.seal());
        match &sealed {
            Some(Err(StoreError::NoSpace)) => self.ask_for_checkpoint(),
            Some(Err(error)) => tracing::error!("sealing in the background: {error}"),
            _ => {}
        }
        match self.breaks(Canary::UnboundedPending) {
            true => drop(self.flush_what_is_sealed().await),
            false => self.start_flush_of_what_is_sealed(),
        }
        self.space.collect_with(|runs| runs.iter().for_each(|run| self.tree.forget(*run)));
        // What could not be sealed just now has to wait for a commit or a checkpoint.
        sealed.is_none_or(|sealed| sealed.is_ok()) && self.log_is_full()
    }

    /// Flushes beside the sealing: a flush may take as long as it likes, and meanwhile the pending log goes on becoming batches.
    fn start_flush_of_what_is_sealed(self: &Arc<Self>) {
        let due = self.log.lock().unflushed_bytes >= self.options.unflushed_bytes;
        if !due || self.flushing.swap(true, Ordering::AcqRel) {
            return;
        }
        let store = self.clone();
        self.spawn.spawn(Box::pin(async move {
            let flushed = store.flush_what_is_sealed().await;
            store.flushing.store(false, Ordering::Release);
            if flushed {
                // More may have been sealed meanwhile. After a failure the next tick tries again.
                store.wake.notify(usize::MAX);
            }
        }));
    }

    /// Makes all sealed batches durable if they are many; whether it did.
    async fn flush_what_is_sealed(&self) -> bool {
        let (unflushed, newest_op) = {
            let log = self.log.lock();
            (log.unflushed_bytes, log.sealed.back().map(|sealed| sealed.op_seq))
        };
        let Some(op) = newest_op.filter(|_| unflushed >= self.options.unflushed_bytes) else { return false };
        self.counters.background_flushes.fetch_add(1, Ordering::Relaxed);
        // A failure reaches those who call fsync; here it is counted and logged.
        self.sync(OpSeq(op)).await.is_ok()
    }

    /// When idle after an acknowledgement: an empty batch that calls the one before it durable, so that one rotten
    /// block of data seldom decides about acknowledged batches. No flush.
    fn mark_durable_when_idle(&self) {
        let mut log = self.log.lock();
        let newest = log.chain.newest_seq();
        let due = log.durable_seq == newest && log.marked_seq < newest && log.sealed.is_empty();
        if !due || log.stalled || self.health.writable().is_err() {
            return;
        }
        let commit = self.commit.lock();
        // A segment keeps room for it. Another one for a marker alone would be room taken for nothing.
        let fits = log.chain.segment_wanted(0).is_none();
        if !commit.pending.is_empty() || !(fits || self.breaks(Canary::IdleSegment)) {
            return;
        }
        let (generation, op_seq) = (commit.generation, self.last_op.load(Ordering::Acquire));
        drop(commit);
        if !fits {
            let blocks = self.segment_blocks();
            self.space.allocate(Class::Log, blocks, blocks, None);
            return;
        }
        self.counters.markers.fetch_add(1, Ordering::Relaxed);
        let cut = Cut { pending: Default::default(), data: Vec::new(), generation, op_seq, segment: None };
        log.marked_seq = self.seal_into(&mut log, cut, Then::Nothing).0;
    }
}

async fn tend_log(store: Weak<Store>, spawn: Arc<dyn Spawn>) {
    loop {
        let Some(strong) = store.upgrade() else { return };
        // What can't be written any more is not tried for ever.
        if strong.closing.load(Ordering::Acquire) || strong.health.writable().is_err() {
            return;
        }
        let listener = strong.wake.listen();
        if strong.tend_log_once().await {
            futures_lite::future::yield_now().await;
            continue;
        }
        drop(strong);
        let idle = or(
            async {
                listener.await;
                false
            },
            async {
                spawn.sleep(IDLE).await;
                true
            },
        )
        .await;
        if idle && let Some(strong) = store.upgrade() {
            strong.mark_durable_when_idle();
        }
    }
}

async fn tend_checkpoints(store: Weak<Store>, spawn: Arc<dyn Spawn>) {
    let mut due = None;
    let mut is_due = false;
    loop {
        let Some(strong) = store.upgrade() else { return };
        if strong.closing.load(Ordering::Acquire) || strong.health.writable().is_err() {
            return;
        }
        let listener = strong.wake.listen();
        if is_due || strong.checkpoint_due.load(Ordering::Acquire) {
            // Before it begins: its own end takes back what is asked for meanwhile, and whoever asks after that waits for another.
            strong.checkpoint_due.store(false, Ordering::Release);
            let failed = strong.checkpoint().await.is_err();
            (due, is_due) = (None, false);
            if failed {
                drop(strong);
                spawn.sleep(Duration::from_secs(1)).await;
                continue;
            }
        }
        // One sleep for the whole interval, however often others wake this task: it follows the clock of `spawn`.
        let interval = strong.options.checkpoint_interval;
        let sleep = due.get_or_insert_with(|| spawn.sleep(interval));
        drop(strong);
        is_due = or(
            async {
                listener.await;
                false
            },
            async {
                sleep.await;
                true
            },
        )
        .await;
    }
}
