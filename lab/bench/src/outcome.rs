//! The results: every run, and the medians and spreads that are shown.

use crate::bootstrap::{Interval, ROUNDS_LEAST, ratio_interval};
use crate::measure::Run;
use crate::workload::Unit;
use serde::Serialize;

/// A figure of several runs: the median, and how far they are apart.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct Spread {
    /// Half of the runs are below, half above.
    pub median: f64,
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
}

impl Spread {
    /// The spread of these numbers; `None` if there are none.
    pub fn of(numbers: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut numbers: Vec<f64> = numbers.into_iter().collect();
        numbers.sort_unstable_by(f64::total_cmp);
        let (min, max) = (*numbers.first()?, *numbers.last()?);
        let middle = numbers.len() / 2;
        let median = if numbers.len() % 2 == 1 {
            numbers[middle]
        } else {
            f64::midpoint(numbers[middle - 1], numbers[middle])
        };
        Some(Self { median, min, max })
    }
}

/// One contestant's runs of one phase of a workload.
#[derive(Clone, Debug, Serialize)]
pub struct Column {
    /// Its name.
    pub name: String,
    /// True for the contestants that Syncline is compared with.
    pub peer: bool,
    /// True if it keeps synced data on the device.
    pub keeps: bool,
    /// True if a sync writes and flushes the device, even if nothing is kept.
    pub flushes: bool,
    /// Every run, in the order in which they were made.
    pub runs: Vec<Run>,
}

/// One phase of a workload, and the contestants measured with it.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The suite.
    pub suite: &'static str,
    /// The workload.
    pub title: String,
    /// Distinguishes it from others with its title.
    pub variant: String,
    /// The phase, if there are several.
    pub phase: &'static str,
    /// The disk, if several are measured, such as `flush 2ms`.
    pub disk: String,
    /// The program that made the load.
    pub engine: String,
    /// The unit of the values.
    pub unit: Unit,
    /// The operation whose latency is given.
    pub latency_of: &'static str,
    /// The contestants.
    pub columns: Vec<Column>,
}

/// The figures of a contestant that are shown: medians of the runs.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Figures {
    /// In the row's unit.
    pub value: Spread,
    /// Ratio to the best peer, or to Syncline if there is no peer; above 1 is better.
    pub ratio: Option<f64>,
    /// The 95 % confidence interval of that ratio, by a bootstrap over the rounds.
    pub ratio_interval: Option<Interval>,
    /// Ratio to the floor, for contestants that keep the data they are given; above 1 is better.
    pub floor_ratio: Option<f64>,
    /// The 95 % confidence interval of that ratio.
    pub floor_ratio_interval: Option<Interval>,
    /// Median latency, in microseconds.
    pub p50_us: Option<f64>,
    /// 99th percentile of the latency, in microseconds.
    pub p99_us: Option<f64>,
    /// Flushes per operation.
    pub flushes_per_operation: f64,
    /// Writes per operation, as counted by the block layer.
    pub writes_per_operation: f64,
    /// Writes per operation, as counted by Syncline's daemon: without flushes.
    pub daemon_writes_per_operation: Option<f64>,
    /// Bytes written per byte of data; `None` if no data was written.
    pub bytes_per_byte: Option<f64>,
    /// CPU time of load and daemon per operation, in microseconds.
    pub cpu_us_per_operation: f64,
}

fn joined(words: &[&str]) -> String {
    words.iter().copied().filter(|word| !word.is_empty()).collect::<Vec<_>>().join(", ")
}

impl Row {
    /// Its full name.
    pub fn name(&self) -> String {
        joined(&[&self.title, &self.variant, self.phase, &self.disk])
    }

    /// Variant, phase and disk: two rows with the same title differ in these.
    pub fn label(&self) -> String {
        joined(&[&self.variant, self.phase, &self.disk])
    }

    /// Its name without the disk.
    pub fn load(&self) -> String {
        joined(&[&self.title, &self.variant, self.phase])
    }

    /// The contestant to compare with: the best peer, or Syncline itself if there are no peers. One
    /// that keeps nothing is not a fair competitor, so it is the yardstick only if it is the only
    /// peer.
    pub fn yardstick(&self) -> Option<&Column> {
        self.best(|column| column.peer && column.keeps)
            .or_else(|| self.columns.iter().find(|column| column.peer))
            .or_else(|| self.columns.first())
    }

    /// The best contestant of those that keep nothing, which is what FUSE permits: of those that
    /// flush, if there are any. `None` if that contestant is the yardstick already.
    pub fn floor(&self) -> Option<&Column> {
        let empty = |column: &Column| column.peer && !column.keeps;
        let floor = self.best(|column| empty(column) && column.flushes).or_else(|| self.best(empty))?;
        self.yardstick().is_some_and(|yardstick| yardstick.name != floor.name).then_some(floor)
    }

    /// The best of those that have run.
    fn best(&self, chosen: impl Fn(&Column) -> bool) -> Option<&Column> {
        let runs = self.columns.iter().filter(|column| chosen(column));
        let medians = runs.filter_map(|column| Some((self.value(column)?.median, column)));
        let better = self.unit.more_is_better();
        let best = medians.max_by(
            |(one, _), (other, _)| {
                if better { one.total_cmp(other) } else { other.total_cmp(one) }
            },
        );
        best.map(|(_, column)| column)
    }

    /// A contestant's value.
    pub fn value(&self, column: &Column) -> Option<Spread> {
        Spread::of(column.runs.iter().map(|run| self.unit.value(&run.sample)))
    }

    /// The figures of a contestant; `None` before it has run.
    pub fn figures(&self, column: &Column) -> Option<Figures> {
        let value = self.value(column)?;
        let median = |of: &dyn Fn(&Run) -> Option<f64>| {
            Spread::of(column.runs.iter().filter_map(of)).map(|spread| spread.median)
        };
        let each = |of: fn(&Run) -> f64| {
            median(&|run| Some(of(run) / run.sample.operations.max(1) as f64)).unwrap_or_default()
        };
        let microseconds = |nanoseconds: Option<u64>| nanoseconds.map(|ns| ns as f64 / 1000.0);
        let amplification = |run: &Run| {
            let written = run.sample.data_bytes > 0 && run.counts.write_bytes > 0;
            written.then(|| run.counts.write_bytes as f64 / run.sample.data_bytes as f64)
        };
        let floor = self.floor().filter(|_| column.keeps);
        Some(Figures {
            value,
            ratio: self.ratio(value.median, self.yardstick()?),
            ratio_interval: self.ratio_interval(column, self.yardstick()?),
            floor_ratio: floor.and_then(|floor| self.ratio(value.median, floor)),
            floor_ratio_interval: floor.and_then(|floor| self.ratio_interval(column, floor)),
            p50_us: median(&|run| microseconds(run.sample.p50_ns)),
            p99_us: median(&|run| microseconds(run.sample.p99_ns)),
            flushes_per_operation: each(|run| run.counts.flushes as f64),
            writes_per_operation: each(|run| run.counts.writes as f64),
            daemon_writes_per_operation: median(&|run| {
                Some(run.daemon_counts?.writes as f64 / run.sample.operations.max(1) as f64)
            }),
            bytes_per_byte: median(&amplification),
            cpu_us_per_operation: each(|run| run.cpu_seconds * 1e6),
        })
    }

    fn ratio(&self, value: f64, to: &Column) -> Option<f64> {
        let other = self.value(to)?.median;
        let ratio = if self.unit.more_is_better() { value / other } else { other / value };
        ratio.is_finite().then_some(ratio)
    }

    /// A contestant's ratio to itself is exact and has no interval.
    fn ratio_interval(&self, column: &Column, to: &Column) -> Option<Interval> {
        if to.name == column.name {
            return None;
        }
        let values =
            |column: &Column| column.runs.iter().map(|run| self.unit.value(&run.sample)).collect::<Vec<_>>();
        let pairs = values(column).into_iter().zip(values(to));
        let better = self.unit.more_is_better();
        let rounds: Vec<_> =
            pairs.map(|(own, other)| if better { (own, other) } else { (other, own) }).collect();
        ratio_interval(&rounds)
    }
}

/// A small part of the engine, measured by itself.
#[derive(Clone, Debug, Serialize)]
pub struct MicroResult {
    /// Its name.
    pub name: &'static str,
    /// A description of one operation.
    pub operation: &'static str,
    /// Time of one operation, in nanoseconds.
    pub ns: Spread,
    /// Bytes that one operation processes, if that matters.
    pub bytes: Option<u64>,
}

/// Everything that was measured.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// Where and how it was measured.
    pub conditions: Conditions,
    /// The workloads.
    pub rows: Vec<Row>,
    /// The small parts.
    pub micro: Vec<MicroResult>,
    /// Workloads that could not be measured, and why.
    pub failures: Vec<String>,
}

impl Report {
    /// One report of the measurements of several disks, with the rows of a load together.
    pub fn of_disks(reports: Vec<Self>) -> Self {
        let mut all = Self::default();
        for report in reports {
            all.rows.extend(report.rows);
            all.failures.extend(report.failures);
        }
        let mut loads: Vec<String> = Vec::new();
        all.rows.iter().map(Row::load).for_each(|load| {
            if !loads.contains(&load) {
                loads.push(load);
            }
        });
        all.rows.sort_by_key(|row| loads.iter().position(|load| *load == row.load()));
        all
    }
}

/// Where and how the measurement was made.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Conditions {
    /// Version of this program.
    pub version: String,
    /// The kernel.
    pub kernel: String,
    /// The system's name for the CPUs.
    pub cpu: String,
    /// Number of CPUs.
    pub cpus: usize,
    /// Size of the device.
    pub device_bytes: u64,
    /// A description of the device.
    pub device: String,
    /// True if the daemon counts writes and flushes rather than the block layer.
    pub counted_by_daemon: bool,
    /// Number of runs.
    pub runs: usize,
    /// Seconds of each timed load.
    pub seconds: f64,
    /// Load average at the start; shows whether others were busy too.
    pub load_average: f64,
    /// Notes for the reader.
    pub notes: Vec<String>,
}

/// From this load average on, other processes may affect the figures.
const LOAD_MOST: f64 = 0.5;

impl Conditions {
    /// Reasons not to trust the figures.
    pub fn warnings(&self) -> Vec<String> {
        warnings(self.load_average, self.runs)
    }
}

/// Reasons not to trust figures of this many runs, on a machine with this load average at the
/// start.
pub fn warnings(load_average: f64, runs: usize) -> Vec<String> {
    let load = format!(
        "Warning: the load average was {load_average:.2} at the start. What others do is in the figures; measure on a quiet machine."
    );
    let few =
        format!("Warning: too few runs ({runs}). Single runs differ by a third; take 3 and more (--runs).");
    let all = [(load_average >= LOAD_MOST, load), (runs < ROUNDS_LEAST, few)];
    all.into_iter().filter_map(|(holds, text)| holds.then_some(text)).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::counts::Counts;
    use crate::workload::Sample;

    /// A run with this many operations in one second, of 4 KiB each.
    pub(crate) fn run(operations: u64) -> Run {
        let sample = Sample {
            operations,
            seconds: 1.0,
            data_bytes: operations * 4096,
            p50_ns: Some(1000),
            p99_ns: Some(5000),
        };
        let counts = Counts { flushes: operations, writes: 3 * operations, write_bytes: operations * 8192 };
        let daemon_counts = Some(Counts { writes: 2 * operations, ..counts });
        Run { place: 0, sample, counts, daemon_counts, cpu_seconds: 0.001 }
    }

    /// A contestant with these rates.
    pub(crate) fn column(name: &str, peer: bool, rates: &[u64]) -> Column {
        Column {
            name: name.into(),
            peer,
            keeps: !name.starts_with("null"),
            flushes: name != "null",
            runs: rates.iter().map(|&rate| run(rate)).collect(),
        }
    }

    /// Syncline against a slower and a faster peer.
    pub(crate) fn row(unit: Unit) -> Row {
        Row {
            suite: "k5",
            title: "writing <fast>".into(),
            variant: "8 jobs".into(),
            phase: "",
            disk: String::new(),
            engine: "built in".into(),
            unit,
            latency_of: "fsync",
            columns: vec![
                column("syncline", false, &[300, 100, 200]),
                column("ext4", true, &[50]),
                column("xfs", true, &[100]),
            ],
        }
    }

    #[test]
    fn medians_and_spreads() {
        let spread = |numbers: &[f64]| Spread::of(numbers.iter().copied());
        assert_eq!(spread(&[]), None);
        assert_eq!(spread(&[7.0]), Some(Spread { median: 7.0, min: 7.0, max: 7.0 }));
        assert_eq!(spread(&[9.0, 1.0, 2.0]), Some(Spread { median: 2.0, min: 1.0, max: 9.0 }));
        assert_eq!(spread(&[4.0, 1.0, 2.0, 9.0]).unwrap().median, 3.0);
    }

    #[test]
    fn the_rows_of_a_load_stand_together() {
        let report = |disk: &str| {
            let row = |variant: &str| Row {
                variant: variant.into(),
                disk: disk.into(),
                ..row(Unit::PerSecond("fsyncs"))
            };
            Report {
                rows: vec![row("1 job"), row("8 jobs")],
                failures: vec![disk.into()],
                ..Report::default()
            }
        };
        let all = Report::of_disks(vec![report("plain"), report("slow")]);
        let labels: Vec<String> = all.rows.iter().map(Row::label).collect();
        assert_eq!(labels, ["1 job, plain", "1 job, slow", "8 jobs, plain", "8 jobs, slow"]);
        assert_eq!(all.failures, ["plain", "slow"]);
    }

    #[test]
    fn figures_are_for_an_operation_and_against_the_best_peer() {
        let row = row(Unit::PerSecond("fsyncs"));
        assert_eq!(row.yardstick().unwrap().name, "xfs");
        assert_eq!(row.name(), "writing <fast>, 8 jobs");
        let figures = row.figures(&row.columns[0]).unwrap();
        assert_eq!(figures.value, Spread { median: 200.0, min: 100.0, max: 300.0 });
        assert_eq!(figures.ratio, Some(2.0));
        assert_eq!((figures.flushes_per_operation, figures.writes_per_operation), (1.0, 3.0));
        assert_eq!(figures.daemon_writes_per_operation, Some(2.0));
        assert_eq!((figures.bytes_per_byte, figures.p99_us), (Some(2.0), Some(5.0)));
        assert_eq!(figures.cpu_us_per_operation, 5.0);
    }

    #[test]
    fn less_time_is_a_better_ratio() {
        let mut row = row(Unit::Milliseconds);
        row.columns[0].runs.iter_mut().for_each(|run| run.sample.seconds = 0.5);
        assert_eq!(row.figures(&row.columns[0]).unwrap().ratio, Some(2.0));
    }

    #[test]
    fn who_keeps_nothing_is_the_yardstick_only_alone() {
        let mut row = row(Unit::PerSecond("fsyncs"));
        row.columns.push(column("null", true, &[800]));
        assert_eq!(row.yardstick().unwrap().name, "xfs");
        row.columns.drain(1..3);
        let figures = row.figures(&row.columns[0]).unwrap();
        assert_eq!((figures.ratio, figures.floor_ratio), (Some(0.25), None), "one ratio says it");
    }

    #[test]
    fn the_floor_is_the_best_that_flushes() {
        let mut row = row(Unit::PerSecond("fsyncs"));
        assert!(row.floor().is_none(), "nobody keeps nothing");
        row.columns.push(column("null", true, &[800, 800, 800]));
        assert_eq!(row.floor().unwrap().name, "null");
        row.columns.push(column("null-flush/classic", true, &[250, 250, 250]));
        row.columns.push(column("null-flush/uring", true, &[400, 400, 400]));
        assert_eq!(row.floor().unwrap().name, "null-flush/uring");
        let figures = |index: usize| row.figures(&row.columns[index]).unwrap();
        let syncline = figures(0);
        assert_eq!((syncline.ratio, syncline.floor_ratio), (Some(2.0), Some(0.5)));
        assert_eq!(syncline.floor_ratio_interval, Some(Interval { low: 0.25, high: 0.75 }));
        assert_eq!(figures(2).floor_ratio, Some(0.25), "how far the peers are");
        assert_eq!((figures(3).floor_ratio, figures(5).floor_ratio), (None, None));
        row.unit = Unit::Milliseconds;
        assert!(row.floor().is_some_and(|floor| floor.flushes), "less time is better");
    }

    #[test]
    fn a_ratio_says_how_sure_it_is() {
        let mut row = row(Unit::PerSecond("fsyncs"));
        assert_eq!(row.figures(&row.columns[0]).unwrap().ratio_interval, None, "the peers ran once");
        row.columns[2].runs = vec![run(100), run(100), run(100)];
        let interval = row.figures(&row.columns[0]).unwrap().ratio_interval.unwrap();
        assert_eq!((interval.low, interval.high), (1.0, 3.0));
        assert_eq!(row.figures(&row.columns[2]).unwrap().ratio_interval, None);
    }

    #[test]
    fn what_makes_figures_doubtful_is_said() {
        let quiet = Conditions { runs: 7, load_average: 0.1, ..Conditions::default() };
        assert!(quiet.warnings().is_empty());
        let busy = Conditions { runs: 1, load_average: 1.5, ..Conditions::default() };
        let warnings = busy.warnings().join(" ");
        assert!(warnings.contains("1.50") && warnings.contains("too few runs (1)"), "{warnings}");
    }

    #[test]
    fn without_peers_syncline_is_the_yardstick() {
        let mut row = row(Unit::PerSecond("fsyncs"));
        row.columns.truncate(1);
        assert_eq!(row.figures(&row.columns[0]).unwrap().ratio, Some(1.0));
    }
}
