//! Failures of background write-back that an fsync has yet to report.

use crate::FsError;

/// The failures of one file. Hardly any file has some.
#[derive(Default)]
pub(crate) struct Failures(Option<Box<Counted>>);

struct Counted {
    /// Failures so far.
    count: u64,
    /// Failures that some fsync has reported.
    reported: u64,
    last: FsError,
    /// How often write-back failed since it last ended well.
    unwritten: u32,
}

impl Failures {
    /// Adds one failure.
    pub(crate) fn add(&mut self, error: FsError) {
        self.added(error);
    }

    /// Adds a failure of write-back. True if it is the first since that last ended well: the others
    /// are attempts to write the same data.
    pub(crate) fn add_unwritten(&mut self, error: FsError) -> bool {
        let counted = self.added(error);
        counted.unwritten = counted.unwritten.saturating_add(1);
        counted.unwritten == 1
    }

    /// True if write-back failed and nothing has ended well since.
    pub(crate) fn is_unwritten(&self) -> bool {
        self.unwritten() > 0
    }

    /// How often write-back failed since it last ended well.
    pub(crate) fn unwritten(&self) -> u32 {
        self.0.as_ref().map_or(0, |counted| counted.unwritten)
    }

    /// Notes that everything that was dirty could be written.
    pub(crate) fn end_unwritten(&mut self) {
        if let Some(counted) = &mut self.0 {
            counted.unwritten = 0;
        }
    }

    fn added(&mut self, error: FsError) -> &mut Counted {
        let new = || Box::new(Counted { count: 0, reported: 0, last: error.clone(), unwritten: 0 });
        let counted = self.0.get_or_insert_with(new);
        counted.count += 1;
        counted.last = error;
        counted
    }

    /// The last failure, if no fsync has reported it, and the count of failures up to it.
    pub(crate) fn unreported(&self) -> Option<(u64, FsError)> {
        let counted = self.0.as_ref().filter(|counted| counted.count > counted.reported)?;
        Some((counted.count, counted.last.clone()))
    }

    /// True when an fsync has something to report.
    pub(crate) fn any(&self) -> bool {
        self.0.as_ref().is_some_and(|counted| counted.count > counted.reported)
    }

    /// Notes that an fsync reports the failures up to `count`.
    pub(crate) fn report(&mut self, count: u64) {
        if let Some(counted) = &mut self.0 {
            counted.reported = counted.reported.max(count);
        }
    }

    /// Drops all failures: there is no program left to report them to.
    pub(crate) fn forget(&mut self) {
        self.report(self.0.as_ref().map_or(0, |counted| counted.count));
    }
}
