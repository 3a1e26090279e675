//! The clock that leases are measured by.

use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// A clock that never goes back and never stands still. Only differences between two readings of
/// one clock are used.
pub trait Clock: Send + Sync + 'static {
    /// The time since some fixed moment.
    fn now(&self) -> Duration;

    /// How long a thread should sleep until this clock says `until`. It may be less: the thread
    /// looks again.
    fn sleep(&self, until: Duration) -> Duration {
        until.saturating_sub(self.now())
    }
}

/// `CLOCK_BOOTTIME`: it counts the time that the host was suspended, and nobody can set it.
#[derive(Clone, Copy, Debug, Default)]
pub struct BootClock;

impl Clock for BootClock {
    fn now(&self) -> Duration {
        let now = clock_gettime(ClockId::Boottime);
        let (seconds, nanoseconds) = (now.tv_sec.max(0) as u64, now.tv_nsec.max(0) as u32);
        Duration::new(seconds, nanoseconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_goes_on_while_a_thread_sleeps() {
        let before = BootClock.now();
        std::thread::sleep(Duration::from_millis(20));
        let after = BootClock.now();
        assert!(after - before >= Duration::from_millis(20));
        assert!(BootClock.sleep(after + Duration::from_secs(5)) <= Duration::from_secs(5));
        assert_eq!(BootClock.sleep(before), Duration::ZERO);
    }
}
