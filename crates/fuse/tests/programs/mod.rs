//! Random programs on a real mount. One process writes, stores, cuts, names or removes something. It and
//! any other process find this change at once, whichever way they look. A crash of the daemon leaves
//! everything that was acknowledged.
//!
//! A seed decides the program, the mount's options and how the life ends: half of the lives are killed,
//! between two steps or in the middle of one. Nobody looks at sizes, times or listings but now and then,
//! since a look makes the kernel ask, which hides what the kernel believes.
//!
//! `SYNCLINE_PROGRAMS_SEED` repeats one life, `SYNCLINE_PROGRAMS_SECONDS` says how long to go on.

mod contents;
mod daemon;
mod generator;
mod life;
mod looks;
mod model;
mod step;
mod worker;

use crate::support::Caches;
use daemon::{OPTIONS, UNHURRIED};
use life::Life;
use std::ops::Range;
use std::time::{Duration, Instant};
use syncline_store::Canary;

/// Lives of the short search.
const LIVES: u64 = 24;

#[test]
#[ignore = "run as a process of its own by the other tests"]
fn daemon_process() {
    daemon::run();
}

#[test]
#[ignore = "run as a process of its own by the other tests"]
fn worker_process() {
    worker::run();
}

/// Every choice of options: none, each alone, and each pair that a mount accepts.
fn choices() -> Vec<Vec<&'static str>> {
    let kind = |option: &str| option.split('=').next().map(str::to_owned);
    let contradicts =
        |one: &str, other: &str| one == "durability=ordered" && ["sync", "dirsync"].contains(&other);
    let pairs = OPTIONS.iter().enumerate().flat_map(|(at, one)| {
        let others = OPTIONS[at + 1..].iter();
        let accepted = others.filter(move |other| {
            kind(one) != kind(other) && !contradicts(one, other) && !contradicts(other, one)
        });
        accepted.map(move |other| vec![*one, *other])
    });
    let alone = OPTIONS.iter().map(|option| vec![*option]);
    std::iter::once(Vec::new()).chain(alone).chain(pairs).collect()
}

/// The options of a life. As many seeds in a row as there are choices have each choice once.
fn options_of(seed: u64) -> Vec<&'static str> {
    let mut choices = choices();
    let mut chosen = choices.swap_remove(seed as usize % choices.len());
    chosen.retain(|option| *option != "transport=uring" || daemon::has_uring());
    chosen
}

fn live(seed: u64, options: &[&str], canary: Option<Canary>) -> Result<(), String> {
    Life::new(seed, options, canary).live()
}

fn count(seed: u64, options: &[&str], canary: Option<Canary>) -> Result<(), String> {
    Life::new(seed, options, canary).count()
}

/// Lives through seeds until one fails, time is over, or there have been enough.
fn search(first: u64, lives: u64, limit: Duration) {
    let started = Instant::now();
    let mut lived = 0;
    for seed in (first..).take(lives as usize) {
        if started.elapsed() > limit {
            break;
        }
        let options = options_of(seed);
        if let Err(what) = live(seed, &options, None) {
            panic!("SYNCLINE_PROGRAMS_SEED={seed}, options {options:?}: {what}");
        }
        lived += 1;
    }
    eprintln!("{lived} lives from seed {first} on, in {:?}", started.elapsed());
}

#[test]
fn programs_find_what_they_have_done() {
    if let Some(why) = daemon::reason_to_skip() {
        eprintln!("skipped: {why}");
        return;
    }
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    match (number("SYNCLINE_PROGRAMS_SEED"), number("SYNCLINE_PROGRAMS_SECONDS")) {
        (Some(seed), None) => search(seed, 1, Duration::MAX),
        (first, Some(seconds)) => search(first.unwrap_or(1000), u64::MAX, Duration::from_secs(seconds)),
        (None, None) => search(0, LIVES, Duration::from_secs(40)),
    }
}

#[test]
fn snapshots_are_one_moment() {
    if let Some(why) = daemon::reason_to_skip() {
        eprintln!("skipped: {why}");
        return;
    }
    for options in [&[][..], &["transport=uring"], &["direct_io=write"], &["commit=soon", "writeback=soon"]] {
        if options != ["transport=uring"] || daemon::has_uring() {
            count(0, options, None).unwrap_or_else(|what| panic!("{options:?}: {what}"));
        }
    }
}

/// A life of one kind.
type Kind = fn(u64, &[&str], Option<Canary>) -> Result<(), String>;

/// Rules that are broken on purpose, with the kind of lives and the seeds in which each has to show.
const CANARIES: [(Canary, Kind, Range<u64>); 5] = [
    (Canary::StaleSize, live, 0..10),
    (Canary::StaleListing, live, 0..10),
    (Canary::RenameWithoutData, live, 10..70),
    (Canary::SnapshotWithoutData, live, 0..30),
    (Canary::SnapshotOfTwoMoments, count, 0..60),
];

#[test]
fn each_canary_is_found() {
    if let Some(why) = daemon::reason_to_skip() {
        eprintln!("skipped: {why}");
        return;
    }
    // A stale page or listing that the kernel has dropped shows nothing.
    let _caches = Caches::alone();
    for (canary, kind, seeds) in CANARIES {
        let found =
            seeds.clone().find_map(|seed| Some((seed, kind(seed, &[UNHURRIED], Some(canary)).err()?)));
        let (seed, what) = found.unwrap_or_else(|| panic!("{canary} went unnoticed by seeds {seeds:?}"));
        eprintln!("{canary}: seed {seed}: {}", what.lines().next().unwrap_or_default());
        // It must be the cause, not something that the seed shows anyway.
        kind(seed, &[UNHURRIED], None)
            .unwrap_or_else(|what| panic!("seed {seed} fails without {canary}: {what}"));
    }
}
