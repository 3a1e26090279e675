//! Every rule that can be broken on purpose is detected by the search that finds nothing otherwise.
//!
//! `cargo test -p syncline-sim --test laboratory canaries:: -- --nocapture` prints the number of
//! seeds for each; `SYNCLINE_CANARY=<name>` looks for only one.

use crate::support::{one_at_a_time, search, silently};
use std::time::Instant;
use syncline_sim::lab::{Load, Plan, Subject, run_seed};
use syncline_sim::rot::LogLife;
use syncline_sim::{FsSubject, StoreSubject};
use syncline_store::Canary;

/// The subject of the search.
#[derive(Clone, Copy, Debug)]
enum Engine {
    Store,
    Fs,
    Everything,
    Growing,
    /// Files of which pages are written.
    Pages,
    /// A log of which each block is rotted.
    Rot,
}

/// Where a canary shows, with or without faults, and within how many seeds.
fn place(canary: Canary) -> Option<(Engine, bool, u64)> {
    use Canary::*;
    Some(match canary {
        SkipFlush => (Engine::Store, false, 50),
        FlushEarly => (Engine::Store, false, 100),
        ThroughEarly => (Engine::Store, false, 100),
        SkipDataVerification => (Engine::Store, false, 100),
        ReuseEarly => (Engine::Store, false, 400),
        UnchainedBatch => (Engine::Store, false, 400),
        StaleEpoch => (Engine::Store, false, 100),
        UncheckedPayload => (Engine::Store, false, 100),
        SplitTransaction => (Engine::Fs, false, 50),
        LogStartsLate => (Engine::Store, false, 50),
        SuperblockEarly => (Engine::Store, false, 100),
        NoReserve => (Engine::Everything, false, 200),
        LateJoiner => (Engine::Store, false, 100),
        RedeemFailedFlush => (Engine::Store, true, 200),
        IgnoreFailedWrite => (Engine::Store, true, 200),
        ReleaseAfterFailure => (Engine::Fs, true, 600),
        UncheckedReads => (Engine::Store, true, 100),
        RenameWithoutData => (Engine::Fs, false, 50),
        LinkWithoutData => (Engine::Fs, false, 50),
        SizeAhead => (Engine::Fs, false, 50),
        SizeBehind => (Engine::Fs, false, 50),
        OrphanNotListed => (Engine::Fs, false, 50),
        LinkedOrphanStays => (Engine::Fs, false, 50),
        OverlookWriteback => (Engine::Fs, false, 400),
        OverlookName => (Engine::Fs, false, 400),
        ShareWithoutCount => (Engine::Fs, false, 50),
        CountInOwnTransaction => (Engine::Fs, false, 200),
        ForgetSnapshot => (Engine::Store, false, 100),
        DropSnapshotEarly => (Engine::Store, false, 600),
        DiscardEarly => (Engine::Store, false, 50),
        SnapshotWithoutData => (Engine::Everything, false, 100),
        SnapshotOfTwoMoments => (Engine::Everything, false, 200),
        OverlookUsage => (Engine::Everything, false, 50),
        GrowEarly => (Engine::Growing, false, 100),
        LeadOnce => (Engine::Rot, false, 10),
        IdleSegment => (Engine::Store, false, 100),
        UnboundedPending => (Engine::Store, false, 100),
        // Found by the search over schedules and by tests of the store: each needs a thread that
        // stops, or a device operation that ends, at one exact moment.
        LateRetry | SealAfterSuperblock => return None,
        // Likewise: a block must be rewritten while it is on its way to a place.
        PlaceStale | ForgetRecalled => return None,
        // A life that fills the image and frees every second file shows it at once (`full`); a slow
        // device, after 128 seeds.
        ScatteredRoom => return None,
        // Found by the search for damage by repairs, in images with a wrong space map.
        MapToRead => return None,
        OrderedWithoutOrder => (Engine::Everything, false, 100),
        AtomicWriteLeaks => (Engine::Everything, false, 100),
        SpillUncovered => (Engine::Everything, false, 400),
        TransactionTorn => (Engine::Fs, false, 100),
        PageCut => (Engine::Pages, false, 50),
        // Found by small worlds in which time passes.
        PromiseForgotten => return None,
        // Found by lives of streams that are cut off.
        PartAhead => return None,
        // Found by random programs on a mount.
        StaleSize | StaleListing => return None,
    })
}

/// The seed at which the search begins, so that it ends soon: shortly before the one that last showed
/// the canary. The number of seeds that it may take counts from there, whatever a change of the engine
/// does to them.
fn first_seed(canary: Canary) -> u64 {
    1_000_000
        + match canary {
            Canary::UnchainedBatch => 11,
            Canary::NoReserve => 65,
            Canary::ReleaseAfterFailure => 65,
            Canary::OverlookWriteback => 15,
            Canary::DropSnapshotEarly => 12,
            Canary::GrowEarly => 36,
            Canary::OrderedWithoutOrder => 18,
            Canary::TransactionTorn => 8,
            Canary::SpillUncovered => 25,
            _ => 0,
        }
}

fn plan(canary: Canary, faults: bool, through: bool) -> Plan {
    let plan = Plan { canary: Some(canary), faults, through: Some(through), ..Plan::default() };
    match canary {
        // Within one epoch the log must return to blocks it used before, which takes one long life.
        Canary::UnchainedBatch => {
            Plan { cycles: 1, lives: 1, load: Load { actions: (300, 600), ..plan.load }, ..plan }
        }
        // These need time to pass.
        Canary::IdleSegment | Canary::UnboundedPending => {
            Plan { slow: true, cycles: 1, images: 3, load: Load { actions: (5, 40), ..plan.load }, ..plan }
        }
        _ => plan,
    }
}

/// True if the broken step is done differently on a device without write-through.
fn depends_on_the_device(canary: Canary) -> bool {
    use Canary::*;
    matches!(canary, SkipFlush | FlushEarly | LateJoiner | RedeemFailedFlush | IgnoreFailedWrite)
}

/// Searches on devices with write-through, which most are, and on others.
fn look<S: Subject>(subject: &S, canary: Canary, faults: bool, seeds: u64) {
    look_on(subject, canary, plan(canary, faults, true), seeds);
    if depends_on_the_device(canary) {
        look_on(subject, canary, plan(canary, faults, false), seeds);
    }
}

fn look_on<S: Subject>(subject: &S, canary: Canary, plan: Plan, seeds: u64) {
    let started = Instant::now();
    let first = if plan.slow { 0 } else { first_seed(canary) };
    let found = search(subject, first..first + seeds, plan, 1);
    let (seed, what) =
        found.violations.first().unwrap_or_else(|| panic!("{canary} went unnoticed in {seeds} seeds"));
    let device = if plan.through == Some(true) { "a device that flushes behind writes" } else { "another" };
    println!(
        "{canary} found on {device} after {} seeds, {:.1} s, at {seed}: {what}",
        found.seeds,
        started.elapsed().as_secs_f64()
    );
    // The canary must be the cause, not something that the seed shows anyway.
    let sound = run_seed(subject, *seed, Plan { canary: None, ..plan });
    assert!(sound.is_ok(), "seed {seed} fails without {canary} too: {sound:?}");
}

fn look_in_rot(canary: Canary, seeds: u64) {
    let started = Instant::now();
    let search = |seed, canary| LogLife::live(seed, canary).and_then(|life| life.search());
    let found =
        (1_000_000..1_000_000 + seeds).find_map(|seed| Some((seed, search(seed, Some(canary)).err()?)));
    let (seed, what) = found.unwrap_or_else(|| panic!("{canary} went unnoticed in {seeds} seeds"));
    let (seeds, seconds) = (seed - 999_999, started.elapsed().as_secs_f64());
    println!("{canary} found after {seeds} seeds, {seconds:.1} s, at {seed}: {what}");
    let sound = search(seed, None);
    assert!(sound.is_ok(), "seed {seed} fails without {canary} too: {sound:?}");
}

#[test]
fn each_is_found() {
    let only = std::env::var("SYNCLINE_CANARY").ok();
    let wanted = |canary: &Canary| only.as_ref().is_none_or(|only| *only == canary.name());
    silently(|| {
        for canary in Canary::ALL.into_iter().filter(wanted) {
            let Some((engine, faults, seeds)) = place(canary) else { continue };
            match engine {
                Engine::Store => look(&StoreSubject, canary, faults, seeds),
                Engine::Fs => look(&FsSubject::PLAIN, canary, faults, seeds),
                Engine::Everything => look(&FsSubject::EVERYTHING, canary, faults, seeds),
                Engine::Growing => one_at_a_time(|| look(&FsSubject::GROWING, canary, faults, seeds)),
                Engine::Pages => look(&FsSubject::PAGES, canary, faults, seeds),
                Engine::Rot => look_in_rot(canary, seeds),
            }
        }
    });
}
