//! `syncline run`: runs a command on an image that is mounted for as long as it runs.

use super::mount_options::MountChoices;
use super::place::Place;
use super::snapshot::image_of;
use super::{ask, image};
use crate::failure::{Cause, Failure, Outcome};
use crate::{keys, size};
use rustix::fs::StatVfsMountFlags;
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use std::ffi::OsString;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;
use syncline_device::{Device, block_on};
use syncline_format::superblock::Superblock;
use syncline_fuse::{daemon_has_gone, mounts};

/// How often to check whether the command has ended, or a signal has come.
const LOOK: Duration = Duration::from_millis(5);

/// Arguments of `run`.
#[derive(clap::Args)]
pub struct Args {
    /// Image file or block device. With IMAGE@SNAPSHOT the command runs in a fork of the snapshot, which
    /// is thrown away afterwards
    image: PathBuf,
    /// Make an image of this size first, if there is none
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    create: Option<u64>,
    /// Keep the fork as this image
    #[arg(long, value_name = "NEW", conflicts_with = "create")]
    keep: Option<PathBuf>,
    /// Options of the mount, as with 'mount -o'
    #[arg(short, value_name = "OPTION,...")]
    options: Vec<String>,
    /// Command to run, in the root directory of the filesystem
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Runs the command.
pub fn run(mut args: Args) -> Outcome {
    let options = keys::take_options(&args.options)?;
    // Before a fork is made that would be left.
    MountChoices::parse(&options)?;
    let place = Place::of(&args.image.clone().into_os_string());
    let image = image_of(&place.image).unwrap_or_else(|_| place.image.clone());
    let own = |name: &str| own(name, &image);
    let mut mount = own("mount")?;
    match args.keep.take() {
        Some(new) => {
            succeed(own("fork")?.arg("--").arg(&args.image).arg(&new))?;
            args.image = new;
        }
        None if place.snapshot.is_some() => {
            mount.arg("--fork");
        }
        None => {}
    }
    let mut umount = own("umount")?;
    // Never removed recursively, since it may be a mount.
    let directory = tempfile::Builder::new().prefix("syncline-run-").tempdir().map_err(|error| {
        let text =
            format!("cannot make a mount point in {}: {}", std::env::temp_dir().display(), error.kind());
        Failure::of(Cause::from(&error), text).next("set TMPDIR to a directory that can be written")
    })?;
    let directory = directory.keep();
    let told = catch_signals()?;
    if let Some(size) = args.create {
        mount.arg("--create").arg(size.to_string());
    }
    for option in &options {
        mount.arg("-o").arg(option);
    }
    let mounted = succeed(mount.arg("--").arg(&args.image).arg(&directory));
    let ran = mounted.and_then(|()| {
        let read_only =
            rustix::fs::statvfs(&directory).is_ok_and(|it| it.f_flag.contains(StatVfsMountFlags::RDONLY));
        let ran = run_in(&directory, &args.command, &told);
        match end(&args.image, &directory, read_only, &mut umount) {
            Ok(()) => ran,
            Err(failure) => {
                if let Err(other) = ran {
                    note!("syncline: {other}");
                }
                Err(failure)
            }
        }
    });
    // Fails, and must, if something is still mounted there.
    let _ = std::fs::remove_dir(&directory);
    let status = ran?;
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)))
}

/// Unmounts. Fails if the image stays mounted, or if writes of the command may be lost, even if the
/// command succeeded.
fn end(image: &Path, directory: &Path, read_only: bool, umount: &mut Command) -> Result<(), Failure> {
    // One that does not answer is waited for by umount, within limits.
    let answers = ask::require_answer(directory, ask::PATIENCE).is_ok();
    let has_died = answers && std::fs::metadata(directory).is_err_and(|error| daemon_has_gone(&error));
    let unmounted = succeed(umount.arg("--").arg(directory));
    let lost = |what: &str| {
        let text =
            format!("{}: {what} before the command did, so unsynced changes may be lost", image.display());
        Failure::of(Cause::Device, text).next("mount the image to recover the synced changes")
    };
    match unmounted {
        Err(failure) if is_mounted(directory) => {
            let at = directory.display();
            note!("syncline: the image stays mounted at {at}: end what uses it, then 'syncline umount {at}'");
            Err(failure)
        }
        _ if has_died && !read_only => Err(lost("its daemon died")),
        // It was unmounted already, by the command or by a signal to the daemon.
        Err(failure) if failure.code() == Cause::MountPoint as u8 => match last_superblock(image) {
            Some(superblock) if !superblock.clean && !read_only => {
                Err(lost("the mount ended, and not well,"))
            }
            _ => Ok(()),
        },
        ended => ended,
    }
}

/// The last superblock of an image, unless it can't be read or another process has it.
fn last_superblock(image: &Path) -> Option<Superblock> {
    let device: Arc<dyn Device> = image::open_read_only(image).ok()?;
    Some(block_on(syncline_store::read_superblocks(&device)).ok()?.superblock)
}

/// Signals from the terminal are for COMMAND alone. Other signals that would end only us are passed
/// on to it. An ignored signal stays ignored, for COMMAND too (nohup(1)).
fn catch_signals() -> Result<Arc<AtomicBool>, Failure> {
    let told = Arc::new(AtomicBool::new(false));
    let ignored = ignored_signals();
    let is_heeded = |signal: &i32| ignored & 1 << (signal - 1) == 0;
    for signal in [SIGINT, SIGQUIT].into_iter().filter(is_heeded) {
        signal_hook::flag::register(signal, Arc::default())?;
    }
    for signal in [SIGTERM, SIGHUP].into_iter().filter(is_heeded) {
        signal_hook::flag::register(signal, told.clone())?;
    }
    Ok(told)
}

/// A bit for each signal that this process ignores, as the kernel reports it.
fn ignored_signals() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

fn is_mounted(directory: &Path) -> bool {
    mounts().is_ok_and(|mounts| mounts.iter().any(|mount| mount.mount_point == directory))
}

/// A command of this program, which has the key of this image.
fn own(name: &str, image: &Path) -> Result<Command, Failure> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg0("syncline").arg(name);
    if let Some(key) = keys::hand_over(image, &mut command)? {
        command.stdin(key);
    }
    Ok(command)
}

/// Runs a command to its end. A failure has already been reported by the command itself.
fn succeed(command: &mut Command) -> Result<(), Failure> {
    // A signal from the terminal is for COMMAND.
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
        Failure::new(text)
            .next("name a program after '--', one that is in no directory of PATH by its whole path")
            .with_code(code)
    })?;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if told.swap(false, Ordering::Relaxed)
            && let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw)
        {
            // A process of another user can't be signalled; it is waited for.
            let _ = kill_process(pid, Signal::TERM);
        }
        thread::sleep(LOOK);
    }
}
