//! This holder's operations under way. A lease is released only if there are none, and if the fate
//! of every write is known: a successor believes a release at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use syncline_device::DeviceError;

/// Operations in flight.
#[derive(Default)]
pub struct Traffic {
    in_flight: AtomicU64,
    /// A write failed, or was never answered: it may still take effect.
    unclear: AtomicBool,
}

/// One operation in flight.
pub(crate) struct Flying {
    traffic: Arc<Traffic>,
    answered: bool,
}

impl Traffic {
    /// An operation begins. To be called before the lease is checked, so that a release that sees
    /// nothing in flight has closed the gate before.
    pub(crate) fn begin(self: &Arc<Self>) -> Flying {
        self.in_flight.fetch_add(1, Ordering::SeqCst);
        Flying { traffic: self.clone(), answered: false }
    }

    /// True if nothing is under way any more and nothing can come later.
    pub fn is_over(&self) -> bool {
        self.in_flight.load(Ordering::SeqCst) == 0 && !self.is_unclear()
    }

    /// True if the fate of a write will never be known.
    pub(crate) fn is_unclear(&self) -> bool {
        self.unclear.load(Ordering::SeqCst)
    }
}

impl Flying {
    /// The operation was not begun, or is one that can't come late.
    pub(crate) fn harmless(mut self) {
        self.answered = true;
    }

    /// The device has answered.
    pub(crate) fn ended<T>(mut self, answer: &Result<T, DeviceError>) {
        self.answered = answer.is_ok();
    }
}

impl Drop for Flying {
    fn drop(&mut self) {
        if !self.answered {
            self.traffic.unclear.store(true, Ordering::SeqCst);
        }
        self.traffic.in_flight.fetch_sub(1, Ordering::SeqCst);
    }
}
