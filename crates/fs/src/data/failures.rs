//! Failures of background write-back that an fsync has yet to report.

use crate::FsError;

/// Those of a file. Hardly any has some.
#[derive(Default)]
pub(crate) struct Failures(Option<Box<Counted>>);

struct Counted {
    /// Failures so far.
    count: u64,
    /// Failures that some fsync has reported.
    reported: u64,
    last: FsError,
}

impl Failures {
    /// One more.
    pub(crate) fn add(&mut self, error: FsError) {
        match &mut self.0 {
            Some(counted) => {
                counted.count += 1;
                counted.last = error;
            }
            none => *none = Some(Box::new(Counted { count: 1, reported: 0, last: error })),
        }
    }

    /// A failure that no fsync has reported, and the count of failures it stands for.
    pub(crate) fn unreported(&self) -> Option<(u64, FsError)> {
        let counted = self.0.as_ref().filter(|counted| counted.count > counted.reported)?;
        Some((counted.count, counted.last.clone()))
    }

    /// True when an fsync has something to report.
    pub(crate) fn any(&self) -> bool {
        self.0.as_ref().is_some_and(|counted| counted.count > counted.reported)
    }

    /// An fsync reports the failures up to `count`.
    pub(crate) fn report(&mut self, count: u64) {
        if let Some(counted) = &mut self.0 {
            counted.reported = counted.reported.max(count);
        }
    }

    /// Nobody is left to be told.
    pub(crate) fn forget(&mut self) {
        self.report(self.0.as_ref().map_or(0, |counted| counted.count));
    }
}
