//! The search that must find each rule that is broken on purpose.
//!
//! Others may find it as well. The searches with real threads (`crates/check/tests/threads`) are the
//! only one for none: how soon they find something depends on the machine.

use syncline_store::Canary;

/// A search, with the file of its test for canaries. The first seven are the seeds' search, by its
/// subject.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Search {
    /// Lives of a store.
    Store,
    /// Lives of a filesystem.
    Files,
    /// Lives with snapshots, quotas, compression, transactions and classes of durability.
    Everything,
    /// The same in a fork.
    Fork,
    /// Lives on an image that grows.
    Growing,
    /// Files of which pages are written.
    Pages,
    /// Logs of which each block is rotted.
    Log,
    /// A life that fills the image and frees every second file.
    Full,
    /// Small worlds.
    Worlds,
    /// The store under schedules.
    StoreSchedules,
    /// Files under schedules.
    FileSchedules,
    /// Images of which each block is rotted.
    Rot,
    /// Repairs of damaged images.
    Repairs,
    /// Streams that are cut off.
    Streams,
    /// Random programs on a mount.
    Mounts,
    /// The store on a device that is late.
    Late,
    /// File data that is truncated while it is written.
    Truncated,
}

impl Search {
    /// Its test, from the root of the repository.
    pub fn test(self) -> &'static str {
        match self {
            Self::Store
            | Self::Files
            | Self::Everything
            | Self::Fork
            | Self::Growing
            | Self::Pages
            | Self::Log => "lab/sim/tests/canaries.rs",
            Self::Full => "lab/sim/tests/full.rs",
            Self::Worlds => "lab/sim/tests/worlds.rs",
            Self::StoreSchedules => "lab/schedules/tests/store.rs",
            Self::FileSchedules => "lab/schedules/tests/files/main.rs",
            Self::Rot => "crates/check/tests/rot/mod.rs",
            Self::Repairs => "lab/fuzz/tests/repairs.rs",
            Self::Streams => "crates/stream/tests/lives/canaries.rs",
            Self::Mounts => "crates/fuse/tests/programs/mod.rs",
            Self::Late => "crates/store/tests/troubles/late_retry.rs",
            Self::Truncated => "crates/fs/src/data/tests/ended.rs",
        }
    }
}

/// The search that must find the canary.
pub fn search_for(canary: Canary) -> Search {
    use Canary::*;
    match canary {
        SkipFlush | FlushEarly | ReuseEarly | UnchainedBatch | UncheckedPayload | RedeemFailedFlush
        | IgnoreFailedWrite | DropSnapshotEarly | DiscardEarly | IdleSegment | UnboundedPending => {
            Search::Store
        }
        SplitTransaction | ReleaseAfterFailure | RenameWithoutData | SizeAhead | SizeBehind
        | LinkedOrphanStays | OverlookWriteback | ShareWithoutCount | TransactionTorn => Search::Files,
        NoReserve | SnapshotWithoutData | SnapshotOfTwoMoments | OverlookUsage | OrderedWithoutOrder => {
            Search::Everything
        }
        TakeBase => Search::Fork,
        GrowEarly => Search::Growing,
        PageCut => Search::Pages,
        LeadOnce => Search::Log,
        ScatteredRoom => Search::Full,
        SkipDataVerification
        | StaleEpoch
        | SuperblockEarly
        | LogStartsLate
        | LinkWithoutData
        | OrphanNotListed
        | OverlookName
        | CountInOwnTransaction
        | PromiseForgotten => Search::Worlds,
        ThroughEarly | LateJoiner | ForgetSnapshot | SealAfterSuperblock => Search::StoreSchedules,
        PlaceStale => Search::FileSchedules,
        UncheckedReads => Search::Rot,
        MapToRead => Search::Repairs,
        PartAhead => Search::Streams,
        StaleSize | StaleListing => Search::Mounts,
        LateRetry => Search::Late,
        ForgetRecalled => Search::Truncated,
    }
}

/// The canaries that a search must find.
pub fn found_by(search: Search) -> impl Iterator<Item = Canary> {
    Canary::ALL.into_iter().filter(move |canary| search_for(*canary) == search)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    /// Its test names the canary, or takes all of the search.
    #[test]
    fn each_canary_is_looked_for_by_its_search() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        for canary in Canary::ALL {
            let search = search_for(canary);
            let text = std::fs::read_to_string(root.join(search.test())).unwrap();
            let named = text.contains(&format!("Canary::{canary:?}"));
            let all = text.contains(&format!("Search::{search:?})")) || text.contains("search_for(");
            assert!(named || all, "{} does not look for {canary}", search.test());
        }
    }
}
