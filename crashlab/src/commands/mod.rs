//! The commands.

mod explore;
mod init;
mod record;
mod show;
mod validate;

use crate::Error;
use crate::leftovers;
use crate::record::SUFFIX;
use crate::recording::MAGIC;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Exit code after wrong use, as clap's.
const USAGE: u8 = 2;
/// Exit code after every other error.
const FAILED: u8 = 3;
/// Exit code after an interrupt, as in a shell.
const INTERRUPTED: u8 = 130;
/// Exit codes of `record` after an error of its own, and where the program can't be run, as a shell's.
const RECORD_FAILED: u8 = 125;
const CANNOT_RUN: u8 = 126;
const NOT_FOUND: u8 = 127;

/// The commands.
#[derive(clap::Subcommand)]
pub enum Command {
    /// Run a program in a copy of the working folder, and record what it does to the files
    Record(record::Args),
    /// Write a first checker for your program
    Init(init::Args),
    /// Check the files that power cuts leave
    Explore(explore::Args),
    /// Show what a program did
    Show(show::Args),
    /// Write the files of a state into a folder
    Extract(show::ExtractArgs),
    /// List the models of filesystems
    Models(show::ModelsArgs),
    /// Compare a model with the filesystem that it stands for
    #[command(hide = true)]
    Validate(validate::Args),
    /// Wait for the end of a process, and remove its mounts and loop devices if it was killed
    #[command(hide = true)]
    Guard {
        /// The process
        process: u32,
    },
}

/// Runs a command.
pub fn run(command: Command) -> ExitCode {
    let records = matches!(command, Command::Record(_));
    let outcome = match command {
        Command::Record(args) => record::run(args),
        Command::Init(args) => init::run(args),
        Command::Explore(args) => explore::run(args),
        Command::Show(args) => show::run(args),
        Command::Extract(args) => show::extract(args),
        Command::Models(args) => show::models(args),
        Command::Validate(args) => validate::run(args),
        Command::Guard { process } => {
            leftovers::guard(process);
            Ok(ExitCode::SUCCESS)
        }
    };
    outcome.unwrap_or_else(|error| {
        let _ = writeln!(io::stderr(), "crashlab: {error}");
        ExitCode::from(match error {
            Error::Run { source, .. } if source.kind() == io::ErrorKind::NotFound => NOT_FOUND,
            Error::Run { .. } => CANNOT_RUN,
            _ if records => RECORD_FAILED,
            Error::Usage(_) | Error::State { .. } => USAGE,
            Error::Interrupted => INTERRUPTED,
            _ => FAILED,
        })
    })
}

/// Prints; ends quietly if nobody reads.
fn print(text: &str) -> Result<(), Error> {
    match io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Error::file(Path::new("standard output"), error))
        }
        _ => Ok(()),
    }
}

/// Tells the user something beside the result.
fn note(text: &str) {
    let _ = writeln!(io::stderr(), "crashlab: {text}");
}

/// Is set by the first of these signals.
fn interrupt(signals: &[i32]) -> Arc<AtomicBool> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in signals {
        // Without the handler the signal ends the process, which is as good.
        let _ = signal_hook::flag::register(*signal, stop.clone());
    }
    stop
}

/// The recordings in a folder, the newest last.
fn recordings(folder: &Path) -> Result<Vec<PathBuf>, Error> {
    let failed = |error| Error::file(folder, error);
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        if entry.file_name().as_encoded_bytes().ends_with(SUFFIX.as_bytes()) && is_recording(&entry.path()) {
            let changed = entry.metadata().and_then(|metadata| metadata.modified()).map_err(failed)?;
            found.push((changed, entry.path()));
        }
    }
    found.sort();
    Ok(found.into_iter().map(|(_, path)| path).collect())
}

/// True for a file that begins like a recording.
fn is_recording(path: &Path) -> bool {
    let mut magic = [0; MAGIC.len()];
    let read = std::fs::File::open(path).and_then(|mut file| file.read_exact(&mut magic));
    read.is_ok() && magic == MAGIC
}

/// The recording that the user named, or the newest one here.
fn chosen(named: Option<PathBuf>) -> Result<PathBuf, Error> {
    let newest = || recordings(Path::new(".")).map(|found| found.into_iter().next_back());
    match named {
        Some(path) if path.is_file() => Ok(path),
        Some(path) => Err(Error::Usage(format!("{} is no file: name a recording", path.display()))),
        None => newest()?.ok_or_else(|| {
            Error::Usage("there is no recording here: make one with 'crashlab record -- PROGRAM'".into())
        }),
    }
}
