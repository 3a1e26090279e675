//! `crashlab show`, `extract` and `models`.

use super::{chosen, print};
use crate::Error;
use crate::export;
use crate::history::{History, Paths, describe};
use crate::model::MODELS;
use crate::recording::Recording;
use crate::state::State;
use std::collections::HashMap;
use std::fmt::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::ExitCode;

/// Arguments of `crashlab show`.
#[derive(clap::Args)]
pub struct Args {
    /// Recording. Default: the newest in the working folder
    recording: Option<PathBuf>,
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

/// Shows what a program did.
pub fn run(args: Args) -> Result<ExitCode, Error> {
    let recording = Recording::open(&chosen(args.recording)?)?;
    let mut paths = Paths::default();
    let mut text = String::new();
    let start = recording.events.get(recording.begin).map_or(0, |event| event.time_ns);
    let mut programs = HashMap::new();
    for (at, event) in recording.events.iter().enumerate() {
        programs.extend(event.program.as_deref().map(|program| (event.pid, program)));
        if at >= recording.begin {
            let ms = event.time_ns.saturating_sub(start) as f64 / 1e6;
            let _ = writeln!(
                text,
                "#{:<6} {ms:>10.3} ms {:>7} {:<15} {}",
                at + 1 - recording.begin,
                event.pid,
                programs.get(&event.pid).copied().unwrap_or_default(),
                describe(event, &paths)
            );
        }
        paths.add(&event.action);
    }
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// Writes the files of a state.
pub fn extract(args: ExtractArgs) -> Result<ExitCode, Error> {
    let history = History::new(Recording::open(&args.recording)?)?;
    let state = State::parse(&args.state, history.events(), history.recording.begin)?;
    std::fs::create_dir(&args.directory).map_err(|error| Error::file(&args.directory, error))?;
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
