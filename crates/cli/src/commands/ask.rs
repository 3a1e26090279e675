//! Asks a daemon that may not answer, with a time limit.
//!
//! A process that has asked through the mount waits in the kernel, and once the daemon has taken
//! the question not even SIGKILL ends that. So another process asks: the hidden `syncline ask`. If
//! no answer comes, it is left behind and ends when the daemon answers or ends.

use crate::failure::{Failure, Outcome};
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::path::{Component, Path, PathBuf};
use std::process::{Command, ExitCode, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use syncline_device::{DeviceError, FileDevice, Holder, OpenOptions};
use syncline_fuse::{FILESYSTEM_TYPE, MountEntry, control, mounts};

/// How long a daemon may take to answer a plain question. It answers from memory, without its
/// device.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// Arguments of the hidden command `ask`.
#[derive(clap::Args)]
pub struct Args {
    /// Any directory or file of a mounted filesystem
    directory: PathBuf,
}

/// Runs the command: it ends when the daemon has given any answer.
pub fn run(args: &Args) -> Outcome {
    control::text(&args.directory, "daemon")?;
    Ok(ExitCode::SUCCESS)
}

/// Refuses a path whose daemon does not answer in time. The contents of the answer, and whether
/// there is a daemon at all, are left to the next question.
pub fn require_answer(directory: &Path, patience: Duration) -> Result<(), Failure> {
    let mut command = Command::new(std::env::current_exe()?);
    // Independent of the name under which the program was started.
    command.arg0("syncline");
    command.arg("ask").arg("--").arg(directory);
    match output_within(command, patience)? {
        Some(_) => Ok(()),
        None => Err(silent(directory, patience)),
    }
}

/// The failure for a daemon that did not answer.
fn silent(directory: &Path, patience: Duration) -> Failure {
    let process = mount_of(directory).and_then(|mount| process_behind(&mount));
    let process = process.map(|pid| format!(" (process {pid})")).unwrap_or_default();
    let text = format!(
        "the daemon behind {}{process} has not answered for {} s: it is stopped, or hangs",
        directory.display(),
        patience.as_secs()
    );
    Failure::new(text).next(
        "'kill -CONT' lets one go on that was stopped; 'syncline umount -l' takes the mount away and 'kill -9' ends the daemon, then what was not synced is lost",
    )
}

/// The mount that a path is on, by its name alone: looking at the path would mean waiting for the
/// daemon.
fn mount_of(path: &Path) -> Option<MountEntry> {
    let path = std::path::absolute(path).ok()?;
    if path.components().any(|part| part == Component::ParentDir) {
        return None;
    }
    let above = mounts().ok()?.into_iter().filter(|mount| path.starts_with(&mount.mount_point));
    // Of several mounts at one place, the last one is visible.
    above
        .max_by_key(|mount| mount.mount_point.components().count())
        .filter(|mount| mount.filesystem_type == FILESYSTEM_TYPE)
}

/// The daemon of a mount that can't be asked, found by the lock on its image.
pub fn process_behind(mount: &MountEntry) -> Option<u32> {
    // If an image has several mounts, the lock does not tell whose it is.
    let is_other = |other: &MountEntry| other.source == mount.source && !other.is_of_the_same(mount);
    if mounts().ok()?.iter().any(is_other) {
        return None;
    }
    // A lease tells of hosts, and no lock of this host is on what is elsewhere.
    if syncline_image::is_remote(Path::new(&mount.source)) {
        return None;
    }
    let options = OpenOptions { read_only: true, ..OpenOptions::default() };
    match FileDevice::open(&mount.source, options) {
        Err(DeviceError::InUse { holder, .. }) => match *holder {
            Holder::Process { pid, .. } => Some(pid).filter(|pid| *pid != std::process::id()),
            _ => None,
        },
        _ => None,
    }
}

/// The output of a command; `None` for one that runs for too long, which is killed if possible.
pub fn output_within(mut command: Command, patience: Duration) -> io::Result<Option<Output>> {
    let started = Instant::now();
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn()?;
    let (stdout, stderr) = (collect(child.stdout.take()), collect(child.stderr.take()));
    loop {
        if let Some(status) = child.try_wait()? {
            // Nobody else has the pipes, so these end.
            let bytes = |from: thread::JoinHandle<Vec<u8>>| from.join().unwrap_or_default();
            return Ok(Some(Output { status, stdout: bytes(stdout), stderr: bytes(stderr) }));
        }
        if started.elapsed() > patience {
            let _ = child.kill();
            return Ok(None);
        }
        thread::sleep(Duration::from_millis(2));
    }
}

/// Reads a pipe to its end on a thread of its own, so that a full pipe blocks nobody.
fn collect(from: Option<impl Read + Send + 'static>) -> thread::JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut from) = from {
            // On an error, keep what was read so far.
            let _ = from.read_to_end(&mut bytes);
        }
        bytes
    })
}
