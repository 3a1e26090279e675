//! Forks: writable images that begin as a snapshot of another image and share its blocks.

use crate::arguments::{hand_out, string};
use crate::failure::done;
use crate::image::{SYNCLINE_NO_IO_URING, options, syncline_fs};
use crate::snapshots::text;
use std::ffi::{c_char, c_int, c_uint};
use syncline::Filesystem;

/// Makes a fork of an image that nobody has open.
///
/// # Safety
/// `image`, `snapshot` and `new_image` are strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_fork_create(
    image: *const c_char,
    snapshot: *const c_char,
    new_image: *const c_char,
) -> c_int {
    // SAFETY: the caller's promise for each pointer.
    done(|| unsafe {
        let (image, snapshot) = (string(image, "image")?, text(string(snapshot, "snapshot")?)?);
        Ok(Filesystem::fork_of(image, snapshot, string(new_image, "new_image")?)?)
    })
}

/// Opens a new fork that ends when it is closed.
///
/// # Safety
/// `image` and `snapshot` are strings; `fs` may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_fork_open(
    image: *const c_char,
    snapshot: *const c_char,
    flags: c_uint,
    fs: *mut *mut syncline_fs,
) -> c_int {
    // SAFETY: the caller's promise for each pointer.
    done(|| unsafe {
        hand_out(fs, || {
            let options = options(flags, SYNCLINE_NO_IO_URING)?;
            let (image, snapshot) = (string(image, "image")?, text(string(snapshot, "snapshot")?)?);
            Ok(syncline_fs { filesystem: Filesystem::open_fork(image, snapshot, options)? })
        })
    })
}

/// Makes a fork independent of its base.
///
/// # Safety
/// `image` is a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_fork_detach(image: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    done(|| Ok(Filesystem::detach(unsafe { string(image, "image") }?, &mut |_, _| {})?.release()?))
}
