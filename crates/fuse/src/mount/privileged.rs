//! Mounting as root, by mount(2).

use super::{BLOCK_TYPE, FUSE_DEVICE, KernelOptions, PLAIN_TYPE};
use crate::error::MountError;
use std::ffi::{CString, OsStr};
use std::fs::{self, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::thread::sleep;
use std::time::Duration;
use syncline_device::{BLOCK_BYTES, MountDevice};

/// The longest pause before another try while another program has the device open exclusively. A program that
/// finds the image in use closes it at once. Few tries, because the kernel logs each mount(2) that it refuses.
const PAUSE_MAX: Duration = Duration::from_millis(512);

/// The inode number of the initial pid namespace (`PROC_PID_INIT_INO`).
const FIRST_PIDS: u64 = 0xEFFF_FFFC;

/// True when trying mount(2) makes sense.
pub(super) fn may_mount() -> bool {
    // SAFETY: takes nothing and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// The user that runs this process.
pub(crate) fn own_uid() -> u32 {
    // SAFETY: takes nothing and cannot fail.
    unsafe { libc::geteuid() }
}

/// True if this mount namespace can't end with this process: it is that of the machine's first
/// process.
///
/// The last process to leave a namespace ends its mounts, and the kernel asks the daemon of each that
/// has a block device. If that process is the daemon itself, killed, it waits for its own answer for
/// ever: nothing ends it then but an abort of the connection.
pub fn namespace_outlives_us() -> bool {
    let namespace = |process: &str| fs::read_link(format!("/proc/{process}/ns/mnt")).ok();
    let first_pids = fs::metadata("/proc/self/ns/pid").is_ok_and(|pids| pids.ino() == FIRST_PIDS);
    first_pids && namespace("1").is_some_and(|first| Some(first) == namespace("self"))
}

/// True if this process is in a user's session. systemd freezes those before it has the machine sleep,
/// and the kernel then syncs every filesystem: a frozen daemon would keep the machine from sleeping, and
/// from waking.
pub fn is_frozen_for_sleep() -> bool {
    fs::read_to_string("/proc/self/cgroup").is_ok_and(|cgroups| is_in_session(&cgroups))
}

/// The same of the text of a process's `cgroup` file: a line for each hierarchy, `number:names:path`.
fn is_in_session(cgroups: &str) -> bool {
    let paths = cgroups.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    paths.flat_map(|path| path.split('/')).any(|group| group == "user.slice")
}

/// Mounts a new connection with a block device; the inner error if the kernel refuses that. Our claim
/// on the device is given up for it, and taken again if that was in vain.
pub(super) fn mount_device(
    path: &Path,
    options: &KernelOptions,
    device: &Arc<MountDevice>,
) -> Result<io::Result<OwnedFd>, MountError> {
    let more = format!(",blksize={BLOCK_BYTES}");
    let source = device.path().as_os_str();
    device.give();
    let mounted = unless_busy(|| mount_as(BLOCK_TYPE, source, path, options, &more))?;
    if mounted.is_err() {
        let taken_back = unless_busy(|| Ok::<_, MountError>(device.take_back()))?;
        taken_back.map_err(|error| MountError::device(device.path(), error))?;
    }
    Ok(mounted)
}

/// Tries again, for about a second, while the device is busy.
fn unless_busy<T, E>(attempt: impl Fn() -> Result<io::Result<T>, E>) -> Result<io::Result<T>, E> {
    let mut pause = Duration::from_millis(2);
    loop {
        match attempt()? {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) && pause <= PAUSE_MAX => {
                sleep(pause);
                pause *= 2;
            }
            ended => return Ok(ended),
        }
    }
}

/// Mounts a new connection.
pub(super) fn mount(path: &Path, options: &KernelOptions) -> Result<OwnedFd, MountError> {
    mount_as(PLAIN_TYPE, &options.source, path, options, "")?.map_err(|error| MountError::mount(path, error))
}

fn mount_as(
    filesystem_type: &str,
    source: &OsStr,
    path: &Path,
    options: &KernelOptions,
    more: &str,
) -> Result<io::Result<OwnedFd>, MountError> {
    let device =
        OpenOptions::new().read(true).write(true).open(FUSE_DEVICE).map_err(MountError::fuse_device)?;
    // SAFETY: both take nothing and cannot fail.
    let (uid, gid) = unsafe { (libc::getuid(), libc::getgid()) };
    // `rootmode` says only that the root is a directory; the kernel asks for its real mode.
    let mut data =
        format!("fd={},rootmode=40000,user_id={uid},group_id={gid},default_permissions", device.as_raw_fd());
    if options.allow_other.unwrap_or(true) {
        data.push_str(",allow_other");
    }
    data.push_str(more);
    let data = c_string(data.as_ref())?;
    let (source, target) = (c_string(source)?, c_string(path.as_os_str())?);
    let filesystem_type = c_string(filesystem_type.as_ref())?;
    let flags = flags(options);
    // SAFETY: all pointers are NUL-terminated strings that outlive the call.
    let result = unsafe {
        libc::mount(source.as_ptr(), target.as_ptr(), filesystem_type.as_ptr(), flags, data.as_ptr().cast())
    };
    match result {
        0 => Ok(Ok(device.into())),
        _ => Ok(Err(io::Error::last_os_error())),
    }
}

/// `MS_NOSYMFOLLOW` (Linux 5.10).
const NO_SYMLINKS: libc::c_ulong = 256;

/// Flags of mount(2).
fn flags(options: &KernelOptions) -> libc::c_ulong {
    let chosen = [
        // The daemon keeps access times; the kernel's own handling is off.
        (true, libc::MS_NOATIME),
        (options.read_only, libc::MS_RDONLY),
        (options.no_suid, libc::MS_NOSUID),
        (options.no_devices, libc::MS_NODEV),
        (options.no_execution, libc::MS_NOEXEC),
        (options.no_symlinks, NO_SYMLINKS),
    ];
    chosen.iter().filter(|(chosen, _)| *chosen).fold(0, |flags, (_, flag)| flags | flag)
}

/// Changes the flags of a mount that the kernel enforces itself: read-only, nosuid, nodev, noexec,
/// nosymfollow.
pub fn remount(path: &Path, options: &KernelOptions) -> Result<(), MountError> {
    let target = c_string(path.as_os_str())?;
    let flags = flags(options) | libc::MS_REMOUNT;
    let none = std::ptr::null();
    // SAFETY: the path is a NUL-terminated string that outlives the call; the kernel ignores the
    // other pointers in a remount.
    match unsafe { libc::mount(none, target.as_ptr(), none, flags, none.cast()) } {
        0 => Ok(()),
        _ => Err(MountError::mount(path, io::Error::last_os_error())),
    }
}

/// Unmounts; `lazy` detaches the mount even while it is in use.
pub(super) fn unmount(path: &Path, lazy: bool) -> Result<(), MountError> {
    unmount_with(path, unmount_flags(lazy))
}

/// Ends the connection of a mount that nobody serves, and detaches the mount.
pub(super) fn abort(path: &Path) -> Result<(), MountError> {
    unmount_with(path, unmount_flags(true) | libc::MNT_FORCE)
}

/// Flags of umount2(2).
pub(super) fn unmount_flags(lazy: bool) -> libc::c_int {
    libc::UMOUNT_NOFOLLOW | if lazy { libc::MNT_DETACH } else { 0 }
}

fn unmount_with(path: &Path, flags: libc::c_int) -> Result<(), MountError> {
    let target = c_string(path.as_os_str())?;
    // SAFETY: the pointer is a NUL-terminated string that outlives the call.
    match unsafe { libc::umount2(target.as_ptr(), flags) } {
        0 => Ok(()),
        _ => Err(MountError::unmount(path, io::Error::last_os_error())),
    }
}

pub(super) fn c_string(text: &OsStr) -> Result<CString, MountError> {
    CString::new(text.as_bytes()).map_err(|_| MountError::PathWithNul { path: text.into() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn a_busy_device_is_tried_a_few_times_and_any_other_error_ends_that() {
        let tries = Cell::new(0);
        let attempt = |errno: i32, from: u32| {
            tries.set(0);
            unless_busy(|| {
                tries.set(tries.get() + 1);
                let error = if tries.get() < from { libc::EBUSY } else { errno };
                Ok::<_, ()>(if error == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(error)) })
            })
            .unwrap()
            .map_err(|error| error.raw_os_error().unwrap())
        };
        assert_eq!((attempt(0, 3), tries.get()), (Ok(()), 3));
        assert_eq!((attempt(libc::ENODEV, 2), tries.get()), (Err(libc::ENODEV), 2));
        assert_eq!((attempt(libc::EBUSY, 1), tries.get()), (Err(libc::EBUSY), 10));
    }

    #[test]
    fn only_a_busy_device_is_blamed_on_another_program() {
        let told = |errno| {
            MountError::device(Path::new("/dev/sdz"), io::Error::from_raw_os_error(errno)).to_string()
        };
        assert!(told(libc::EBUSY).starts_with("another program took /dev/sdz"));
        assert!(told(libc::ENXIO).starts_with("/dev/sdz could not be opened again"));
    }

    #[test]
    fn sessions_of_users_are_told_from_services() {
        assert!(is_in_session("0::/user.slice/user-0.slice/session-3.scope\n"));
        assert!(is_in_session(
            "5:freezer:/\n1:name=systemd:/user.slice/user-1000.slice/user@1000.service/app.slice\n"
        ));
        for none in
            ["0::/system.slice/mnt-data.mount\n", "0::/init.scope\n", "0::/\n", "0::/other-user.slice\n", ""]
        {
            assert!(!is_in_session(none), "{none}");
        }
    }
}
