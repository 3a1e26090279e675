//! What went over the network, and how long it took.

use hdrhistogram::Histogram;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// What a device on the network has done since it was opened.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NetCounters {
    /// Requests for a read that were sent.
    pub reads: u64,
    /// Bytes that these asked for.
    pub read_bytes: u64,
    /// Requests for a write that were sent, repetitions included.
    pub writes: u64,
    /// Bytes that these carried.
    pub written_bytes: u64,
    /// Of the writes, those that the server made durable before it answered.
    pub durable_writes: u64,
    /// Requests for a discard or for zeros that were sent.
    pub discards: u64,
    /// Requests for a flush that were sent.
    pub flushes: u64,
    /// Of the flushes, those that nobody asked for: too much was kept.
    pub own_flushes: u64,
    /// Connections that were lost and made again, once for all that belong together.
    pub reconnects: u64,
    /// Writes and discards that had been answered and were done again after a reconnect.
    pub replayed: u64,
    /// Bytes that these carried.
    pub replayed_bytes: u64,
    /// Bytes in memory now that no flush covers.
    pub kept_bytes: u64,
    /// From the call to the answer of a read.
    pub read_latency: Latency,
    /// From the call to the answer of a write.
    pub write_latency: Latency,
    /// From the call to the answer of a flush, or of a write that ends with one.
    pub flush_latency: Latency,
}

/// A distribution of times, accurate to a thousandth.
#[derive(Clone, Debug, PartialEq)]
pub struct Latency(Histogram<u64>);

impl Default for Latency {
    fn default() -> Self {
        Self(Histogram::new(3).expect("three significant digits are allowed"))
    }
}

impl Latency {
    /// How many times were recorded.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// The time that this share (0.0 to 1.0) of all did not exceed.
    pub fn at(&self, quantile: f64) -> Duration {
        Duration::from_nanos(self.0.value_at_quantile(quantile))
    }

    /// The mean.
    pub fn mean(&self) -> Duration {
        Duration::from_nanos(self.0.mean() as u64)
    }

    /// The longest.
    pub fn max(&self) -> Duration {
        Duration::from_nanos(self.0.max())
    }

    fn record(&mut self, time: Duration) {
        // The histogram grows as needed; only a value beyond u64 could be refused.
        let _ = self.0.record(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }
}

/// Times that many threads record.
#[derive(Default)]
pub(crate) struct Recorder(Mutex<Latency>);

impl Recorder {
    pub(crate) fn record(&self, time: Duration) {
        self.0.lock().record(time);
    }
}

/// The counters of a device in use.
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) reads: Count,
    pub(crate) read_bytes: Count,
    pub(crate) writes: Count,
    pub(crate) written_bytes: Count,
    pub(crate) durable_writes: Count,
    pub(crate) discards: Count,
    pub(crate) flushes: Count,
    pub(crate) own_flushes: Count,
    pub(crate) reconnects: Count,
    pub(crate) replayed: Count,
    pub(crate) replayed_bytes: Count,
    pub(crate) read_latency: Recorder,
    pub(crate) write_latency: Recorder,
    pub(crate) flush_latency: Recorder,
}

impl Counters {
    pub(crate) fn snapshot(&self, kept_bytes: u64) -> NetCounters {
        NetCounters {
            reads: self.reads.get(),
            read_bytes: self.read_bytes.get(),
            writes: self.writes.get(),
            written_bytes: self.written_bytes.get(),
            durable_writes: self.durable_writes.get(),
            discards: self.discards.get(),
            flushes: self.flushes.get(),
            own_flushes: self.own_flushes.get(),
            reconnects: self.reconnects.get(),
            replayed: self.replayed.get(),
            replayed_bytes: self.replayed_bytes.get(),
            kept_bytes,
            read_latency: self.read_latency.0.lock().clone(),
            write_latency: self.write_latency.0.lock().clone(),
            flush_latency: self.flush_latency.0.lock().clone(),
        }
    }
}

/// A number that only grows.
#[derive(Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub(crate) fn add(&self, by: u64) {
        self.0.fetch_add(by, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
