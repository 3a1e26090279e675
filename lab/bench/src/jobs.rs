//! Threads that do the same work at once, and their combined result.

use crate::BenchError;
use crate::error::During;
use crate::workload::{Pace, Sample};
use hdrhistogram::Histogram;
use std::io;
use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Builder;
use std::time::{Duration, Instant};

/// How often the clock is checked.
const POLL: Duration = Duration::from_millis(5);
/// Stack of a thread: there may be a thousand.
const STACK_BYTES: usize = 512 << 10;

/// Why the threads stop.
#[derive(Default)]
struct Stop {
    time_is_up: AtomicBool,
    /// An error or an interrupt.
    at_once: AtomicBool,
}

impl Stop {
    fn stop_at_once(&self) {
        self.at_once.store(true, Ordering::Relaxed);
    }

    fn stops_at_once(&self) -> bool {
        self.at_once.load(Ordering::Relaxed)
    }
}

/// One thread's view: when to stop, and what it has done.
pub struct Job<'a> {
    stop: &'a Stop,
    operations: u64,
    data_bytes: u64,
    latencies: Histogram<u64>,
}

impl<'a> Job<'a> {
    fn new(stop: &'a Stop) -> Self {
        // One percent is finer than any spread between runs, and small enough for a thousand
        // threads to have one each.
        let latencies = Histogram::new(2).expect("two significant digits are allowed");
        Self { stop, operations: 0, data_bytes: 0, latencies }
    }

    /// False once the time is up. A thread that a busy machine starts late still does one operation: a
    /// sample is never empty.
    pub fn goes_on(&self) -> bool {
        let time_is_up = self.stop.time_is_up.load(Ordering::Relaxed);
        !self.stop.stops_at_once() && (!time_is_up || self.operations == 0)
    }

    /// Counts an operation with this much data.
    pub fn done(&mut self, data_bytes: u64) {
        self.operations += 1;
        self.data_bytes += data_bytes;
    }

    /// Runs the operation to be timed, and records how long it took.
    pub fn time<T>(&mut self, what: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let started = Instant::now();
        let result = what()?;
        let elapsed = u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        // The histogram grows as needed and refuses no time that fits the clock.
        let _ = self.latencies.record(elapsed.max(1));
        Ok(result)
    }
}

/// Runs `work` on a thread for each of `states`, all starting at the same moment, until they end or
/// the time is up. The first error stops all of them.
pub fn drive<S: Send>(
    states: Vec<S>,
    pace: Pace<'_>,
    work: impl Fn(S, &mut Job<'_>) -> io::Result<()> + Sync,
) -> Result<Sample, BenchError> {
    let stop = Stop::default();
    // No thread starts before all are ready.
    let gate = RwLock::new(());
    let (elapsed, outcomes) = std::thread::scope(|scope| {
        let (stop, gate, work) = (&stop, &gate, &work);
        let closed = gate.write();
        let mut threads = Vec::with_capacity(states.len());
        for state in states {
            let body = move || {
                drop(gate.read());
                let mut job = Job::new(stop);
                let result = work(state, &mut job);
                if result.is_err() {
                    stop.stop_at_once();
                }
                result.map(|()| job)
            };
            match Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, body) {
                Ok(thread) => threads.push(thread),
                Err(error) => {
                    stop.stop_at_once();
                    return Err(error);
                }
            }
        }
        drop(closed);
        let started = Instant::now();
        while !stop.stops_at_once() && !threads.iter().all(|thread| thread.is_finished()) {
            let lasted = started.elapsed();
            if pace.interrupt.raised() {
                stop.stop_at_once();
            }
            if lasted >= pace.duration {
                stop.time_is_up.store(true, Ordering::Relaxed);
                break;
            }
            (pace.tick)(lasted);
            std::thread::sleep(POLL.min(pace.duration - lasted));
        }
        let outcomes: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
        Ok((started.elapsed(), outcomes))
    })
    .during(|| "cannot start the threads of the load".into())?;
    pace.interrupt.check()?;
    let mut sample = Sample { seconds: elapsed.as_secs_f64(), ..Sample::default() };
    let mut latencies = Histogram::new(2).expect("two significant digits are allowed");
    for outcome in outcomes {
        let job = outcome.map_err(|_| BenchError::Panicked)??;
        sample.operations += job.operations;
        sample.data_bytes += job.data_bytes;
        latencies.add(job.latencies).expect("it grows as needed");
    }
    Ok(sample.with_latencies(&latencies))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Interrupt;

    #[test]
    fn all_jobs_count_until_the_time_is_up() {
        let interrupt = Interrupt::default();
        let work = |bytes, job: &mut Job<'_>| {
            while job.goes_on() {
                job.time(|| {
                    std::thread::sleep(Duration::from_millis(1));
                    Ok(())
                })?;
                job.done(bytes);
            }
            Ok(())
        };
        for milliseconds in [50, 0] {
            let pace = Pace::new(Duration::from_millis(milliseconds), &interrupt);
            let sample = drive(vec![1, 2, 3], pace, work).unwrap();
            assert!(sample.operations >= 3 && sample.data_bytes >= 6, "one operation each at least");
            assert!(sample.seconds >= milliseconds as f64 / 1000.0, "{sample:?}");
            assert!(sample.p50_ns.unwrap() >= 900_000, "{sample:?}");
        }
    }

    #[test]
    fn work_with_an_end_is_not_cut_off_and_an_error_stops_all() {
        let interrupt = Interrupt::default();
        let pace = Pace::new(Duration::MAX, &interrupt);
        let work = |(): (), job: &mut Job<'_>| {
            job.done(1);
            Ok(())
        };
        assert_eq!(drive(vec![(); 4], pace, work).unwrap().operations, 4);
        let fails = |fails: bool, job: &mut Job<'_>| {
            while job.goes_on() {
                if fails {
                    return Err(io::Error::other("on purpose"));
                }
                std::thread::yield_now();
            }
            Ok(())
        };
        assert!(drive(vec![false, true], pace, fails).unwrap_err().to_string().contains("on purpose"));
    }

    #[test]
    fn an_interrupt_is_not_a_result() {
        let interrupt = Interrupt::default();
        interrupt.flag().store(true, Ordering::Relaxed);
        let work = |(): (), job: &mut Job<'_>| {
            while job.goes_on() {
                std::thread::yield_now();
            }
            Ok(())
        };
        let ended = drive(vec![()], Pace::new(Duration::MAX, &interrupt), work);
        assert!(matches!(ended, Err(BenchError::Interrupted)));
    }
}
