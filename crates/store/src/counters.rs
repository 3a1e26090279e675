//! The store's counters (docs/DESIGN.md, "The five mechanisms").

use serde::Serialize;
use syncline_device::TrackerCounters;
use syncline_log::{Pending, SealedBatch};

syncline_counters::counters! {
    /// Live counters.
    #[derive(Default)]
    pub(crate) struct Counters;
    /// All counters at one moment.
    #[derive(Clone, Debug, Default, Serialize)]
    pub struct CountersSnapshot;
    counted {
        /// Requests to make something durable that already was.
        syncs_elided: total("syncs_elided"),
        /// Log batches written.
        batches: total("log_batches"),
        /// Bytes of log written.
        log_bytes: total("log").bytes(),
        /// Bulk copies that filled batches: one per batch.
        log_copies: total("log_copies"),
        /// Items set, as they entered the log.
        log_puts: total("log_puts"),
        /// Items removed, as they entered the log.
        log_deletes: total("log_deletes"),
        /// Runs of data blocks that the log named.
        log_names: total("log_names"),
        /// Runs of blocks that the log freed.
        log_frees: total("log_frees"),
        /// Items that replaced a pending one instead of being logged after it.
        log_coalesced: total("log_coalesced"),
        /// Bytes of file data written.
        data_bytes: total("data_written").bytes(),
        /// Bytes of file data read from the device.
        data_bytes_read: total("data_read").bytes(),
        /// Data blocks and tree nodes that did not match their checksum.
        checksum_errors: total("checksum_errors"),
        /// Damaged copies of metadata that were written again from the other copy.
        copies_mended: total("copies_mended"),
        /// Checkpoints that succeeded.
        checkpoints: total("checkpoints"),
        /// Checkpoints that failed. Their changes are in the log and go into the next checkpoint.
        checkpoints_failed: total("checkpoints_failed"),
        /// Checkpoints forced because there was no room.
        checkpoints_for_room: total("checkpoints_for_room"),
        /// Logs left behind because a part of the device could not be written.
        logs_left: total("logs_left"),
        /// Flushes that only bounded the data that is not durable.
        background_flushes: total("background_flushes"),
        /// Marker batches written when idle.
        markers: total("log_markers"),
        /// Runs of free blocks that the device was told to discard.
        discards: total("discards"),
        /// Bytes that the device was told to discard.
        discarded_bytes: total("discarded").bytes(),
        /// Runs of free blocks whose discard the device refused.
        discards_failed: total("discards_failed"),
        /// Batches replayed when the image was opened.
        replayed_batches: gauge("replayed_batches"),
        /// Records replayed when the image was opened.
        replayed_records: gauge("replayed_records"),
        /// Device reads that failed, of file data and of tree nodes.
        device_reads_failed: total("device_reads_failed"),
    }
    told {
        /// Device writes.
        device_writes: total("device_writes"),
        /// Bytes of device writes.
        device_write_bytes: total("device_written").bytes(),
        /// Device writes that failed.
        device_writes_failed: total("device_writes_failed"),
        /// Batches that went to the device with their flush, in one request.
        device_writes_through: total("device_writes_through"),
        /// Device reads.
        device_reads: total("device_reads"),
        /// Bytes of device reads.
        device_read_bytes: total("device_read").bytes(),
        /// Flushes submitted to the device.
        flushes_issued: total("flushes_issued"),
        /// Requests that shared a flush submitted for another request.
        flushes_joined: total("flushes_joined"),
        /// Requests that an earlier flush had already covered.
        flushes_elided: total("flushes_elided"),
        /// Flushes that failed.
        flushes_failed: total("flushes_failed"),
    }
    recorded {
        /// From request to durable.
        fsync_ns: nanoseconds("fsync_duration"),
        /// From sealing a batch to completion of all its writes.
        write_ns: nanoseconds("log_write_duration"),
        /// Waiting for others to join a batch.
        gather_ns: nanoseconds("gather_duration"),
        /// Duration of a flush.
        flush_ns: nanoseconds("flush_duration"),
        /// Duration of a checkpoint.
        checkpoint_ns: nanoseconds("checkpoint_duration"),
        /// Fsyncs that shared a batch.
        group_size: numbers("group_size"),
    }
    also {
        /// Device bytes written for each byte of file data; 0 before there is any.
        write_amplification: f64,
    }
}

impl Counters {
    /// Counts the contents of freshly sealed batches, filled with this many bulk copies.
    pub(crate) fn sealed(&self, pending: &Pending, batches: &[SealedBatch], copies: u64) {
        let counts = pending.counts();
        self.batches.add(batches.len() as u64);
        self.log_copies.add(copies);
        self.log_bytes.add(batches.iter().map(|batch| batch.bytes.len() as u64).sum());
        self.log_puts.add(counts.puts);
        self.log_deletes.add(counts.deletes);
        self.log_names.add(counts.names);
        self.log_frees.add(counts.frees);
        self.log_coalesced.add(counts.coalesced);
    }

    /// All counters, with those of the device.
    pub(crate) fn snapshot(&self, device: TrackerCounters) -> CountersSnapshot {
        let counts = self.counts();
        CountersSnapshot {
            device_writes: device.writes,
            device_write_bytes: device.write_bytes,
            device_writes_failed: device.writes_failed,
            device_writes_through: device.writes_through,
            device_reads: device.reads,
            device_read_bytes: device.read_bytes,
            flushes_issued: device.flushes_issued,
            flushes_joined: device.flushes_joined,
            flushes_elided: device.flushes_elided,
            flushes_failed: device.flushes_failed,
            write_amplification: match counts.data_bytes {
                0 => 0.0,
                bytes => device.write_bytes as f64 / bytes as f64,
            },
            ..counts
        }
    }
}
