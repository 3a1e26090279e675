//! `crashlab show`, `extract` and `models`.

use super::{chosen, print};
use crate::Error;
use crate::export;
use crate::history::History;
use crate::model::MODELS;
use crate::operation::{Fate, Operation, Operations, Sort};
use crate::recording::Recording;
use crate::state::State;
use crate::symbols::Frame;
use std::fmt::Write;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::ExitCode;

/// Arguments of `crashlab show`.
#[derive(clap::Args)]
pub struct Args {
    /// Recording. Default: the newest in the working folder
    recording: Option<PathBuf>,
    /// Show what becomes of each operation in this state, as 'crashlab explore' names it
    #[arg(long, value_name = "STATE")]
    state: Option<String>,
    /// Show the functions in which the program did it
    #[arg(long)]
    stacks: bool,
}

/// Arguments of `crashlab extract`.
#[derive(clap::Args)]
pub struct ExtractArgs {
    /// Recording
    recording: PathBuf,
    /// Name of the state, as 'crashlab explore' prints it
    state: String,
    /// New folder for the files
    directory: PathBuf,
}

/// Arguments of `crashlab models`.
#[derive(clap::Args)]
pub struct ModelsArgs {}

/// Shows what a program did, and what a power cut makes of it.
pub fn run(args: Args) -> Result<ExitCode, Error> {
    let history = History::new(Recording::open(&chosen(args.recording)?)?)?;
    let parse = |name: String| State::parse(&name, history.events(), history.recording.begin);
    let state = args.state.map(parse).transpose()?;
    let operations = Operations::new(&history);
    let mut text = String::new();
    let (before, after) = operations.until(state.as_ref().map_or(usize::MAX, |state| state.position));
    let write = |text: &mut String, operation: &Operation<'_>| {
        let stack = if args.stacks { operations.frames(operation) } else { Vec::new() };
        write_line(text, &history, state.as_ref(), operation, &stack);
    };
    before.iter().for_each(|operation| write(&mut text, operation));
    if state.is_some() {
        let _ = writeln!(text, "-------- the power fails here --------");
    }
    after.iter().for_each(|operation| write(&mut text, operation));
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn write_line(
    text: &mut String,
    history: &History,
    state: Option<&State>,
    operation: &Operation<'_>,
    stack: &[Frame],
) {
    let event = &history.events()[operation.at];
    let fate = state.map(|state| Fate::of(state, operation.at, event));
    if let Some(fate) = fate {
        let word = if fate.is_loss() { fate.word().to_uppercase() } else { fate.word().to_owned() };
        let _ = write!(text, "{word:<8}");
    }
    let number = match operation.number {
        0 => String::new(),
        number => format!("#{number}"),
    };
    let process = match operation.pid {
        0 => String::new(),
        pid => pid.to_string(),
    };
    let (ms, program) = (operation.time_ns as f64 / 1e6, operation.program.unwrap_or_default());
    let _ = write!(text, "{number:<7} {ms:>10.3} ms {process:>7} {program:<15} ");
    let detail = fate.and_then(|fate| fate.detail(&event.action));
    let detail = detail.map_or(String::new(), |detail| format!(": {detail}"));
    let _ = match operation.sort {
        Sort::Border => writeln!(text, "-- {} --", operation.what),
        Sort::Printed | Sort::Sync | Sort::Change => writeln!(text, "{}{detail}", operation.what),
    };
    for frame in stack {
        let _ = writeln!(text, "{:>23}{frame}", "");
    }
}

/// Writes the files of a state.
pub fn extract(args: ExtractArgs) -> Result<ExitCode, Error> {
    let history = History::new(Recording::open(&chosen(Some(args.recording))?)?)?;
    let state = State::parse(&args.state, history.events(), history.recording.begin)?;
    std::fs::create_dir(&args.directory).map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => {
            Error::Usage(format!("{} exists: name a new folder", args.directory.display()))
        }
        _ => Error::file(&args.directory, error),
    })?;
    export(&history.tree(&state)?, &args.directory)?;
    let private = std::fs::Permissions::from_mode(0o700);
    std::fs::set_permissions(&args.directory, private)
        .map_err(|error| Error::file(&args.directory, error))?;
    Ok(ExitCode::SUCCESS)
}

/// Lists the models.
pub fn models(ModelsArgs {}: ModelsArgs) -> Result<ExitCode, Error> {
    let mut text = String::new();
    for model in &MODELS {
        let _ = writeln!(text, "{:<13} {}", model.name, model.about);
    }
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}
