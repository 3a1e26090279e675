//! Whether the store may still be written: once it may not, it stays read-only in this process
//! (promise P5).

mod leave_log;

pub use leave_log::Relocate;

pub(crate) use leave_log::NewLog;

use crate::{Store, StoreError};
use std::io::ErrorKind;
use std::sync::Arc;
use syncline_device::DeviceError;
use syncline_sync::Mutex;
use syncline_sync::atomic::{AtomicBool, Ordering};

/// The read-only latch.
#[derive(Default)]
pub(crate) struct Health {
    read_only: AtomicBool,
    reason: Mutex<Option<Arc<str>>>,
    shut_down: AtomicBool,
}

impl Health {
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

impl Store {
    /// True for an error whose cause is told elsewhere, once, and which repeating does not mend: the
    /// store was shut down, or its device answers nothing any more for anybody here, since another
    /// host has it.
    pub fn is_end(&self, error: &StoreError) -> bool {
        self.health.shut_down.load(Ordering::Acquire)
            || matches!(error, StoreError::Device(error) if is_lost(error))
    }
}

/// True if another host has the device. (The system's own errors of that kind are about a file.)
pub(crate) fn is_lost(error: &DeviceError) -> bool {
    let error = error.io_error();
    error.is_some_and(|it| it.kind() == ErrorKind::StaleNetworkFileHandle && it.raw_os_error().is_none())
}
