//! `syncline crashlab explore`: recovers the states that a power cut could have left, and has each
//! checked.

use super::checker::Checker;
use super::report::failing_text;
use crate::commands::image;
use crate::failure::{Cause, Failure, Outcome};
use indicatif::{HumanCount, ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use syncline_cuts::{
    Explorer, Failing, Planned, Recording, State, StateOptions, Verdict, plan, reduce, stretches,
};

/// Exit code when a state fails.
const STATE_FAILS: u8 = 1;
/// Exit code after an interrupt, as in a shell.
const INTERRUPTED: u8 = 130;
/// The most failing states listed besides the first.
const LISTED_MAX: usize = 20;

/// Arguments of `crashlab explore`.
#[derive(clap::Args)]
#[command(
    after_help = "The checker is run by 'sh -c' in the root of the recovered filesystem, with SYNCLINE_CRASHLAB_ACKED: a file with all \
                        that COMMAND had printed for certain by then; SYNCLINE_CRASHLAB_STATE: the state's name; \
                        SYNCLINE_CRASHLAB_DIR: where it is mounted. Exit code 0: all is well.\n\
                        Exit codes: 0 no state fails, 1 a state fails, others as of every command."
)]
pub struct Args {
    /// Recording
    recording: PathBuf,
    /// Shell command that checks a state
    #[arg(long, value_name = "COMMAND")]
    check: String,
    /// Look at all states instead of stopping at the first that fails
    #[arg(long)]
    keep_going: bool,
    /// Number of states to look at, chosen at random. Default: all
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
    /// Up to this number of writes in flight, look at every subset (at most 16)
    #[arg(long, value_name = "N", default_value_t = 6, value_parser = clap::value_parser!(u8).range(0..=16))]
    exhaustive: u8,
    /// With more writes in flight, number of random subsets
    #[arg(long, value_name = "N", default_value_t = 64)]
    samples: usize,
    /// Ways of tearing each write
    #[arg(long, value_name = "N", default_value_t = 2)]
    torn: usize,
    /// Seed of all random choices
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// States at once. Default: one for each CPU
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    jobs: Option<u16>,
    /// Seconds that a checker may take
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = seconds)]
    timeout: Duration,
    /// Look at this state only
    #[arg(long, value_name = "STATE")]
    state: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let number = text.strip_suffix('s').unwrap_or(text);
    let seconds: f64 = number.parse().map_err(|_| "give a number of seconds".to_owned())?;
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}

/// Runs the command.
pub fn run(args: Args) -> Outcome {
    let recording = syncline_cuts::read(&args.recording)?;
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, interrupted.clone())?;
    }
    let folder = tempfile::Builder::new().prefix("syncline-crashlab-").tempdir()?;
    let copies = must_copy(&recording, folder.path())?;
    let checker = Checker::new(args.check.clone(), args.timeout, folder.path(), copies, interrupted.clone());
    let explorer = Explorer::new(&recording, &checker, &interrupted);
    let plan = planned(&args, &recording)?;
    let jobs = args.jobs.map_or_else(cpus, usize::from);
    let started = Instant::now();
    let found = with_progress(&explorer, plan.len(), || explorer.run(&plan, jobs, args.keep_going));
    if interrupted.load(Ordering::Relaxed) {
        return Err(Failure::new("interrupted; nothing is left mounted").with_code(INTERRUPTED));
    }
    let found = found?;
    if args.json {
        say_text!("{:#}\n", as_json(&args, &recording, &explorer, plan.len(), &found)?);
        return Ok(ExitCode::from(if found.is_empty() { 0 } else { STATE_FAILS }));
    }
    // Before the reduction, which examines further states.
    let summary = summary(&recording, &explorer, plan.len(), started.elapsed());
    if let Some(first) = found.first() {
        tell(&args, &recording, &explorer, first, &found)?;
    }
    say_text!("{summary}\n");
    Ok(ExitCode::from(if found.is_empty() { 0 } else { STATE_FAILS }))
}

fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn planned(args: &Args, recording: &Recording) -> Result<Vec<Planned>, Failure> {
    if let Some(text) = &args.state {
        let (state, _) = State::parse(text, recording)?;
        let stretch = stretches(recording).into_iter().rfind(|stretch| stretch.begin <= state.position);
        let stretch =
            stretch.ok_or_else(|| Failure::usage(format!("state {text} is before COMMAND began")))?;
        return Ok(vec![Planned { stretch, state }]);
    }
    let (exhaustive, samples, torn) = (usize::from(args.exhaustive), args.samples, args.torn);
    Ok(plan(recording, StateOptions { exhaustive, samples, torn, limit: args.limit, seed: args.seed }))
}

/// True if nothing can be mounted here, which is reported.
fn must_copy(recording: &Recording, folder: &Path) -> Result<bool, Failure> {
    let device = recording.base.snapshot();
    let fs = syncline::Filesystem::open_device(device, syncline::ImageOptions::default())?;
    let Some(error) = Checker::why_not_mounted(fs.engine(), folder) else { return Ok(false) };
    let failure = Failure::from(error);
    if ![Cause::Fuse as u8, Cause::Permission as u8].contains(&failure.code()) {
        return Err(failure);
    }
    note!("syncline: states are copied to {}, not mounted: {failure}", folder.display());
    Ok(true)
}

/// Shows progress while `work` runs.
fn with_progress<T>(explorer: &Explorer<'_>, total: usize, work: impl FnOnce() -> T) -> T {
    let style = ProgressStyle::with_template("{wide_bar} {pos}/{len} states, {per_sec}, {msg}");
    let bar = image::progress_bar(total as u64, "").with_style(style.expect("the template is well-formed"));
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| show(&bar, explorer, &done));
        let result = work();
        done.store(true, Ordering::Relaxed);
        result
    })
}

fn show(bar: &ProgressBar, explorer: &Explorer<'_>, done: &AtomicBool) {
    let counts = &explorer.counts;
    while !done.load(Ordering::Relaxed) {
        bar.set_position(load(&counts.states));
        bar.set_message(format!("{} checked, {} failing", load(&counts.cases), load(&counts.failing)));
        std::thread::sleep(Duration::from_millis(50));
    }
    bar.finish_and_clear();
}

fn load(count: &AtomicU64) -> u64 {
    count.load(Ordering::Relaxed)
}

/// Reduces the first failing state and reports everything about it.
fn tell(
    args: &Args,
    recording: &Recording,
    explorer: &Explorer<'_>,
    first: &Failing,
    found: &[Failing],
) -> Result<(), Failure> {
    let (simplest, tries) = match &args.state {
        Some(_) => (first.clone(), 0),
        None => reduce(recording, explorer, first)?,
    };
    say_text!("{}\n", failing_text(recording, &simplest)?);
    if simplest.state != first.state {
        say!("It was reduced from state {} in {tries} steps.", first.state);
    }
    if fails_in_the_end(args, recording, explorer)? {
        say!("It fails as well when nothing is lost and COMMAND has ended: look at the checker first.");
    }
    say!("Look at it: syncline crashlab mount {} {} DIR", quoted(&args.recording), simplest.state);
    if args.keep_going && found.len() > 1 {
        say!();
        say!("{} cases fail; the simplest state of each:", found.len());
        for failing in found.iter().take(LISTED_MAX) {
            let said = failing.output.lines().next().unwrap_or_default();
            say!("  {:<16} {said}", failing.state.to_string());
        }
        if found.len() > LISTED_MAX {
            say!("  ... and {} more", found.len() - LISTED_MAX);
        }
    }
    say!();
    Ok(())
}

/// The result as JSON: what was examined, each failing case, and the simplest state of the first.
fn as_json(
    args: &Args,
    recording: &Recording,
    explorer: &Explorer<'_>,
    planned: usize,
    found: &[Failing],
) -> Result<Value, Failure> {
    let counts = &explorer.counts;
    let mut report = json!({
        "recording": args.recording.to_string_lossy(),
        "points": stretches(recording).len(),
        "states_planned": planned,
        "states": load(&counts.states),
        "images": load(&counts.images),
        "trees": load(&counts.cases),
        "failing": found.iter().map(failing_json).collect::<Vec<_>>(),
    });
    if let (Some(first), None) = (found.first(), &args.state) {
        let (simplest, _) = reduce(recording, explorer, first)?;
        report["simplest"] = failing_json(&simplest);
        report["fails_without_power_cut"] = fails_in_the_end(args, recording, explorer)?.into();
    }
    Ok(report)
}

fn failing_json(failing: &Failing) -> Value {
    json!({
        "state": failing.state.to_string(),
        "event": failing.state.position,
        "output": failing.output.trim_end(),
    })
}

/// True if the checker rejects the final state that COMMAND left, without any power cut.
fn fails_in_the_end(args: &Args, recording: &Recording, explorer: &Explorer<'_>) -> Result<bool, Failure> {
    if args.state.is_some() {
        return Ok(false);
    }
    let (state, _) = State::parse(&recording.events.len().to_string(), recording)?;
    Ok(matches!(explorer.judge_one(&state)?, Verdict::Failed(_)))
}

fn summary(recording: &Recording, explorer: &Explorer<'_>, planned: usize, took: Duration) -> String {
    let counts = &explorer.counts;
    let states = load(&counts.states);
    format!(
        "{} points, {} of {} states looked at, {} distinct images recovered, {} distinct file trees checked, {} failing; \
         {:.1} s, {:.0} states/s",
        HumanCount(stretches(recording).len() as u64),
        HumanCount(states),
        HumanCount(planned as u64),
        HumanCount(load(&counts.images)),
        HumanCount(load(&counts.cases)),
        HumanCount(load(&counts.failing)),
        took.as_secs_f64(),
        states as f64 / took.as_secs_f64().max(0.001),
    )
}

/// A path quoted for a shell.
fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+,:@".contains(c);
    if text.chars().all(plain) { text } else { format!("'{}'", text.replace('\'', "'\\''")) }
}
