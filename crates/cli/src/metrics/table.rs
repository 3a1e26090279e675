//! Every metric: its name, unit and meaning, and the number of `stats` that it shows.

use prometheus_client::registry::Unit;
use serde_json::Value;

/// How a number behaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// It only grows while the filesystem is mounted; its name ends in `_total`.
    Counter,
    /// It goes up and down.
    Gauge,
}

/// The unit of a number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Measure {
    /// A count.
    Number,
    /// Bytes; the name ends in `_bytes`.
    Bytes,
    /// Seconds; the name ends in `_seconds`.
    Seconds,
}

impl Measure {
    /// The unit that is appended to the name.
    pub fn unit(self) -> Option<Unit> {
        match self {
            Self::Number => None,
            Self::Bytes => Some(Unit::Bytes),
            Self::Seconds => Some(Unit::Seconds),
        }
    }
}

/// A metric of one number.
pub struct Metric {
    /// Name without unit and `_total`.
    pub name: &'static str,
    pub kind: Kind,
    pub measure: Measure,
    /// One line.
    pub help: &'static str,
    /// Its JSON pointer in `stats --json`.
    pub at: &'static str,
    /// The factor by which the number there is multiplied.
    pub scale: f64,
}

impl Metric {
    /// True for figures that every mount has, and for those of a network and a lease where there is
    /// one.
    pub fn is_told_by(&self, stats: &Value) -> bool {
        let of_some = ["network", "lease"];
        let section = self.at.split('/').nth(1).unwrap_or_default();
        !of_some.contains(&section) || stats[section].is_object()
    }
}

/// A metric that is a distribution.
pub struct Distributed {
    pub name: &'static str,
    pub measure: Measure,
    pub help: &'static str,
    /// Its name among the distributions.
    pub at: &'static str,
    /// How many recorded units make one reported unit.
    pub per_unit: f64,
    /// The first and last power of two, in recorded units, that are reported as bucket ends.
    pub powers: (u32, u32),
}

const fn plain(kind: Kind, name: &'static str, at: &'static str, help: &'static str) -> Metric {
    Metric { name, kind, measure: Measure::Number, help, at, scale: 1.0 }
}

const fn count(name: &'static str, at: &'static str, help: &'static str) -> Metric {
    plain(Kind::Counter, name, at, help)
}

const fn now(name: &'static str, at: &'static str, help: &'static str) -> Metric {
    plain(Kind::Gauge, name, at, help)
}

const fn bytes(of: Metric) -> Metric {
    Metric { measure: Measure::Bytes, ..of }
}

const fn blocks(of: Metric) -> Metric {
    Metric { scale: syncline_format::BLOCK_BYTES as f64, ..bytes(of) }
}

const fn seconds(of: Metric, scale: f64) -> Metric {
    Metric { measure: Measure::Seconds, scale, ..of }
}

/// All metrics of one number.
pub const METRICS: &[Metric] = &[
    // The process.
    seconds(now("uptime", "/process/uptime_ms", "Time since the image was mounted"), 1e-3),
    seconds(count("cpu", "/process/cpu_ms", "Processor time of the daemon"), 1e-3),
    bytes(now("resident_memory", "/process/resident_bytes", "Memory of the daemon")),
    // Recovery, when it was mounted.
    now("recovery_batches", "/recovery/batches", "Log batches replayed when the image was mounted"),
    now("recovery_records", "/recovery/records", "Records in the log batches replayed when it was mounted"),
    bytes(now("recovery_log", "/recovery/log_bytes", "Log read when the image was mounted")),
    now(
        "recovery_verified_batches",
        "/recovery/verified_batches",
        "Replayed batches whose data was verified",
    ),
    now(
        "recovery_discarded_batches",
        "/recovery/discarded_batches",
        "Batches found incomplete, never acknowledged",
    ),
    // Files.
    count("lookups", "/files/lookups", "Names looked up"),
    count("lookups_negative", "/files/lookups_negative", "Names looked up that did not exist"),
    count("created", "/files/created", "Inodes created"),
    count("linked", "/files/linked", "Hard links made"),
    count("unlinked", "/files/unlinked", "Names removed"),
    count("renamed", "/files/renamed", "Renames that changed something"),
    count("inode_hits", "/files/inode_hits", "Inodes found in memory"),
    count("inode_loads", "/files/inode_loads", "Inodes read from the store"),
    count("xattrs_logged", "/files/xattrs_logged", "Extended attributes logged"),
    count("parents_short", "/files/parents_short", "Names of inodes put into the inode item"),
    count("parents_long", "/files/parents_long", "Names of inodes put into items of their own"),
    count("orphans_removed", "/files/orphans_removed", "Inodes without names whose removal ended"),
    bytes(count("written", "/files/written_bytes", "Bytes that callers wrote")),
    bytes(count("read", "/files/read_bytes", "Bytes that callers read")),
    bytes(count(
        "writeback",
        "/files/writeback_bytes",
        "Data written in the background before a transaction named it",
    )),
    bytes(count(
        "submitted",
        "/files/submitted_bytes",
        "Data written in parallel with the batch that names it",
    )),
    bytes(count(
        "stale",
        "/files/stale_bytes",
        "Data written for nothing, its range being truncated or written again meanwhile",
    )),
    count(
        "placed_ahead",
        "/files/placed_ahead",
        "Blocks that a sync had logged and that were placed before another one had to",
    ),
    count(
        "inline_writes",
        "/files/inline_writes",
        "Times that a small file's contents went into its inode item",
    ),
    count(
        "blocks_in_log",
        "/files/blocks_in_log",
        "Blocks of data that a sync logged whole instead of placing them",
    ),
    count(
        "blocks_read_for_write",
        "/files/blocks_read_for_write",
        "Blocks read before a part of them could be changed",
    ),
    count("writes_throttled", "/files/writes_throttled", "Writes that waited for dirty data to become less"),
    count(
        "submissions_short",
        "/files/submissions_short",
        "Submissions after which the log had a smaller size than the file: always zero, or report a bug",
    ),
    count("writeback_errors", "/files/writeback_errors", "Files that could not be written back"),
    count("fsyncs", "/files/fsyncs", "fsyncs of regular files"),
    count("fdatasyncs", "/files/fdatasyncs", "fdatasyncs of regular files"),
    count("barriers", "/files/barriers", "Barriers"),
    count("syncs_ordered", "/files/syncs_ordered", "Syncs of class ordered, which waited for no flush"),
    count(
        "promises_failed",
        "/files/promises_failed",
        "Flushes that syncs of class ordered owed and that failed; tried again",
    ),
    count("taken_along", "/files/taken_along", "Small files logged with the fsync of another"),
    count(
        "shared_lookups",
        "/files/shared_lookups",
        "Times that reference counts of shared blocks were looked up",
    ),
    seconds(
        count(
            "shared_wait",
            "/files/shared_wait_ns",
            "Time that changes of shared blocks waited for each other",
        ),
        1e-9,
    ),
    bytes(count("reflinked", "/files/reflinked_bytes", "Bytes that copies share with their originals")),
    bytes(count(
        "defragmented",
        "/files/defragmented_bytes",
        "Bytes written again so that they lie together",
    )),
    bytes(count("copied", "/files/copied_bytes", "Bytes copied because they could not be shared")),
    bytes(count("packed_in", "/files/packed_bytes_in", "Bytes of units that were compressed")),
    bytes(count("packed_out", "/files/packed_bytes_out", "Bytes that they take on the device")),
    count("units_packed", "/files/units_packed", "Units that were compressed"),
    count(
        "units_unshrunk",
        "/files/units_unshrunk",
        "Units written as they are: they would have saved too little",
    ),
    count("units_unpacked", "/files/units_unpacked", "Compressed units that were read and decoded"),
    bytes(now("dirty", "/files/dirty_bytes", "Dirty data in memory")),
    now("inodes_cached", "/files/inodes_cached", "Inodes in memory"),
    now("inodes_referenced", "/files/inodes_referenced", "Inodes that the kernel knows"),
    // The store.
    count(
        "syncs_elided",
        "/store/syncs_elided",
        "Requests to make something durable that was durable already",
    ),
    count("log_batches", "/store/batches", "Log batches written"),
    bytes(count("log", "/store/log_bytes", "Log written")),
    count("log_copies", "/store/log_copies", "Bulk copies that filled the batches"),
    count("log_puts", "/store/log_puts", "Items set, as they entered the log"),
    count("log_deletes", "/store/log_deletes", "Items removed"),
    count("log_names", "/store/log_names", "Runs of data blocks named"),
    count("log_frees", "/store/log_frees", "Runs of blocks freed"),
    count(
        "log_coalesced",
        "/store/log_coalesced",
        "Items that replaced a pending one instead of being logged after it",
    ),
    bytes(count("data_written", "/store/data_bytes", "File data written to the device")),
    bytes(count("data_read", "/store/data_bytes_read", "File data read from the device")),
    count(
        "checksum_errors",
        "/store/checksum_errors",
        "Blocks and nodes that were not what their checksum says",
    ),
    count("checkpoints", "/store/checkpoints", "Checkpoints that ended well"),
    count("checkpoints_failed", "/store/checkpoints_failed", "Checkpoints that failed"),
    count(
        "checkpoints_for_room",
        "/store/checkpoints_for_room",
        "Checkpoints forced because there was no room",
    ),
    count(
        "background_flushes",
        "/store/background_flushes",
        "Flushes that only bounded the data that is not durable",
    ),
    count("discards", "/store/discards", "Runs of free blocks that the device was told to forget"),
    bytes(count("discarded", "/store/discarded_bytes", "Bytes that the device was told to forget")),
    count("discards_failed", "/store/discards_failed", "Discards that the device refused"),
    count(
        "logs_left",
        "/store/logs_left",
        "Logs left for a new one because a part of the device could not be written",
    ),
    count("log_markers", "/store/markers", "Marker batches written when idle"),
    now("replayed_batches", "/store/replayed_batches", "Batches replayed when the image was opened"),
    now("replayed_records", "/store/replayed_records", "Records replayed when the image was opened"),
    count("device_writes", "/store/device_writes", "Device writes"),
    bytes(count("device_written", "/store/device_write_bytes", "Bytes written to the device")),
    count(
        "device_writes_through",
        "/store/device_writes_through",
        "Batches written and flushed in one request",
    ),
    count("device_writes_failed", "/store/device_writes_failed", "Device writes that failed"),
    count("device_reads", "/store/device_reads", "Device reads"),
    count("device_reads_failed", "/store/device_reads_failed", "Device reads that failed"),
    bytes(count("device_read", "/store/device_read_bytes", "Bytes read from the device")),
    count("flushes_issued", "/store/flushes_issued", "Flushes asked of the device"),
    count("flushes_joined", "/store/flushes_joined", "Requests that shared a flush another had asked for"),
    count("flushes_elided", "/store/flushes_elided", "Requests that an earlier flush had covered"),
    count("flushes_failed", "/store/flushes_failed", "Flushes that failed"),
    // The network, and the device lease.
    now("network_connections", "/network/connections", "Connections to the server; none while it is away"),
    now("network_requests_in_flight", "/network/in_flight", "Requests over the network without an answer"),
    bytes(now(
        "network_in_flight",
        "/network/in_flight_bytes",
        "Bytes of the requests over the network without an answer",
    )),
    bytes(now("network_kept", "/network/kept_bytes", "Bytes written over the network and not flushed yet")),
    count("network_reconnects", "/network/reconnects", "Connections lost and made again"),
    count(
        "network_requests_rewritten",
        "/network/rewritten",
        "Writes and discards that had been answered and were done again after a reconnect",
    ),
    bytes(count("network_rewritten", "/network/rewritten_bytes", "Bytes written again after a reconnect")),
    count("network_reads", "/network/reads", "Reads sent over the network"),
    bytes(count("network_read", "/network/read_bytes", "Bytes read over the network")),
    count("network_writes", "/network/writes", "Writes sent over the network"),
    bytes(count("network_written", "/network/written_bytes", "Bytes written over the network")),
    count(
        "network_durable_writes",
        "/network/durable_writes",
        "Writes that the server made durable before it answered",
    ),
    count("network_discards", "/network/discards", "Discards and zeros sent over the network"),
    count("network_flushes", "/network/flushes", "Flushes sent over the network"),
    count(
        "network_own_flushes",
        "/network/own_flushes",
        "Flushes that only bounded the writes held until one",
    ),
    now("lease_term", "/lease/term", "Number of this holder of the device lease"),
    seconds(now("lease_valid", "/lease/valid_ms", "How long a renewal of the device lease is valid"), 1e-3),
    seconds(now("lease_left", "/lease/left_ms", "How long the device lease is valid still"), 1e-3),
    seconds(now("lease_age", "/lease/age_ms", "Time since the device lease was renewed"), 1e-3),
    count("lease_renewals", "/lease/renewals", "Renewals of the device lease"),
    count("lease_renewals_late", "/lease/late", "Renewals answered when less than half of the time was left"),
    count("lease_renewals_failed", "/lease/failed", "Renewals that the device refused"),
    seconds(now("lease_slowest", "/lease/slowest_ms", "The longest renewal of the device lease"), 1e-3),
    // Memory.
    bytes(now("memtable", "/caches/memtable_bytes", "Changes in memory since the last checkpoint")),
    now("memtable_items", "/caches/memtable_items", "Items that the changes in memory are about"),
    bytes(now("log_pending", "/caches/pending_log_bytes", "Log that is not sealed yet")),
    now("tree_nodes_cached", "/caches/nodes", "Tree nodes in memory"),
    bytes(now("tree_node_cache", "/caches/node_bytes", "Memory that tree nodes take")),
    count("tree_nodes_read", "/caches/nodes_read", "Tree nodes read from the device"),
    count("tree_nodes_written", "/caches/nodes_written", "Tree nodes written to the device"),
    // Scrubs.
    count("scrubs_finished", "/scrub/finished", "Scrubs that came to their end"),
    bytes(count("scrubbed", "/scrub/bytes", "Bytes read by scrubs")),
    count("scrub_findings", "/scrub/damaged", "What scrubs found damaged"),
    // Space.
    blocks(now("space_size", "/space/total_blocks", "Space that can be allocated at all")),
    blocks(now("space_free", "/space/free_blocks", "Space that can be allocated now")),
    blocks(now(
        "space_available",
        "/space/available_blocks",
        "Space that files can get, without reserved space",
    )),
    blocks(now("space_pending_free", "/space/pending_free_blocks", "Space freed or held, not reusable yet")),
    blocks(now("space_named", "/space/named_blocks", "Space that something committed uses")),
];

const fn latency(name: &'static str, at: &'static str, help: &'static str) -> Distributed {
    // From 4 µs to 17 s.
    Distributed { name, measure: Measure::Seconds, help, at, per_unit: 1e9, powers: (12, 34) }
}

/// All distributions.
pub const DISTRIBUTIONS: &[Distributed] = &[
    latency("fsync_duration", "fsync_ns", "Time from asking to durable"),
    latency("log_write_duration", "write_ns", "Time from sealing a batch until it and its data were written"),
    latency("gather_duration", "gather_ns", "Time waited for others to join a batch"),
    latency("flush_duration", "flush_ns", "Time of a flush"),
    latency("checkpoint_duration", "checkpoint_ns", "Time of a checkpoint"),
    latency("network_read_duration", "net_read_ns", "Time of a read over the network"),
    latency("network_write_duration", "net_write_ns", "Time of a write over the network"),
    latency("network_flush_duration", "net_flush_ns", "Time of a flush over the network"),
    Distributed {
        name: "group_size",
        measure: Measure::Number,
        help: "Fsyncs that shared a batch",
        at: "group_size",
        per_unit: 1.0,
        powers: (1, 12),
    },
];

/// Numbers of `stats` that are reported in another way: the process in `mount_info`, ratios by
/// their parts, summaries as distributions. A daemon has no transactions: they are the library's.
#[cfg(test)]
pub const TOLD_OTHERWISE: [&str; 7] = [
    "/daemon/pid",
    "/store/write_amplification",
    "/store/group_size",
    "/files/transactions",
    "/files/atomic_commits",
    "/files/atomic_aborts",
    "/files/atomic_spilled_bytes",
];
