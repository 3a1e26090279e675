//! Every rule that can be broken on purpose is detected by its search, which finds nothing otherwise.
//!
//! `cargo test -p syncline-sim --test laboratory canaries:: -- --nocapture` prints the number of
//! seeds for each; `SYNCLINE_CANARY=<name>` looks for only one.

use crate::support::{one_at_a_time, search, silently};
use std::time::Instant;
use syncline_sim::lab::{Load, Plan, Subject, run_seed};
use syncline_sim::rot::LogLife;
use syncline_sim::searches::{Search, search_for};
use syncline_sim::{FsSubject, StoreSubject};
use syncline_store::Canary;

/// Within how many seeds a canary shows, and whether it needs a failing device.
fn seeds(canary: Canary) -> (u64, bool) {
    use Canary::*;
    match canary {
        LeadOnce => (10, false),
        SplitTransaction | RenameWithoutData | LinkedOrphanStays | ShareWithoutCount | SizeAhead
        | SizeBehind | SkipFlush | DiscardEarly | OverlookUsage | PageCut => (50, false),
        NoReserve | SnapshotOfTwoMoments => (200, false),
        ReuseEarly | UnchainedBatch | OverlookWriteback => (400, false),
        DropSnapshotEarly => (600, false),
        RedeemFailedFlush | IgnoreFailedWrite => (200, true),
        ReleaseAfterFailure => (600, true),
        _ => (100, false),
    }
}

/// The seed at which the search begins, so that it ends soon: shortly before the one that last showed
/// the canary. The number of seeds that it may take counts from there, whatever a change of the engine
/// does to them.
fn first_seed(canary: Canary) -> u64 {
    1_000_000
        + match canary {
            Canary::UnchainedBatch => 66,
            Canary::NoReserve => 122,
            Canary::ReleaseAfterFailure => 72,
            Canary::OverlookWriteback => 19,
            Canary::DropSnapshotEarly => 15,
            Canary::ReuseEarly => 19,
            Canary::SnapshotOfTwoMoments => 13,
            Canary::GrowEarly => 58,
            Canary::OrderedWithoutOrder => 35,
            Canary::TransactionTorn => 9,
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
    matches!(canary, SkipFlush | FlushEarly | RedeemFailedFlush | IgnoreFailedWrite)
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
            let (seeds, faults) = seeds(canary);
            match search_for(canary) {
                Search::Store => look(&StoreSubject, canary, faults, seeds),
                Search::Files => look(&FsSubject::PLAIN, canary, faults, seeds),
                Search::Everything => look(&FsSubject::EVERYTHING, canary, faults, seeds),
                Search::Fork => look(&FsSubject::FORK, canary, faults, seeds),
                Search::Growing => one_at_a_time(|| look(&FsSubject::GROWING, canary, faults, seeds)),
                Search::Pages => look(&FsSubject::PAGES, canary, faults, seeds),
                Search::Log => look_in_rot(canary, seeds),
                _ => {}
            }
        }
    });
}
