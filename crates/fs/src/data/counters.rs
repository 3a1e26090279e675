//! What file data counts.

use crate::counters::Counter;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of file data.
#[derive(Default)]
pub(crate) struct DataCounters {
    /// Bytes that callers wrote.
    pub written_bytes: Counter,
    /// Bytes that callers read.
    pub read_bytes: Counter,
    /// Bytes that background write-back wrote.
    pub writeback_bytes: Counter,
    /// Bytes that were written beside the batch that names them.
    pub submitted_bytes: Counter,
    /// Bytes written for nothing, because their range was truncated meanwhile.
    pub stale_bytes: Counter,
    /// Times that a small file's contents went into its inode item.
    pub inline_writes: Counter,
    /// Blocks that had to be read before a part of them could be changed.
    pub blocks_read_for_write: Counter,
    /// Times that a writer had to wait for write-back.
    pub throttled: Counter,
    /// Data writes that failed in the background.
    pub writeback_errors: Counter,
    /// fsyncs of files.
    pub fsyncs: Counter,
    /// fdatasyncs of files.
    pub fdatasyncs: Counter,
    /// Dirty bytes in memory now.
    pub dirty_bytes: Gauge,
}

/// A number that goes up and down.
#[derive(Default)]
pub(crate) struct Gauge(AtomicU64);

impl Gauge {
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Counts `after` instead of `before`. True when the number went down.
    pub(crate) fn replace(&self, before: u64, after: u64) -> bool {
        if after >= before {
            self.0.fetch_add(after - before, Ordering::Relaxed);
        } else {
            self.0.fetch_sub(before - after, Ordering::Relaxed);
        }
        after < before
    }
}
