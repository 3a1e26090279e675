//! What a workload is, and what one run of it yields.

use crate::{BenchError, Interrupt};
use hdrhistogram::Histogram;
use serde::Serialize;
use std::path::Path;
use std::time::Duration;

/// What a phase's result is called, and which way is better.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Operations of this name in a second.
    PerSecond(&'static str),
    /// Data in a second.
    MebibytesPerSecond,
    /// Time for the whole phase.
    Milliseconds,
}

impl Unit {
    /// As a heading.
    pub fn text(self) -> String {
        match self {
            Self::PerSecond(what) => format!("{what}/s"),
            Self::MebibytesPerSecond => "MiB/s".into(),
            Self::Milliseconds => "ms".into(),
        }
    }

    /// True where more is better.
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
    /// Its name; empty when it is the only one.
    pub name: &'static str,
    /// What is measured.
    pub unit: Unit,
    /// What the latency is that of.
    pub latency_of: &'static str,
    /// True when caches have to be empty: it is mounted anew before the phase.
    pub cold: bool,
    /// True when all that the preparation did is on the device before the phase begins.
    pub settled: bool,
}

impl Phase {
    /// A phase that starts with what its preparation left in the caches.
    pub const fn warm(name: &'static str, unit: Unit, latency_of: &'static str) -> Self {
        Self { name, unit, latency_of, cold: false, settled: true }
    }

    /// A phase that starts with empty caches.
    pub const fn cold(name: &'static str, unit: Unit, latency_of: &'static str) -> Self {
        Self { name, unit, latency_of, cold: true, settled: true }
    }

    /// A phase that has to deal with what its preparation left to be written.
    pub const fn unsettled(name: &'static str, unit: Unit, latency_of: &'static str) -> Self {
        Self { name, unit, latency_of, cold: false, settled: false }
    }
}

/// What one run of a phase yields.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct Sample {
    /// Operations done.
    pub operations: u64,
    /// Time they took together.
    pub seconds: f64,
    /// Data read or written by them.
    pub data_bytes: u64,
    /// Latency that half of them did not exceed, in nanoseconds.
    pub p50_ns: Option<u64>,
    /// Latency that 99 of 100 did not exceed, in nanoseconds.
    pub p99_ns: Option<u64>,
}

impl Sample {
    /// With the quantiles of these latencies in nanoseconds.
    pub fn with_latencies(self, latencies: &Histogram<u64>) -> Self {
        let at = |quantile| (!latencies.is_empty()).then(|| latencies.value_at_quantile(quantile));
        Self { p50_ns: at(0.5), p99_ns: at(0.99), ..self }
    }
}

/// How long a timed load lasts, and who watches it.
#[derive(Clone, Copy)]
pub struct Pace<'a> {
    /// The load ends after this.
    pub duration: Duration,
    /// Ends it at once.
    pub interrupt: &'a Interrupt,
    /// Told now and then how long the load has lasted.
    pub tick: &'a dyn Fn(Duration),
}

impl<'a> Pace<'a> {
    /// For work that has an end of its own.
    pub fn without_limit(self) -> Self {
        Self { duration: Duration::MAX, ..self }
    }

    /// A load of this duration that nobody watches.
    pub fn new(duration: Duration, interrupt: &'a Interrupt) -> Self {
        Self { duration, interrupt, tick: &|_| {} }
    }
}

/// A load on a directory: any filesystem can be measured.
pub trait Workload {
    /// Its suite, such as `k5`.
    fn suite(&self) -> &'static str;

    /// What it does, in a few words.
    fn title(&self) -> String;

    /// What tells it from others of its title, such as `8 jobs`; empty if there is no other.
    fn variant(&self) -> String {
        String::new()
    }

    /// What is measured, one after the other.
    fn phases(&self) -> Vec<Phase>;

    /// Files that it makes, if they are many: some filesystems must know when they are made.
    fn files(&self) -> u64 {
        0
    }

    /// True when it needs data or extended attributes that it stored: [`null`](crate::null) can't take part.
    fn reads_back(&self) -> bool {
        false
    }

    /// What makes the load: a program's name and version, or `built in`.
    fn engine(&self) -> String {
        "built in".into()
    }

    /// About how many seconds all its phases take, with their preparation.
    fn expected_seconds(&self, duration: Duration) -> f64 {
        self.phases().len() as f64 * duration.as_secs_f64() + 1.0
    }

    /// Brings the directory into the state that a phase starts from. Phases follow each other on one filesystem.
    fn prepare(&self, phase: usize, directory: &Path, interrupt: &Interrupt) -> Result<(), BenchError>;

    /// The load of a phase.
    fn run(&self, phase: usize, directory: &Path, pace: Pace<'_>) -> Result<Sample, BenchError>;
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
