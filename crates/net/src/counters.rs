//! Counters and times of the traffic over the network.

use parking_lot::Mutex;
use serde::Serialize;
use std::collections::VecDeque;
use std::time::{Duration, SystemTime};
use syncline_counters::Distributions;

syncline_counters::counters! {
    /// The counters of a device in use.
    #[derive(Default)]
    pub(crate) struct Counters;
    /// Counters of a device on the network, since it was opened.
    #[derive(Clone, Debug, Default, PartialEq, Serialize)]
    pub struct NetCounters;
    beside {
        outages: Mutex<VecDeque<Outage>>,
    }
    counted {
        /// Reads sent over the network.
        reads: total("network_reads"),
        /// Bytes that the reads sent over the network asked for.
        read_bytes: total("network_read").bytes(),
        /// Writes sent over the network, repetitions included.
        writes: total("network_writes"),
        /// Bytes of writes sent over the network.
        written_bytes: total("network_written").bytes(),
        /// Writes that the server made durable before it answered.
        durable_writes: total("network_durable_writes"),
        /// Discards and zeros sent over the network.
        discards: total("network_discards"),
        /// Flushes sent over the network.
        flushes: total("network_flushes"),
        /// Flushes that no caller asked for, because too many writes were held.
        own_flushes: total("network_own_flushes"),
        /// Connections lost and made again, once for all that belong together.
        reconnects: total("network_reconnects"),
        /// Writes and discards that had been answered and were done again after a reconnect.
        rewritten: total("network_requests_rewritten"),
        /// Bytes written again after a reconnect.
        rewritten_bytes: total("network_rewritten").bytes(),
    }
    recorded {
        /// From the call to the answer of a read over the network.
        read_ns: nanoseconds("network_read_duration"),
        /// From the call to the answer of a write over the network.
        write_ns: nanoseconds("network_write_duration"),
        /// From the call to the answer of a flush over the network, or of a write that ends with one.
        flush_ns: nanoseconds("network_flush_duration"),
    }
    also {
        /// The gauges at this moment.
        #[serde(flatten)]
        now: NetGauges,
        /// The last times without a connection that ended with a new one, at most [`OUTAGES_MAX`].
        #[serde(skip)]
        outages: Vec<Outage>,
        /// The distributions behind the summaries.
        #[serde(skip)]
        distributions: Distributions,
    }
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

syncline_counters::figures! {
    /// Gauges: figures of one moment.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
    pub struct NetGauges {
        /// Connections in use; none while the server is away. Ceph's library, which has its own to each
        /// part of the cluster, counts as one.
        connections: gauge("network_connections"),
        /// Requests over the network without an answer.
        in_flight: gauge("network_requests_in_flight"),
        /// Bytes of the requests over the network without an answer.
        in_flight_bytes: gauge("network_in_flight").bytes(),
        /// Bytes written over the network and not flushed yet.
        kept_bytes: gauge("network_kept").bytes(),
    }
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
        let outages = self.outages.lock().iter().copied().collect();
        NetCounters { now, outages, distributions: self.distributions(), ..self.counts() }
    }
}
