//! `syncline run`: a command on an image that is mounted for as long as it runs.

use crate::failure::{Failure, Outcome};
use crate::size;
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::ffi::OsString;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// How often it is looked whether the command has ended, or a signal has come.
const LOOK: Duration = Duration::from_millis(5);

/// Arguments of `run`.
#[derive(clap::Args)]
pub struct Args {
    /// Image file or block device
    image: PathBuf,
    /// Make an image of this size first, if there is none
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    create: Option<u64>,
    /// Options of the mount, as with 'mount -o'
    #[arg(short, value_name = "OPTION,...")]
    options: Vec<String>,
    /// What to run, in the root directory of the filesystem
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Runs the command.
pub fn run(args: Args) -> Outcome {
    let directory = tempfile::Builder::new().prefix("syncline-run-").tempdir()?;
    // An interrupt from the terminal is COMMAND's; what would end us without it, it is told.
    let told = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(SIGINT, Arc::default())?;
    for signal in [SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, told.clone())?;
    }
    let mut mount = own("mount")?;
    if let Some(size) = args.create {
        mount.arg("--create").arg(size.to_string());
    }
    for options in &args.options {
        mount.arg("-o").arg(options);
    }
    succeed(mount.arg("--").arg(&args.image).arg(directory.path()))?;
    let ran = run_in(directory.path(), &args.command, &told);
    if let Err(failure) = succeed(own("umount")?.arg("--").arg(directory.path())) {
        // What is still mounted there is nobody's to remove.
        let at = directory.keep();
        note!(
            "syncline: the image stays mounted at {}: end what uses it, then 'syncline umount' it",
            at.display()
        );
        return Err(failure);
    }
    let status = ran?;
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)))
}

/// A command of this program.
fn own(name: &str) -> Result<Command, Failure> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg0("syncline").arg(name);
    Ok(command)
}

/// Runs one to its end. What it says of a failure has been said.
fn succeed(command: &mut Command) -> Result<(), Failure> {
    // A signal from the terminal is COMMAND's.
    let status = command.process_group(0).status()?;
    match status.code() {
        Some(0) => Ok(()),
        code => Err(Failure::told(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1))),
    }
}

fn run_in(directory: &Path, words: &[OsString], told: &AtomicBool) -> Result<ExitStatus, Failure> {
    let (name, arguments) = words.split_first().expect("the argument is required");
    let mut child = Command::new(name).args(arguments).current_dir(directory).spawn().map_err(|error| {
        let code = if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 };
        let text = format!("cannot run {}: {error}", name.to_string_lossy());
        Failure::new(text).next("name a program after '--'").with_code(code)
    })?;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if told.swap(false, Ordering::Relaxed)
            && let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw)
        {
            kill_process(pid, Signal::TERM)?;
        }
        thread::sleep(LOOK);
    }
}
