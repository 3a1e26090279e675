//! Rules that a test may break on purpose, to check that the crash laboratory notices.

syncline_rules::rules! {
    /// A deliberately broken rule. `lab/sim/src/searches.rs` says which search must find it.
    #[doc(hidden)]
    pub enum Canary {
        /// Acknowledge without a flush.
        SkipFlush,
        /// Submit the flush before the batch's writes have completed (breaks R1).
        FlushEarly,
        /// Send the flush with the batch although other writes that it must cover are still in flight
        /// (breaks R1).
        ThroughEarly,
        /// Do not compare named data with its checksums at replay.
        SkipDataVerification,
        /// Hand freed blocks out again before the superblock that frees them is durable (breaks R2).
        ReuseEarly,
        /// Replay any batch of the epoch found where the next one should be, whatever its number and
        /// chain value (breaks R3).
        UnchainedBatch,
        /// Replay a batch of another epoch found where the next one should be (breaks R3).
        StaleEpoch,
        /// Do not compare a batch's records with their checksum at replay.
        UncheckedPayload,
        /// Split a transaction across two batches.
        SplitTransaction,
        /// Seal after the freeze what the superblock then skips: freeze and log position are taken at
        /// two different points.
        LogStartsLate,
        /// Write the superblock before a flush covers what it refers to (breaks R1).
        SuperblockEarly,
        /// Let ordinary writers use the reserve, so that a checkpoint or a delete finds no room.
        NoReserve,
        /// Count scattered free blocks as room for nodes, and let data break up the last contiguous
        /// ones.
        ScatteredRoom,
        /// Let a caller join a group after its batch was sealed, and answer it together with that
        /// group.
        LateJoiner,
        /// Let a later flush redeem writes that an earlier flush failed to make durable (breaks R6).
        RedeemFailedFlush,
        /// Treat a failed write of a batch or its data as successful (breaks R5).
        IgnoreFailedWrite,
        /// Release the blocks that a generation freed although its checkpoint failed (breaks R2).
        ReleaseAfterFailure,
        /// Do not compare blocks read with their checksums (breaks P4).
        UncheckedReads,
        /// Rename a file without submitting its data first (breaks P3).
        RenameWithoutData,
        /// Give a file a name by link(2) without submitting its data first (breaks P3).
        LinkWithoutData,
        /// Log the size in memory even if data below it is still dirty.
        SizeAhead,
        /// Log a size that lags one block behind what a submission has named.
        SizeBehind,
        /// Do not list an inode as an orphan when it loses its last name.
        OrphanNotListed,
        /// Keep the orphan item of a file that gets its first name.
        LinkedOrphanStays,
        /// Let an fsync overlook data that background write-back has in flight (breaks P1).
        OverlookWriteback,
        /// Let fdatasync overlook that the file's name is not durable yet.
        OverlookName,
        /// Share blocks without counting the new references, so that the first file to release them
        /// frees what the other uses.
        ShareWithoutCount,
        /// Commit reference counts after the extents that they count, in a transaction of their own.
        CountInOwnTransaction,
        /// Hand out blocks that a new snapshot keeps.
        ForgetSnapshot,
        /// Hand out blocks of a fork that lie in its base.
        TakeBase,
        /// Hand out blocks that only a deleted snapshot kept, before the superblock without it is
        /// durable (breaks R2).
        DropSnapshotEarly,
        /// Discard freed blocks before the superblock that frees them is durable (breaks R2).
        DiscardEarly,
        /// Make a snapshot without writing back the data written before it.
        SnapshotWithoutData,
        /// Let changes begin between committing what a snapshot shows and its cut (breaks P10).
        SnapshotOfTwoMoments,
        /// Leave the change of a quota's usage out of the transaction that causes it.
        OverlookUsage,
        /// Hand out the new blocks of a growing image before a superblock tells of them.
        GrowEarly,
        /// Let an idle log take a segment and forget it.
        IdleSegment,
        /// Let the pending log grow without bound while a flush is under way.
        UnboundedPending,
        /// Repeat a failed write although somebody else has repeated it since and its blocks may belong
        /// to others (breaks R2).
        LateRetry,
        /// Log changes again after a failed superblock write, although that superblock may hold them.
        SealAfterSuperblock,
        /// Let a single block tell where the log's next segment is, and take its loss for the end of
        /// the log.
        LeadOnce,
        /// Refuse to read an image whose space map is damaged, although reading needs no space map.
        MapToRead,
        /// Name blocks that were placed ahead of a sync although they were written again since.
        PlaceStale,
        /// Of the blocks in flight that truncations made dirty again, remember only the last.
        ForgetRecalled,
        /// Answer a sync of class `ordered` without fixing an order.
        OrderedWithoutOrder,
        /// Never begin the flush that a sync of class `ordered` owes.
        PromiseForgotten,
        /// Seal in the middle of a transaction of the library.
        TransactionTorn,
        /// Keep a part of a stream that says it has a record which it does not have.
        PartAhead,
        /// Tell of a file the size that the log has, though it has another one in memory.
        StaleSize,
        /// Leave the newest of the files in a directory out of its listings.
        StaleListing,
        /// Let submissions of file data end within an aligned page (breaks P9).
        PageCut,
    }
}
