//! The state behind a page.

use super::files::{Files, Sort};
use crate::failure::Failure;
use crate::live::{Interval, Sample};
use serde_json::json;
use std::collections::VecDeque;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The number of intervals in the curve.
const HISTORY_MAX: usize = 512;
/// The intervals that + and - choose from.
const INTERVALS: [Duration; 8] = [
    Duration::from_millis(200),
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(5),
    Duration::from_secs(10),
    Duration::from_secs(30),
    Duration::from_secs(60),
];

/// A mount that is being watched.
pub struct State {
    /// The mount point.
    pub directory: PathBuf,
    /// The newest sample.
    pub sample: Sample,
    /// The interval that ended with it; `None` at first.
    pub interval: Option<Interval>,
    /// Syncs per second in the last intervals, the newest last.
    pub history: VecDeque<u64>,
    /// The files that were synced most in the interval.
    pub files: Files,
    /// Time between two samples.
    pub every: Duration,
    /// No samples are being taken.
    pub paused: bool,
    /// The help on keys is shown.
    pub helping: bool,
}

impl State {
    /// Takes the first sample.
    pub fn new(directory: PathBuf, every: Duration) -> Result<Self, Failure> {
        let sample = Sample::take(&directory)?;
        let files = Files::new(&directory)?;
        let (interval, history) = (None, VecDeque::new());
        Ok(Self { directory, sample, interval, history, files, every, paused: false, helping: false })
    }

    /// Takes another sample.
    pub fn renew(&mut self) -> Result<(), Failure> {
        let sample = Sample::take_again(&self.directory)?;
        if sample.is_of_same_daemon(&self.sample) {
            let interval = Interval::between(&self.sample, &sample);
            self.files.renew(&self.directory)?;
            let syncs = &interval.syncs;
            let rate =
                syncs.fsyncs_per_second + syncs.fdatasyncs_per_second + syncs.directory_fsyncs_per_second;
            if self.history.len() == HISTORY_MAX {
                self.history.pop_front();
            }
            self.history.push_back(rate.round() as u64);
            self.interval = Some(interval);
        } else {
            // Mounted again: there is nothing to compare with.
            self.files = Files::new(&self.directory)?;
            self.interval = None;
        }
        self.sample = sample;
        Ok(())
    }

    /// When the next sample is due.
    pub fn due(&self) -> Option<Instant> {
        (!self.paused).then(|| self.sample.taken + self.every)
    }

    /// Chooses a longer interval.
    pub fn slower(&mut self) {
        self.every = INTERVALS.into_iter().find(|every| *every > self.every).unwrap_or(self.every);
    }

    /// Chooses a shorter interval.
    pub fn faster(&mut self) {
        self.every = INTERVALS.into_iter().rfind(|every| *every < self.every).unwrap_or(self.every);
    }

    /// Sorts the files by the next figure.
    pub fn sort_otherwise(&mut self) {
        let at = Sort::ALL.iter().position(|sort| *sort == self.files.sort).unwrap_or(0);
        self.files.sort_by(Sort::ALL[(at + 1) % Sort::ALL.len()]);
    }

    /// The interval as JSON.
    pub fn json(&self) -> String {
        let figures = json!({
            "daemon": self.sample.stats["daemon"],
            "uptime_seconds": self.sample.uptime().as_secs_f64(),
            "read_only": self.sample.stats["read_only"],
            "lost": self.sample.stats["lost"],
            "interval": self.interval,
            "space": self.sample.stats["space"],
            "files": self.files,
        });
        format!("{figures:#}")
    }
}
