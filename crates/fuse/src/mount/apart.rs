//! Unmounting a mount that this process serves and that has a block device. The kernel asks the daemon
//! before such a mount ends, and the thread that unmounts waits for the answer, whatever signal comes.
//! So that is a process of its own, without our descriptors: if the daemon is killed meanwhile, the
//! connection ends with its last descriptor, and the wait with the connection. A thread of the daemon
//! would keep the descriptors open, and wait for ever.

use super::privileged::{c_string, unmount_flags};
use crate::error::MountError;
use std::io;
use std::path::Path;

/// More descriptors than a daemon has.
const DESCRIPTORS_MAX: libc::c_int = 1 << 16;

/// Unmounts; `lazy` detaches the mount even while it is in use. Returns when the mount has ended, or is
/// only kept by those who use it.
pub(super) fn unmount(path: &Path, lazy: bool) -> Result<(), MountError> {
    let failed = |error| MountError::unmount(path, error);
    let (target, flags) = (c_string(path.as_os_str())?, unmount_flags(lazy));
    // SAFETY: the child makes system calls only, which is allowed in a copy of a process with several
    // threads, and ends without returning.
    let child = match unsafe { libc::fork() } {
        -1 => return Err(failed(io::Error::last_os_error())),
        // SAFETY: the string was made before the fork, and ends with a NUL. No descriptor is used
        // after they are closed.
        0 => unsafe {
            if libc::syscall(libc::SYS_close_range, 0, libc::c_uint::MAX, 0) != 0 {
                // Before Linux 5.9.
                for descriptor in 0..DESCRIPTORS_MAX {
                    libc::close(descriptor);
                }
            }
            let result = libc::umount2(target.as_ptr(), flags);
            libc::_exit(if result == 0 { 0 } else { *libc::__errno_location() })
        },
        child => child,
    };
    let mut status = 0;
    // SAFETY: the kernel writes one number to `status`.
    while unsafe { libc::waitpid(child, &raw mut status, 0) } < 0 {
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(failed(error));
        }
    }
    match libc::WIFEXITED(status) {
        true if libc::WEXITSTATUS(status) == 0 => Ok(()),
        true => Err(failed(io::Error::from_raw_os_error(libc::WEXITSTATUS(status)))),
        false => Err(failed(io::Error::from_raw_os_error(libc::EINTR))),
    }
}
