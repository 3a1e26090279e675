//! Whether the store may still be written: once it may not, it stays read-only in this process
//! (promise P5). Others ask whether they may write, and tell what failed.

mod failures;
mod leave_log;
mod mend;

pub use leave_log::Relocate;
pub use mend::Mended;

use crate::StoreError;
use failures::Failures;
use leave_log::Leaving;
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;
use syncline_device::DeviceError;
use syncline_sync::Mutex;
use syncline_sync::atomic::{AtomicBool, Ordering};

/// The latches of a store: whether it has begun, may still be written, is being closed, and is just
/// leaving its log; and how often the device has failed.
#[derive(Default)]
pub(crate) struct Health {
    read_only: AtomicBool,
    reason: Mutex<Option<Arc<str>>>,
    shut_down: AtomicBool,
    /// True once the replayed state may be made the new start.
    begun: AtomicBool,
    closing: AtomicBool,
    /// Consecutive syncs that failed.
    syncs: Mutex<Failures>,
    /// Consecutive checkpoints that failed because of the device.
    checkpoints: Mutex<Failures>,
    leaving: Leaving,
}

impl Health {
    /// True once the replayed state may be made the new start.
    pub(crate) fn has_begun(&self) -> bool {
        self.begun.load(Ordering::Acquire)
    }

    /// Notes that the replayed state becomes the new start.
    pub(crate) fn begin(&self) {
        self.begun.store(true, Ordering::Release);
    }

    /// True once the store is being closed.
    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    /// Notes that the store is being closed.
    pub(crate) fn begin_closing(&self) {
        self.closing.store(true, Ordering::Release);
    }

    /// Fails if the store is read-only or being closed: nobody would be left to end a wait.
    pub(crate) fn require_open(&self) -> Result<(), StoreError> {
        self.writable()?;
        match self.is_closing() {
            true => Err(StoreError::ReadOnly { reason: "it is being closed".into() }),
            false => Ok(()),
        }
    }

    /// True once nobody has to keep the store going: the background tasks end.
    pub(crate) fn is_over(&self) -> bool {
        self.is_closing() || self.writable().is_err()
    }

    /// Counts a failed sync; true if there were too many over too long a time.
    pub(crate) fn sync_failed(&self, patience: Duration) -> bool {
        self.syncs.lock().add(patience)
    }

    /// Ends a series of failed syncs.
    pub(crate) fn sync_succeeded(&self) {
        self.syncs.lock().end();
    }

    /// Counts a failed checkpoint; true if there were too many over too long a time.
    pub(crate) fn checkpoint_failed(&self, patience: Duration) -> bool {
        self.checkpoints.lock().add(patience)
    }

    /// Ends a series of failed checkpoints.
    pub(crate) fn checkpoint_succeeded(&self) {
        self.checkpoints.lock().end();
    }

    /// True while data is being relocated so that the log can be left.
    pub(crate) fn is_leaving_log(&self) -> bool {
        self.leaving.now.load(Ordering::Acquire)
    }

    /// True for an error whose cause is told elsewhere, once, and which repeating does not mend; see
    /// [`crate::Store::is_end`].
    pub(crate) fn is_end(&self, error: &StoreError) -> bool {
        self.shut_down.load(Ordering::Acquire) || matches!(error, StoreError::Device(error) if is_lost(error))
    }

    /// Fails if the latch has been set.
    pub(crate) fn writable(&self) -> Result<(), StoreError> {
        if !self.read_only.load(Ordering::Acquire) {
            return Ok(());
        }
        let reason = self.reason.lock().clone().unwrap_or_else(|| "unknown".into());
        Err(StoreError::ReadOnly { reason })
    }

    /// Sets the latch; the first reason stays.
    pub(crate) fn turn_read_only(&self, reason: &str) {
        let mut slot = self.reason.lock();
        if slot.is_none() {
            *slot = Some(reason.into());
            self.read_only.store(true, Ordering::Release);
            tracing::error!("the filesystem is read-only from now on: {reason}");
        }
    }

    /// Sets the latch where that is intended and no error: the store was opened read-only, or is
    /// closed.
    pub(crate) fn end_writing(&self, reason: &str) {
        self.reason.lock().get_or_insert_with(|| reason.into());
        self.read_only.store(true, Ordering::Release);
    }

    /// The same for a store that was shut down: nothing of it works any more, and why is told by
    /// who did it.
    pub(crate) fn shut_down(&self, reason: &str) {
        self.shut_down.store(true, Ordering::Release);
        self.end_writing(reason);
    }

    /// Why the store is read-only, if it is.
    pub(crate) fn reason(&self) -> Option<Arc<str>> {
        self.reason.lock().clone()
    }
}

/// True if another host has the device. (The system's own errors of that kind are about a file.)
fn is_lost(error: &DeviceError) -> bool {
    let error = error.io_error();
    error.is_some_and(|it| it.kind() == ErrorKind::StaleNetworkFileHandle && it.raw_os_error().is_none())
}
