//! Real threads at one filesystem: what the crash laboratory, whose tasks share one thread, can't meet. There are two searches:
//! lives, in which many threads do anything at the same time, and meetings, in which a few operations on a file are stopped between
//! two of their steps while others go on.
//!
//! Every life, or meeting, is made from a seed: options, and what each of its threads does. The seed does not decide how the threads
//! of a life meet, and how those of a meeting wait for one another, so what failed may pass the next time. Invariants:
//!
//! 1. An operation gives what it should or an errno that it may give, whoever else is at work; none hangs.
//! 2. What is read was written there: each 32 bytes of data say to which file, to which place in it and by which write; a
//!    write that covers whole units of a file is seen whole or not at all in each of them.
//! 3. A file, or a directory, that one thread changes reads, at every moment and to every thread, as after one of the
//!    changes between the last that had returned and the last that had begun. After a power cut, each block of the file, and all
//!    names in the directory, are as after one of the changes since the last that was acknowledged as durable, by
//!    whichever thread's sync.
//! 4. What recovery finds after a power cut is no older than what a sync of everything saw committed when it began, and no submission
//!    of a file's data ends with a logged size that is behind.
//! 5. `check` finds nothing wrong with any image that a power cut may leave, nor with the one in the end; all names, link
//!    counts, sizes and quotas are what is there; once everything is removed, as much is free as in the beginning.

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

/// Lives one life after another, from this seed on, until the time is over, at least one. Each thread takes so many steps.
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

/// Has operations meet, from this seed on, until the time is over.
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

/// For `SYNCLINE_THREADS_SECONDS`, from seed `SYNCLINE_THREADS_SEED` on.
#[test]
#[ignore = "a long run"]
fn meetings_for_a_long_time() {
    let time = Duration::from_secs(number("SYNCLINE_THREADS_SECONDS").unwrap_or(60));
    meet(number("SYNCLINE_THREADS_SEED").unwrap_or(1000), time);
}

/// Rules whose breach a sync at the wrong moment brings to light are found within some hundred meetings.
#[test]
fn broken_rules_of_syncs_are_found() {
    for canary in [
        Canary::OverlookWriteback,
        Canary::RenameWithoutData,
        Canary::SnapshotWithoutData,
        Canary::SizeBehind,
    ] {
        let meet = |seed| meetings::meet(seed, &Spread::start(), Some(canary));
        let found = (1..1000).find(|&seed| std::panic::catch_unwind(|| meet(seed)).is_err());
        println!("{canary:?}: found in meeting {found:?}");
        assert!(found.is_some(), "{canary:?} was not found");
    }
}

/// The judges see what they are there for: rules that are broken on purpose are found within a few lives.
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

/// For `SYNCLINE_THREADS_SECONDS`, from seed `SYNCLINE_THREADS_SEED` on, with `SYNCLINE_THREADS_STEPS` of each thread.
#[test]
#[ignore = "a long run"]
fn threads_for_a_long_time() {
    let (seed, steps) = (number("SYNCLINE_THREADS_SEED"), number("SYNCLINE_THREADS_STEPS"));
    let time = Duration::from_secs(number("SYNCLINE_THREADS_SECONDS").unwrap_or(60));
    live(seed.unwrap_or(1000), time, steps.unwrap_or(STEPS));
}
