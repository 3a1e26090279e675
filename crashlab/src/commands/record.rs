//! `crashlab record`.

use super::{interrupt, note};
use crate::Error;
use crate::record::{SUFFIX, record};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Arguments of `crashlab record`.
#[derive(clap::Args)]
#[command(
    after_help = "PROGRAM runs in a mount over a copy of the working folder, with the same relative paths; CRASHLAB_DIR is its path. \
                        The folder itself stays as it is. What PROGRAM prints counts as told to somebody at that moment, and \
                        checkers get it. Its output is a terminal, so that most programs print each line at once; others \
                        have to flush it after each line. The exit code is PROGRAM's."
)]
pub struct Args {
    /// Where the recording goes. Default: a new file here, named after PROGRAM
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Program to run, and its arguments
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// Runs the command.
pub fn run(args: Args) -> Result<ExitCode, Error> {
    let folder = std::env::current_dir().map_err(|error| Error::file(Path::new("."), error))?;
    // An interrupt from the terminal reaches PROGRAM itself; the other signals are passed on to it.
    let _ignored = interrupt(&[SIGINT]);
    let stop = interrupt(&[SIGTERM, SIGHUP]);
    let (file, path) = output(&args)?;
    let outcome = record(&folder, &args.program, file, &stop);
    if outcome.is_err() {
        let _ = std::fs::remove_file(&path);
    }
    let outcome = outcome?;
    if outcome.is_in_use {
        note("PROGRAM has left processes behind that use its folder; the recording ends here");
    }
    match outcome.actions {
        0 => note(
            "PROGRAM did nothing to the files of its working folder, so there is nothing to explore: give it relative paths, or $CRASHLAB_DIR",
        ),
        actions => note(&format!(
            "recorded {actions} actions in {}; next: crashlab explore --check 'COMMAND'",
            path.display()
        )),
    }
    Ok(ExitCode::from(u8::try_from(outcome.exit_code).unwrap_or(1)))
}

/// A new file for the recording.
fn output(args: &Args) -> Result<(File, PathBuf), Error> {
    if let Some(path) = &args.output {
        return Ok((File::create(path).map_err(|error| Error::file(path, error))?, path.clone()));
    }
    let name = args.program.first().map(Path::new).and_then(Path::file_stem).unwrap_or("program".as_ref());
    for number in 1.. {
        let mut path = name.to_owned();
        path.push(format!("-{number}{SUFFIX}"));
        let path = PathBuf::from(path);
        match File::create_new(&path) {
            Ok(file) => return Ok((file, path)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(Error::file(&path, error)),
        }
    }
    unreachable!("there are more numbers than files")
}
