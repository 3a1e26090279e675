//! How long a lease lasts, and everything that follows from it.

use crate::clock::{BootClock, Clock};
use crate::lab::Canary;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use syncline_format::lease::{CLAIM_MS_MAX, DURATION_MS, GUARD_MS_MAX, Lease, LeaseHolder};

/// A claim counts only if it was written and flushed within this time since the read that allowed
/// it.
pub(crate) const CLAIM_MAX: Duration = Duration::from_millis(CLAIM_MS_MAX as u64);

/// The clocks of two hosts may differ by this part of a duration, each in its own direction: the
/// kernel corrects a clock by up to a tenth (adjtimex), and the quartz adds little.
const DRIFT_PARTS: u32 = 8;

/// How a lease is held. Give all hosts of an image the same duration and guard time.
#[derive(Clone)]
pub struct LeaseOptions {
    /// How long the lease is valid without a renewal; 4 s to 120 s. Default 10 s.
    ///
    /// It is the time that the device may be away before the mount ends: seven eighths of it. And it
    /// is most of the time until another host can take over from one that died: nine eighths of it
    /// and of the guard time. Ten seconds survive the restart of a server or of a switch's link, and
    /// are over before people or cluster managers have found out what happened.
    pub duration: Duration,
    /// The longest time that anything this host sends may be under way; up to 60 s. Default 2 s.
    ///
    /// Anything that takes longer may disturb a successor. So the device's own limits must be below it:
    /// [`send_timeout`](Self::send_timeout) for TCP, `replacement_timeout` for iSCSI.
    pub guard: Duration,
    /// Whether a lease block with unknown contents counts as unused: for making an image where
    /// something else was. A damaged lease does not.
    pub over_unknown: bool,
    /// The only cache that reads may come from is a server's, which all hosts share.
    pub cached_by_server: bool,
    /// The holder's identity; by default [`this_process`](crate::this_process).
    pub holder: Option<LeaseHolder>,
    /// The clock; by default `CLOCK_BOOTTIME`. Tests set another.
    pub clock: Arc<dyn Clock>,
    /// A rule to break, for tests.
    #[doc(hidden)]
    pub canary: Option<Canary>,
}

impl Default for LeaseOptions {
    fn default() -> Self {
        Self {
            duration: Duration::from_secs(10),
            guard: Duration::from_secs(2),
            over_unknown: false,
            cached_by_server: false,
            holder: None,
            clock: Arc::new(BootClock),
            canary: None,
        }
    }
}

impl fmt::Debug for LeaseOptions {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = out.debug_struct("LeaseOptions");
        out.field("duration", &self.duration).field("guard", &self.guard);
        out.field("over_unknown", &self.over_unknown).finish_non_exhaustive()
    }
}

/// A duration or guard time out of its bounds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum OptionsError {
    /// The duration.
    #[error("a lease lasts 4 s to 120 s, not {}: give another duration", crate::error::seconds(*.0))]
    Duration(Duration),
    /// The guard time.
    #[error("the guard time of a lease is at most 60 s, not {}: give another one", crate::error::seconds(*.0))]
    Guard(Duration),
}

impl LeaseOptions {
    /// The same with another duration.
    pub fn lasting(self, duration: Duration) -> Self {
        Self { duration, ..self }
    }

    /// How long a network client should let data be under way before it gives a connection up
    /// (TCP_USER_TIMEOUT): three quarters of the guard time. The rest is for the server.
    pub fn send_timeout(&self) -> Duration {
        self.guard * 3 / 4
    }

    /// Checks the bounds.
    pub fn check(&self) -> Result<(), OptionsError> {
        let ms = |ms: u32| Duration::from_millis(ms.into());
        if self.duration < ms(DURATION_MS.0) || self.duration > ms(DURATION_MS.1) {
            return Err(OptionsError::Duration(self.duration));
        }
        if self.guard > ms(GUARD_MS_MAX) {
            return Err(OptionsError::Guard(self.guard));
        }
        Ok(())
    }

    pub(crate) fn times(&self) -> Times {
        // Whole milliseconds, as on the device.
        let whole = |time: Duration| Duration::from_millis(time.as_millis() as u64);
        let drift = self.canary != Some(Canary::NoDrift);
        Times { duration: whole(self.duration), guard: whole(self.guard), drift }
    }
}

/// The times that follow from the options.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    pub(crate) duration: Duration,
    pub(crate) guard: Duration,
    /// Whether clocks may differ; a canary denies it.
    drift: bool,
}

impl Times {
    /// How long a renewal is valid, from before it was sent. By a clock that is an eighth slow, that
    /// is the whole duration.
    pub(crate) fn valid(self) -> Duration {
        self.duration - self.allowance(self.duration)
    }

    /// A renewal begins this long after the one before: two may fail.
    pub(crate) fn interval(self) -> Duration {
        self.duration / 3
    }

    /// A renewal that failed is repeated after this time.
    pub(crate) fn retry(self) -> Duration {
        self.interval() / 4
    }

    /// How long to wait for holders with at most this duration and guard time together. By a clock
    /// that is an eighth fast, that is all of it.
    pub(crate) fn wait(self, expiry: Duration) -> Duration {
        expiry + self.allowance(expiry)
    }

    /// Pause before a claim is read back: every claim that began before ours was flushed has ended,
    /// by any clock. 9/7 of the limit: its clock an eighth slow, ours an eighth fast.
    pub(crate) fn read_back(self) -> Duration {
        if self.drift { CLAIM_MAX * (DRIFT_PARTS + 1) / (DRIFT_PARTS - 1) } else { CLAIM_MAX }
    }

    /// The time until a holder with these times, or with those of a block, has expired and has
    /// nothing under way any more.
    pub(crate) fn expiry(self) -> Duration {
        self.duration + self.guard
    }

    fn allowance(self, time: Duration) -> Duration {
        if self.drift { time / DRIFT_PARTS } else { Duration::ZERO }
    }
}

/// [`Times::expiry`] of the holder of a block.
pub(crate) fn expiry(lease: &Lease) -> Duration {
    Duration::from_millis(u64::from(lease.duration_ms) + u64::from(lease.guard_ms))
}

/// The longest that any holder can need.
pub(crate) fn longest_expiry() -> Duration {
    Duration::from_millis(u64::from(DURATION_MS.1) + u64::from(GUARD_MS_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_checked_and_named() {
        let options = LeaseOptions::default();
        assert_eq!(options.check(), Ok(()));
        let short = options.clone().lasting(Duration::from_secs(3)).check().unwrap_err();
        assert_eq!(short.to_string(), "a lease lasts 4 s to 120 s, not 3 s: give another duration");
        let long = LeaseOptions { guard: Duration::from_secs(61), ..options };
        assert!(matches!(long.check(), Err(OptionsError::Guard(_))));
    }

    /// The proof's inequalities, for every duration and with clocks an eighth off.
    #[test]
    fn who_waits_waits_longer_than_who_holds_holds() {
        let limits = [(4, 0), (4, 2), (10, 2), (119, 60)];
        for (duration, guard) in limits.map(|(d, g)| (Duration::from_secs(d), Duration::from_secs(g))) {
            let times = LeaseOptions { duration, guard, ..LeaseOptions::default() }.times();
            // Real time by the slowest and by the fastest clock.
            let held = times.valid() * DRIFT_PARTS / (DRIFT_PARTS - 1);
            let waited = times.wait(times.expiry()) * DRIFT_PARTS / (DRIFT_PARTS + 1);
            assert!(held + guard <= waited, "{duration:?} {guard:?}");
            assert!(times.interval() * 2 + times.retry() < times.valid(), "two renewals may fail");
            assert!(CLAIM_MAX + times.read_back() < times.valid(), "a claim is read back in time");
            let claimed = CLAIM_MAX * DRIFT_PARTS / (DRIFT_PARTS - 1);
            assert!(
                claimed <= times.read_back() * DRIFT_PARTS / (DRIFT_PARTS + 1) + Duration::from_nanos(10)
            );
        }
    }
}
