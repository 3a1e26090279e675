//! The counters of the filesystem.

syncline_counters::counters! {
    /// The live counters.
    #[derive(Default, Debug)]
    pub(crate) struct Counters;
    /// Figures since the mount, and some that are current.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize)]
    pub struct FsCounters;
    counted {
        /// Names looked up.
        lookups: total("lookups"),
        /// Names looked up that did not exist.
        lookups_negative: total("lookups_negative"),
        /// Inodes created.
        created: total("created"),
        /// Hard links made.
        linked: total("linked"),
        /// Names removed.
        unlinked: total("unlinked"),
        /// Renames that changed something.
        renamed: total("renamed"),
        /// Inodes found in memory.
        inode_hits: total("inode_hits"),
        /// Inodes read from the store.
        inode_loads: total("inode_loads"),
        /// Extended attributes logged: added, changed, or moved to another place.
        xattrs_logged: total("xattrs_logged"),
        /// Names of inodes put into the inode item.
        parents_short: total("parents_short"),
        /// Names of inodes put into items of their own.
        parents_long: total("parents_long"),
        /// Inodes without names whose removal ended.
        orphans_removed: total("orphans_removed"),
        /// Bytes that callers wrote.
        written_bytes: total("written").bytes(),
        /// Bytes that callers read.
        read_bytes: total("read").bytes(),
        /// Data bytes that background write-back wrote before a transaction named them.
        writeback_bytes: total("writeback").bytes(),
        /// Data bytes that were written in parallel with the batch that names them.
        submitted_bytes: total("submitted").bytes(),
        /// Data bytes written in vain, because their range was truncated or written again meanwhile.
        stale_bytes: total("stale").bytes(),
        /// Blocks that a sync had logged and that were placed in the background, before another sync
        /// had to.
        placed_ahead: total("placed_ahead"),
        /// Times that a small file's contents went into its inode item.
        inline_writes: total("inline_writes"),
        /// Blocks of data that a sync logged whole instead of placing them.
        blocks_in_log: total("blocks_in_log"),
        /// Blocks that had to be read before a part of them could be changed.
        blocks_read_for_write: total("blocks_read_for_write"),
        /// Submissions that ended with a logged size behind the real one: always 0 unless there is a
        /// bug.
        submissions_short: total("submissions_short"),
        /// Writes that waited for dirty data to shrink.
        writes_throttled: total("writes_throttled"),
        /// Files that could not be written back. One counts again only after it could.
        writeback_errors: total("writeback_errors"),
        /// fsyncs of regular files.
        fsyncs: total("fsyncs"),
        /// fdatasyncs of regular files.
        fdatasyncs: total("fdatasyncs"),
        /// Barriers.
        barriers: total("barriers"),
        /// Syncs of class `ordered`, which waited for no flush.
        syncs_ordered: total("syncs_ordered"),
        /// Flushes that syncs of class `ordered` owed and that failed; each is tried again.
        promises_failed: total("promises_failed"),
        /// Transactions of the library that were applied.
        transactions: no_metric(),
        /// Small files that were logged with the fsync of another.
        taken_along: total("taken_along"),
        /// Times that reference counts of shared blocks were looked up.
        shared_lookups: total("shared_lookups"),
        /// Time that changes of shared blocks waited for each other.
        shared_wait_ns: total("shared_wait").nanoseconds(),
        /// Bytes that copies share with their originals instead of having them twice.
        reflinked_bytes: total("reflinked").bytes(),
        /// Bytes rewritten so that they lie together.
        defragmented_bytes: total("defragmented").bytes(),
        /// Bytes that were copied because they could not be shared.
        copied_bytes: total("copied").bytes(),
        /// Bytes of the units that were compressed, before compression.
        packed_bytes_in: total("packed_in").bytes(),
        /// Bytes that compressed units take on the device.
        packed_bytes_out: total("packed_out").bytes(),
        /// Units that were compressed.
        units_packed: total("units_packed"),
        /// Units that would have saved too little and were written uncompressed.
        units_unshrunk: total("units_unshrunk"),
        /// Compressed units that were read and decoded.
        units_unpacked: total("units_unpacked"),
    }
    told {
        /// Memory that dirty data takes now.
        dirty_bytes: gauge("dirty").bytes(),
        /// Inodes in memory now.
        inodes_cached: gauge("inodes_cached"),
        /// Inodes that the kernel refers to now.
        inodes_referenced: gauge("inodes_referenced"),
    }
}
