//! The store's counters (docs/DESIGN.md, "What is counted").

use hdrhistogram::Histogram;
use parking_lot::Mutex;
use serde::Serialize;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use syncline_device::TrackerCounters;
use syncline_log::{Pending, SealedBatch};

/// A histogram that many threads record into: latencies in nanoseconds, or sizes.
pub(crate) struct Recorder(Mutex<Histogram<u64>>);

impl Default for Recorder {
    fn default() -> Self {
        Self(Mutex::new(Histogram::new(3).expect("three significant digits are allowed")))
    }
}

impl Recorder {
    pub(crate) fn record(&self, value: impl Measure) {
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

    fn summary(&self) -> LatencySummary {
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
pub(crate) trait Measure {
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

/// Live counters.
#[derive(Default)]
pub struct Counters {
    pub(crate) syncs_elided: AtomicU64,
    pub(crate) batches: AtomicU64,
    pub(crate) log_bytes: AtomicU64,
    pub(crate) log_copies: AtomicU64,
    pub(crate) log_puts: AtomicU64,
    pub(crate) log_deletes: AtomicU64,
    pub(crate) log_names: AtomicU64,
    pub(crate) log_frees: AtomicU64,
    pub(crate) log_coalesced: AtomicU64,
    pub(crate) data_bytes: AtomicU64,
    pub(crate) data_bytes_read: AtomicU64,
    pub(crate) checksum_errors: AtomicU64,
    pub(crate) reads_failed: AtomicU64,
    pub(crate) checkpoints: AtomicU64,
    pub(crate) checkpoints_failed: AtomicU64,
    pub(crate) checkpoints_for_room: AtomicU64,
    pub(crate) background_flushes: AtomicU64,
    pub(crate) markers: AtomicU64,
    pub(crate) logs_left: AtomicU64,
    pub(crate) discards: AtomicU64,
    pub(crate) discarded_bytes: AtomicU64,
    pub(crate) discards_failed: AtomicU64,
    pub(crate) replayed_batches: AtomicU64,
    pub(crate) replayed_records: AtomicU64,
    pub(crate) fsync_latency: Recorder,
    pub(crate) write_latency: Recorder,
    pub(crate) gather_latency: Recorder,
    pub(crate) flush_latency: Recorder,
    pub(crate) checkpoint_latency: Recorder,
    pub(crate) group_sizes: Recorder,
}

/// A summary of a distribution: nanoseconds for latencies, members for group sizes.
#[derive(Clone, Debug, Serialize)]
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

/// All counters at one moment.
#[derive(Clone, Debug, Serialize)]
pub struct CountersSnapshot {
    /// Requests to make something durable that already was.
    pub syncs_elided: u64,
    /// Log batches written.
    pub batches: u64,
    /// Bytes of log written.
    pub log_bytes: u64,
    /// Bulk copies that filled batches: one per batch.
    pub log_copies: u64,
    /// Items set, as they entered the log.
    pub log_puts: u64,
    /// Items removed.
    pub log_deletes: u64,
    /// Runs of data blocks named.
    pub log_names: u64,
    /// Runs of blocks freed.
    pub log_frees: u64,
    /// Items that replaced a pending one instead of being logged after it.
    pub log_coalesced: u64,
    /// Bytes of file data written.
    pub data_bytes: u64,
    /// Bytes of file data read from the device.
    pub data_bytes_read: u64,
    /// Data blocks and tree nodes that did not match their checksum.
    pub checksum_errors: u64,
    /// Checkpoints that succeeded.
    pub checkpoints: u64,
    /// Checkpoints that failed. Their changes are in the log and go into the next checkpoint.
    pub checkpoints_failed: u64,
    /// Checkpoints forced because there was no room.
    pub checkpoints_for_room: u64,
    /// Logs left behind because a part of the device could not be written.
    pub logs_left: u64,
    /// Flushes issued only to bound how much is not durable.
    pub background_flushes: u64,
    /// Marker batches written when idle.
    pub markers: u64,
    /// Runs of free blocks that the device was told to discard.
    pub discards: u64,
    /// Bytes in these runs.
    pub discarded_bytes: u64,
    /// Runs whose discard the device refused.
    pub discards_failed: u64,
    /// Batches replayed when the image was opened.
    pub replayed_batches: u64,
    /// Records in these batches.
    pub replayed_records: u64,
    /// Device writes.
    pub device_writes: u64,
    /// Bytes written by them.
    pub device_write_bytes: u64,
    /// Device writes that failed.
    pub device_writes_failed: u64,
    /// Batches that went to the device with their flush, in one request.
    pub device_writes_through: u64,
    /// Device reads.
    pub device_reads: u64,
    /// Bytes read by them.
    pub device_read_bytes: u64,
    /// Device reads that failed, of file data and of tree nodes.
    pub device_reads_failed: u64,
    /// Flushes submitted to the device.
    pub flushes_issued: u64,
    /// Requests that shared a flush submitted for another request.
    pub flushes_joined: u64,
    /// Requests that an earlier flush had already covered.
    pub flushes_elided: u64,
    /// Flushes that failed.
    pub flushes_failed: u64,
    /// Device bytes written for each byte of file data; 0 before there is any.
    pub write_amplification: f64,
    /// From request to durable, nanoseconds.
    pub fsync_ns: LatencySummary,
    /// From sealing to completion of all writes, nanoseconds.
    pub write_ns: LatencySummary,
    /// Waiting for others to join the batch, nanoseconds.
    pub gather_ns: LatencySummary,
    /// The flush, nanoseconds.
    pub flush_ns: LatencySummary,
    /// Checkpoints, nanoseconds.
    pub checkpoint_ns: LatencySummary,
    /// Fsyncs that shared a batch.
    pub group_size: LatencySummary,
}

impl Counters {
    /// Counts the contents of freshly sealed batches, filled with this many bulk copies.
    pub(crate) fn sealed(&self, pending: &Pending, batches: &[SealedBatch], copies: u64) {
        let add = |counter: &AtomicU64, more: u64| {
            counter.fetch_add(more, Ordering::Relaxed);
        };
        let counts = pending.counts();
        add(&self.batches, batches.len() as u64);
        add(&self.log_copies, copies);
        add(&self.log_bytes, batches.iter().map(|batch| batch.bytes.len() as u64).sum());
        add(&self.log_puts, counts.puts);
        add(&self.log_deletes, counts.deletes);
        add(&self.log_names, counts.names);
        add(&self.log_frees, counts.frees);
        add(&self.log_coalesced, counts.coalesced);
    }

    /// All counters, with those of the device.
    pub(crate) fn snapshot(&self, device: TrackerCounters) -> CountersSnapshot {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let data_bytes = get(&self.data_bytes);
        CountersSnapshot {
            syncs_elided: get(&self.syncs_elided),
            batches: get(&self.batches),
            log_bytes: get(&self.log_bytes),
            log_copies: get(&self.log_copies),
            log_puts: get(&self.log_puts),
            log_deletes: get(&self.log_deletes),
            log_names: get(&self.log_names),
            log_frees: get(&self.log_frees),
            log_coalesced: get(&self.log_coalesced),
            data_bytes,
            data_bytes_read: get(&self.data_bytes_read),
            checksum_errors: get(&self.checksum_errors),
            checkpoints: get(&self.checkpoints),
            checkpoints_failed: get(&self.checkpoints_failed),
            checkpoints_for_room: get(&self.checkpoints_for_room),
            logs_left: get(&self.logs_left),
            background_flushes: get(&self.background_flushes),
            markers: get(&self.markers),
            discards: get(&self.discards),
            discarded_bytes: get(&self.discarded_bytes),
            discards_failed: get(&self.discards_failed),
            replayed_batches: get(&self.replayed_batches),
            replayed_records: get(&self.replayed_records),
            device_writes: device.writes,
            device_write_bytes: device.write_bytes,
            device_writes_failed: device.writes_failed,
            device_writes_through: device.writes_through,
            device_reads: device.reads,
            device_read_bytes: device.read_bytes,
            device_reads_failed: get(&self.reads_failed),
            flushes_issued: device.flushes_issued,
            flushes_joined: device.flushes_joined,
            flushes_elided: device.flushes_elided,
            flushes_failed: device.flushes_failed,
            write_amplification: match data_bytes {
                0 => 0.0,
                bytes => device.write_bytes as f64 / bytes as f64,
            },
            fsync_ns: self.fsync_latency.summary(),
            write_ns: self.write_latency.summary(),
            gather_ns: self.gather_latency.summary(),
            flush_ns: self.flush_latency.summary(),
            checkpoint_ns: self.checkpoint_latency.summary(),
            group_size: self.group_sizes.summary(),
        }
    }
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
