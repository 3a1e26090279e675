//! The metrics: the figures of each section of `stats`, where their crates define them.

use crate::commands::figures::{Process, Recovery, Space};
use crate::commands::remote::Lease;
use syncline_check::ScrubCounters;
use syncline_counters::{DistributionMetric, Metric};
use syncline_fs::FsCounters;
use syncline_image::{NetCounters, NetGauges};
use syncline_store::{CacheCounters, CountersSnapshot};

/// The sections with metrics, by their keys in `stats`. Some mounts have no network and no lease.
pub const SECTIONS: [(&str, &[Metric]); 10] = [
    ("process", Process::METRICS),
    ("recovery", Recovery::METRICS),
    ("files", FsCounters::METRICS),
    ("store", CountersSnapshot::METRICS),
    ("network", NetCounters::METRICS),
    ("network", NetGauges::METRICS),
    ("lease", Lease::METRICS),
    ("caches", CacheCounters::METRICS),
    ("scrub", ScrubCounters::METRICS),
    ("space", Space::METRICS),
];

/// The distributions, each list with the prefix of its keys in `distributions`.
pub const DISTRIBUTIONS: [(&str, &[DistributionMetric]); 2] =
    [("", CountersSnapshot::DISTRIBUTIONS), (NET, NetCounters::DISTRIBUTIONS)];

/// The prefix of the keys of the network's distributions.
pub const NET: &str = "net_";
