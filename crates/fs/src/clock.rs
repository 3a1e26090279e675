//! The sources of time: the time of day for timestamps, and time that only passes for ages.

use crate::types::Timestamp;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Tells the time.
pub trait Clock: Send + Sync + 'static {
    /// The time of day, for timestamps only: an administrator or NTP may set it, forward and back.
    fn now(&self) -> Timestamp;

    /// The time since some fixed moment, for ages and due times: nobody can set it, and it never goes
    /// back.
    fn uptime(&self) -> Duration;
}

/// The system's clocks.
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

    fn uptime(&self) -> Duration {
        static BEGAN: LazyLock<Instant> = LazyLock::new(Instant::now);
        BEGAN.elapsed()
    }
}

/// A clock that stands still until it is moved, so that a seeded run is reproducible.
#[derive(Default, Debug)]
pub struct ManualClock {
    now_ns: AtomicU64,
    uptime_ns: AtomicU64,
}

impl ManualClock {
    /// A clock that shows `now_ns` nanoseconds since 1970.
    pub fn at(now_ns: u64) -> Self {
        Self { now_ns: AtomicU64::new(now_ns), uptime_ns: AtomicU64::new(0) }
    }

    /// Lets time pass.
    pub fn advance(&self, by_ns: u64) {
        self.now_ns.fetch_add(by_ns, Ordering::Relaxed);
        self.uptime_ns.fetch_add(by_ns, Ordering::Relaxed);
    }

    /// Sets the time of day, as an administrator does. No time passes.
    pub fn set(&self, now_ns: u64) {
        self.now_ns.store(now_ns, Ordering::Relaxed);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        let now_ns = self.now_ns.load(Ordering::Relaxed);
        Timestamp { seconds: (now_ns / 1_000_000_000) as i64, nanoseconds: (now_ns % 1_000_000_000) as u32 }
    }

    fn uptime(&self) -> Duration {
        Duration::from_nanos(self.uptime_ns.load(Ordering::Relaxed))
    }
}
