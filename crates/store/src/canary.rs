//! Rules that a test may break on purpose, to see that the crash laboratory notices.
//!
//! They are part of every build, behind one comparison each on ways that lead to the device. A cargo feature would promise more than
//! it keeps: the program itself depends on the laboratory (`syncline demo`), so cargo would turn the feature on
//! for everything that is built together, and what is tested should be what is shipped.

use crate::Store;
use std::fmt;
use std::str::FromStr;

/// A deliberately broken rule.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[doc(hidden)]
pub enum Canary {
    /// Acknowledge without a flush.
    SkipFlush,
    /// Submit the flush before the batch's writes have completed (breaks R1).
    FlushEarly,
    /// Let the flush go with the batch although other writes that it must cover are on their way (breaks R1).
    ThroughEarly,
    /// Do not compare named data with its checksums at replay.
    SkipDataVerification,
    /// Hand freed blocks out again before the superblock that frees them is durable (breaks R2).
    ReuseEarly,
    /// Replay any batch of the epoch that lies where the next one should, whatever its number and chain value (breaks R3).
    UnchainedBatch,
    /// Replay a batch of another epoch that lies where the next one should (breaks R3).
    StaleEpoch,
    /// Do not compare a batch's records with their checksum at replay.
    UncheckedPayload,
    /// Log a transaction in two halves, in two batches.
    SplitTransaction,
    /// Seal after a freeze what the superblock then skips: freeze and log position are two cuts.
    LogStartsLate,
    /// Write the superblock before what it refers to was flushed (breaks R1).
    SuperblockEarly,
    /// Let ordinary writers have the reserve, so that a checkpoint or a delete finds no room.
    NoReserve,
    /// Count free blocks that lie apart as room for nodes, and let data break up the last ones that lie together.
    ScatteredRoom,
    /// Answer whoever joins a group after its batch was sealed together with that group.
    LateJoiner,
    /// Let a later flush redeem what an earlier one failed to make durable (breaks R6).
    RedeemFailedFlush,
    /// Take a failed write of a batch or its data for done (breaks R5).
    IgnoreFailedWrite,
    /// Release what a generation freed although its checkpoint failed (breaks R2).
    ReleaseAfterFailure,
    /// Do not compare blocks read with their checksums (breaks P4).
    UncheckedReads,
    /// Rename a file without submitting its data first (breaks P3).
    RenameWithoutData,
    /// Log the size in memory whatever is still dirty below it.
    SizeAhead,
    /// Log a size that is a block behind what a submission has named.
    SizeBehind,
    /// Do not list an inode that loses its last name as an orphan.
    OrphanNotListed,
    /// Leave the orphan item of a file that gets its first name.
    LinkedOrphanStays,
    /// Let an fsync overlook data that background write-back has on its way (breaks P1).
    OverlookWriteback,
    /// Let fdatasync overlook that the file's name was never durable.
    OverlookName,
    /// Take over blocks without counting the new references, so that the first side to go frees what the other uses.
    ShareWithoutCount,
    /// Commit reference counts after the extents that they count, in a transaction of their own.
    CountInOwnTransaction,
    /// Hand out what a new snapshot keeps.
    ForgetSnapshot,
    /// Hand out what only a deleted snapshot kept before the superblock that lacks it is durable (breaks R2).
    DropSnapshotEarly,
    /// Discard what was freed before the superblock that frees it is durable (breaks R2).
    DiscardEarly,
    /// Make a snapshot without writing back what was written before.
    SnapshotWithoutData,
    /// Leave what a transaction does to the usage of a quota out of it.
    OverlookUsage,
    /// Hand out what a growing image gets before a superblock tells of it.
    GrowEarly,
    /// Let an idle log take a segment and forget it.
    IdleSegment,
    /// Let the pending log grow without bound while a flush is under way.
    UnboundedPending,
    /// Repeat a failed write although somebody else has done so since and its blocks may belong to others (breaks R2).
    LateRetry,
    /// Log again what a superblock may hold that could not be written for sure.
    SealAfterSuperblock,
    /// Let one block tell where the next segment of the log is, and believe at its end that there is none.
    LeadOnce,
    /// Let nobody read whose space map is damaged, although it takes none to read.
    MapToRead,
    /// Name what was placed ahead of a sync although it was written again since.
    PlaceStale,
    /// Take a submission for ended although a truncation has put back the size that it had to log.
    TruncateBehind,
    /// Remember of the blocks in flight that truncations made dirty again only the last.
    ForgetRecalled,
}

impl Canary {
    /// All of them.
    pub const ALL: [Self; 42] = [
        Self::SkipFlush,
        Self::FlushEarly,
        Self::ThroughEarly,
        Self::SkipDataVerification,
        Self::ReuseEarly,
        Self::UnchainedBatch,
        Self::StaleEpoch,
        Self::UncheckedPayload,
        Self::SplitTransaction,
        Self::LogStartsLate,
        Self::SuperblockEarly,
        Self::NoReserve,
        Self::ScatteredRoom,
        Self::LateJoiner,
        Self::RedeemFailedFlush,
        Self::IgnoreFailedWrite,
        Self::ReleaseAfterFailure,
        Self::UncheckedReads,
        Self::RenameWithoutData,
        Self::SizeAhead,
        Self::SizeBehind,
        Self::OrphanNotListed,
        Self::LinkedOrphanStays,
        Self::OverlookWriteback,
        Self::OverlookName,
        Self::ShareWithoutCount,
        Self::CountInOwnTransaction,
        Self::ForgetSnapshot,
        Self::DropSnapshotEarly,
        Self::DiscardEarly,
        Self::SnapshotWithoutData,
        Self::OverlookUsage,
        Self::GrowEarly,
        Self::IdleSegment,
        Self::UnboundedPending,
        Self::LateRetry,
        Self::SealAfterSuperblock,
        Self::LeadOnce,
        Self::MapToRead,
        Self::PlaceStale,
        Self::TruncateBehind,
        Self::ForgetRecalled,
    ];

    /// Its name: the variant's, in small letters with dashes.
    pub fn name(self) -> String {
        let mut name = String::new();
        for letter in format!("{self:?}").chars() {
            if letter.is_ascii_uppercase() && !name.is_empty() {
                name.push('-');
            }
            name.push(letter.to_ascii_lowercase());
        }
        name
    }
}

impl fmt::Display for Canary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())
    }
}

impl FromStr for Canary {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|canary| canary.name() == text);
        found.ok_or_else(|| format!("no canary is called '{text}'"))
    }
}

impl Store {
    /// True when this rule is to be broken.
    #[doc(hidden)]
    pub fn breaks(&self, rule: Canary) -> bool {
        self.options.canary == Some(rule)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_back_to_what_they_name() {
        for canary in Canary::ALL {
            assert_eq!(canary.name().parse(), Ok(canary));
        }
        assert_eq!(Canary::SkipDataVerification.name(), "skip-data-verification");
        assert!("skipflush".parse::<Canary>().is_err());
    }
}
