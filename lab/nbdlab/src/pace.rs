//! Time as a thread has it on a machine that is busy.

use rustix::time::{ClockId, clock_gettime};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

/// A thread of it computes for this long and then sleeps, as most code under test does.
const COMPUTES: Duration = Duration::from_millis(2);
const SLEEPS: Duration = Duration::from_millis(8);

/// A stopwatch for upper limits of a test. It counts what a thread of its own gets done, so on an idle
/// machine it goes with the clock, and on a busy one it is as slow as the code under test.
pub struct Pace(Arc<AtomicU64>);

impl Pace {
    /// Starts it.
    pub fn start() -> Self {
        let rounds = Arc::<AtomicU64>::default();
        let counted = Arc::downgrade(&rounds);
        thread::spawn(move || {
            while let Some(rounds) = counted.upgrade() {
                rounds.fetch_add(1, Ordering::Relaxed);
                drop(rounds);
                let until = computed() + COMPUTES;
                while computed() < until {}
                thread::sleep(SLEEPS);
            }
        });
        Self(rounds)
    }

    /// Sleeps while a thread of this machine gets done so much: longer than `time` if it is busy.
    pub fn sleep(time: Duration) {
        let pace = Self::start();
        while pace.elapsed() < time {
            thread::sleep(SLEEPS);
        }
    }

    /// The time that is over.
    pub fn elapsed(&self) -> Duration {
        let ended = self.0.load(Ordering::Relaxed).saturating_sub(1);
        Duration::from_nanos((COMPUTES + SLEEPS).as_nanos() as u64 * ended)
    }

    /// Fails the test if more than this time is over.
    #[track_caller]
    pub fn assert_within(&self, limit: Duration) {
        let took = self.elapsed();
        assert!(took < limit, "it took {took:?}, and not {limit:?}");
    }
}

/// The processor time of this thread.
fn computed() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_goes_on_and_never_faster_than_the_clock() {
        let clock = std::time::Instant::now();
        Pace::sleep(Duration::from_millis(200));
        assert!(clock.elapsed() >= Duration::from_millis(200));
    }
}
