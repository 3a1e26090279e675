//! The counters of a tracker.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts for one device since its tracker was created.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TrackerCounters {
    /// Writes started.
    pub writes: u64,
    /// Writes that ended with a flush of their own, in one request; they also count as flushes
    /// issued.
    pub writes_through: u64,
    /// Bytes in all writes.
    pub write_bytes: u64,
    /// Writes that failed.
    pub writes_failed: u64,
    /// Reads started.
    pub reads: u64,
    /// Bytes requested by reads.
    pub read_bytes: u64,
    /// Flushes actually issued to the device.
    pub flushes_issued: u64,
    /// Requests that joined a flush issued for another caller.
    pub flushes_joined: u64,
    /// Requests that needed no device operation, since a completed flush covered them.
    pub flushes_elided: u64,
    /// Flushes that failed.
    pub flushes_failed: u64,
}

/// One counter.
#[derive(Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    pub(super) fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[derive(Default)]
pub(super) struct Counters {
    pub(super) writes: Counter,
    pub(super) writes_through: Counter,
    pub(super) write_bytes: Counter,
    pub(super) writes_failed: Counter,
    pub(super) reads: Counter,
    pub(super) read_bytes: Counter,
    pub(super) flushes_issued: Counter,
    pub(super) flushes_joined: Counter,
    pub(super) flushes_elided: Counter,
    pub(super) flushes_failed: Counter,
}

impl Counters {
    pub(super) fn snapshot(&self) -> TrackerCounters {
        TrackerCounters {
            writes: self.writes.get(),
            writes_through: self.writes_through.get(),
            write_bytes: self.write_bytes.get(),
            writes_failed: self.writes_failed.get(),
            reads: self.reads.get(),
            read_bytes: self.read_bytes.get(),
            flushes_issued: self.flushes_issued.get(),
            flushes_joined: self.flushes_joined.get(),
            flushes_elided: self.flushes_elided.get(),
            flushes_failed: self.flushes_failed.get(),
        }
    }
}
