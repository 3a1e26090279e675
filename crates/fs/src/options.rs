//! Mount options.

use crate::clock::{Clock, SystemClock};
use std::sync::Arc;
use std::time::Duration;
use syncline_format::items::durability::Durability;
use syncline_format::items::extent::Algorithm;

/// When reads change the access time. The new time is logged like dirty data: when it is
/// `writeback_age` old, with an fsync of the inode, and at unmount.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum AccessTime {
    /// Only when a caller sets it.
    Never,
    /// When it is not later than the last change, or a day old.
    #[default]
    Relative,
    /// With every read that the kernel's page cache does not answer.
    Always,
}

/// Mount options; every one has a suitable default.
#[derive(Clone)]
pub struct Options {
    /// Most dirty bytes in memory before writers wait. Default 256 MiB; at least 1 MiB.
    pub dirty_bytes_max: u64,
    /// Dirty bytes at which background write-back starts. Default 32 MiB; at most
    /// `dirty_bytes_max`.
    pub writeback_start_bytes: u64,
    /// Age at which dirty data is written back. Default 5 s.
    pub writeback_age: Duration,
    /// Number of blocks of a file, logged whole by syncs, at which they are placed in the background.
    /// With syncs of more than two blocks it is the blocks of half so many syncs. Default 16. Above
    /// 192 this never happens: a sync that would log more places them itself.
    pub place_ahead_blocks: u64,
    /// Blocks that write-back writes and then names at a time, in one file, or as many more as the last
    /// aligned 64 KiB has, and that an operation which needs a file without dirty data names in one
    /// transaction. Default 4096; for compressed files 1024.
    pub round_blocks: u64,
    /// Dirty blocks that a sync writes in parallel with the batch that names them, or as many more as
    /// the first aligned 64 KiB has; all others are written before it, in rounds. Default 256.
    pub parallel_blocks: u64,
    /// Extents that a truncation, a removal, a clearing or a preallocation changes in one
    /// transaction, and, up to 256, that write-back names in one; more take several. Default 8192, about
    /// a third of a megabyte in the log.
    pub extents_at_once: usize,
    /// Most bytes of cached blocks that were written in parts, which the kernel's page cache does
    /// not have. Default 64 MiB.
    pub kept_bytes_max: u64,
    /// Unused inodes kept in memory. Default 65536.
    pub cached_inodes_max: usize,
    /// The clock. Default: the system's.
    pub clock: Arc<dyn Clock>,
    /// When reads change the access time. Default: relative.
    pub access_time: AccessTime,
    /// Whether directories have access times, too. Default: yes.
    pub directory_access_time: bool,
    /// Compression of new files whose directory does not ask for any. Default: none.
    pub compression: Option<Algorithm>,
    /// Durability class of files and directories that have none of their own. Default: fsync.
    pub durability: Durability,
    /// Number of receipts kept. Default 4096, about 2 MiB when full; 0 for none.
    pub receipts_max: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            dirty_bytes_max: 256 << 20,
            writeback_start_bytes: 32 << 20,
            writeback_age: Duration::from_secs(5),
            place_ahead_blocks: 16,
            round_blocks: 4096,
            parallel_blocks: 256,
            extents_at_once: 8192,
            kept_bytes_max: 64 << 20,
            cached_inodes_max: 65536,
            clock: Arc::new(SystemClock),
            access_time: AccessTime::default(),
            directory_access_time: true,
            compression: None,
            durability: Durability::default(),
            receipts_max: 4096,
        }
    }
}
