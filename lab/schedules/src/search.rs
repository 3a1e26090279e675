//! Runs lives, one after another.

use crate::control::Control;
use crate::scheduler::Seeded;
use shuttle::{Config, FailurePersistence, MaxSteps, Runner};
use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Stack of each task; only the touched part takes memory.
const STACK_BYTES: usize = 512 << 10;
/// Steps after which a life counts as endless. An ordinary life takes some thousands.
const STEPS_MAX: usize = 3_000_000;

/// A life that a judge rejected.
#[derive(Clone, Debug)]
pub struct Violation {
    /// The seed that repeats it.
    pub seed: u64,
    /// The violation.
    pub what: String,
}

/// Statistics of a search.
#[derive(Clone, Debug)]
pub struct Found {
    /// Lives, each with its own schedule.
    pub schedules: u64,
    /// Moments at which another task could have run.
    pub steps: u64,
    /// Power cuts judged.
    pub images: u64,
    /// Syncs that gave a promise.
    pub promises: u64,
    /// Duration.
    pub time: Duration,
    /// The lives that were rejected.
    pub violations: Vec<Violation>,
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { schedules, steps, images, promises, time, violations } = self;
        let rate = *schedules as f64 / time.as_secs_f64().max(1e-9);
        write!(
            f,
            "{schedules} schedules of {} steps, {promises} promises, {images} power cuts, {} violations, {:.1} s, {rate:.0} a second",
            steps / (*schedules).max(1),
            violations.len(),
            time.as_secs_f64()
        )
    }
}

/// The range of lives to run.
#[derive(Clone, Copy, Debug)]
pub struct Search {
    /// The seed of the first life; each following life has the next seed.
    pub first: u64,
    /// Most lives.
    pub count: u64,
    /// Longest duration.
    pub time: Option<Duration>,
    /// Violations after which the search ends.
    pub violations_max: usize,
}

impl Search {
    /// One life.
    pub fn one(seed: u64) -> Self {
        Self { count: 1, ..Self::from_seed(seed) }
    }

    /// Lives from this seed on, until one fails.
    pub fn from_seed(seed: u64) -> Self {
        Self { first: seed, count: u64::MAX / 2, time: None, violations_max: 1 }
    }

    /// Reads `SYNCLINE_SCHEDULES_{SEED,COUNT,SECONDS,VIOLATIONS}`; the default is a minute from
    /// seed 1000 on.
    pub fn from_environment() -> Self {
        let number = |name: &str| {
            let value = std::env::var(format!("SYNCLINE_SCHEDULES_{name}")).ok()?;
            Some(value.parse::<u64>().expect("a number"))
        };
        Self {
            count: number("COUNT").unwrap_or(u64::MAX / 2),
            time: Some(Duration::from_secs(number("SECONDS").unwrap_or(60))),
            violations_max: number("VIOLATIONS").unwrap_or(1) as usize,
            ..Self::from_seed(number("SEED").unwrap_or(1000))
        }
    }

    /// Runs the lives and panics if one fails.
    pub fn run_and_tell(self, life: impl Fn(&Arc<Control>) + Clone + Send + Sync + 'static) {
        let found = self.run(life);
        println!("from seed {} on: {found}", self.first);
        assert!(found.violations.is_empty(), "{:#?}", found.violations);
    }

    /// Runs lives on all CPUs; each CPU has its own seeds.
    pub fn run_on_all_cpus(self, life: impl Fn(&Arc<Control>) + Clone + Send + Sync + 'static) {
        let cpus =
            if self.count == 1 { 1 } else { std::thread::available_parallelism().map_or(1, usize::from) };
        std::thread::scope(|scope| {
            let searches: Vec<_> = (0..cpus as u64)
                .map(|cpu| {
                    let life = life.clone();
                    let search = Self { first: self.first + (cpu << 40), ..self };
                    scope.spawn(move || search.run_and_tell(life))
                })
                .collect();
            let ended: Vec<_> = searches.into_iter().map(|search| search.join()).collect();
            for outcome in ended {
                outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            }
        });
    }

    /// Runs the lives.
    pub fn run(self, life: impl Fn(&Arc<Control>) + Clone + Send + Sync + 'static) -> Found {
        self.run_controlled(life).0
    }

    /// Runs the lives; also returns the steps of the last life and the digest of its course.
    pub fn run_controlled(
        self,
        life: impl Fn(&Arc<Control>) + Clone + Send + Sync + 'static,
    ) -> (Found, (u64, u64)) {
        let begun = Instant::now();
        let deadline = self.time.map(|time| begun + time);
        let end = self.first.saturating_add(self.count);
        let (mut first, mut violations) = (self.first, Vec::new());
        let mut found = Found {
            schedules: 0,
            steps: 0,
            images: 0,
            promises: 0,
            time: Duration::ZERO,
            violations: Vec::new(),
        };
        let course = loop {
            let control = Arc::new(Control::new(first, end, deadline));
            let failed = run_until_failure(&control, life.clone());
            found.schedules += control.begun() - first;
            found.steps += control.steps_of_all.load(Ordering::Relaxed);
            found.images += control.images.load(Ordering::Relaxed);
            found.promises += control.promises.load(Ordering::Relaxed);
            let Some(what) = failed else { break control.course() };
            violations.push(Violation { seed: control.seed(), what });
            first = control.begun();
            if violations.len() >= self.violations_max {
                break control.course();
            }
        };
        (Found { time: begun.elapsed(), violations, ..found }, course)
    }
}

fn run_until_failure(
    control: &Arc<Control>,
    life: impl Fn(&Arc<Control>) + Send + Sync + 'static,
) -> Option<String> {
    let mut config = Config::new();
    config.stack_size = STACK_BYTES;
    config.failure_persistence = FailurePersistence::None;
    config.max_steps = MaxSteps::FailAfter(STEPS_MAX);
    config.silence_warnings = true;
    let runner = Runner::new(Seeded::new(control.clone()), config);
    let inside = control.clone();
    let outcome = catch_unwind(AssertUnwindSafe(|| runner.run(move || life(&inside))));
    outcome.err().map(|panic| told(&*panic))
}

fn told(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
}
