//! Counters and times of the traffic over the network.

use hdrhistogram::Histogram;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

/// Counters of a device on the network, since it was opened.
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
    /// Of the flushes, those that no caller asked for, because too many writes were held.
    pub own_flushes: u64,
    /// Connections that were lost and made again, once for all that belong together.
    pub reconnects: u64,
    /// Writes and discards that had been answered and were done again after a reconnect.
    pub replayed: u64,
    /// Bytes that these carried.
    pub replayed_bytes: u64,
    /// The gauges at this moment.
    pub now: NetGauges,
    /// The last times without a connection that ended with a new one, at most [`OUTAGES_MAX`].
    pub outages: Vec<Outage>,
    /// From the call to the answer of a read.
    pub read_latency: Latency,
    /// From the call to the answer of a write.
    pub write_latency: Latency,
    /// From the call to the answer of a flush, or of a write that ends with one.
    pub flush_latency: Latency,
}

/// A time without a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outage {
    /// When the connection broke.
    pub began: SystemTime,
    /// Until another one could be used.
    pub lasted: Duration,
}

/// How many outages are remembered.
pub const OUTAGES_MAX: usize = 16;

/// Gauges: figures of one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetGauges {
    /// Connections in use; none while the server is away. Ceph's library, which has its own to each
    /// part of the cluster, counts as one.
    pub connections: u64,
    /// Requests that were asked for and are not answered.
    pub in_flight: u64,
    /// Bytes that these carry or ask for.
    pub in_flight_bytes: u64,
    /// Bytes in memory that no flush covers.
    pub kept_bytes: u64,
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

    /// Calls `take` with every recorded time in nanoseconds, ascending, and how often it was.
    pub fn each(&self, mut take: impl FnMut(u64, u64)) {
        for step in self.0.iter_recorded() {
            take(self.0.median_equivalent(step.value_iterated_to()), step.count_at_value());
        }
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
    outages: Mutex<VecDeque<Outage>>,
}

impl Counters {
    /// A new connection is in use; the last one broke so long ago.
    pub(crate) fn reconnected(&self, lasted: Duration) {
        self.reconnects.add(1);
        let mut outages = self.outages.lock();
        if outages.len() == OUTAGES_MAX {
            outages.pop_front();
        }
        outages.push_back(Outage { began: SystemTime::now() - lasted, lasted });
    }

    pub(crate) fn snapshot(&self, now: NetGauges) -> NetCounters {
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
            now,
            outages: self.outages.lock().iter().copied().collect(),
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
