//! Whole distributions, for monitoring.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Number of parts that each doubling of a value is divided into: a bucket is at most an eighth as
/// wide as the values in it.
const PARTS: u64 = 8;

/// Distributions by their names.
pub type Distributions = BTreeMap<&'static str, Distribution>;

/// A distribution since the image was opened. Subtracting an earlier one gives the distribution of
/// the time between.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Distribution {
    /// Sum of all values, accurate to a thousandth.
    pub sum: f64,
    /// Buckets in ascending order, without empty ones: the first value of the bucket, the first
    /// value above it, and how many values are in it.
    pub buckets: Vec<(u64, u64, u64)>,
}

impl Distribution {
    /// Puts values, ascending and each with how often it was, into buckets.
    pub fn of(each: impl FnOnce(&mut dyn FnMut(u64, u64))) -> Self {
        let mut made = Self::default();
        each(&mut |value, count| {
            made.sum += value as f64 * count as f64;
            let (start, end) = bucket_of(value);
            match made.buckets.last_mut() {
                Some((last, _, counted)) if *last == start => *counted += count,
                _ => made.buckets.push((start, end, count)),
            }
        });
        made
    }

    /// The values recorded since `earlier`, an earlier distribution of the same store.
    pub fn since(&self, earlier: &Self) -> Self {
        let before: BTreeMap<u64, u64> =
            earlier.buckets.iter().map(|&(start, _, count)| (start, count)).collect();
        let rest = self.buckets.iter().map(|&(start, end, count)| {
            (start, end, count.saturating_sub(before.get(&start).copied().unwrap_or(0)))
        });
        Self {
            sum: (self.sum - earlier.sum).max(0.0),
            buckets: rest.filter(|&(_, _, count)| count > 0).collect(),
        }
    }

    /// Number of values.
    pub fn count(&self) -> u64 {
        self.buckets.iter().map(|&(_, _, count)| count).sum()
    }

    /// Mean of the values; 0 if there are none.
    pub fn mean(&self) -> f64 {
        self.sum / self.count().max(1) as f64
    }

    /// The value that this fraction of all values does not exceed, accurate to the width of its
    /// bucket; 0 if there are none.
    pub fn quantile(&self, part: f64) -> f64 {
        let wanted = part * self.count() as f64;
        let mut below = 0.0;
        for &(start, end, count) in &self.buckets {
            let count = count as f64;
            if below + count >= wanted {
                return start as f64 + (end - 1 - start) as f64 * ((wanted - below) / count).max(0.0);
            }
            below += count;
        }
        0.0
    }
}

/// The first value of the bucket that `value` is in, and the first value above the bucket.
fn bucket_of(value: u64) -> (u64, u64) {
    let width = 1 << value.checked_ilog2().unwrap_or(0).saturating_sub(PARTS.ilog2());
    let start = value / width * width;
    (start, start.saturating_add(width))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Recorder;
    use std::time::Duration;

    #[test]
    fn a_value_lies_in_a_bucket_that_is_narrow() {
        for value in (0..64).flat_map(|bit| [1u64 << bit, (1 << bit) + (1 << bit) / 3, (1 << bit) - 1]) {
            let (start, end) = bucket_of(value);
            assert!(start <= value && (value < end || end == u64::MAX), "{value}: {start} to {end}");
            assert!(end - start <= (value / PARTS).max(1), "{value}: {start} to {end}");
            assert!(bucket_of(start) == (start, end) && bucket_of(end - 1) == (start, end), "{value}");
        }
    }

    #[test]
    fn what_came_between_is_the_difference() {
        let recorder = Recorder::default();
        (0..1000u64).for_each(|_| recorder.record(50u64));
        let earlier = recorder.distribution();
        (1..=100u64).for_each(|value| recorder.record(value * 1000));
        let between = recorder.distribution().since(&earlier);
        assert_eq!(between.count(), 100);
        assert!((between.mean() / 50_500.0 - 1.0).abs() < 0.01, "{}", between.mean());
        for (part, value) in [(0.5, 50_000.0), (0.9, 90_000.0), (0.99, 99_000.0), (1.0, 100_000.0)] {
            assert!(
                (between.quantile(part) / value - 1.0f64).abs() < 0.125,
                "{part} {}",
                between.quantile(part)
            );
        }
        assert_eq!(Distribution::default().quantile(0.5), 0.0);
    }

    #[test]
    fn a_distribution_has_every_value_once() {
        let recorder = Recorder::default();
        for value in 0..10_000u64 {
            recorder.record(Duration::from_nanos(value * value));
        }
        let made = recorder.distribution();
        assert_eq!(made.count(), 10_000);
        assert!(made.buckets.is_sorted_by(|a, b| a.0 < b.0));
        let exact: f64 = (0..10_000u64).map(|value| (value * value) as f64).sum();
        assert!((made.sum / exact - 1.0).abs() < 0.001, "{} {exact}", made.sum);
        // 1024² is where a bucket begins.
        let below = made.buckets.iter().filter(|(_, end, _)| *end <= 1024 * 1024);
        assert_eq!(below.map(|(_, _, count)| count).sum::<u64>(), 1024);
    }
}
