//! The definition of a workload, and the result of one run.

use crate::files::Embedded;
use crate::{BenchError, Interrupt};
use hdrhistogram::Histogram;
use serde::Serialize;
use std::path::Path;
use std::time::Duration;

/// The unit of a phase's result, and which way is better.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Operations of this name per second.
    PerSecond(&'static str),
    /// Data per second.
    MebibytesPerSecond,
    /// Time for the whole phase.
    Milliseconds,
}

impl Unit {
    /// The unit as a heading.
    pub fn text(self) -> String {
        match self {
            Self::PerSecond(what) => format!("{what}/s"),
            Self::MebibytesPerSecond => "MiB/s".into(),
            Self::Milliseconds => "ms".into(),
        }
    }

    /// True if more is better.
    pub fn more_is_better(self) -> bool {
        self != Self::Milliseconds
    }

    /// A sample in this unit.
    pub fn value(self, sample: &Sample) -> f64 {
        match self {
            Self::PerSecond(_) => sample.operations as f64 / sample.seconds,
            Self::MebibytesPerSecond => sample.data_bytes as f64 / f64::from(1 << 20) / sample.seconds,
            Self::Milliseconds => sample.seconds * 1000.0,
        }
    }
}

/// A part of a workload that is measured by itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Phase {
    /// Its name; empty if it is the only one.
    pub name: &'static str,
    /// The unit of the result.
    pub unit: Unit,
    /// The operation whose latency is measured.
    pub latency_of: &'static str,
    /// True if caches must be empty: the filesystem is mounted again before the phase.
    pub cold: bool,
    /// True if everything that the preparation did must be on the device before the phase begins.
    pub settled: bool,
}

impl Phase {
    /// A phase that starts with caches as its preparation left them.
    pub const fn warm(name: &'static str, unit: Unit, latency_of: &'static str) -> Self {
        Self { name, unit, latency_of, cold: false, settled: true }
    }

    /// A phase that starts with empty caches.
    pub const fn cold(name: &'static str, unit: Unit, latency_of: &'static str) -> Self {
        Self { name, unit, latency_of, cold: true, settled: true }
    }

    /// A phase that includes writing back what its preparation left.
    pub const fn unsettled(name: &'static str, unit: Unit, latency_of: &'static str) -> Self {
        Self { name, unit, latency_of, cold: false, settled: false }
    }
}

/// The result of one run of a phase.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct Sample {
    /// Operations done.
    pub operations: u64,
    /// The time that they took together.
    pub seconds: f64,
    /// Data read or written by them.
    pub data_bytes: u64,
    /// Median latency, in nanoseconds.
    pub p50_ns: Option<u64>,
    /// 99th percentile of the latency, in nanoseconds.
    pub p99_ns: Option<u64>,
}

impl Sample {
    /// Adds the quantiles of these latencies, in nanoseconds.
    pub fn with_latencies(self, latencies: &Histogram<u64>) -> Self {
        let at = |quantile| (!latencies.is_empty()).then(|| latencies.value_at_quantile(quantile));
        Self { p50_ns: at(0.5), p99_ns: at(0.99), ..self }
    }
}

/// The duration of a timed load, and its observers.
#[derive(Clone, Copy)]
pub struct Pace<'a> {
    /// The load ends after this time.
    pub duration: Duration,
    /// Ends the load at once.
    pub interrupt: &'a Interrupt,
    /// Called now and then with the time elapsed.
    pub tick: &'a dyn Fn(Duration),
}

impl<'a> Pace<'a> {
    /// For work that ends by itself.
    pub fn without_limit(self) -> Self {
        Self { duration: Duration::MAX, ..self }
    }

    /// A load of this duration without an observer.
    pub fn new(duration: Duration, interrupt: &'a Interrupt) -> Self {
        Self { duration, interrupt, tick: &|_| {} }
    }
}

/// A load on a directory, so that any filesystem can be measured.
pub trait Workload {
    /// Its suite, such as `k5`.
    fn suite(&self) -> &'static str;

    /// A short description.
    fn title(&self) -> String;

    /// Distinguishes it from others with its title, such as `8 jobs`; empty if there is no other.
    fn variant(&self) -> String {
        String::new()
    }

    /// Its phases, in order.
    fn phases(&self) -> Vec<Phase>;

    /// The number of files it creates, if that is large: some filesystems must be made with that in
    /// mind.
    fn files(&self) -> u64 {
        0
    }

    /// True if it needs the data, the room or the extended attributes that it stored: then
    /// [`null`](crate::null) can't take part.
    fn reads_back(&self) -> bool {
        false
    }

    /// The program that makes the load, with its version, or `built in`.
    fn engine(&self) -> String {
        "built in".into()
    }

    /// An estimate of the seconds that all its phases take, including their preparation.
    fn expected_seconds(&self, duration: Duration) -> f64 {
        self.phases().len() as f64 * duration.as_secs_f64() + 1.0
    }

    /// Brings the directory into a phase's initial state. The phases run one after the other on one
    /// filesystem.
    fn prepare(&self, phase: usize, directory: &Path, interrupt: &Interrupt) -> Result<(), BenchError>;

    /// Runs the load of a phase.
    fn run(&self, phase: usize, directory: &Path, pace: Pace<'_>) -> Result<Sample, BenchError>;

    /// The same load within the process of the library, if it can be made there.
    fn embedded(&self) -> Option<&dyn Embedded> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_say_what_a_sample_is_worth() {
        let sample = Sample { operations: 100, seconds: 2.0, data_bytes: 8 << 20, ..Sample::default() };
        assert_eq!(Unit::PerSecond("fsyncs").value(&sample), 50.0);
        assert_eq!(Unit::MebibytesPerSecond.value(&sample), 4.0);
        assert_eq!(Unit::Milliseconds.value(&sample), 2000.0);
        assert!(!Unit::Milliseconds.more_is_better());
    }

    #[test]
    fn no_latencies_are_not_zero() {
        let mut latencies = Histogram::new(2).unwrap();
        assert_eq!(Sample::default().with_latencies(&latencies).p50_ns, None);
        latencies.record_n(1000, 99).unwrap();
        latencies.record(1_000_000).unwrap();
        let sample = Sample::default().with_latencies(&latencies);
        assert!(sample.p50_ns.unwrap() < 1100 && sample.p99_ns.unwrap() < 1100);
    }
}
