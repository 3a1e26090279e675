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

use crate::{Store, StoreError};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use syncline_device::DeviceError;
use syncline_format::BlockRun;
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
        store.checkpoint.notify_ended();
        store.log.notify_drained();
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

    /// Waits a little for others to leave a log that the device refuses; true when they have. The
    /// wait is short: the caller may hold a lease that they need.
    pub(crate) async fn log_was_left_soon(&self) -> bool {
        for _ in 0..OTHERS_LEAVE_ROUNDS {
            if !self.log.has_hole() && !self.health.is_leaving_log() {
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
            Err(StoreError::Device(error)) if self.log.has_hole() => {
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
        if !self.log.has_hole() {
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
            for data in self.log.named_data() {
                let Err(error) = self.completed(data.write()).await else { continue };
                if !data.write().failed_for_good() {
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
}
