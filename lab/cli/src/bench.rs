//! `syncline-lab bench`: measures Syncline, and on request Syncline without some of its mechanisms,
//! against the kernel's filesystems and one that stores nothing.

use indicatif::{HumanBytes, ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;
use syncline_bench::contestant::Contestant;
use syncline_bench::fio::Fio;
use syncline_bench::ground::Ground;
use syncline_bench::measure::{Plan, Settings};
use syncline_bench::mount::run_program;
use syncline_bench::outcome::{Conditions, Report, warnings};
use syncline_bench::workload::Workload;
use syncline_bench::workloads::{Scale, Suite};
use syncline_bench::{BenchError, Interrupt, command, machine, micro, report};
use syncline_device::DeviceError;
use syncline_image::{How, Image};

/// Image size, and the image size of a quick run.
const SIZE_BYTES: u64 = 4 << 30;
const SIZE_BYTES_QUICK: u64 = 1536 << 20;
/// The smallest image that the workloads fit.
const SIZE_BYTES_LEAST: u64 = 64 << 20;
/// Seconds of each timed load, and of one in a quick run.
const SECONDS: f64 = 10.0;
const SECONDS_QUICK: f64 = 2.0;
/// Number of runs.
const RUNS: usize = 3;

/// The end of the command's help.
pub const HELP: &str = "\
Examples:
  syncline-lab bench k5 --quick                      a first look, in a minute
  syncline-lab bench all --peers ext4,xfs,btrfs --report bench.html
  syncline-lab bench k4 --peers null                 the cost of FUSE itself
  syncline-lab bench overwrite --ablate flush-elide  the gain by a mechanism
  syncline-lab bench k5 --flush none,300us,2ms --peers ext4,xfs --also library    three kinds of disk

Workloads:
  k1         8 jobs, random 64 KiB write + fsync, files with one extended attribute and without
  k2         the ffsb profile: reads, creates, appends, overwrites, deletes, some of them synced
  k3         fsync of a directory of a million files, all new, and after one in 1000 was removed
  k4         creating and removing empty files
  k5         sequential 64 KiB write + fsync, 1 to 1024 jobs
  overwrite  random 4 KiB overwrite of one file + fdatasync, 1 and 16 jobs
  append     2300 bytes appended to an allocated log + fdatasync, as etcd does
  mail       delivery into a Maildir, 1 and 16 jobs
  replace    replacing a file: write, fsync, rename
  sqlite     synchronous=FULL: INSERT with a rollback journal and with a write-ahead log, UPDATE with the latter
  postgresql pgbench, 8 clients
  git        commits with core.fsync=all
  read       in order and at random, with empty and full caches; streaming write
  micro      parts of the engine on a device in memory
  all        all of these

fio, fs_mark and sqlite3 make the load where they are installed (sqlite3 has to be). Every run makes the filesystem anew on
the same fully written image, in rounds whose order is drawn. The table has medians, the spread between runs, the ratio to
the best peer (above 1 is better than it), and for each operation flushes, writes, bytes written for a byte of data and CPU
time, as counted by the block layer or, without a loop device, by the daemon. The kernel's filesystems, and counts of the
block layer, need root. null and null-flush take no part in workloads that read their data back: sqlite, postgresql, git,
cold reads, and k1 with an attribute. The library takes part in k5, overwrite, append, mail and replace, and in sqlite
if libsyncline_sqlite.so lies beside this program.

With --flush the disk is a loop device over a FUSE file whose fsync takes that long; the kernel passes reads and writes
through. Writes of the same disk wait while a flush is under way.";

/// Arguments of `bench`.
#[derive(clap::Args)]
pub struct Args {
    /// Workloads to measure: k1, k2, k3, k4, k5, overwrite, append, mail, replace, sqlite,
    /// postgresql, git, read, micro, all
    #[arg(required = true, value_name = "WORKLOAD")]
    workloads: Vec<Choice>,
    /// Filesystems to compare with: ext4, ext4-fc, xfs, btrfs; null, which stores nothing and has
    /// only the cost of FUSE; null-flush, which also writes and flushes: the floor of a sync. Both
    /// with /uring or /classic for one transport
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    peers: Vec<Contestant>,
    /// Measure Syncline also without each of these mechanisms, by the names that 'mount -o ablate='
    /// knows, and parent-pointers
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    ablate: Vec<String>,
    /// Measure Syncline also with each of these: an option of 'mount -o' (transport=uring,
    /// direct_io=write), node-size=SIZE, program=PATH (the program of another Syncline, all but
    /// micro), or library (in the process of the load, which is then built in for everybody)
    #[arg(long, value_name = "OPTION,...", value_delimiter = ',')]
    also: Vec<String>,
    /// How requests come from the kernel to Syncline and null. Default auto
    #[arg(long, value_name = "WAY", value_parser = ["auto", "uring", "classic"])]
    transport: Option<String>,
    /// Measure on disks whose flushes take this long, such as 300us,2ms, one after the other; none is
    /// the plain loop device. Needs root and Linux 6.9
    #[arg(long, value_name = "TIME,...", value_delimiter = ',', value_parser = flush)]
    flush: Vec<Flush>,
    /// Measure less: smaller image, shorter loads, one run
    #[arg(long)]
    quick: bool,
    /// Runs of everything. Default 3, quick 1
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=100))]
    runs: Option<u16>,
    /// Seconds of each timed load. Default 10, quick 2
    #[arg(long, value_name = "N", value_parser = seconds)]
    seconds: Option<Duration>,
    /// Size of the image. Default 4GiB, quick 1.5GiB
    #[arg(long, value_name = "SIZE", value_parser = size)]
    size: Option<u64>,
    /// Make the load with built-in code even where fio and fs_mark are installed
    #[arg(long)]
    built_in: bool,
    /// Write a page with charts, which needs nothing but itself
    #[arg(long, value_name = "FILE.html")]
    report: Option<PathBuf>,
    /// Write everything as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Where the image is made. Default: the folder for temporary files
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Measure on this image instead, which may lie on a network: block device, NBD export, RBD image
    /// or image file, of its own size. It must hold nothing
    #[arg(long, value_name = "IMAGE", conflicts_with_all = ["dir", "size", "peers", "flush"])]
    image: Option<PathBuf>,
    /// Allow that the contents of --image are lost
    #[arg(long, short, requires = "image")]
    force: bool,
}

/// The measurements that can be named on the command line.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Choice {
    Suite(Suite),
    Micro,
    All,
}

impl std::str::FromStr for Choice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "all" => Ok(Self::All),
            "micro" => Ok(Self::Micro),
            _ => text.parse().map(Self::Suite),
        }
    }
}

/// Bytes from a text such as `8GiB`.
fn size(text: &str) -> Result<u64, String> {
    let config = parse_size::Config::new().with_binary();
    config.parse_size(text).map_err(|_| "give a size such as 10MiB or 8GiB".to_owned())
}

/// How long the flushes of a disk take; `None` for those of the plain loop device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Flush(Option<Duration>);

/// The longest flush.
const FLUSH_MOST: Duration = Duration::from_secs(10);

fn flush(text: &str) -> Result<Flush, String> {
    if text == "none" {
        return Ok(Flush(None));
    }
    match humantime::parse_duration(text) {
        Ok(time) if (Duration::from_micros(1)..=FLUSH_MOST).contains(&time) => Ok(Flush(Some(time))),
        _ => Err("give a time from 1us to 10s, such as 300us or 2ms, or none".to_owned()),
    }
}

impl std::fmt::Display for Flush {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(time) => write!(f, "{} a flush", humantime::format_duration(time)),
            None => f.write_str("plain loop device"),
        }
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "give a number of seconds".to_owned())?;
    if (0.05..=3600.0).contains(&seconds) {
        Ok(Duration::from_secs_f64(seconds))
    } else {
        Err("from 0.05 to 3600".into())
    }
}

impl Args {
    fn names(&self, choice: Choice) -> bool {
        self.workloads.iter().any(|&named| named == choice || named == Choice::All)
    }

    fn suites(&self) -> Vec<Suite> {
        Suite::ALL.into_iter().filter(|&suite| self.names(Choice::Suite(suite))).collect()
    }

    fn runs(&self) -> usize {
        self.runs.map_or(if self.quick { 1 } else { RUNS }, usize::from)
    }

    fn duration(&self) -> Duration {
        let default = if self.quick { SECONDS_QUICK } else { SECONDS };
        self.seconds.unwrap_or(Duration::from_secs_f64(default))
    }

    /// Mount options for the filesystems behind FUSE.
    fn mount_options(&self) -> Vec<OsString> {
        self.transport.iter().flat_map(|way| ["--transport".into(), way.into()]).collect()
    }

    /// True if the load is made by code that is built in.
    fn built_in(&self) -> bool {
        self.built_in || self.also.iter().any(|option| option == "library")
    }

    fn size_bytes(&self) -> Result<u64, BenchError> {
        let default = if self.quick { SIZE_BYTES_QUICK } else { SIZE_BYTES };
        let bytes = self.size.unwrap_or(default);
        if bytes < SIZE_BYTES_LEAST {
            return Err(BenchError::Usage(format!("--size is at least {}", HumanBytes(SIZE_BYTES_LEAST))));
        }
        // Round up to whole mebibytes.
        Ok(bytes.next_multiple_of(1 << 20))
    }
}

/// Runs the command.
pub fn run(mut args: Args) -> Result<(), BenchError> {
    args.peers = those_installed(args.peers)?;
    let interrupt = interrupt()?;
    // Create the output files now: an hour later is too late to find out that they can't be
    // written.
    for path in [&args.report, &args.json].into_iter().flatten() {
        write(path, "")?;
    }
    let bar = progress();
    let load_average = machine::load_average();
    let mut report = Report::default();
    let suites = args.suites();
    if !suites.is_empty() {
        report = measure(&args, &suites, load_average, &interrupt, &bar)?;
    }
    report.conditions = Conditions { load_average, ..conditions(&args, report.conditions) };
    if args.names(Choice::Micro) {
        bar.set_length(micro::ALL.len() as u64);
        bar.set_position(0);
        report.micro = micro::measure(&interrupt, |part| {
            bar.set_message(format!("{}: {}", part.name, part.operation));
            bar.inc(1);
        })?;
    }
    bar.finish_and_clear();
    show(&args, &report)?;
    if report.failures.is_empty() { Ok(()) } else { Err(BenchError::Incomplete(report.failures.join("; "))) }
}

/// SIGINT and SIGTERM end a measurement in an orderly way: everything it made is removed.
fn interrupt() -> Result<Interrupt, BenchError> {
    let interrupt = Interrupt::default();
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, interrupt.flag())?;
    }
    Ok(interrupt)
}

fn write(path: &Path, text: &str) -> Result<(), BenchError> {
    std::fs::write(path, text).map_err(|source| BenchError::Io { what: path.display().to_string(), source })
}

/// The peers whose programs are installed; the others are named and left out, unless nothing is
/// left.
fn those_installed(peers: Vec<Contestant>) -> Result<Vec<Contestant>, BenchError> {
    let (mut here, mut missing) = (Vec::new(), Vec::new());
    for peer in peers {
        match peer.require() {
            Ok(()) => here.push(peer),
            Err(error) => missing.push((peer, error)),
        }
    }
    if here.is_empty()
        && let Some((_, error)) = missing.pop()
    {
        return Err(error);
    }
    for (peer, error) in missing {
        note(format_args!("{peer} is left out: {error}"));
    }
    Ok(here)
}

fn show(args: &Args, report: &Report) -> Result<(), BenchError> {
    let mut output = std::io::stdout();
    write!(output, "{}", report::table(report))?;
    if let Some(path) = &args.json {
        write(path, &format!("{:#}\n", report::json(report)))?;
    }
    if let Some(path) = &args.report {
        write(path, &report::html(report))?;
        writeln!(output, "The report is {}", path.display())?;
    }
    Ok(())
}

/// Tells people something besides the results.
fn note(words: std::fmt::Arguments<'_>) {
    eprintln!("syncline-lab: {words}");
}

fn measure(
    args: &Args,
    suites: &[Suite],
    load_average: f64,
    interrupt: &Interrupt,
    bar: &ProgressBar,
) -> Result<Report, BenchError> {
    let program = crate::syncline()?;
    let size_bytes = match &args.image {
        Some(image) => emptied(&program, image, args.force)?,
        None => args.size_bytes()?,
    };
    let mut notes = Vec::new();
    let workloads = workloads(args, suites, size_bytes, &mut notes)?;
    let contestants = Contestant::line_up(&args.ablate, &args.also, &args.peers);
    let mut ground =
        ground(&program, args, size_bytes, interrupt, bar)?.with_mount_options(args.mount_options());
    if let Some(why) = ground.why_no_loop_device().filter(|_| args.image.is_none()) {
        let note = format!("Measured on an image file, without a loop device: {why}.");
        bar.suspend(|| self::note(format_args!("{note}")));
        notes.push(note);
    }
    // Without --flush there is one disk, which needs no name.
    let disks: Vec<Option<Flush>> =
        if args.flush.is_empty() { vec![None] } else { args.flush.iter().copied().map(Some).collect() };
    let mut reports = Vec::new();
    for flush in disks {
        if let Some(Flush(flush)) = flush {
            ground.set_flush(flush)?;
        }
        let plan = Plan {
            ground: &ground,
            contestants: &contestants,
            workloads: &workloads,
            settings: Settings { runs: args.runs(), duration: args.duration() },
            interrupt,
            bar,
            disk: flush.map_or_else(String::new, |flush| flush.to_string()),
        };
        if reports.is_empty() {
            plan.rehearse()?;
            // At this point the user can still make the machine quiet and start again.
            for warning in warnings(load_average, args.runs()) {
                bar.suspend(|| note(format_args!("{warning}")));
            }
        }
        reports.push(plan.measure()?);
    }
    let mut report = Report::of_disks(reports);
    report.conditions.device_bytes = ground.bytes();
    report.conditions.counted_by_daemon = ground.why_no_loop_device().is_some();
    report.conditions.notes = notes;
    Ok(report)
}

/// Makes an image, or takes the one that was named.
fn ground(
    program: &Path,
    args: &Args,
    size_bytes: u64,
    interrupt: &Interrupt,
    bar: &ProgressBar,
) -> Result<Ground, BenchError> {
    if let Some(image) = &args.image {
        return Ground::on(program, image, size_bytes);
    }
    let parent = args.dir.clone().unwrap_or_else(std::env::temp_dir);
    bar.set_message("writing the image");
    bar.set_length(size_bytes);
    let loop_device = args.peers.iter().any(Contestant::is_peer) || !args.flush.is_empty();
    let mut written = |bytes| bar.set_position(bytes);
    Ground::new(program, &parent, size_bytes, loop_device, interrupt, &mut written)
}

/// Makes a filesystem on the image that was named, if that loses nothing or is allowed, and returns
/// its size.
fn emptied(program: &Path, image: &Path, force: bool) -> Result<u64, BenchError> {
    let mut mkfs = std::process::Command::new(program);
    run_program(mkfs.arg("mkfs").args(force.then_some("--force")).arg(image))?;
    let opened = Image::open(image, &How::reading());
    let failed = |error: DeviceError| BenchError::Engine { what: "the image", said: error.to_string() };
    Ok(opened.map_err(failed)?.device().size_bytes())
}

/// The workloads. With `all`, a workload whose program is missing is left out, with a note.
fn workloads(
    args: &Args,
    suites: &[Suite],
    device_bytes: u64,
    notes: &mut Vec<String>,
) -> Result<Vec<Box<dyn Workload>>, BenchError> {
    let fio = if args.built_in() { None } else { Fio::find() };
    let fs_mark = if args.built_in() { None } else { command::find("fs_mark") };
    let scale = Scale { device_bytes, quick: args.quick, cpus: machine::cpus(), fio, fs_mark };
    let mut all = Vec::new();
    for &suite in suites {
        match suite.workloads(&scale) {
            Ok(workloads) => all.extend(workloads),
            Err(error @ BenchError::Missing { .. }) if !args.workloads.contains(&Choice::Suite(suite)) => {
                notes.push(format!("Left out {}: {error}.", suite.name()));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(all)
}

fn conditions(args: &Args, so_far: Conditions) -> Conditions {
    let device = match &args.image {
        Some(image) => image.display().to_string(),
        None if so_far.counted_by_daemon => "an image file".into(),
        None => "a loop device (direct I/O)".into(),
    };
    Conditions {
        version: env!("CARGO_PKG_VERSION").into(),
        kernel: machine::kernel(),
        cpu: machine::cpu(),
        cpus: machine::cpus(),
        device,
        runs: args.runs(),
        seconds: args.duration().as_secs_f64(),
        ..so_far
    }
}

/// A bar with a message; silent when standard error is not a terminal.
fn progress() -> ProgressBar {
    let target = if std::io::stderr().is_terminal() {
        ProgressDrawTarget::stderr()
    } else {
        ProgressDrawTarget::hidden()
    };
    let style = ProgressStyle::with_template("{bar:24} {percent:>3}% {wide_msg}");
    let bar = ProgressBar::with_draw_target(None, target);
    bar.enable_steady_tick(Duration::from_millis(200));
    bar.with_style(style.expect("the template is well-formed"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use syncline_bench::contestant::{Null, Peer};

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn parse(words: &[&str]) -> Result<Args, clap::Error> {
        Line::try_parse_from(["bench"].iter().chain(words)).map(|line| line.args)
    }

    #[test]
    fn all_names_every_workload_once() {
        let args = parse(&["all", "k5"]).unwrap();
        assert_eq!(args.suites(), Suite::ALL);
        assert!(args.names(Choice::Micro));
        let args = parse(&["sqlite", "k1"]).unwrap();
        assert_eq!(args.suites(), [Suite::K1, Suite::Sqlite]);
        assert!(!args.names(Choice::Micro));
    }

    #[test]
    fn quick_changes_what_nobody_chose() {
        let args = parse(&["k5", "--quick", "--runs", "2", "--peers", "xfs,ext4-fc,null"]).unwrap();
        assert_eq!((args.runs(), args.duration()), (2, Duration::from_secs(2)));
        assert_eq!(args.size_bytes().unwrap(), SIZE_BYTES_QUICK);
        assert_eq!(
            args.peers,
            [
                Contestant::Peer(Peer::Xfs),
                Contestant::Peer(Peer::Ext4FastCommit),
                Contestant::Null(Null::default())
            ]
        );
    }

    #[test]
    fn disks_are_named_by_their_flushes() {
        let args = parse(&["k5", "--flush", "none,300us,2ms", "--also", "library"]).unwrap();
        let names: Vec<String> = args.flush.iter().map(ToString::to_string).collect();
        assert_eq!(names, ["plain loop device", "300us a flush", "2ms a flush"]);
        assert!(args.built_in(), "fio can't use the library");
    }

    #[test]
    fn nonsense_is_refused() {
        for words in [
            &[][..],
            &["k6"],
            &["k5", "--peers", "ext3"],
            &["k5", "--seconds", "0"],
            &["k5", "--runs", "0"],
            &["k5", "--flush", "0s"],
            &["k5", "--flush", "2ms", "--image", "disk"],
        ] {
            assert!(parse(words).is_err(), "{words:?}");
        }
        assert!(parse(&["k5", "--size", "1MiB"]).unwrap().size_bytes().is_err());
    }
}
