//! Asks a daemon that may not answer, with a time limit.
//!
//! A process that has asked through the mount waits in the kernel, and once the daemon has taken
//! the question not even SIGKILL ends that. So another process asks: the hidden `syncline ask`. If
//! no answer comes, it is left behind and ends when the daemon answers or ends.

use crate::failure::{Failure, Outcome};
use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use syncline_device::{DeviceError, FileDevice, Holder, OpenOptions};
use syncline_fuse::{MountEntry, control, mounts};

/// How long a daemon may take to answer a plain question. It answers from memory, without its
/// device.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// How long it may take to find the process of a daemon that does not answer.
const PATIENCE_FOR_PROCESS: Duration = Duration::from_secs(3);

/// Commands that ask the daemon of a mount wherever an argument is on one, and would wait for ever.
/// The others limit their waiting themselves, or have nothing to do with mounts.
const WAITING: [&str; 21] = [
    "barrier",
    "cat",
    "check",
    "clone",
    "compress",
    "cp",
    "defragment",
    "du",
    "durability",
    "explain",
    "fork",
    "info",
    "inspect",
    "label",
    "ls",
    "mkfs",
    "path",
    "resize",
    "sync",
    "trim",
    "uuid",
];

/// The most symbolic links that are followed to a mount.
const LINKS_MAX: usize = 40;

/// Arguments of the hidden command `ask`.
#[derive(clap::Args)]
pub struct Args {
    /// Any directory or file of a mounted filesystem
    directory: PathBuf,
    /// Print the daemon's process by the lock on the image, instead of asking
    #[arg(long)]
    process: bool,
}

/// Runs the command: it ends when the daemon has given any answer.
pub fn run(args: &Args) -> Outcome {
    if args.process {
        if let Some(pid) = mount_of(&args.directory, &mounts()?).and_then(process_behind) {
            say!("{pid}");
        }
        return Ok(ExitCode::SUCCESS);
    }
    // The answer to a lesser question would not show that the filesystem below its image hangs.
    control::stats(&args.directory)?;
    Ok(ExitCode::SUCCESS)
}

/// Refuses arguments of a command that are on a mount whose daemon does not answer in time. All commands that take
/// DIR@SNAPSHOT look at DIR, and would wait for its daemon.
pub fn require_answers(command: &str, arguments: &[OsString]) -> Result<(), Failure> {
    let names_snapshot = |argument: &&OsString| argument.as_bytes().contains(&b'@');
    let waits = WAITING.contains(&command);
    let arguments: Vec<&OsString> = arguments.iter().filter(|it| waits || names_snapshot(it)).collect();
    if arguments.is_empty() {
        return Ok(());
    }
    let Ok(mounts) = mounts() else { return Ok(()) };
    let mut asked: Vec<&Path> = Vec::new();
    for argument in arguments {
        let mount = match mount_of(Path::new(argument), &mounts) {
            Some(mount) => Some(mount).filter(|_| waits),
            None => mount_before(argument, &mounts),
        };
        let Some(mount) = mount else { continue };
        if !asked.contains(&&*mount.mount_point) {
            require_answer(&mount.mount_point, PATIENCE)?;
            asked.push(&mount.mount_point);
        }
    }
    Ok(())
}

/// Refuses a path whose daemon does not answer in time. The contents of the answer, and whether
/// there is a daemon at all, are left to the next question.
pub fn require_answer(directory: &Path, patience: Duration) -> Result<(), Failure> {
    match ask(&[], directory, patience)? {
        Some(_) => Ok(()),
        None => Err(silent(directory, patience)),
    }
}

/// Has another process ask; `None` if it got no answer in time.
fn ask(options: &[&str], directory: &Path, patience: Duration) -> io::Result<Option<Output>> {
    let mut command = Command::new(std::env::current_exe()?);
    // Independent of the name under which the program was started.
    command.arg0("syncline");
    command.arg("ask").args(options).arg("--").arg(directory);
    output_within(command, patience)
}

/// The failure for a daemon that did not answer.
fn silent(directory: &Path, patience: Duration) -> Failure {
    // The filesystem that the image lies on may hang, too.
    let found = ask(&["--process"], directory, PATIENCE_FOR_PROCESS).ok().flatten();
    let pid = found.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    let process =
        pid.filter(|pid| !pid.is_empty()).map(|pid| format!(" (process {pid})")).unwrap_or_default();
    let text = format!(
        "the daemon behind {}{process} has not answered for {} s: it is busy, stopped, or hangs",
        directory.display(),
        patience.as_secs()
    );
    Failure::new(text).next(
        "ask again, if it may be busy; 'kill -CONT' lets one go on that was stopped; 'syncline umount -l' takes the mount away and 'kill -9' ends the daemon, then unsynced changes are lost",
    )
}

/// The mount point of our mount that a path leads to.
pub fn mount_point(path: &Path) -> Option<PathBuf> {
    Some(mount_of(path, &mounts().ok()?)?.mount_point.clone())
}

/// Our mount that is named before a snapshot or a colon in this word: `DIR@SNAPSHOT:PATH`.
fn mount_before<'a>(word: &OsStr, mounts: &'a [MountEntry]) -> Option<&'a MountEntry> {
    // It is on no mount of ours, so looking does not wait.
    if Path::new(word).symlink_metadata().is_ok() {
        return None;
    }
    let bytes = word.as_bytes();
    let mut ends = (1..bytes.len()).filter(|at| matches!(bytes[*at], b'@' | b':'));
    ends.find_map(|end| mount_of(Path::new(OsStr::from_bytes(&bytes[..end])), mounts))
}

/// Our mount that a path leads to, found by names, and by links outside of our mounts: looking at
/// anything on a mount would mean waiting for its daemon.
fn mount_of<'a>(path: &Path, mounts: &'a [MountEntry]) -> Option<&'a MountEntry> {
    let (mut at, mut links) = (PathBuf::from("/"), 0);
    let names = |path: &Path| path.iter().map(OsString::from).collect::<VecDeque<_>>();
    let mut left = names(&std::path::absolute(path).ok()?);
    loop {
        // Of several mounts at one place, the last one is visible.
        let here = mounts.iter().rfind(|mount| mount.mount_point == at);
        if let Some(ours) = here.filter(|mount| mount.is_ours()) {
            return Some(ours);
        }
        let name = left.pop_front()?;
        if name == ".." {
            at.pop();
            continue;
        }
        // An absolute target starts over at the root.
        at.push(name);
        if mounts.iter().any(|mount| mount.mount_point == at) {
            continue;
        }
        if let Ok(target) = at.read_link() {
            links += 1;
            if links > LINKS_MAX {
                return None;
            }
            at.pop();
            let mut all = names(&target);
            all.append(&mut left);
            left = all;
        }
    }
}

/// The daemon of a mount that can't be asked, found by the lock on its image.
pub fn process_behind(mount: &MountEntry) -> Option<u32> {
    // If an image has several mounts, the lock does not tell whose it is.
    let is_other = |other: &MountEntry| other.image == mount.image && !other.is_of_the_same(mount);
    if mounts().ok()?.iter().any(is_other) {
        return None;
    }
    // A device lease names hosts, and this host has no lock on an image elsewhere.
    if syncline_image::is_remote(Path::new(&mount.image)) {
        return None;
    }
    let options = OpenOptions { read_only: true, ..OpenOptions::default() };
    match FileDevice::open(&mount.image, options) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_mount_is_found_by_names_and_by_links_that_lead_to_it() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().canonicalize().unwrap();
        fs::create_dir_all(place.join("mount/below")).unwrap();
        fs::create_dir(place.join("side")).unwrap();
        symlink("../mount/below", place.join("side/link")).unwrap();
        symlink(place.join("side"), place.join("around")).unwrap();
        symlink("circle", place.join("circle")).unwrap();
        let mount = |mount_point: PathBuf, filesystem_type: &str| MountEntry {
            mount_point,
            filesystem_type: filesystem_type.into(),
            ..mounts().unwrap().swap_remove(0)
        };
        let ours = [mount("/".into(), "ext4"), mount(place.join("mount"), "fuseblk.syncline")];
        let found = |path: &str| mount_of(&place.join(path), &ours).is_some();
        for path in ["mount", "mount/below/none", "side/../mount", "side/link", "around/link/file"] {
            assert!(found(path), "{path}");
        }
        for path in ["", "mounted", "side", "none/mount", "mount/..", "circle"] {
            let leads_out = path == "mount/..";
            assert_eq!(found(path), leads_out, "{path}: what is behind a mount is not looked at");
        }
    }
}
