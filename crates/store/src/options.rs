//! What can be chosen when a store is opened.

use crate::{Ablations, Canary, GiveWay};
use std::time::Duration;
use syncline_format::Epoch;

/// Options of an open store; none of them changes the format.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// Write nothing: replay into memory only. Default false.
    pub read_only: bool,
    /// Open for writing although the log ends before what it calls durable, or the newest superblock may be gone, accepting the loss.
    /// Default false.
    pub accept_damaged_log: bool,
    /// Node cache in bytes. Default 128 MiB.
    pub node_cache_bytes: usize,
    /// Memtable size in bytes that starts a checkpoint. Default 256 MiB, at least 64 KiB.
    pub memtable_bytes: usize,
    /// Age of the oldest change not in the tree that starts a checkpoint. Default 30 s.
    pub checkpoint_interval: Duration,
    /// Log written since the last checkpoint that starts another, in bytes. Default 256 MiB; at most an eighth of the image counts.
    pub log_bytes: u64,
    /// Pending log that is sealed in the background, in bytes. Default 1 MiB.
    pub seal_bytes: usize,
    /// Pending log at which writers wait until it is sealed, in bytes. Default 16 MiB, at most 48 MiB.
    pub pending_bytes: usize,
    /// Log and data bytes written but not flushed that start a background flush; they stay in memory until then, and
    /// writers wait at four times as much. Default 64 MiB.
    pub unflushed_bytes: u64,
    /// How long the device may fail, three times at least, before the filesystem turns read-only. Default 30 s.
    pub patience: Duration,
    /// Discard what becomes free, in the background. Default false.
    pub discard: bool,
    /// Mechanisms that are switched off, for measurements. Default none.
    pub ablations: Ablations,
    /// A deliberately broken rule, for tests of the tests.
    #[doc(hidden)]
    pub canary: Option<Canary>,
    /// Lets others go first between two steps, for tests.
    #[doc(hidden)]
    pub give_way: GiveWay,
    /// The log epoch (rule R3). Random unless a simulation, whose runs can be repeated, names one never used before.
    #[doc(hidden)]
    pub epoch: Option<Epoch>,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            read_only: false,
            accept_damaged_log: false,
            node_cache_bytes: 128 << 20,
            memtable_bytes: 256 << 20,
            checkpoint_interval: Duration::from_secs(30),
            log_bytes: 256 << 20,
            seal_bytes: 1 << 20,
            pending_bytes: 16 << 20,
            unflushed_bytes: 64 << 20,
            patience: Duration::from_secs(30),
            discard: false,
            ablations: Ablations::default(),
            canary: None,
            give_way: GiveWay::default(),
            epoch: None,
        }
    }
}
