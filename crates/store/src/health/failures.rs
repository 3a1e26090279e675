//! Failures one after the other.

use std::time::{Duration, Instant};

/// Consecutive failures after which the log or the tree counts as unwritable, if they have lasted
/// long enough.
const FAILURES_MAX: u32 = 3;

/// Counts consecutive failures. A device path that is away for a while, or one bad sector that many
/// callers hit at once, does not make a device unusable.
#[derive(Default)]
pub(super) struct Failures {
    count: u32,
    since: Option<Instant>,
}

impl Failures {
    /// Counts one more failure; true when the limit is reached.
    pub(super) fn add(&mut self, patience: Duration) -> bool {
        self.count += 1;
        self.count >= FAILURES_MAX && self.since.get_or_insert_with(Instant::now).elapsed() >= patience
    }

    /// Resets the count after a success.
    pub(super) fn end(&mut self) {
        *self = Self::default();
    }
}
