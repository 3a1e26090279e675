//! Mounting as root, by mount(2).

use super::{FILESYSTEM_TYPE, FUSE_DEVICE, KernelOptions};
use crate::error::MountError;
use std::ffi::{CString, OsStr};
use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

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

/// Mounts a new connection.
pub(super) fn mount(path: &Path, options: &KernelOptions) -> Result<OwnedFd, MountError> {
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
    let data = c_string(data.as_ref())?;
    let (source, target) = (c_string(&options.source)?, c_string(path.as_os_str())?);
    let filesystem_type = c_string(FILESYSTEM_TYPE.as_ref())?;
    let flags = flags(options);
    // SAFETY: all pointers are NUL-terminated strings that outlive the call.
    let result = unsafe {
        libc::mount(source.as_ptr(), target.as_ptr(), filesystem_type.as_ptr(), flags, data.as_ptr().cast())
    };
    match result {
        0 => Ok(device.into()),
        _ => Err(MountError::mount(path, io::Error::last_os_error())),
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
    let target = c_string(path.as_os_str())?;
    let flags = libc::UMOUNT_NOFOLLOW | if lazy { libc::MNT_DETACH } else { 0 };
    // SAFETY: the pointer is a NUL-terminated string that outlives the call.
    match unsafe { libc::umount2(target.as_ptr(), flags) } {
        0 => Ok(()),
        _ => Err(MountError::unmount(path, io::Error::last_os_error())),
    }
}

fn c_string(text: &OsStr) -> Result<CString, MountError> {
    CString::new(text.as_bytes()).map_err(|_| MountError::PathWithNul { path: text.into() })
}
