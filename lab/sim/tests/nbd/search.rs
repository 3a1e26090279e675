//! Runs seeds on several threads and says how to repeat a failure.

use crate::nbd::life::{Plan, Seen, run_seed};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use syncline_sim::FsSubject;

const THREADS: usize = 3;

/// The result of a search.
pub struct Found {
    pub seen: Seen,
    pub seeds: u64,
    pub violation: Option<(u64, String)>,
}

fn number_from(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is a number")))
}

/// Runs one seed. A panic is a violation.
pub fn run_one(subject: &FsSubject, seed: u64, plan: Plan) -> Result<Seen, String> {
    catch_unwind(AssertUnwindSafe(|| run_seed(subject, seed, plan))).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Err(format!("panicked: {}", text.unwrap_or_default()))
    })
}

/// Runs seeds until the first violation, or until the time is over.
pub fn search(subject: &FsSubject, seeds: std::ops::Range<u64>, plan: Plan, until: Option<Instant>) -> Found {
    let next = AtomicU64::new(seeds.start);
    let enough = AtomicBool::new(false);
    let found = Mutex::new(Found { seen: Seen::default(), seeds: 0, violation: None });
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                while !enough.load(Ordering::SeqCst) && until.is_none_or(|until| Instant::now() < until) {
                    let seed = next.fetch_add(1, Ordering::SeqCst);
                    if seed >= seeds.end {
                        break;
                    }
                    let result = run_one(subject, seed, plan);
                    let mut found = found.lock().unwrap();
                    found.seeds += 1;
                    match result {
                        Ok(seen) => found.seen.add(seen),
                        Err(what) => {
                            found.violation.get_or_insert((seed, what));
                            enough.store(true, Ordering::SeqCst);
                        }
                    }
                }
            });
        }
    });
    found.into_inner().unwrap()
}

/// Fails at the first violation. `SYNCLINE_NBD_SEEDS` sets the number of seeds, `SYNCLINE_NBD_SEED`
/// runs a single one.
pub fn assert_no_violation(name: &str, subject: &FsSubject, plan: Plan, seeds: u64) {
    show_logs();
    let range = match number_from("SYNCLINE_NBD_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number_from("SYNCLINE_NBD_SEEDS").unwrap_or(seeds),
    };
    let started = Instant::now();
    let found = search(subject, range, plan, None);
    report(name, &found, started.elapsed());
    assert!(found.seen.restarts > 0 || found.seeds < 5, "nothing was forgotten");
}

/// Searches by turns for `SYNCLINE_NBD_SECONDS`, with seeds that no test has.
pub fn for_a_long_time(searches: &[(&str, &FsSubject, Plan)]) {
    show_logs();
    let seconds = number_from("SYNCLINE_NBD_SECONDS").unwrap_or(600);
    let first = number_from("SYNCLINE_NBD_SEED").unwrap_or(10_000_000);
    let share = Duration::from_secs(seconds) / searches.len() as u32;
    for (name, subject, plan) in searches {
        let started = Instant::now();
        let found = search(subject, first..u64::MAX, *plan, Some(started + share));
        report(name, &found, started.elapsed());
    }
}

fn report(name: &str, found: &Found, took: Duration) {
    let Found { seen, seeds, violation } = found;
    println!(
        "{name}: {seeds} seeds, {} lives, {} hosts died at work, {} strikes, {} of them restarts of the server, {} reconnects, {} writes again, {} requests, {} images judged, {} violations, {:.1} s",
        seen.lives,
        seen.cuts,
        seen.strikes,
        seen.restarts,
        seen.reconnects,
        seen.replayed,
        seen.requests,
        seen.images,
        u64::from(violation.is_some()),
        took.as_secs_f64()
    );
    if let Some((seed, what)) = violation {
        panic!("{name}, seed {seed}: {what}\nto repeat it: SYNCLINE_NBD_SEED={seed} with the same test");
    }
}

/// With `RUST_LOG` set, shows the engine's log, for studying a single seed.
fn show_logs() {
    if std::env::var_os("RUST_LOG").is_some() {
        let filter = tracing_subscriber::EnvFilter::from_default_env();
        let _ = tracing_subscriber::fmt().with_env_filter(filter).with_test_writer().try_init();
    }
}
