//! The counters of the filesystem.

use std::sync::atomic::{AtomicU64, Ordering};

/// A number that only grows, counted by all threads.
#[derive(Default, Debug)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, by: u64) {
        self.0.fetch_add(by, Ordering::Relaxed);
    }
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// The live counters.
        #[derive(Default, Debug)]
        pub(crate) struct Counters {
            $($(#[$doc])* pub $name: Counter,)*
        }

        /// Figures since the mount, and some that are current.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize)]
        pub struct FsCounters {
            $($(#[$doc])* pub $name: u64,)*
            /// Memory that dirty data takes now.
            pub dirty_bytes: u64,
            /// Inodes in memory now.
            pub inodes_cached: u64,
            /// Inodes that the kernel refers to now.
            pub inodes_referenced: u64,
        }

        impl Counters {
            pub(crate) fn snapshot(&self) -> FsCounters {
                FsCounters { $($name: self.$name.get(),)* ..FsCounters::default() }
            }
        }
    };
}

counters! {
    /// Names looked up.
    lookups,
    /// Names looked up that did not exist.
    lookups_negative,
    /// Inodes created.
    created,
    /// Hard links made.
    linked,
    /// Names removed.
    unlinked,
    /// Renames that changed something.
    renamed,
    /// Inodes found in memory.
    inode_hits,
    /// Inodes read from the store.
    inode_loads,
    /// Extended attributes logged: added, changed, or moved to another place.
    xattrs_logged,
    /// Names of inodes put into the inode item.
    parents_short,
    /// Names of inodes put into items of their own.
    parents_long,
    /// Inodes without names whose removal ended.
    orphans_removed,
    /// Bytes that callers wrote.
    written_bytes,
    /// Bytes that callers read.
    read_bytes,
    /// Data bytes that background write-back wrote before a transaction named them.
    writeback_bytes,
    /// Data bytes that were written in parallel with the batch that names them.
    submitted_bytes,
    /// Data bytes written in vain, because their range was truncated or written again meanwhile.
    stale_bytes,
    /// Blocks that a sync had logged and that were placed in the background, before another sync
    /// had to.
    placed_ahead,
    /// Times that a small file's contents went into its inode item.
    inline_writes,
    /// Blocks of data that a sync logged whole instead of placing them.
    blocks_in_log,
    /// Blocks that had to be read before a part of them could be changed.
    blocks_read_for_write,
    /// Submissions that ended with a logged size behind the real one: always 0 unless there is a
    /// bug.
    submissions_short,
    /// Writes that waited for dirty data to shrink.
    writes_throttled,
    /// Files that could not be written back. One counts again only after it could.
    writeback_errors,
    /// fsyncs of regular files.
    fsyncs,
    /// fdatasyncs of regular files.
    fdatasyncs,
    /// Atomic writes of a file that were committed; each counts as an fdatasync too.
    atomic_commits,
    /// Atomic writes that were taken back.
    atomic_aborts,
    /// Data bytes of atomic writes that went to the device before the commit.
    atomic_spilled_bytes,
    /// Barriers.
    barriers,
    /// Syncs of class `ordered`, which waited for no flush.
    syncs_ordered,
    /// Flushes that syncs of class `ordered` owed and that failed; each is tried again.
    promises_failed,
    /// Transactions of the library that were applied.
    transactions,
    /// Small files that were logged with the fsync of another.
    taken_along,
    /// Times that reference counts of shared blocks were looked up.
    shared_lookups,
    /// Nanoseconds that changes of shared blocks waited for each other.
    shared_wait_ns,
    /// Bytes that copies share with their originals instead of having them twice.
    reflinked_bytes,
    /// Bytes that were found to be equal and are now shared.
    /// Bytes rewritten so that they lie together.
    defragmented_bytes,
    /// Bytes that were copied because they could not be shared.
    copied_bytes,
    /// Bytes of the units that were compressed, before compression.
    packed_bytes_in,
    /// Bytes that these units take on the device.
    packed_bytes_out,
    /// Units that were compressed.
    units_packed,
    /// Units that would have saved too little and were written uncompressed.
    units_unshrunk,
    /// Compressed units that were read and decoded.
    units_unpacked,
}
