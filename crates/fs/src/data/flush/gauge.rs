//! A number that goes up and down, counted by all threads.

use syncline_sync::atomic::{AtomicU64, Ordering};

/// A shared number that goes up and down.
#[derive(Default)]
pub(crate) struct Gauge(AtomicU64);

impl Gauge {
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Counts `after` instead of `before`. True when the number went down.
    pub(crate) fn replace(&self, before: u64, after: u64) -> bool {
        if after >= before {
            self.0.fetch_add(after - before, Ordering::Relaxed);
        } else {
            self.0.fetch_sub(before - after, Ordering::Relaxed);
        }
        after < before
    }
}
