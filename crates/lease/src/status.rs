//! Figures of a lease in use, for `stats`, `top` and metrics.

use crate::LeaseLost;
use parking_lot::Mutex;
use std::time::Duration;

/// A lease as it is now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LeaseStatus {
    /// Number of the holder, counted from 1.
    pub term: u64,
    /// How long a renewal is valid.
    pub valid: Duration,
    /// How much of that is left; zero if the lease was lost.
    pub left: Duration,
    /// Time since the newest renewal that counts was sent.
    pub age: Duration,
    /// Renewals that were answered in time.
    pub renewals: u64,
    /// Of those, the ones that were answered when less than half of the time was left.
    pub late: u64,
    /// Renewals that the device refused.
    pub failed: u64,
    /// The longest time that a renewal took, from its read to its answer.
    pub slowest: Duration,
    /// Why the lease was lost, if it was.
    pub lost: Option<LeaseLost>,
}

/// Counted by the thread that renews.
#[derive(Default)]
pub(crate) struct Counters(Mutex<Counts>);

#[derive(Clone, Copy, Default)]
pub(crate) struct Counts {
    pub(crate) renewals: u64,
    pub(crate) failed: u64,
    pub(crate) slowest: Duration,
}

impl Counters {
    pub(crate) fn renewed(&self, took: Duration) {
        let mut counts = self.0.lock();
        counts.renewals += 1;
        counts.slowest = counts.slowest.max(took);
    }

    pub(crate) fn failed(&self) {
        self.0.lock().failed += 1;
    }

    pub(crate) fn get(&self) -> Counts {
        *self.0.lock()
    }
}
