//! Threads with a table of descriptors of their own.
//!
//! When the daemon is killed, the kernel ends a connection with the last descriptor of it, and so all
//! requests. A thread that waits for one of them, and for no signal, must not be what keeps that descriptor.

use std::os::fd::RawFd;

/// Gives this thread a table of descriptors that contains only this one; false if that can't be done.
pub(crate) fn keep_only(descriptor: Option<RawFd>) -> bool {
    let close = |first: libc::c_uint, last: libc::c_uint| {
        // SAFETY: the table belongs to this thread alone by then, so closing descriptors in it affects
        // no other thread, and this thread uses no other descriptor.
        first > last || unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) == 0 }
    };
    // SAFETY: takes no memory.
    if unsafe { libc::unshare(libc::CLONE_FILES) } != 0 {
        return false;
    }
    match descriptor.map(|descriptor| descriptor as libc::c_uint) {
        None => close(0, libc::c_uint::MAX),
        Some(0) => close(1, libc::c_uint::MAX),
        Some(own) => close(0, own - 1) && close(own + 1, libc::c_uint::MAX),
    }
}
