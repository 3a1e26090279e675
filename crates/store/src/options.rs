//! The options of an open store.

use crate::Lab;
use std::sync::Arc;
use std::time::Duration;
use syncline_format::{BlockRun, Epoch};

/// Options of an open store; none of them changes the format.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// Write nothing: replay into memory only. Default false.
    pub read_only: bool,
    /// Open for writing although the log ends before what it calls durable, or although the newest
    /// superblock may be lost; accepts the loss. Default false.
    pub accept_damaged_log: bool,
    /// Node cache in bytes. Default 128 MiB.
    pub node_cache_bytes: usize,
    /// Memtable size in bytes that starts a checkpoint. Default 256 MiB, at least 64 KiB.
    pub memtable_bytes: usize,
    /// Age of the oldest change not in the tree that starts a checkpoint. Default 30 s.
    pub checkpoint_interval: Duration,
    /// Bytes of log written since the last checkpoint that start another one. Default 256 MiB,
    /// capped at an eighth of the image.
    pub log_bytes: u64,
    /// Bytes of pending log at which it is sealed in the background. Default 1 MiB.
    pub seal_bytes: usize,
    /// Bytes of pending log at which writers wait until it is sealed. Default 16 MiB, at most 48
    /// MiB.
    pub pending_bytes: usize,
    /// Bytes of log and data written but not flushed at which a background flush starts. They stay
    /// in memory until it succeeds, and writers wait at four times as much. Default 64 MiB.
    pub unflushed_bytes: u64,
    /// How long the device may keep failing, at least three times in a row, before the filesystem
    /// turns read-only. Default 30 s.
    pub patience: Duration,
    /// Discard blocks that become free, in the background. Default false.
    pub discard: bool,
    /// Everything that tests and measurements switch off or break. Default nothing.
    pub lab: Lab,
    /// The log epoch (rule R3). Random, unless a repeatable simulation sets one that was never used
    /// before.
    #[doc(hidden)]
    pub epoch: Option<Epoch>,
    /// The only blocks that may be handed out, ordered by address; of a branch.
    #[doc(hidden)]
    pub only: Option<Arc<[BlockRun]>>,
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
            lab: Lab::default(),
            epoch: None,
            only: None,
        }
    }
}
