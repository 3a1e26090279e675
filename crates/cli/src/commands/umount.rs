//! `syncline umount`: unmount and wait until the image is clean.

use super::daemon_image;
use super::figures::{IDENTITY, namespace_of_processes};
use super::{ask, figures, remote};
use crate::failure::{Cause, Failure, Outcome, next_of_fusermount};
use crate::size;
use serde_json::Value;
use std::ffi::OsString;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};
use syncline_device::{DeviceError, Holder, block_on};
use syncline_format::superblock::Superblock;
use syncline_fuse::{
    Elsewhere, MountEntry, control, daemon_has_gone, is_connected, mounted_elsewhere, mounts,
};
use syncline_image::{How, Image, KeyError};
use uuid::Uuid;

/// How long a mount may be busy before it counts as in use.
const BUSY_PATIENCE: Duration = Duration::from_millis(500);

/// How often to look for other mounts while a daemon does not end.
const LOOK_ELSEWHERE: Duration = Duration::from_secs(1);

/// The minimum time for the daemon to answer, and for the kernel to unmount.
const LEAST_PATIENCE: Duration = Duration::from_secs(1);

/// The default time to wait for the daemon and its last checkpoint.
const TIMEOUT_SECONDS: u64 = 300;

/// Arguments of `umount`.
#[derive(clap::Args)]
pub struct Args {
    /// Directory that an image is mounted at
    directory: PathBuf,
    /// Seconds to wait for the daemon and its last checkpoint
    #[arg(long, value_name = "SECONDS", default_value_t = TIMEOUT_SECONDS, value_parser = size::seconds)]
    timeout: u64,
    /// Detach the mount at once, and wait for nothing: the daemon writes the remaining changes and
    /// ends when all open files are closed
    #[arg(long, short, conflicts_with = "timeout")]
    lazy: bool,
}

/// Runs the command.
pub fn run(args: Args) -> Outcome {
    if args.lazy {
        let directory = resolve(&args.directory)?;
        require_mounted(&directory)?;
        unmount(&directory, LEAST_PATIENCE, Detach::Lazily)?;
        return Ok(ExitCode::SUCCESS);
    }
    unmount_and_wait(&args.directory, Duration::from_secs(args.timeout), OtherMounts::AreAFailure)
}

/// Does what umount(8) expects of its helper: as with the kernel's filesystems, everything is
/// written when it returns, and others who have the filesystem mounted at another place keep it.
pub fn for_umount(directory: &Path) -> Outcome {
    unmount_and_wait(directory, Duration::from_secs(TIMEOUT_SECONDS), OtherMounts::AreTold)
}

/// Has umount(8) unmount without a helper.
pub fn without_helper(arguments: &[OsString]) -> Outcome {
    let error = Command::new("umount").arg("-i").args(arguments).exec();
    Err(Failure::new(format!("cannot run umount: {error}; install it")))
}

/// How to treat other places at which the filesystem is still mounted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OtherMounts {
    AreAFailure,
    AreTold,
}

impl OtherMounts {
    /// Prints the failure and returns true if it comes from other mounts and need only be reported.
    fn are_told(self, failure: &Failure) -> bool {
        let told = self == Self::AreTold && failure.code() == Cause::InUse as u8;
        if told {
            note!("syncline: {failure}");
        }
        told
    }
}

fn unmount_and_wait(directory: &Path, timeout: Duration, others: OtherMounts) -> Outcome {
    let directory = resolve(directory)?;
    let mounted = require_mounted(&directory)?;
    let started = Instant::now();
    let left = || timeout.saturating_sub(started.elapsed());
    let _waiting = tell_of_waiting(mounted.clone(), timeout);
    ask::require_answer(&directory, timeout.max(LEAST_PATIENCE))?;
    let told = |name| control::text(&directory, name).ok().and_then(|text| serde_json::from_str(&text).ok());
    let (daemon, identity): (Value, Value) =
        (told("daemon").unwrap_or_default(), told(IDENTITY).unwrap_or_default());
    let lost: Option<Value> = told(remote::LOST).filter(Value::is_object);
    let uuid = identity["uuid"].as_str().and_then(|uuid| uuid.parse().ok());
    let epoch = identity["epoch"].as_str().map(str::to_owned);
    // A filesystem that was mounted read-only is unchanged.
    let written = daemon["image"].as_str().filter(|_| daemon["read_only"] != true);
    let written = written.map(|image| daemon_image::path(&daemon, image));
    // A loop device that disappears with its last user ('mount -o loop') must stay until its image
    // has been checked.
    let is_device =
        |image: &&Path| image.metadata().is_ok_and(|metadata| metadata.file_type().is_block_device());
    let _kept = written.as_deref().filter(is_device).and_then(|image| File::open(image).ok());
    let moved = written.as_deref().and_then(|image| daemon_image::moved(&daemon, image, uuid));
    unmount(&directory, left().max(LEAST_PATIENCE), Detach::WhenUnused)?;
    // A pid of another pid namespace belongs to some other process here.
    let here = daemon["pid_namespace"].as_str() == namespace_of_processes().as_deref();
    let ended = match daemon["pid"].as_i64().filter(|_| here) {
        Some(pid) => wait_for_exit(pid, &mounted, left()).map(|()| Waiting::ForAnAnswer),
        None => Ok(Waiting::ForTheDaemon),
    };
    if let Some(lost) = lost {
        ended?;
        let failure = image_was_lost(&directory, &lost, written.is_some());
        if written.is_none() {
            note!("syncline: {failure}");
            return Ok(ExitCode::SUCCESS);
        }
        return Err(failure);
    }
    if daemon["temporary"] == true {
        // Nobody misses it, and its daemon has removed it.
        return ended.map(|_| ExitCode::SUCCESS);
    }
    let image = written.clone().unwrap_or_else(|| PathBuf::from(&mounted.image));
    let released = match ended {
        // The image was never written to, and its daemon is gone.
        Ok(Waiting::ForAnAnswer) if written.is_none() => return Ok(ExitCode::SUCCESS),
        Ok(waiting) => {
            let own = |file: &File| PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
            let place = moved.as_ref().map_or(image.clone(), own);
            wait_for_release(&place, &mounted, waiting, left())
        }
        Err(failure) => Err(failure),
    };
    let released = match released {
        Err(failure) if others.are_told(&failure) => return Ok(ExitCode::SUCCESS),
        released => released?,
    };
    match released {
        // Whoever has it now has recovered everything that was synced.
        Released::ToOthers => {}
        Released::Locked if written.is_some() || mounted.is_read_only() => note!(
            "syncline: {}: it is encrypted, so it is not known here whether the last checkpoint ended well: the daemon's log tells",
            image.display()
        ),
        Released::Locked => {
            let text = "it is unmounted, but its daemon had ended before, so unsynced changes may be lost";
            let failure = Failure::of(Cause::Device, text).about(&image);
            return Err(failure.next("mount the image to recover the synced changes"));
        }
        _ if daemon["read_only"] == true => {}
        Released::Unread(failure) => {
            let text = format!(
                "it is unmounted, but it is unknown whether the last checkpoint ended well, and unsynced changes may be lost: {failure}"
            );
            return Err(Failure::new(text).with_code(failure.code()));
        }
        Released::As(superblock) if written.is_some() => {
            require_clean(&image, &superblock, uuid)?;
            require_same_mount(&image, &superblock, epoch.as_deref())?;
        }
        Released::As(superblock) if superblock.clean => {}
        // Its daemon had ended before, or could not be asked.
        Released::As(_) if mounted.is_read_only() => {}
        Released::As(_) => return Err(not_closed_well(&image)),
    }
    Ok(ExitCode::SUCCESS)
}

/// The failure of a mount that had lost its image, which is not looked at: another host may have it.
fn image_was_lost(directory: &Path, lost: &Value, written: bool) -> Failure {
    let how = remote::in_words(lost).unwrap_or_else(|| "lost its image".into());
    let next = match lost["to"].as_str() {
        Some(_) => "use it there, or take it back: 'syncline mount --takeover'",
        None => "mount the image again",
    };
    let gone = if written { ", and changes not synced by then are lost" } else { "" };
    let text = format!("{} is unmounted; it {how}{gone}", directory.display());
    Failure::of(Cause::Device, text).next(next)
}

/// After a while, reports once which process the command waits for, unless the sender was dropped
/// by then or the timeout is short.
fn tell_of_waiting(mounted: MountEntry, timeout: Duration) -> mpsc::Sender<()> {
    let (ended, waiting) = mpsc::channel();
    std::thread::spawn(move || {
        let ended = waiting.recv_timeout(ask::PATIENCE) != Err(RecvTimeoutError::Timeout);
        if ended || timeout <= ask::PATIENCE {
            return;
        }
        let process = ask::process_behind(&mounted).map(|pid| format!(" (process {pid})"));
        note!(
            "syncline: waiting for the daemon of {}{} to write the last changes and end: {} s at most",
            mounted.mount_point.display(),
            process.unwrap_or_default(),
            timeout.as_secs()
        );
    });
    ended
}

/// The mount point without symbolic links. If its daemon has died it can't be resolved, and is
/// taken as it is.
fn resolve(directory: &Path) -> Result<PathBuf, Failure> {
    match std::fs::canonicalize(directory) {
        Err(error) if daemon_has_gone(&error) => Ok(std::path::absolute(directory)?),
        Err(error) => Err(Failure::of(Cause::MountPoint, error).about(directory).next("name a mount point")),
        Ok(resolved) => Ok(resolved),
    }
}

/// The mount at a directory, which must be of ours.
fn require_mounted(directory: &Path) -> Result<MountEntry, Failure> {
    let all = mounts()?;
    let is_ours = |entry: &&MountEntry| entry.is_ours();
    let mounted = all.iter().rfind(|entry| entry.mount_point == directory);
    mounted.filter(is_ours).cloned().ok_or_else(|| {
        let text = format!("no Syncline filesystem is mounted at {}", directory.display());
        let failure = Failure::of(Cause::MountPoint, text);
        match all.iter().filter(is_ours).rfind(|entry| Path::new(&entry.image) == directory) {
            Some(entry) => failure.next(format!(
                "the image is mounted at {0}: 'syncline umount {0}'",
                entry.mount_point.display()
            )),
            None => failure.next("'syncline status' lists all mounts"),
        }
    })
}

/// The failure for an unmount that umount(8) or fusermount3 refuses, in its words.
fn refused(said: String) -> Failure {
    match next_of_fusermount(&said) {
        Some(next) => Failure::of(Cause::Fuse, said).next(next),
        None => Failure::of(Cause::Permission, said).next("unmount as the user who mounted it, or as root"),
    }
}

/// When the mount goes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Detach {
    /// Not as long as something is open there.
    WhenUnused,
    /// At once.
    Lazily,
}

/// Unmounts as root, or through fusermount3. Programs such as `syncline top`, which query the
/// daemon now and then, hold the mount for a moment each time, so a busy mount is retried before it
/// counts as busy.
fn unmount(directory: &Path, patience: Duration, when: Detach) -> Result<(), Failure> {
    let program = if rustix::process::geteuid().is_root() { "umount" } else { "fusermount3" };
    let started = Instant::now();
    loop {
        let mut command = Command::new(program);
        // umount(8)'s helper would be this command again.
        let as_user = program == "fusermount3";
        command.arg(if as_user { "-u" } else { "-i" });
        if when == Detach::Lazily {
            command.arg(if as_user { "-z" } else { "-l" });
        }
        // Its messages are parsed here, and repeated within this program's own English text.
        command.arg("--").arg(directory).env("LC_ALL", "C");
        let output = ask::output_within(command, patience)
            .map_err(|error| Failure::new(format!("cannot run {program}: {error}; install it")))?;
        let Some(output) = output else {
            let text = format!(
                "{} is being unmounted, but its daemon does not take the kernel's last writes",
                directory.display()
            );
            return Err(Failure::new(text)
                .next("wait for it; if it hangs, 'kill -9' ends the daemon, and unsynced changes are lost"));
        };
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        // The message contains the directory, which may have any name.
        if !said.replace(&*directory.to_string_lossy(), "").contains("busy") {
            // Another umount may have come first.
            return Err(require_mounted(directory).err().unwrap_or_else(|| refused(said)));
        }
        if started.elapsed() > BUSY_PATIENCE {
            let text = format!("{} is in use", directory.display());
            // fuser(1) can't look there any more.
            let is_dead = directory.metadata().is_err_and(|error| daemon_has_gone(&error));
            let next = if is_dead {
                format!(
                    "its daemon has gone: 'syncline umount -l {}' removes the mount all the same",
                    directory.display()
                )
            } else {
                format!(
                    "close the files that are open there and leave its directories ('fuser -vm {}' lists who has them)",
                    directory.display()
                )
            };
            return Err(Failure::of(Cause::InUse, text).next(next));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Waits for the daemon to end, which it does when everything is written; but not as long as the
/// filesystem is also mounted in another mount namespace.
fn wait_for_exit(pid: i64, mounted: &MountEntry, timeout: Duration) -> Result<(), Failure> {
    let started = Instant::now();
    let mut look = LOOK_ELSEWHERE;
    let process = PathBuf::from(format!("/proc/{pid}"));
    // A zombie has released the image, even if it has not been reaped.
    let alive = || {
        std::fs::read_to_string(process.join("stat"))
            .is_ok_and(|stat| !stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('Z')))
    };
    while alive() {
        if started.elapsed() > timeout {
            return Err(Failure::new(format!(
                "it is unmounted, but process {pid} is still writing; wait for it to end"
            )));
        }
        if started.elapsed() > look {
            look += LOOK_ELSEWHERE;
            require_gone(mounted)?;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// The reason to wait while somebody has the image.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Waiting {
    /// The end of a daemon that can't be watched: one that root may not ask, one in another pid
    /// namespace, or one that had ended before.
    ForTheDaemon,
    /// The kernel, which releases the image only when the I/O of an ended process has completed.
    ForAnAnswer,
}

/// The state of an image after its daemon has released it.
enum Released {
    /// Its last superblock.
    As(Box<Superblock>),
    /// Another process has it by now.
    ToOthers,
    /// It is encrypted, and this process does not have its key.
    Locked,
    /// It is not where it was, or can't be read.
    Unread(Failure),
}

/// Waits until nobody has the image.
fn wait_for_release(
    image: &Path,
    mounted: &MountEntry,
    waiting: Waiting,
    timeout: Duration,
) -> Result<Released, Failure> {
    let started = Instant::now();
    loop {
        let (failure, holder) = match last_superblock(image) {
            Ok(superblock) => return Ok(Released::As(superblock.into())),
            Err(Unread::InUse(failure, holder)) => (failure, holder),
            Err(Unread::Locked) => return Ok(Released::Locked),
            Err(Unread::Failed(failure)) => return Ok(Released::Unread(failure)),
        };
        // A process that can be seen is not the daemon that has ended.
        let other = matches!(*holder, Holder::Process { pid, .. } if pid != std::process::id());
        if waiting == Waiting::ForAnAnswer && other {
            return Ok(Released::ToOthers);
        }
        if waiting == Waiting::ForTheDaemon {
            require_gone(mounted)?;
        }
        // Someone has mounted it again. The remaining mount of the old filesystem is not served.
        let again = |other: &MountEntry| {
            let same_image = other.is_ours() && other.image == mounted.image;
            same_image && !other.is_of_the_same(mounted)
        };
        if mounts()?.iter().any(again) {
            return Ok(Released::ToOthers);
        }
        if started.elapsed() > timeout {
            let text = match waiting {
                Waiting::ForTheDaemon => "it is unmounted, but its daemon is still writing",
                Waiting::ForAnAnswer => {
                    "it is unmounted, but the last writes of its daemon are still under way"
                }
            };
            return Err(Failure::new(format!("{text}: {failure}")).next("wait for it to end"));
        }
    }
}

/// Refuses to wait for a daemon that keeps serving others.
fn require_gone(mounted: &MountEntry) -> Result<(), Failure> {
    let directory = mounted.mount_point.display();
    if let Some(other) = mounts()?.iter().find(|other| other.is_of_the_same(mounted)) {
        let other = other.mount_point.display();
        let text = format!(
            "{directory} is unmounted, but the filesystem is still mounted at {other}; 'syncline umount {other}' ends that too"
        );
        return Err(Failure::of(Cause::InUse, text));
    }
    let others = mounted_elsewhere(mounted)?;
    let Some((first, rest)) = others.split_first() else {
        if is_connected(mounted) {
            let text = format!("{directory} is unmounted here, but still mounted in another mount namespace");
            let next = "a container, a service or a shell of 'unshare' may have it; as root this command tells which";
            return Err(Failure::of(Cause::InUse, text).next(next));
        }
        return Ok(());
    };
    let Elsewhere { pid, command, mount_point } = first;
    let more = match rest.len() {
        0 => String::new(),
        1 => " and of one other".to_owned(),
        more => format!(" and of {more} others"),
    };
    let text = format!(
        "{directory} is unmounted here, but still mounted in the mount namespace of process {pid} ({command}){more}; \
         end that process, or: nsenter -t {pid} -m umount {}",
        mount_point.display()
    );
    Err(Failure::of(Cause::InUse, text))
}

/// Nobody has the image any more: checks in its last superblock whether the daemon finished
/// everything.
fn require_clean(image: &Path, superblock: &Superblock, uuid: Option<Uuid>) -> Result<(), Failure> {
    if uuid.is_some_and(|uuid| *uuid.as_bytes() != superblock.uuid) {
        let text = "it is unmounted, but another image is at its place now, so unsynced changes may be lost";
        return Err(Failure::of(Cause::NotAnImage, text)
            .about(image)
            .next("if it was moved, mount it where it is now to recover the synced changes"));
    }
    if superblock.clean {
        return Ok(());
    }
    Err(not_closed_well(image))
}

/// The failure for an image that its daemon has not left clean.
fn not_closed_well(image: &Path) -> Failure {
    let text = "it is unmounted, but the last checkpoint did not end well, or had to leave out data that could not be written, so unsynced changes may be lost";
    Failure::of(Cause::Device, text).about(image).next("mount it again to recover the synced changes")
}

/// An image on a network may be taken over while its daemon writes the last changes. Then the other
/// host's clean image lacks them.
fn require_same_mount(image: &Path, superblock: &Superblock, epoch: Option<&str>) -> Result<(), Failure> {
    if epoch.is_none_or(|epoch| epoch == figures::epoch(superblock)) {
        return Ok(());
    }
    let text = "it is unmounted, but another mount has had the image before all was written, so unsynced changes are lost";
    Err(Failure::of(Cause::Device, text)
        .about(image)
        .next("look there for the host that took it; 'syncline mount' shows the synced changes"))
}

/// Why the last superblock of an image is unknown.
enum Unread {
    /// Another process has the image.
    InUse(Failure, Arc<Holder>),
    /// Nobody has it, and it is encrypted.
    Locked,
    Failed(Failure),
}

fn last_superblock(image: &Path) -> Result<Superblock, Unread> {
    if !image.exists() && !syncline_image::is_remote(image) {
        let text = format!("there is no {} any more", image.display());
        return Err(Unread::Failed(
            Failure::of(Cause::NotAnImage, text)
                .next("if it was moved, mount it where it is now to recover the synced changes"),
        ));
    }
    let opened = Image::open(image, &How { unattended: true, ..How::reading() });
    let opened = opened.map_err(|error| match &error {
        DeviceError::InUse { holder, .. } => Unread::InUse(error.clone().into(), holder.clone()),
        _ if matches!(syncline_image::key_error(&error), Some(KeyError::Missing)) => Unread::Locked,
        _ => Unread::Failed(error.into()),
    })?;
    let device = opened.device();
    let slots = block_on(syncline_store::read_superblocks(&device));
    Ok(slots.map_err(|error| Unread::Failed(Failure::from(error).about(image)))?.superblock)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_without_a_table_of_mounts_is_not_the_users_fault() {
        let said = "fusermount3: failed to open /etc/mtab: No such file or directory".to_owned();
        let failure = refused(said);
        assert_eq!(failure.code(), Cause::Fuse as u8);
        assert!(failure.to_string().ends_with("'ln -s /proc/self/mounts /etc/mtab', as root"), "{failure}");
        for said in [
            "umount: mnt: must be superuser to unmount.",
            "fusermount3: entry for /srv/mnt not found in /etc/mtab",
        ] {
            assert_eq!(refused(said.to_owned()).code(), Cause::Permission as u8);
        }
    }
}
