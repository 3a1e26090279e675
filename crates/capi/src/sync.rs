//! Making files durable, and saying when they are to be.

use crate::arguments::{copy_text_out, reference, slice, string};
use crate::failure::{Failure, answer, done};
use crate::file::syncline_file;
use crate::image::syncline_fs;
use std::ffi::{OsStr, c_char, c_int};
use syncline::{Durability, File};

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

/// Sets when changes of a file or directory become durable.
///
/// # Safety
/// `fs` is NULL or an open handle, `path` a string; `durability` is NULL or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_set_durability(
    fs: *const syncline_fs,
    path: *const c_char,
    durability: *const c_char,
) -> c_int {
    // SAFETY: the caller's promise for each pointer.
    done(|| unsafe {
        let class = match durability.is_null() {
            true => None,
            false => Some(class_of(string(durability, "durability")?)?),
        };
        Ok(reference(fs, "fs")?.filesystem.set_durability(string(path, "path")?, class)?)
    })
}

/// Copies the class of a file or directory out.
///
/// # Safety
/// `fs` is NULL or an open handle, `path` a string; `durability` has room for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_durability(
    fs: *const syncline_fs,
    path: *const c_char,
    durability: *mut c_char,
    size: usize,
) -> i64 {
    // SAFETY: the caller's promise for each pointer.
    answer(|| unsafe {
        let class = reference(fs, "fs")?.filesystem.durability(string(path, "path")?)?;
        copy_text_out(class.to_string().as_bytes(), durability, size)
    })
}

fn class_of(text: &OsStr) -> Result<Durability, Failure> {
    let class = text.to_str().and_then(|text| text.parse().ok());
    class.ok_or(Failure::Invalid("no durability class: fsync, ordered, ordered:SECONDS or strict"))
}
