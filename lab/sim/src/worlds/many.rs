//! Explores many workloads on all cores.

use super::base::Base;
use super::explore::{Figures, Plan, Seen, Violation, explore};
use super::step::Workload;
use parking_lot::Mutex;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Interval between progress reports.
const REPORT_EVERY: Duration = Duration::from_secs(20);

/// A search through workloads.
pub struct Search<'a> {
    /// The image from which each workload starts.
    pub base: &'a Base,
    /// The thoroughness.
    pub plan: Plan,
    /// Images already explored, which are not explored again.
    pub seen: &'a Seen,
    /// Threads.
    pub threads: usize,
    /// No workload starts after this.
    pub deadline: Option<Instant>,
    /// The search ends after this many violations.
    pub violations_max: usize,
    /// If set, progress is reported under this name.
    pub name: Option<&'a str>,
}

/// The result of a search.
#[derive(Default, Debug)]
pub struct Summary {
    /// Statistics.
    pub figures: Figures,
    /// The violations found.
    pub violations: Vec<Violation>,
    /// The time it took.
    pub elapsed: Duration,
}

impl Summary {
    /// Adds another search's result.
    pub fn add(&mut self, other: Self) {
        self.figures.add(other.figures);
        self.violations.extend(other.violations);
        self.elapsed += other.elapsed;
    }

    /// All images recovered, including those of recoveries.
    pub fn images(&self) -> u64 {
        self.figures.images + self.figures.recovery_images
    }
}

impl std::fmt::Display for Summary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Figures { workloads, positions, distinct, recovery_images, comparisons, .. } = self.figures;
        let seconds = self.elapsed.as_secs_f64();
        write!(
            f,
            "{workloads} workloads, {positions} crash points, {distinct} distinct images, \
             {recovery_images} distinct images of recoveries cut off, {comparisons} comparisons, \
             {} violations, {seconds:.1} s, {:.0} images/s",
            self.violations.len(),
            self.images() as f64 / seconds.max(1e-9)
        )
    }
}

impl Search<'_> {
    /// Explores `workloads`, in order, on all threads.
    pub fn run(&self, workloads: &[Workload]) -> Summary {
        let (started, next, summary) = (Instant::now(), AtomicUsize::new(0), Mutex::new(Summary::default()));
        let reported = Mutex::new(started);
        std::thread::scope(|scope| {
            for _ in 0..self.threads.max(1) {
                scope.spawn(|| {
                    while self.deadline.is_none_or(|deadline| Instant::now() < deadline) {
                        let Some(workload) = workloads.get(next.fetch_add(1, Ordering::Relaxed)) else {
                            break;
                        };
                        let result = self.one(workload);
                        let mut summary = summary.lock();
                        match result {
                            Ok(figures) => summary.figures.add(figures),
                            Err(violation) => summary.violations.push(violation),
                        }
                        summary.elapsed = started.elapsed();
                        if summary.violations.len() >= self.violations_max {
                            break;
                        }
                        self.report(&summary, workloads.len(), &reported);
                    }
                });
            }
        });
        let mut summary = summary.into_inner();
        summary.elapsed = started.elapsed();
        summary
    }

    fn one(&self, workload: &Workload) -> Result<Figures, Violation> {
        let exploring = || explore(self.base, workload, self.plan, self.seen);
        catch_unwind(AssertUnwindSafe(exploring)).unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            Err(Violation {
                workload: workload.clone(),
                seed: self.plan.seed,
                cut: "unknown".to_owned(),
                what: format!("panicked: {}", text.unwrap_or_default()),
            })
        })
    }

    fn report(&self, summary: &Summary, of: usize, reported: &Mutex<Instant>) {
        let Some(name) = self.name else { return };
        let mut last = reported.lock();
        if last.elapsed() >= REPORT_EVERY {
            *last = Instant::now();
            println!("{name}: of {of} so far {summary}");
        }
    }
}
