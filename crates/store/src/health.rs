//! Whether the store may still be written: once it may not, it stays read-only in this process
//! (promise P5).

use crate::StoreError;
use std::sync::Arc;
use syncline_sync::Mutex;
use syncline_sync::atomic::{AtomicBool, Ordering};

/// The read-only latch.
#[derive(Default)]
pub(crate) struct Health {
    read_only: AtomicBool,
    reason: Mutex<Option<Arc<str>>>,
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

    /// Why the store is read-only, if it is.
    pub(crate) fn reason(&self) -> Option<Arc<str>> {
        self.reason.lock().clone()
    }
}
