//! The confidence of a ratio: a bootstrap over rounds.
//!
//! Contestants in the same round meet the same device in the same hour, so whole rounds are drawn,
//! with replacement, as many as there are. The middle 95 of 100 of the resulting ratios of medians
//! are the interval (the percentile method of Efron and Tibshirani, *An Introduction to the
//! Bootstrap*, 1993). With few rounds it is somewhat too narrow.

use crate::outcome::Spread;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde::Serialize;

/// With fewer rounds there is no interval.
pub const ROUNDS_LEAST: usize = 3;
const RESAMPLES: usize = 2000;
/// Fraction left out at each end, in thousandths.
const TAIL: usize = 25;
/// Fixed, so that the same rounds give the same interval.
const SEED: u64 = 95;

/// The interval that most likely contains a figure.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Interval {
    /// The figure is hardly less.
    pub low: f64,
    /// The figure is hardly more.
    pub high: f64,
}

/// The interval of `median(above) / median(below)`, from the pairs of each round.
pub fn ratio_interval(rounds: &[(f64, f64)]) -> Option<Interval> {
    if rounds.len() < ROUNDS_LEAST {
        return None;
    }
    let mut rng = StdRng::seed_from_u64(SEED);
    let mut ratios: Vec<f64> = (0..RESAMPLES).filter_map(|_| resampled(rounds, &mut rng)).collect();
    if ratios.len() < RESAMPLES {
        return None;
    }
    ratios.sort_unstable_by(f64::total_cmp);
    let tail = RESAMPLES * TAIL / 1000;
    Some(Interval { low: ratios[tail], high: ratios[RESAMPLES - 1 - tail] })
}

/// The ratio for as many rounds, drawn with replacement.
fn resampled(rounds: &[(f64, f64)], rng: &mut StdRng) -> Option<f64> {
    let drawn: Vec<_> = rounds.iter().map(|_| rounds[rng.random_range(0..rounds.len())]).collect();
    let median = |of: fn(&(f64, f64)) -> f64| Spread::of(drawn.iter().map(of)).map(|spread| spread.median);
    let ratio = median(|pair| pair.0)? / median(|pair| pair.1)?;
    ratio.is_finite().then_some(ratio)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_that_agree_leave_no_doubt() {
        let rounds = [(200.0, 100.0), (400.0, 200.0), (2.0, 1.0)];
        let interval = ratio_interval(&rounds).unwrap();
        assert_eq!(interval, Interval { low: 2.0, high: 2.0 }, "a slow round is slow for both");
    }

    #[test]
    fn rounds_that_differ_leave_some() {
        let rounds = [90.0, 100.0, 110.0, 150.0, 95.0, 105.0, 60.0].map(|value| (value, 100.0));
        let interval = ratio_interval(&rounds).unwrap();
        assert!((0.6..0.96).contains(&interval.low) && (1.04..1.5).contains(&interval.high), "{interval:?}");
        assert_eq!(ratio_interval(&rounds), Some(interval));
    }

    #[test]
    fn too_few_rounds_say_nothing() {
        assert_eq!(ratio_interval(&[(2.0, 1.0), (3.0, 1.0)]), None);
        assert_eq!(ratio_interval(&[(2.0, 0.0); 5]), None);
    }
}
