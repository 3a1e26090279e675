//! The report of a search.

use super::checker::Violations;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

#[derive(Default, Clone)]
pub struct Report {
    pub takeovers: u64,
    /// Mounts after the holder had given the image back.
    pub followed: u64,
    pub asked: u64,
    pub acknowledged: u64,
    /// Records asked for before the successor had the image, and acknowledged after that.
    pub answered_late: u64,
    pub checks: u64,
    /// From the start of the command that succeeded until the image was mounted.
    pub waited: Vec<Duration>,
    pub troubles: BTreeMap<&'static str, u64>,
    pub violations: Violations,
}

impl Report {
    pub fn count(&mut self, trouble: &'static str) {
        *self.troubles.entry(trouble).or_default() += 1;
    }

    pub fn add(&mut self, other: Self) {
        self.takeovers += other.takeovers;
        self.followed += other.followed;
        self.asked += other.asked;
        self.acknowledged += other.acknowledged;
        self.answered_late += other.answered_late;
        self.checks += other.checks;
        self.waited.extend(other.waited);
        self.violations.extend(other.violations);
        for (trouble, count) in other.troubles {
            *self.troubles.entry(trouble).or_default() += count;
        }
    }

    /// Fails the test if anything was found, or if it can't have found anything.
    #[track_caller]
    pub fn expect_none(&self) {
        assert!(self.violations.is_empty(), "{}", self.violations.join("\n"));
        assert!(self.takeovers > 0 && self.acknowledged > 0, "nothing happened: {self}");
    }
}

impl fmt::Display for Report {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut waited = self.waited.clone();
        waited.sort();
        let at = |part: usize| waited.get((waited.len() * part / 100).min(waited.len().saturating_sub(1)));
        let seconds = |part| at(part).map_or(0.0, Duration::as_secs_f64);
        write!(
            out,
            "{} takeovers, {} other mounts, {} records asked for, {} acknowledged ({} of them told after the takeover), {} checks, {} violations; until mounted: median {:.1} s, worst {:.1} s;",
            self.takeovers,
            self.followed,
            self.asked,
            self.acknowledged,
            self.answered_late,
            self.checks,
            self.violations.len(),
            seconds(50),
            seconds(100),
        )?;
        self.troubles.iter().try_for_each(|(trouble, count)| write!(out, " {trouble} {count}"))
    }
}
