//! What opening an image finds.

use syncline_format::BlockAddr;

/// The findings of opening an image.
#[derive(Clone, Debug, Default)]
pub struct RecoveryReport {
    /// The image had been unmounted cleanly.
    pub clean: bool,
    /// Batches replayed.
    pub batches: u64,
    /// Records in these batches.
    pub records: u64,
    /// Log bytes read.
    pub log_bytes: u64,
    /// Batches whose named data was compared with its checksums.
    pub verified_batches: u64,
    /// Batches that were whole but discarded, because they or an earlier batch named data that is
    /// missing. None of them had been acknowledged.
    pub discarded_batches: u64,
    /// Anything else worth reporting.
    pub notes: Vec<String>,
    /// Log records that were left out, which happens only when opening for reading.
    pub ignored: Ignored,
    /// Set if the log ends at a batch whose data can't be read, with the reason. The batch may have
    /// been acknowledged, so only opening for reading, or with
    /// [`crate::StoreOptions::accept_damaged_log`], allows it.
    pub cut: Option<String>,
    /// Something that was synced may be missing, because the log or the newest superblock is
    /// damaged. As with `cut`, most openings are refused then.
    pub incomplete: bool,
}

/// Impossible log records that were left out to get at the rest.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Ignored {
    /// Number of items that have an impossible object number.
    pub items: u64,
    /// The first such object number.
    pub object: Option<u64>,
    /// Number of name records for blocks that the space map already has in use.
    pub names: u64,
    /// The first such block.
    pub block: Option<BlockAddr>,
}
