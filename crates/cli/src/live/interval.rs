//! The activity between two samples.

use super::Sample;
use serde::Serialize;
use syncline_counters::Distribution;

/// Figures of an interval; times are in microseconds.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Interval {
    /// How long it was.
    pub seconds: f64,
    /// Calls that make something durable.
    pub syncs: Syncs,
    /// Flushes of the device's cache, by how the request for one was met.
    pub flushes: Flushes,
    /// Times, and sizes of groups.
    pub spreads: Spreads,
    /// The log, and merging into the tree.
    pub log: Log,
    /// The device, and data in flight.
    pub device: Device,
    /// Memory in use at the end.
    pub memory: Memory,
    /// The network, if the image is on one.
    pub network: Option<Network>,
    /// The device lease, if the image has one.
    pub lease: Option<Lease>,
    /// Requests per second by kind, the most frequent first.
    pub requests: Vec<(String, f64)>,
}

/// Calls per second.
#[derive(Clone, Copy, Debug, Default, Serialize)]
#[allow(missing_docs)] // They say what they are.
pub struct Syncs {
    pub fsyncs_per_second: f64,
    pub fdatasyncs_per_second: f64,
    pub directory_fsyncs_per_second: f64,
    pub ordered_per_second: f64,
}

/// Flushes per second.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Flushes {
    /// Issued to the device.
    pub issued_per_second: f64,
    /// Not needed: another caller's flush was shared.
    pub joined_per_second: f64,
    /// Not needed: an earlier flush covered everything.
    pub elided_per_second: f64,
    /// Failed, in total since the mount.
    pub failed: u64,
}

/// Distributions of the interval.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Spreads {
    /// From request to durable.
    pub fsync_us: Spread,
    /// Waiting for others to join the batch.
    pub gather_us: Spread,
    /// From sealing to all writes complete.
    pub write_us: Spread,
    /// The flush.
    pub flush_us: Spread,
    /// Checkpoints.
    pub checkpoint_us: Spread,
    /// Fsyncs that shared a batch.
    pub group_size: Spread,
}

/// A distribution in a few numbers, each accurate to an eighth.
#[derive(Clone, Copy, Debug, Default, Serialize)]
#[allow(missing_docs)] // They say what they are.
pub struct Spread {
    pub count: u64,
    pub mean: f64,
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    pub p999: f64,
    pub max: f64,
}

/// Log and checkpoints.
#[derive(Clone, Copy, Debug, Default, Serialize)]
#[allow(missing_docs)] // They say what they are.
pub struct Log {
    pub batches_per_second: f64,
    pub bytes_per_second: f64,
    pub items_per_second: f64,
    pub coalesced_per_second: f64,
    /// In total since the mount.
    pub checkpoints: u64,
    pub checkpoints_per_second: f64,
    /// Flushes that only bound the data that is not durable.
    pub background_flushes_per_second: f64,
    pub nodes_written_per_second: f64,
}

/// The device.
#[derive(Clone, Copy, Debug, Default, Serialize)]
#[allow(missing_docs)] // They say what they are.
pub struct Device {
    pub writes_per_second: f64,
    pub write_bytes_per_second: f64,
    pub reads_per_second: f64,
    pub read_bytes_per_second: f64,
    /// File data that callers wrote.
    pub written_bytes_per_second: f64,
    pub data_bytes_per_second: f64,
    /// Device bytes for each byte of file data; `None` if there was no data.
    pub write_amplification: Option<f64>,
    /// Device bytes for each byte of file data since the mount.
    pub write_amplification_since_mount: f64,
}

/// Memory.
#[derive(Clone, Copy, Debug, Default, Serialize)]
#[allow(missing_docs)] // They say what they are.
pub struct Memory {
    pub resident_bytes: u64,
    pub dirty_bytes: u64,
    pub memtable_bytes: u64,
    pub pending_log_bytes: u64,
    pub node_cache_bytes: u64,
    pub nodes_read_per_second: f64,
    pub inodes_cached: u64,
    /// Fraction of inode lookups that needed no read.
    pub inode_hit_ratio: Option<f64>,
    /// Processor time of the daemon per second.
    pub cpu_seconds_per_second: f64,
}

/// The network. Counts are since the mount, times those of the interval.
#[derive(Clone, Copy, Debug, Default, Serialize)]
#[allow(missing_docs)] // They say what they are.
pub struct Network {
    pub connections: u64,
    pub reconnects: u64,
    pub rewritten_bytes: u64,
    pub in_flight_bytes: u64,
    /// Written, and covered by no flush.
    pub kept_bytes: u64,
    pub read_us: Spread,
    pub write_us: Spread,
    pub flush_us: Spread,
}

/// The device lease at the end.
#[derive(Clone, Copy, Debug, Default, Serialize)]
#[allow(missing_docs)] // They say what they are.
pub struct Lease {
    pub lost: bool,
    pub left_seconds: f64,
    pub age_seconds: f64,
}

impl Interval {
    /// The interval between two samples of one daemon.
    pub fn between(earlier: &Sample, later: &Sample) -> Self {
        let rates = Rates::new(earlier, later);
        Self {
            seconds: rates.seconds,
            syncs: rates.syncs(),
            flushes: rates.flushes(),
            spreads: rates.spreads(),
            log: rates.log(),
            device: rates.device(),
            memory: rates.memory(),
            network: rates.network(),
            lease: rates.lease(),
            requests: rates.requests(),
        }
    }
}

struct Rates<'a> {
    earlier: &'a Sample,
    later: &'a Sample,
    seconds: f64,
}

impl<'a> Rates<'a> {
    fn new(earlier: &'a Sample, later: &'a Sample) -> Self {
        let seconds = later.taken.saturating_duration_since(earlier.taken).as_secs_f64().max(1e-6);
        Self { earlier, later, seconds }
    }

    fn more(&self, pointer: &str) -> u64 {
        self.later.number(pointer).saturating_sub(self.earlier.number(pointer))
    }

    fn rate(&self, pointer: &str) -> f64 {
        self.more(pointer) as f64 / self.seconds
    }

    fn syncs(&self) -> Syncs {
        Syncs {
            fsyncs_per_second: self.rate("/files/fsyncs"),
            fdatasyncs_per_second: self.rate("/files/fdatasyncs"),
            directory_fsyncs_per_second: self.rate("/requests/FSyncDir"),
            ordered_per_second: self.rate("/files/syncs_ordered"),
        }
    }

    fn flushes(&self) -> Flushes {
        Flushes {
            issued_per_second: self.rate("/store/flushes_issued"),
            joined_per_second: self.rate("/store/flushes_joined"),
            elided_per_second: self.rate("/store/flushes_elided") + self.rate("/store/syncs_elided"),
            failed: self.later.number("/store/flushes_failed"),
        }
    }

    fn spread(&self, name: &str, unit: f64) -> Spread {
        let later = self.later.distributions.get(name).cloned().unwrap_or_default();
        let earlier = self.earlier.distributions.get(name).cloned().unwrap_or_default();
        Spread::of(&later.since(&earlier), unit)
    }

    fn spreads(&self) -> Spreads {
        let spread = |name: &str, unit: f64| self.spread(name, unit);
        Spreads {
            fsync_us: spread("fsync_ns", 1000.0),
            gather_us: spread("gather_ns", 1000.0),
            write_us: spread("write_ns", 1000.0),
            flush_us: spread("flush_ns", 1000.0),
            checkpoint_us: spread("checkpoint_ns", 1000.0),
            group_size: spread("group_size", 1.0),
        }
    }

    fn log(&self) -> Log {
        Log {
            batches_per_second: self.rate("/store/batches"),
            bytes_per_second: self.rate("/store/log_bytes"),
            items_per_second: self.rate("/store/log_puts") + self.rate("/store/log_deletes"),
            coalesced_per_second: self.rate("/store/log_coalesced"),
            checkpoints: self.later.number("/store/checkpoints"),
            checkpoints_per_second: self.rate("/store/checkpoints"),
            background_flushes_per_second: self.rate("/store/background_flushes"),
            nodes_written_per_second: self.rate("/caches/nodes_written"),
        }
    }

    fn device(&self) -> Device {
        let ratio = |of: f64, to: u64| (to > 0).then(|| of / to as f64);
        let (written, data) = (self.more("/store/device_write_bytes"), self.more("/store/data_bytes"));
        let since_mount = ratio(
            self.later.number("/store/device_write_bytes") as f64,
            self.later.number("/store/data_bytes"),
        );
        Device {
            writes_per_second: self.rate("/store/device_writes"),
            write_bytes_per_second: self.rate("/store/device_write_bytes"),
            reads_per_second: self.rate("/store/device_reads"),
            read_bytes_per_second: self.rate("/store/device_read_bytes"),
            written_bytes_per_second: self.rate("/files/written_bytes"),
            data_bytes_per_second: self.rate("/store/data_bytes"),
            write_amplification: ratio(written as f64, data),
            write_amplification_since_mount: since_mount.unwrap_or(0.0),
        }
    }

    fn memory(&self) -> Memory {
        let (hits, loads) = (self.more("/files/inode_hits"), self.more("/files/inode_loads"));
        let now = |pointer: &str| self.later.number(pointer);
        Memory {
            resident_bytes: now("/process/resident_bytes"),
            dirty_bytes: now("/files/dirty_bytes"),
            memtable_bytes: now("/caches/memtable_bytes"),
            pending_log_bytes: now("/caches/pending_log_bytes"),
            node_cache_bytes: now("/caches/node_bytes"),
            nodes_read_per_second: self.rate("/caches/nodes_read"),
            inodes_cached: now("/files/inodes_cached"),
            inode_hit_ratio: (hits + loads > 0).then(|| hits as f64 / (hits + loads) as f64),
            cpu_seconds_per_second: self.rate("/process/cpu_ms") / 1000.0,
        }
    }

    fn network(&self) -> Option<Network> {
        let now = |name: &str| self.later.number(&format!("/network/{name}"));
        self.later.stats["network"].is_object().then(|| Network {
            connections: now("connections"),
            reconnects: now("reconnects"),
            rewritten_bytes: now("rewritten_bytes"),
            in_flight_bytes: now("in_flight_bytes"),
            kept_bytes: now("kept_bytes"),
            read_us: self.spread("net_read_ns", 1000.0),
            write_us: self.spread("net_write_ns", 1000.0),
            flush_us: self.spread("net_flush_ns", 1000.0),
        })
    }

    fn lease(&self) -> Option<Lease> {
        let seconds = |name: &str| self.later.number(&format!("/lease/{name}")) as f64 / 1000.0;
        self.later.stats["lease"].is_object().then(|| Lease {
            lost: self.later.text("/lease/state") == "lost",
            left_seconds: seconds("left_ms"),
            age_seconds: seconds("age_ms"),
        })
    }

    fn requests(&self) -> Vec<(String, f64)> {
        let kinds = self.later.stats["requests"].as_object();
        let rates = kinds.into_iter().flatten();
        let rates = rates.map(|(kind, _)| (kind.clone(), self.rate(&format!("/requests/{kind}"))));
        let mut rates: Vec<_> = rates.filter(|(_, rate)| *rate > 0.0).collect();
        rates.sort_by(|(_, a), (_, b)| b.total_cmp(a));
        rates
    }
}

impl Spread {
    fn of(distribution: &Distribution, unit: f64) -> Self {
        let at = |part| distribution.quantile(part) / unit;
        Self {
            count: distribution.count(),
            mean: distribution.mean() / unit,
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            max: at(1.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    fn sample(at: Instant, fsyncs: u64, data: u64, fast: u64) -> Sample {
        let buckets = vec![(1000, 1001, 100), (16384, 18432, fast)];
        let distribution = Distribution { sum: 100_000.0 + fast as f64 * 17000.0, buckets };
        Sample {
            stats: serde_json::json!({
                "files": { "fsyncs": fsyncs },
                "store": { "data_bytes": data, "device_write_bytes": 2 * data + 4096, "syncs_elided": 3 * fsyncs,
                    "flushes_elided": fsyncs },
                "requests": { "FSync": fsyncs, "Lookup": 7, "Write": 3 * fsyncs },
            }),
            distributions: [("fsync_ns".to_owned(), distribution)].into(),
            taken: at,
        }
    }

    #[test]
    fn rates_are_those_of_the_interval() {
        let start = Instant::now();
        let earlier = sample(start, 100, 1 << 20, 0);
        let later = sample(start + Duration::from_secs(2), 300, 3 << 20, 50);
        let interval = Interval::between(&earlier, &later);
        assert_eq!(interval.seconds, 2.0);
        assert_eq!(interval.syncs.fsyncs_per_second, 100.0);
        assert_eq!(interval.flushes.elided_per_second, 400.0);
        assert_eq!(interval.device.write_amplification, Some(2.0));
        let fsync = interval.spreads.fsync_us;
        assert_eq!((fsync.count, fsync.mean), (50, 17.0), "what came before does not count");
        assert!(fsync.p50 > 16.3 && fsync.max < 18.5, "{fsync:?}");
        let requests = [("Write".to_owned(), 300.0), ("FSync".to_owned(), 100.0)];
        assert_eq!(interval.requests, requests, "the most frequent first, and none that did not come");
    }

    #[test]
    fn without_data_there_is_no_ratio() {
        let at = Instant::now();
        let one = sample(at, 1, 5, 5);
        let interval = Interval::between(&one, &one);
        assert_eq!(interval.device.write_amplification, None);
        assert_eq!(interval.memory.inode_hit_ratio, None);
        assert_eq!(interval.spreads.fsync_us.count, 0);
        assert!(interval.requests.is_empty());
    }
}
