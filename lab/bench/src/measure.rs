//! Takes the contestants through the workloads, in rounds, on filesystems made again each time. The
//! order is drawn again for each round, because a contestant finds the device and the caches as the
//! previous one has left them.

use crate::contestant::Contestant;
use crate::counts::{Counts, Source, cpu_seconds};
use crate::error::During;
use crate::files::Embedded;
use crate::ground::Ground;
use crate::mount::Mounted;
use crate::outcome::{Column, Report, Row};
use crate::workload::{Pace, Phase, Sample, Workload};
use crate::{BenchError, Interrupt};
use indicatif::{HumanDuration, ProgressBar};
use rand::seq::SliceRandom;
use rustix::fs::Advice;
use serde::Serialize;
use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

/// Seconds that making, mounting and unmounting take, for estimating the time.
const MAKE_SECONDS: f64 = 1.0;

/// The figures of one run of one phase.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Run {
    /// Position in the round's order, from 0.
    pub place: usize,
    /// The load's figures.
    pub sample: Sample,
    /// Requests that reached the device.
    pub counts: Counts,
    /// Syncline's own count of its requests to the device.
    pub daemon_counts: Option<Counts>,
    /// CPU time of the load and of the daemon, in seconds.
    pub cpu_seconds: f64,
}

/// How to measure.
pub struct Settings {
    /// Number of runs.
    pub runs: usize,
    /// How long each timed load lasts.
    pub duration: Duration,
}

/// A measurement.
pub struct Plan<'a> {
    /// Where to measure.
    pub ground: &'a Ground,
    /// The contestants.
    pub contestants: &'a [Contestant],
    /// The workloads.
    pub workloads: &'a [Box<dyn Workload>],
    /// How to measure.
    pub settings: Settings,
    /// Stops the measurement.
    pub interrupt: &'a Interrupt,
    /// Shows the progress.
    pub bar: &'a ProgressBar,
    /// The disk, if several are measured.
    pub disk: String,
}

/// The progress, in estimated seconds.
struct Clock {
    started: Instant,
    done: f64,
    all: f64,
}

impl Clock {
    fn new(plan: &Plan<'_>) -> Self {
        let duration = plan.settings.duration;
        let once: f64 =
            plan.workloads.iter().map(|load| load.expected_seconds(duration) + MAKE_SECONDS).sum();
        let all = once * (plan.contestants.len() * plan.settings.runs) as f64;
        Self { started: Instant::now(), done: 0.0, all }
    }

    /// The remaining time, corrected by the error of the estimates so far.
    fn left(&self) -> Duration {
        let elapsed = self.started.elapsed().as_secs_f64();
        let rate = if self.done > 0.0 { elapsed / self.done } else { 1.0 };
        Duration::from_secs_f64((self.all - self.done).max(0.0) * rate)
    }
}

impl Plan<'_> {
    /// Makes and mounts each contestant once, so that one that can't work fails now and not in an
    /// hour.
    pub fn rehearse(&self) -> Result<(), BenchError> {
        for contestant in self.contestants {
            self.bar.set_message(format!("trying {contestant}"));
            self.interrupt.check()?;
            self.ground.start(contestant, 0)?.end()?;
        }
        Ok(())
    }

    /// Measures everything.
    pub fn measure(&self) -> Result<Report, BenchError> {
        let mut clock = Clock::new(self);
        self.bar.set_length(clock.all.ceil() as u64);
        let mut report = Report::default();
        for workload in self.workloads {
            self.workload(&**workload, &mut clock, &mut report)?;
        }
        Ok(report)
    }

    /// Measures all contestants in turns with one workload. A contestant that fails takes no further part in
    /// it, and the others go on.
    fn workload(
        &self,
        workload: &dyn Workload,
        clock: &mut Clock,
        report: &mut Report,
    ) -> Result<(), BenchError> {
        let mut rows = self.empty_rows(workload);
        let mut failed = BTreeSet::new();
        for turn in 0..self.settings.runs {
            for (place, (index, contestant)) in self.drawn(workload).into_iter().enumerate() {
                if failed.contains(&index) {
                    continue;
                }
                self.show(clock, workload, turn, contestant);
                match self.once(contestant, workload) {
                    Ok(runs) => {
                        for (row, run) in rows.iter_mut().zip(runs) {
                            row.columns[index].runs.push(Run { place, ..run });
                        }
                    }
                    Err(BenchError::Interrupted) => return Err(BenchError::Interrupted),
                    Err(error) => {
                        report.failures.push(format!("{}: {contestant}: {error}", workload.suite()));
                        failed.insert(index);
                    }
                }
                clock.done += workload.expected_seconds(self.settings.duration) + MAKE_SECONDS;
                self.bar.set_position(clock.done as u64);
            }
        }
        for row in &mut rows {
            let columns = std::mem::take(&mut row.columns).into_iter().enumerate();
            row.columns =
                columns.filter(|(index, _)| !failed.contains(index)).map(|(_, column)| column).collect();
        }
        // A table compares with Syncline.
        report.rows.extend(rows.into_iter().filter(|row| row.columns.iter().any(|column| !column.peer)));
        Ok(())
    }

    /// A random order for one round, with the contestants' columns.
    fn drawn(&self, workload: &dyn Workload) -> Vec<(usize, &Contestant)> {
        let mut order: Vec<_> = self.contestants_of(workload).enumerate().collect();
        order.shuffle(&mut rand::rng());
        order
    }

    /// The contestants that can take part: without those that keep nothing if the workload reads its
    /// stored data back, and without the library if the load can't be made in one process with it.
    fn contestants_of(&self, workload: &dyn Workload) -> impl Iterator<Item = &Contestant> {
        let (to_be_kept, embedded) = (workload.reads_back(), workload.embedded().is_some());
        let can = move |contestant: &Contestant| {
            (!to_be_kept || contestant.keeps()) && (embedded || !contestant.is_library())
        };
        self.contestants.iter().filter(move |contestant| can(contestant))
    }

    fn empty_rows(&self, workload: &dyn Workload) -> Vec<Row> {
        let columns = |contestant: &Contestant| Column {
            name: contestant.to_string(),
            peer: contestant.is_other(),
            keeps: contestant.keeps(),
            flushes: contestant.flushes(),
            runs: Vec::with_capacity(self.settings.runs),
        };
        let row = |phase: Phase| Row {
            suite: workload.suite(),
            title: workload.title(),
            variant: workload.variant(),
            phase: phase.name,
            disk: self.disk.clone(),
            engine: workload.engine(),
            unit: phase.unit,
            latency_of: phase.latency_of,
            columns: self.contestants_of(workload).map(columns).collect(),
        };
        workload.phases().into_iter().map(row).collect()
    }

    fn show(&self, clock: &Clock, workload: &dyn Workload, turn: usize, contestant: &Contestant) {
        let variant = workload.variant();
        self.bar.set_message(format!(
            "{} left{}: {} {variant}, round {} of {}, {contestant}",
            HumanDuration(clock.left()),
            if self.disk.is_empty() { String::new() } else { format!(" on {}", self.disk) },
            workload.suite(),
            turn + 1,
            self.settings.runs
        ));
    }

    /// Runs one workload on one contestant, once.
    fn once(&self, contestant: &Contestant, workload: &dyn Workload) -> Result<Vec<Run>, BenchError> {
        let source = self.ground.counts(contestant);
        if let Some(embedded) = workload.embedded().filter(|_| contestant.is_library()) {
            return Ok(vec![self.run_embedded(contestant, embedded, &source)?]);
        }
        let mut mounted = self.ground.start(contestant, workload.files())?;
        let mut runs = Vec::new();
        for (index, phase) in workload.phases().into_iter().enumerate() {
            self.interrupt.check()?;
            // Data that the previous phase left unwritten must not be counted with this one.
            mounted.settle()?;
            workload.prepare(index, mounted.directory(), self.interrupt)?;
            if phase.settled {
                mounted.settle()?;
            }
            if phase.cold && contestant.keeps() {
                mounted.end()?;
                mounted = self.ground.mount(contestant)?;
            } else if phase.cold {
                // Its names would be gone.
                forget_pages(mounted.directory())?;
            }
            runs.push(self.run(index, workload, &mounted, &source)?);
        }
        mounted.end()?;
        Ok(runs)
    }

    fn run(
        &self,
        phase: usize,
        workload: &dyn Workload,
        mounted: &Mounted,
        source: &Source,
    ) -> Result<Run, BenchError> {
        let directory = mounted.directory();
        let cpu_before = cpu_seconds(mounted.daemon());
        let daemon_before = mounted.daemon_counts()?;
        let before = source.read(directory)?;
        let pace = Pace::new(self.settings.duration, self.interrupt);
        let sample = workload.run(phase, directory, pace)?;
        let counts = source.read(directory)? - before;
        let daemon_counts = mounted.daemon_counts()?.zip(daemon_before).map(|(after, before)| after - before);
        Ok(Run {
            place: 0,
            sample,
            counts,
            daemon_counts,
            cpu_seconds: cpu_seconds(mounted.daemon()) - cpu_before,
        })
    }

    /// Runs a load in one process with the library.
    fn run_embedded(
        &self,
        contestant: &Contestant,
        embedded: &dyn Embedded,
        source: &Source,
    ) -> Result<Run, BenchError> {
        let nowhere = Path::new("");
        let mut opened = embedded.open(self.ground.make(contestant, 0)?, self.interrupt)?;
        let (cpu_before, before) = (cpu_seconds(None), source.read(nowhere)?);
        let sample = opened.run(Pace::new(self.settings.duration, self.interrupt))?;
        let counts = source.read(nowhere)? - before;
        Ok(Run { place: 0, sample, counts, daemon_counts: None, cpu_seconds: cpu_seconds(None) - cpu_before })
    }
}

/// Has the kernel give up the cached pages of the directory's files.
fn forget_pages(directory: &Path) -> Result<(), BenchError> {
    for entry in std::fs::read_dir(directory).at(directory)? {
        let path = entry.at(directory)?.path();
        let file = std::fs::File::open(&path).at(&path)?;
        rustix::fs::fadvise(&file, 0, None, Advice::DontNeed).at(&path)?;
    }
    Ok(())
}
