//! Every small workload through every power cut.
//!
//! A violation prints the command that repeats its workload. `all_of_them` is the whole search; the environment says how
//! much of it: `SYNCLINE_WORLDS_SECONDS` (no workload begins later), `SYNCLINE_WORLDS_SHARD` (`0/4`: the first of four
//! parts), `SYNCLINE_WORLDS_THREE` (workloads of three operations), `SYNCLINE_WORLDS_THREADS`, `SYNCLINE_WORLDS_SEED`.

use rand::SeedableRng;
use rand::seq::IndexedRandom;
use rand_chacha::ChaCha8Rng;
use std::str::FromStr;
use std::time::{Duration, Instant};
use syncline_sim::worlds::{
    Base, Enumeration, Plan, Search, Seen, Summary, Violation, Workload, three_operations,
};
use syncline_store::Canary;

fn variable<T: FromStr>(name: &str) -> Option<T> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} can't be {text:?}")))
}

fn seeded(plan: Plan) -> Plan {
    Plan { seed: variable("SYNCLINE_WORLDS_SEED").unwrap_or(plan.seed), ..plan }
}

fn threads() -> usize {
    let cores = || std::thread::available_parallelism().map_or(1, usize::from);
    variable("SYNCLINE_WORLDS_THREADS").unwrap_or_else(cores)
}

fn search(plan: Plan, workloads: &[Workload]) -> Summary {
    let (base, seen) = (Base::make().unwrap(), Seen::default());
    let search = Search {
        base: &base,
        plan,
        seen: &seen,
        threads: threads(),
        deadline: None,
        violations_max: 1,
        name: None,
    };
    search.run(workloads)
}

fn assert_sound(summary: &Summary) {
    println!("{summary}");
    let texts: Vec<String> = summary.violations.iter().map(Violation::to_string).collect();
    assert!(texts.is_empty(), "\n{}", texts.join("\n\n"));
}

fn sample(workloads: &[Workload], seed: u64, count: usize) -> Vec<Workload> {
    workloads.choose_multiple(&mut ChaCha8Rng::seed_from_u64(seed), count).cloned().collect()
}

#[test]
fn every_single_operation() {
    let summary = search(seeded(Plan::EXHAUSTIVE), &Enumeration::default().one);
    assert_sound(&summary);
    assert!(summary.figures.distinct > 1_500, "{summary}");
}

#[test]
fn some_pairs_of_operations() {
    let plan = seeded(Plan::BROAD);
    let summary = search(plan, &sample(&Enumeration::default().two, plan.seed, 300));
    assert_sound(&summary);
    assert!(summary.figures.distinct > 2_000, "{summary}");
}

/// The workload in `SYNCLINE_WORLD`, or one that does several things.
#[test]
fn one_world() {
    let text = std::env::var("SYNCLINE_WORLD")
        .unwrap_or_else(|_| "rename A/foo B/bar; fsync B; write A/bar 4000 200; fsync A/bar".to_owned());
    let workload: Workload = text.parse().unwrap_or_else(|what| panic!("{text:?}: {what}"));
    let summary = search(seeded(Plan::EXHAUSTIVE), &[workload]);
    assert_sound(&summary);
}

/// A rule broken on purpose is noticed, and not by accident: `what` is part of the message.
fn assert_canary_is_found(canary: Canary, workloads: &[Workload], what: &[&str]) {
    let plan = Plan { canary: Some(canary), ..Plan::BROAD };
    let summary = search(plan, workloads);
    let violation =
        summary.violations.first().unwrap_or_else(|| panic!("{canary:?} went unnoticed: {summary}"));
    println!("{canary:?} was found after {summary}\n{violation}");
    assert!(what.iter().any(|what| violation.what.contains(what)), "{}", violation.what);
}

#[test]
fn a_skipped_flush_is_found() {
    assert_canary_is_found(Canary::SkipFlush, &Enumeration::default().one, &["promised"]);
}

#[test]
fn a_flush_submitted_early_is_found() {
    assert_canary_is_found(Canary::FlushEarly, &Enumeration::default().one, &["promised"]);
}

#[test]
fn unverified_data_is_found() {
    assert_canary_is_found(Canary::SkipDataVerification, &Enumeration::default().one, &["checksum"]);
}

/// All workloads of one and two operations, then as many of three as there is time for.
#[test]
#[ignore = "takes half an hour; prints how far it is"]
fn all_of_them() {
    let seconds = variable("SYNCLINE_WORLDS_SECONDS").map(Duration::from_secs);
    let deadline = seconds.map(|seconds| Instant::now() + seconds);
    let (base, seen, all) = (Base::make().unwrap(), Seen::default(), Enumeration::default());
    let broad = seeded(Plan::BROAD);
    let three = three_operations(broad.seed, variable("SYNCLINE_WORLDS_THREE").unwrap_or(20_000));
    let mut total = Summary::default();
    for (name, plan, workloads) in [
        ("one operation", seeded(Plan::EXHAUSTIVE), &all.one),
        ("two operations", broad, &all.two),
        ("three operations", broad, &three),
    ] {
        let mine = shard_of(workloads);
        let search = Search {
            base: &base,
            plan,
            seen: &seen,
            threads: threads(),
            deadline,
            violations_max: 20,
            name: Some(name),
        };
        let summary = search.run(&mine);
        println!("{name}: {} of {} workloads: {summary}", summary.figures.workloads, mine.len());
        total.add(summary);
    }
    println!("seed {}, {} threads, in all {total}", broad.seed, threads());
    assert_sound(&total);
}

/// Every so-manieth workload, as `SYNCLINE_WORLDS_SHARD` says: parts of equal size and mixture.
fn shard_of(workloads: &[Workload]) -> Vec<Workload> {
    let text = std::env::var("SYNCLINE_WORLDS_SHARD").unwrap_or_else(|_| "0/1".to_owned());
    let parts: Option<(usize, usize)> = text
        .split_once('/')
        .and_then(|(index, of)| Some((index.parse().ok()?, of.parse().ok()?)))
        .filter(|(index, of)| index < of);
    let (index, of) = parts.unwrap_or_else(|| panic!("a shard is given like 0/4, not {text:?}"));
    workloads.iter().skip(index).step_by(of).cloned().collect()
}
