//! Takes every small workload through every power cut.
//!
//! A violation prints the command that repeats its workload. `all_of_them` is the complete search;
//! the environment sets its extent: `SYNCLINE_WORLDS_SECONDS` (no workload starts later),
//! `SYNCLINE_WORLDS_SHARD` (`0/4`: the first of four parts), `SYNCLINE_WORLDS_PAIRS_FROM` (skips
//! pairs that an earlier run of the same seed has searched), `SYNCLINE_WORLDS_THREE` (number of
//! workloads of three operations), `SYNCLINE_WORLDS_THREADS`, `SYNCLINE_WORLDS_SEED`. With
//! `SYNCLINE_WORLDS_CANARY` a rule is broken.

use rand::SeedableRng;
use rand::seq::{IndexedRandom, SliceRandom};
use rand_chacha::ChaCha8Rng;
use std::str::FromStr;
use std::time::{Duration, Instant};
use syncline_sim::searches::{self, found_by};
use syncline_sim::worlds::{
    Base, Enumeration, Plan, Search, Seen, Summary, Violation, Workload, three_operations,
};
use syncline_store::Canary;

fn variable<T: FromStr>(name: &str) -> Option<T> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} can't be {text:?}")))
}

fn seeded(plan: Plan) -> Plan {
    let seed = variable("SYNCLINE_WORLDS_SEED").unwrap_or(plan.seed);
    Plan { seed, canary: variable("SYNCLINE_WORLDS_CANARY"), ..plan }
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

/// A sync of class `ordered` keeps its promise, whatever comes after it.
#[test]
fn some_operations_after_an_ordered_sync() {
    let plan = seeded(Plan::BROAD);
    let mut pairs = Enumeration::default().two;
    pairs.retain(|workload| workload.to_string().starts_with("order "));
    let summary = search(plan, &sample(&pairs, plan.seed, 200));
    assert_sound(&summary);
    assert!(summary.figures.distinct > 1_000, "{summary}");
}

/// A snapshot shows both changes before it, exactly, and neither is durable before it is.
#[test]
fn two_changes_before_a_snapshot() {
    let changes = [
        "append A/bar 9000",
        "write A/bar 4000 200",
        "write B/foo 0 300",
        "link A/bar bar",
        "rename A/foo B/bar",
        "replace A/bar 9000",
        "punch A/bar 1000 8000",
    ];
    let pairs = changes.iter().flat_map(|one| changes.iter().map(move |other| (one, other)));
    let workloads: Vec<Workload> = pairs
        .map(|(one, other)| format!("{one}; -; {other}; -; snapshot one; -").parse().expect("a workload"))
        .collect();
    let summary = search(seeded(Plan::BROAD), &workloads);
    assert_sound(&summary);
    assert!(summary.figures.distinct > 500, "{summary}");
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

/// Every rule whose breach a single caller on a sound device can notice is detected. (The others
/// need several tasks at once, time, failing devices, rot or a full image.)
#[test]
fn rules_broken_on_purpose_are_noticed() {
    let all = Enumeration::default();
    for canary in found_by(searches::Search::Worlds) {
        // Some show only if a second operation meets the effects of the first: pairs that begin so.
        let text = match canary {
            Canary::LinkWithoutData => "append A/bar 9000; -; link A/bar",
            Canary::PromiseForgotten => "order A/bar 4000 200; fsync A/bar; ",
            Canary::LogStartsLate => "create B/foo; checkpoint&; write A/bar 4000",
            _ => "",
        };
        let pairs = all.two.iter().filter(|workload| workload.to_string().starts_with(text));
        let workloads = if text.is_empty() { all.one.clone() } else { pairs.cloned().collect() };
        let summary = search(Plan { canary: Some(canary), ..Plan::BROAD }, &workloads);
        let found = summary.violations.first();
        let violation = found.unwrap_or_else(|| panic!("{canary:?} went unnoticed: {summary}"));
        println!("{canary:?} was found after {summary}\n{violation}");
    }
}

/// All workloads of one and two operations, then as many of three as time permits.
#[test]
#[ignore = "takes half an hour; prints how far it is"]
fn all_of_them() {
    let seconds = variable("SYNCLINE_WORLDS_SECONDS").map(Duration::from_secs);
    let deadline = seconds.map(|seconds| Instant::now() + seconds);
    let (base, seen, all) = (Base::make().unwrap(), Seen::default(), Enumeration::default());
    let broad = seeded(Plan::BROAD);
    let pairs_from = variable("SYNCLINE_WORLDS_PAIRS_FROM").unwrap_or(0);
    let three = three_operations(broad.seed, variable("SYNCLINE_WORLDS_THREE").unwrap_or(20_000));
    let mut total = Summary::default();
    for (name, plan, workloads) in [
        ("one operation", seeded(Plan::EXHAUSTIVE), &all.one),
        ("two operations", broad, &all.two),
        ("three operations", broad, &three),
    ] {
        let mut mine = shard_of(workloads);
        // Shuffled, so that a lack of time affects all kinds of workloads evenly.
        mine.shuffle(&mut ChaCha8Rng::seed_from_u64(plan.seed));
        if name == "two operations" {
            mine.drain(..pairs_from.min(mine.len()));
        }
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

/// Every n-th workload, as `SYNCLINE_WORLDS_SHARD` says: parts of equal size and mixture.
fn shard_of(workloads: &[Workload]) -> Vec<Workload> {
    let text = std::env::var("SYNCLINE_WORLDS_SHARD").unwrap_or_else(|_| "0/1".to_owned());
    let parts: Option<(usize, usize)> = text
        .split_once('/')
        .and_then(|(index, of)| Some((index.parse().ok()?, of.parse().ok()?)))
        .filter(|(index, of)| index < of);
    let (index, of) = parts.unwrap_or_else(|| panic!("a shard is given like 0/4, not {text:?}"));
    workloads.iter().skip(index).step_by(of).cloned().collect()
}
