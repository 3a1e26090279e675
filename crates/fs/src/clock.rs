//! The source of the current time.

use crate::types::Timestamp;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Tells the time.
pub trait Clock: Send + Sync + 'static {
    /// The current time.
    fn now(&self) -> Timestamp;
}

/// Time from `since` to `now`; zero if the clock was set back.
pub(crate) fn age(since: Timestamp, now: Timestamp) -> Duration {
    let ns = |time: Timestamp| i128::from(time.seconds) * 1_000_000_000 + i128::from(time.nanoseconds);
    Duration::from_nanos(u64::try_from((ns(now) - ns(since)).max(0)).unwrap_or(u64::MAX))
}

/// The system's clock.
#[derive(Clone, Copy, Default, Debug)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        match SystemTime::now().duration_since(UNIX_EPOCH) {
            Ok(since) => Timestamp {
                seconds: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
                nanoseconds: since.subsec_nanos(),
            },
            // A clock before 1970 is no reason to fail an operation.
            Err(_) => Timestamp::default(),
        }
    }
}

/// A clock that stands still until it is moved, so that a seeded run is reproducible.
#[derive(Default, Debug)]
pub struct ManualClock {
    now_ns: AtomicU64,
}

impl ManualClock {
    /// A clock that shows `now_ns` nanoseconds since 1970.
    pub fn at(now_ns: u64) -> Self {
        Self { now_ns: AtomicU64::new(now_ns) }
    }
    /// Moves the clock forward.
    pub fn advance(&self, by_ns: u64) {
        self.now_ns.fetch_add(by_ns, Ordering::Relaxed);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        let now_ns = self.now_ns.load(Ordering::Relaxed);
        Timestamp { seconds: (now_ns / 1_000_000_000) as i64, nanoseconds: (now_ns % 1_000_000_000) as u32 }
    }
}
