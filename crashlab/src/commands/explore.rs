//! `crashlab explore`.

use super::{chosen, interrupt, note, print};
use crate::Error;
use crate::action::{Action, Ino};
use crate::built_in::BuiltIn;
use crate::checker::Checker;
use crate::explain::{explain, open};
use crate::explore::{Explorer, Failing, Judge, Limits, Verdict};
use crate::history::History;
use crate::leftovers::Guard;
use crate::model::{MODELS, Model};
use crate::plan::Plan;
use crate::real::{FILESYSTEMS, Filesystem, OnDisk, Seen};
use crate::recording::Recording;
use crate::report::{Report, ReportFile, as_text};
use crate::search::explanation;
use crate::state::State;
use clap::builder::{OsStringValueParser, TypedValueParser};
use indicatif::{ProgressBar, ProgressStyle};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::collections::HashMap;
use std::fs::Metadata;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The longest time: ten years.
const SECONDS_MAX: u64 = 315_360_000;
/// The longest file of the working folder that is compared with the recorded one.
const COMPARED_MAX: u64 = 16 << 20;

/// Arguments of `crashlab explore`.
#[derive(clap::Args)]
#[command(
    after_help = "The checker is run by 'sh -c' in a folder with the files of a state, which it may change, with CRASHLAB_ACKED: a file \
                        with all that the program had printed for certain by then; CRASHLAB_STATE: the state's name; \
                        CRASHLAB_DIR: the folder. Exit code 0: all is well."
)]
pub struct Args {
    /// Recording. Default: the newest in the working folder
    recording: Option<PathBuf>,
    /// Shell command that checks a state. Default: files that are replaced as a whole are whole, JSON can
    /// be read, SQLite and git find no damage
    #[arg(long, value_name = "COMMAND")]
    check: Option<String>,
    /// The rules by which changes survive: 'crashlab models' lists them
    #[arg(long, default_value = "posix", value_parser = model)]
    model: &'static Model,
    /// A real filesystem instead, on a disk in memory: ext4, ext4-journal, xfs, btrfs or syncline. Needs root
    #[arg(long, value_name = "FILESYSTEM", value_parser = filesystem, conflicts_with = "model")]
    on: Option<&'static Filesystem>,
    /// More options for the mount of the real filesystem
    #[arg(long, value_name = "OPTION,...", requires = "on", default_value = "", hide_default_value = true)]
    mount_options: String,
    /// Go on after the first state that fails
    #[arg(long)]
    keep_going: bool,
    /// Seconds after which no further state is begun; the explanation of a failing one may take as long again
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=SECONDS_MAX))]
    seconds: u64,
    /// Seconds that a checker may take
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=SECONDS_MAX))]
    timeout: u64,
    /// States at once. Default: one for each CPU
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    jobs: Option<u16>,
    /// Seed of all random choices
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Check this state only
    #[arg(long, value_name = "STATE")]
    state: Option<String>,
    /// Write a report too: .json, .xml (JUnit), .sarif, or .html for people. Can be given several times
    #[arg(long, value_name = "FILE", value_parser = OsStringValueParser::new().try_map(ReportFile::new), conflicts_with = "state")]
    report: Vec<ReportFile>,
}

pub(super) fn model(name: &str) -> Result<&'static Model, String> {
    let names: Vec<&str> = MODELS.iter().map(|model| model.name).collect();
    Model::named(name).ok_or_else(|| format!("the models are {}", names.join(", ")))
}

pub(super) fn filesystem(name: &str) -> Result<&'static Filesystem, String> {
    let names: Vec<&str> = FILESYSTEMS.iter().map(|filesystem| filesystem.name).collect();
    Filesystem::named(name).ok_or_else(|| format!("the filesystems are {}", names.join(", ")))
}

/// The filesystem that the arguments name.
fn wanted(args: &Args) -> Option<&'static Filesystem> {
    let of_state = || args.state.as_deref()?.split_once(':').and_then(|(name, _)| Filesystem::named(name));
    of_state().or(args.on)
}

/// Refuses a recording without a change of the program, and tells of one that lacks its end.
fn require_program(recording: &Recording, path: &Path) -> Result<(), Error> {
    if recording.begin == recording.events.len() {
        let what = "is cut off before the program changed anything; record again";
        return Err(Error::Stopped(format!("{} {what}", path.display())));
    }
    let has_end = recording.events.iter().any(|event| matches!(event.action, Action::End { .. }));
    if recording.is_cut_off || !has_end {
        note(&format!("{} lacks the end of the program; exploring what is there", path.display()));
    }
    Ok(())
}

/// Runs the command.
pub fn run(args: Args) -> Result<ExitCode, Error> {
    let path = chosen(args.recording.clone())?;
    let recording = Recording::open(&path)?;
    if args.recording.is_none() {
        note(&format!("exploring {}", path.display()));
    }
    require_program(&recording, &path)?;
    let history = History::new(recording)?;
    args.report.iter().try_for_each(ReportFile::try_out)?;
    let stop = interrupt(&[SIGINT, SIGTERM, SIGHUP]);
    let folder = tempfile::Builder::new().prefix("crashlab-").tempdir();
    let folder = folder.map_err(|error| Error::file(&std::env::temp_dir(), error))?;
    let judge: Box<dyn Judge> = match &args.check {
        Some(command) if command.trim().is_empty() => {
            return Err(Error::Usage("--check is empty: name a command".into()));
        }
        Some(command) => Box::new(Checker {
            command: command.clone(),
            timeout: Duration::from_secs(args.timeout),
            folder: folder.path().to_owned(),
            stop: &stop,
        }),
        None => Box::new(built_in(&history, folder.path().to_owned(), &stop)?),
    };
    let explorer = Explorer::new(&history, &*judge);
    let filesystem = wanted(&args);
    if let (Some(name), None) = (&args.state, filesystem) {
        let state = State::parse(name, history.events(), history.recording.begin)?;
        if open(&history, args.model, state.position).close(&state.lost).as_ref() != Some(&state) {
            note(&format!("{} does not allow this state", args.model.name));
        }
        return told(explorer.verdict(&state)?);
    }
    if let Some(command) = &args.check {
        warn_of_older_copies(command, &history)?;
    }
    explorer.accept_the_end(Some(&path))?;
    let started = Instant::now();
    let jobs =
        args.jobs.map_or_else(|| std::thread::available_parallelism().map_or(1, usize::from), usize::from);
    let until = Some(started + Duration::from_secs(args.seconds));
    let limits = Limits { stop: &stop, until, keep_going: args.keep_going, jobs };
    if let Some(filesystem) = filesystem {
        filesystem.check()?;
    }
    let _guard = filesystem.map(|_| Guard::start());
    let model = filesystem.and_then(|on| Model::named(on.name)).unwrap_or(args.model);
    let on = filesystem.map(|filesystem| {
        let mount_options = &args.mount_options;
        OnDisk { history: &history, filesystem, mount_options, explorer: &explorer, limits }
    });
    if let (Some(name), Some(on)) = (&args.state, &on) {
        return again(on, name);
    }
    let found = with_progress(&explorer, "", || match &on {
        // There are always more seeds.
        Some(on) => on.run(args.seed).map(|seen| (Vec::new(), seen, false)),
        None => {
            let plan = Plan::new(model, history.events(), history.recording.begin, args.seed);
            explorer.run(plan, limits).map(|found| (found.failing, Vec::new(), found.is_complete))
        }
    });
    // An error ends all workers by the same flag.
    let (mut failing, seen, is_complete) = found?;
    if stop.load(Ordering::Relaxed) {
        return Err(Error::Interrupted);
    }
    let (states, cases) =
        (explorer.counts.states.load(Ordering::Relaxed), explorer.counts.cases.load(Ordering::Relaxed));
    failing.extend(explained(&history, model, on.as_ref(), &seen)?);
    let first = match failing.first() {
        Some(first) => {
            // The explanation has as much time again.
            let until = Some(Instant::now() + Duration::from_secs(args.seconds));
            let limits = Limits { until, ..limits };
            let explain = || explain(&history, model, &explorer, &*judge, first, limits);
            Some(with_progress(&explorer, ", explaining the first", explain)?)
        }
        None => None,
    };
    let report = Report {
        path: Some(&path),
        history: &history,
        model,
        on: filesystem.map(|on| on.name),
        first,
        failing: &failing,
        seen: &seen,
        is_complete,
        states,
        cases,
        elapsed: started.elapsed(),
    };
    print(&as_text(&report))?;
    args.report.iter().try_for_each(|file| file.write(&report))?;
    Ok(ExitCode::from(u8::from(!failing.is_empty() || !seen.is_empty())))
}

fn built_in<'a>(history: &History, folder: PathBuf, stop: &'a AtomicBool) -> Result<BuiltIn<'a>, Error> {
    let checks = BuiltIn::new(history, folder, stop)?;
    let nothing = || {
        Error::Usage(
            "these files are of no kind that can be checked without your help: name a checker with --check COMMAND".into(),
        )
    };
    note(&format!("checking {}", checks.about().ok_or_else(nothing)?));
    Ok(checks)
}

/// Says so if a file that the command names by a relative path is not, or not the same, in the recording:
/// the checker runs in the recorded files.
fn warn_of_older_copies(command: &str, history: &History) -> Result<(), Error> {
    let begin = State { position: history.recording.begin, lost: Default::default() };
    let tree = history.tree(&begin)?;
    let recorded: HashMap<Vec<u8>, Ino> = tree.walk().into_iter().collect();
    for word in command.split_whitespace().map(|word| word.trim_matches(['\'', '"']).trim_start_matches("./"))
    {
        let is_short = |file: Metadata| file.is_file() && file.len() <= COMPARED_MAX;
        if word.starts_with('/') || !std::fs::metadata(word).is_ok_and(is_short) {
            continue;
        }
        let Ok(present) = std::fs::read(word) else { continue };
        let contents = recorded.get(word.as_bytes()).and_then(|ino| tree.contents(*ino));
        let about = match contents {
            None => "is not in the recording",
            Some(contents) if contents.read(0, present.len() + 1)? != present => {
                "has changed since the recording"
            }
            Some(_) => continue,
        };
        note(&format!(
            "{word} {about}, and the checker runs in the recorded files: name it with an absolute path"
        ));
    }
    Ok(())
}

/// The first state of a real filesystem that the model explains.
fn explained(
    history: &History,
    model: &'static Model,
    on: Option<&OnDisk<'_>>,
    seen: &[Seen],
) -> Result<Option<Failing>, Error> {
    let (Some(on), Some(Seen { position, tree: Some(tree), output, .. })) = (on, seen.first()) else {
        return Ok(None);
    };
    let state = explanation(history, model, tree, *position, on.filesystem.torn_at(), on.limits.stop)?;
    Ok(state.map(|state| Failing { index: 0, state, output: output.clone() }))
}

/// Checks one state of a real filesystem.
fn again(on: &OnDisk<'_>, name: &str) -> Result<ExitCode, Error> {
    let failing = on.again(name)?;
    let Some(first) = failing.first() else { return told(Verdict::Passed) };
    if failing.iter().all(|seen| seen.name != name) {
        note(&format!("the kernel wrote in another order this time; {} fails", first.name));
    }
    told(Verdict::Failed(first.output.clone()))
}

/// Prints the verdict on one state.
fn told(verdict: Verdict) -> Result<ExitCode, Error> {
    match verdict {
        Verdict::Passed => {
            print("passed\n")?;
            Ok(ExitCode::SUCCESS)
        }
        Verdict::Failed(output) => {
            print(&format!("{}\n", output.trim_end()))?;
            Ok(ExitCode::FAILURE)
        }
    }
}

/// Shows progress while `work` runs.
fn with_progress<T>(explorer: &Explorer<'_>, doing: &str, work: impl FnOnce() -> T) -> T {
    let style = ProgressStyle::with_template("{spinner} {pos} states, {per_sec}, {msg}, {elapsed}");
    let bar = ProgressBar::new_spinner().with_style(style.expect("the template is well-formed"));
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                bar.set_position(explorer.counts.states.load(Ordering::Relaxed));
                let (cases, failing) = (&explorer.counts.cases, &explorer.counts.failing);
                bar.set_message(format!(
                    "{} checked, {} failing{doing}",
                    cases.load(Ordering::Relaxed),
                    failing.load(Ordering::Relaxed)
                ));
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        let result = work();
        done.store(true, Ordering::Relaxed);
        bar.finish_and_clear();
        result
    })
}
