//! Clocks that run at a rate of their own, and may stand still.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use syncline_lease::Clock;

/// The one true time, in nanoseconds.
pub type Time = Arc<AtomicU64>;

const MILLION: u128 = 1_000_000;

/// A host's clock.
pub struct SimClock {
    time: Time,
    /// Millionths of a second that it counts in a second.
    rate: u64,
    offset_ns: u64,
    /// Time that it has not counted.
    missed_ns: AtomicU64,
}

impl SimClock {
    pub fn new(time: Time, rate: u64, offset_ns: u64) -> Arc<Self> {
        Arc::new(Self { time, rate, offset_ns, missed_ns: AtomicU64::new(0) })
    }

    /// The clock misses this much, as a paused virtual machine's does.
    pub fn misses(&self, time_ns: u64) {
        self.missed_ns.fetch_add(time_ns, Ordering::Relaxed);
    }

    fn reads_at(&self, time_ns: u64) -> u64 {
        let counted = u128::from(time_ns - self.missed_ns.load(Ordering::Relaxed));
        self.offset_ns + (counted * u128::from(self.rate) / MILLION) as u64
    }

    /// The true time at which this clock says `until`; not before now.
    pub fn true_time(&self, until: Duration) -> u64 {
        let counted = u128::from((until.as_nanos() as u64).saturating_sub(self.offset_ns));
        let at = (counted * MILLION).div_ceil(u128::from(self.rate)) as u64;
        (at + self.missed_ns.load(Ordering::Relaxed)).max(self.time.load(Ordering::Relaxed))
    }
}

impl Clock for SimClock {
    fn now(&self) -> Duration {
        Duration::from_nanos(self.reads_at(self.time.load(Ordering::Relaxed)))
    }
}
