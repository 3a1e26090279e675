//! Runs seeds on two threads and says how to repeat a failure.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Mutex, Once, PoisonError};
use std::time::{Duration, Instant};
use syncline_sim::lab::{Explored, Plan, Subject, run_seed};
use syncline_sim::rest::Rested;

const THREADS: usize = 2;
/// No seed takes this long unless it hangs.
const SLOW: Duration = Duration::from_secs(60);

/// The result of a search.
pub struct Found {
    pub explored: Explored,
    pub seeds: u64,
    pub violations: Vec<(u64, String)>,
}

fn run_one<S: Subject>(subject: &S, seed: u64, plan: Plan) -> Result<Explored, String> {
    catch_unwind(AssertUnwindSafe(|| run_seed(subject, seed, plan))).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Err(format!("panicked: {}", text.unwrap_or_default()))
    })
}

/// Runs `seeds` until `stop_at` violations are found.
pub fn search<S: Subject>(subject: &S, seeds: std::ops::Range<u64>, plan: Plan, stop_at: usize) -> Found {
    show_logs();
    let next = AtomicU64::new(seeds.start);
    let enough = AtomicBool::new(false);
    let found = Mutex::new(Found { explored: Explored::default(), seeds: 0, violations: Vec::new() });
    let running = Mutex::new(BTreeMap::new());
    let (ended, end) = std::sync::mpsc::channel::<()>();
    let silent = SILENT.get();
    std::thread::scope(|scope| {
        scope.spawn(|| tell_of_the_slow(&running, end));
        for _ in 0..THREADS {
            let ended = ended.clone();
            let (next, enough, found, running) = (&next, &enough, &found, &running);
            scope.spawn(move || {
                let _ended = ended;
                SILENT.set(silent);
                while !enough.load(Ordering::SeqCst) {
                    let seed = next.fetch_add(1, Ordering::SeqCst);
                    if seed >= seeds.end {
                        break;
                    }
                    running.lock().unwrap().insert(seed, Instant::now());
                    let result = run_one(subject, seed, plan);
                    running.lock().unwrap().remove(&seed);
                    let mut found = found.lock().unwrap();
                    found.seeds += 1;
                    match result {
                        Ok(explored) => found.explored.add(explored),
                        Err(what) => {
                            found.violations.push((seed, what));
                            enough.store(found.violations.len() >= stop_at, Ordering::SeqCst);
                        }
                    }
                }
            });
        }
        drop(ended);
    });
    found.into_inner().unwrap()
}

/// Names the seeds that run longer than they should, until all have ended: a hanging seed prints
/// nothing itself.
fn tell_of_the_slow(running: &Mutex<BTreeMap<u64, Instant>>, end: Receiver<()>) {
    while end.recv_timeout(SLOW) == Err(RecvTimeoutError::Timeout) {
        for (seed, since) in running.lock().unwrap().iter().filter(|(_, since)| since.elapsed() >= SLOW) {
            println!("seed {seed} has been running for {:.0} s", since.elapsed().as_secs_f64());
        }
    }
}

/// With `RUST_LOG` set, shows the engine's log, for studying a single seed.
pub fn show_logs() {
    if std::env::var_os("RUST_LOG").is_some() {
        let filter = tracing_subscriber::EnvFilter::from_default_env();
        let _ = tracing_subscriber::fmt().with_env_filter(filter).with_test_writer().try_init();
    }
}

pub fn number_from(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is a number")))
}

/// Runs seeds and fails at the first violation. `SYNCLINE_CRASH_SEEDS` sets their number,
/// `SYNCLINE_CRASH_SEED` runs a single one.
pub fn assert_no_violation<S: Subject>(subject: &S, plan: Plan, seeds: u64) {
    let range = match number_from("SYNCLINE_CRASH_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number_from("SYNCLINE_CRASH_SEEDS").unwrap_or(seeds),
    };
    let started = Instant::now();
    let found = search(subject, range, plan, 1);
    report(&found, started);
    if let Some((seed, what)) = found.violations.first() {
        panic!("seed {seed}: {what}\nto repeat it: SYNCLINE_CRASH_SEED={seed} with the same test");
    }
}

/// Runs work that needs gigabytes of memory, while no other such test does.
pub fn one_at_a_time<T>(work: impl FnOnce() -> T) -> T {
    static LARGE: Mutex<()> = Mutex::new(());
    // A failed test has left nothing behind.
    let _large = LARGE.lock().unwrap_or_else(PoisonError::into_inner);
    work()
}

thread_local! {
    /// Panics of this thread are not printed.
    static SILENT: Cell<bool> = const { Cell::new(false) };
}

/// Runs work that makes simulated runs panic, without printing those panics. Its own panic is
/// printed as usual, and so are those of other tests.
pub fn silently<T>(work: impl FnOnce() -> T) -> T {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let telling = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !SILENT.get() {
                telling(panic);
            }
        }));
    });
    SILENT.set(true);
    let outcome = catch_unwind(AssertUnwindSafe(work));
    SILENT.set(false);
    outcome.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        panic!("{}", text.unwrap_or_else(|| "it panicked".to_owned()))
    })
}

/// Fails unless two runs of a seed do the same to the device.
pub fn repeat_is_identical<S: Subject>(subject: &S) {
    for seed in 2_000_000..2_000_010 {
        let first = run_seed(subject, seed, Plan::default()).unwrap();
        let second = run_seed(subject, seed, Plan::default()).unwrap();
        assert_eq!(first, second, "seed {seed}");
        assert!(first.events > 0);
    }
}

/// Runs many seeds and prints a summary; fails if there was a violation.
pub fn explore<S: Subject>(subject: &S, plan: Plan, seeds: u64) {
    let started = Instant::now();
    let seeds = number_from("SYNCLINE_CRASH_SEEDS").unwrap_or(seeds);
    let found = search(subject, 0..seeds, plan, usize::MAX);
    report(&found, started);
    for (seed, what) in &found.violations {
        println!("seed {seed}: {what}");
    }
    assert!(found.violations.is_empty());
}

fn report(found: &Found, started: Instant) {
    println!(
        "{} seeds, {} device events, {} images opened, {} violations, {:.1} s",
        found.seeds,
        found.explored.events,
        found.explored.images,
        found.violations.len(),
        started.elapsed().as_secs_f64()
    );
    let Rested { moments, compared, hours, virtual_ns } = found.explored.rested;
    if moments > 0 {
        println!(
            "{} virtual hours, {hours} of rest; {moments} moments of rest, at {compared} of them the owner of every block",
            virtual_ns / 3_600_000_000_000
        );
    }
}
