//! Threads that do the same work at once.

use super::interrupt::Interrupt;
use crate::failure::Failure;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How often to look whether the work is to stop.
const LOOK: Duration = Duration::from_millis(10);

/// Runs `work` on a thread for each of `jobs`, until there is enough, the user interrupts, or one of
/// them fails. The work ends soon after its flag is set.
pub fn run<J: Send, R: Send>(
    jobs: Vec<J>,
    interrupt: &Interrupt,
    enough: impl Fn() -> bool,
    work: impl Fn(J, &AtomicBool) -> Result<R, Failure> + Sync,
) -> Result<Vec<R>, Failure> {
    let stop = AtomicBool::new(false);
    let outcomes = std::thread::scope(|scope| {
        let (stop, work) = (&stop, &work);
        let jobs: Vec<_> = jobs.into_iter().map(|job| scope.spawn(move || work(job, stop))).collect();
        while !interrupt.raised() && !enough() && !jobs.iter().any(|job| job.is_finished()) {
            std::thread::sleep(LOOK);
        }
        stop.store(true, Ordering::Relaxed);
        jobs.into_iter().map(|job| job.join()).collect::<Vec<_>>()
    });
    interrupt.check()?;
    let panicked = |_| Failure::new("a thread of the load panicked");
    outcomes.into_iter().map(|outcome| outcome.map_err(panicked)?).collect()
}
