//! Distributions that are recorded while the program runs.

use crate::Distribution;
use hdrhistogram::Histogram;
use parking_lot::Mutex;
use serde::Serialize;
use std::time::Duration;

/// A histogram that many threads record into: latencies in nanoseconds, or sizes.
#[derive(Debug)]
pub struct Recorder(Mutex<Histogram<u64>>);

impl Default for Recorder {
    fn default() -> Self {
        Self(Mutex::new(Histogram::new(3).expect("three significant digits are allowed")))
    }
}

impl Recorder {
    /// Records a value.
    pub fn record(&self, value: impl Measure) {
        // The histogram grows as needed; only a value beyond u64 could be refused.
        let _ = self.0.lock().record(value.number());
    }

    /// Calls `take` with every recorded value, ascending and accurate to a thousandth, and its
    /// count.
    pub(crate) fn each(&self, mut take: impl FnMut(u64, u64)) {
        let histogram = self.0.lock();
        for step in histogram.iter_recorded() {
            take(histogram.median_equivalent(step.value_iterated_to()), step.count_at_value());
        }
    }

    /// All values so far, put into buckets.
    pub fn distribution(&self) -> Distribution {
        Distribution::of(|take| self.each(take))
    }

    /// A summary of all values so far.
    pub fn summary(&self) -> LatencySummary {
        let histogram = self.0.lock();
        let at = |quantile| histogram.value_at_quantile(quantile);
        LatencySummary {
            count: histogram.len(),
            mean: histogram.mean(),
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            max: histogram.max(),
        }
    }
}

/// A value that a recorder accepts.
pub trait Measure {
    /// The value as a number.
    fn number(self) -> u64;
}

impl Measure for Duration {
    fn number(self) -> u64 {
        u64::try_from(self.as_nanos()).unwrap_or(u64::MAX)
    }
}

impl Measure for u64 {
    fn number(self) -> u64 {
        self
    }
}

/// A summary of a distribution: nanoseconds for latencies, members for group sizes.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct LatencySummary {
    /// Values recorded.
    pub count: u64,
    /// Their mean.
    pub mean: f64,
    /// Median.
    pub p50: u64,
    /// 90th percentile.
    pub p90: u64,
    /// 99th percentile.
    pub p99: u64,
    /// 99.9th percentile.
    pub p999: u64,
    /// Greatest.
    pub max: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recorder_keeps_values_of_every_size() {
        let recorder = Recorder::default();
        for value in [3, 40_000, 5_000_000_000] {
            recorder.record(Duration::from_nanos(value));
        }
        let summary = recorder.summary();
        assert_eq!(summary.count, 3);
        assert!((39_000..41_000).contains(&summary.p50), "{}", summary.p50);
        assert!(summary.max >= 5_000_000_000);
    }
}
