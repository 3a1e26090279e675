//! Real threads on one filesystem: they meet situations that the crash laboratory can't, because
//! its tasks share one thread. There are two searches: lives, in which many threads do anything at
//! the same time, and meetings, in which a few operations on a file are stopped between two of
//! their steps while others run.
//!
//! A seed decides the options of a life or a meeting, and the actions of its threads. It does not
//! decide how the threads of a life interleave or how those of a meeting wait for each other, so a
//! failure may not repeat. Invariants:
//!
//! 1. An operation returns the right result or an errno that it may return, whatever other threads
//!    do; none hangs.
//! 2. Data that is read was written there: each 32 bytes say for which file, for which place in it
//!    and by which write. Of a write that covers whole units of a file, each unit is seen whole or
//!    not at all.
//! 3. A file or directory that only one thread changes reads, at any moment and in any thread, as
//!    after one of the changes between the last that had returned and the last that had begun.
//!    After a power cut, each block of the file, and all names in the directory, are as after one
//!    of the changes since the last that was acknowledged as durable, by any thread's sync.
//! 4. Recovery after a power cut finds nothing older than the transactions that a sync of
//!    everything saw committed when it began, and no submission of a file's data ends with a logged
//!    size that is behind.
//! 5. `check` finds nothing wrong with any image that a power cut may leave, nor with the final
//!    one. All names, link counts, sizes and quotas match the contents. Once everything is removed,
//!    as much is free as at the start.

mod life;
mod meetings;
mod own;
mod pauses;
mod shared;
mod stops;

use life::STEPS;
use meetings::Figures;
use own::Spread;
use shared::setup::Setup;
use std::time::{Duration, Instant};
use syncline_store::Canary;

/// Runs lives, starting with this seed, until the time is over; at least one. Each thread makes
/// this many steps.
fn live(first_seed: u64, time: Duration, steps: u64) {
    let begun = Instant::now();
    let mut seed = first_seed;
    loop {
        let figures = life::live(seed, |setup| Setup { steps, ..setup });
        println!("seed {seed}: {figures}");
        seed += 1;
        if begun.elapsed() >= time {
            break;
        }
    }
    println!("{} lives, {} s", seed - first_seed, begun.elapsed().as_secs());
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|value| value.parse().expect("a number"))
}

#[test]
fn threads_at_the_same_files_see_what_was_written_and_keep_what_was_synced() {
    live(1, Duration::from_secs(6), STEPS);
}

/// Runs meetings, starting with this seed, until the time is over.
fn meet(first_seed: u64, time: Duration) {
    let (begun, spawn) = (Instant::now(), Spread::start());
    let mut figures = Figures::default();
    while begun.elapsed() < time {
        figures += meetings::meet(first_seed + figures.meetings, &spawn, None);
    }
    println!("from seed {first_seed} on: {figures}, {} s", begun.elapsed().as_secs());
}

#[test]
fn what_a_sync_promises_survives_whatever_else_is_under_way() {
    meet(1, Duration::from_secs(6));
}

/// Runs for `SYNCLINE_THREADS_SECONDS`, starting with seed `SYNCLINE_THREADS_SEED`.
#[test]
#[ignore = "a long run"]
fn meetings_for_a_long_time() {
    let time = Duration::from_secs(number("SYNCLINE_THREADS_SECONDS").unwrap_or(60));
    meet(number("SYNCLINE_THREADS_SEED").unwrap_or(1000), time);
}

/// Broken rules that a sync at the wrong moment reveals are found within some hundred meetings.
#[test]
fn broken_rules_of_syncs_are_found() {
    for canary in [
        Canary::OverlookWriteback,
        Canary::RenameWithoutData,
        Canary::SnapshotWithoutData,
        Canary::SizeBehind,
        Canary::OrderedWithoutOrder,
    ] {
        let meet = |seed| meetings::meet(seed, &Spread::start(), Some(canary));
        let found = (1..1000).find(|&seed| std::panic::catch_unwind(|| meet(seed)).is_err());
        println!("{canary:?}: found in meeting {found:?}");
        assert!(found.is_some(), "{canary:?} was not found");
    }
}

/// The judges do their work: deliberately broken rules are found within a few lives.
#[test]
fn broken_rules_are_found() {
    for canary in
        [Canary::SkipFlush, Canary::ShareWithoutCount, Canary::LinkedOrphanStays, Canary::OverlookUsage]
    {
        let quotas = canary == Canary::OverlookUsage;
        let broken = |setup| Setup { canary: Some(canary), quotas, node_bytes: 16384, ..setup };
        let found = (1..20).find(|&seed| std::panic::catch_unwind(|| life::live(seed, broken)).is_err());
        println!("{canary:?}: found in life {found:?}");
        assert!(found.is_some(), "{canary:?} was not found");
    }
}

/// Runs for `SYNCLINE_THREADS_SECONDS`, starting with seed `SYNCLINE_THREADS_SEED`, with
/// `SYNCLINE_THREADS_STEPS` steps of each thread.
#[test]
#[ignore = "a long run"]
fn threads_for_a_long_time() {
    let (seed, steps) = (number("SYNCLINE_THREADS_SEED"), number("SYNCLINE_THREADS_STEPS"));
    let time = Duration::from_secs(number("SYNCLINE_THREADS_SECONDS").unwrap_or(60));
    live(seed.unwrap_or(1000), time, steps.unwrap_or(STEPS));
}
