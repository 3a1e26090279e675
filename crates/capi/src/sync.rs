//! Making files durable.

use crate::arguments::{reference, slice};
use crate::failure::{Failure, done};
use crate::file::syncline_file;
use crate::image::syncline_fs;
use std::ffi::c_int;
use syncline::File;

/// Makes a file, and every change of names and attributes made before, durable.
///
/// # Safety
/// `file` is NULL or an open handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_fsync(file: *const syncline_file) -> c_int {
    // SAFETY: the caller's promise.
    done(|| Ok(unsafe { reference(file, "file") }?.file.sync_all()?))
}

/// Makes a file's contents durable.
///
/// # Safety
/// `file` is NULL or an open handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_fdatasync(file: *const syncline_file) -> c_int {
    // SAFETY: the caller's promise.
    done(|| Ok(unsafe { reference(file, "file") }?.file.sync_data()?))
}

/// The files behind an array of handles.
///
/// # Safety
/// `files` has `count` handles, each NULL or open.
unsafe fn all<'a>(files: *const *const syncline_file, count: usize) -> Result<Vec<&'a File>, Failure> {
    // SAFETY: the caller's promise.
    let handles = unsafe { slice(files, count, "files") }?;
    // SAFETY: the caller's promise.
    handles.iter().map(|&handle| Ok(&unsafe { reference(handle, "a file") }?.file)).collect()
}

/// Makes several files durable with one flush, all or nothing.
///
/// # Safety
/// `fs` is NULL or an open handle; `files` has `count` handles, each NULL or open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_sync_many(
    fs: *const syncline_fs,
    files: *const *const syncline_file,
    count: usize,
) -> c_int {
    // SAFETY: the caller's promise for each pointer.
    done(|| unsafe { Ok(reference(fs, "fs")?.filesystem.sync_many(&all(files, count)?)?) })
}

/// Orders without making durable.
///
/// # Safety
/// As for [`syncline_sync_many`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_barrier(
    fs: *const syncline_fs,
    files: *const *const syncline_file,
    count: usize,
) -> c_int {
    // SAFETY: the caller's promise for each pointer.
    done(|| unsafe { Ok(reference(fs, "fs")?.filesystem.barrier(&all(files, count)?)?) })
}
