//! Creating, changing and removing names.

use crate::arguments::{copy_text_out, reference, string};
use crate::failure::{Failure, answer, done};
use crate::image::syncline_fs;
use std::ffi::{c_char, c_int, c_uint};
use std::os::unix::ffi::OsStrExt;
use syncline::{DirBuilder, RenameFlags};

/// Fail rather than replace.
pub const SYNCLINE_RENAME_NOREPLACE: c_uint = 1;
/// Exchange the two.
pub const SYNCLINE_RENAME_EXCHANGE: c_uint = 2;

/// Makes a directory.
///
/// # Safety
/// `fs` is NULL or an open handle, `path` a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_mkdir(fs: *const syncline_fs, path: *const c_char, mode: u32) -> c_int {
    // SAFETY: the caller's promise for each pointer.
    done(|| unsafe {
        let mut builder = DirBuilder::new();
        builder.mode((mode & 0o7777) as u16);
        Ok(builder.create(&reference(fs, "fs")?.filesystem, string(path, "path")?)?)
    })
}

/// Removes a name of anything but a directory.
///
/// # Safety
/// `fs` is NULL or an open handle, `path` a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_unlink(fs: *const syncline_fs, path: *const c_char) -> c_int {
    // SAFETY: the caller's promise for each pointer.
    done(|| unsafe { Ok(reference(fs, "fs")?.filesystem.remove_file(string(path, "path")?)?) })
}

/// Removes an empty directory.
///
/// # Safety
/// `fs` is NULL or an open handle, `path` a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_rmdir(fs: *const syncline_fs, path: *const c_char) -> c_int {
    // SAFETY: the caller's promise for each pointer.
    done(|| unsafe { Ok(reference(fs, "fs")?.filesystem.remove_dir(string(path, "path")?)?) })
}

/// Removes a directory with everything in it.
///
/// # Safety
/// `fs` is NULL or an open handle, `path` a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_remove_tree(fs: *const syncline_fs, path: *const c_char) -> c_int {
    // SAFETY: the caller's promise for each pointer.
    done(|| unsafe { Ok(reference(fs, "fs")?.filesystem.remove_dir_all(string(path, "path")?)?) })
}

/// Renames.
///
/// # Safety
/// `fs` is NULL or an open handle, `from` and `to` are strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_rename(
    fs: *const syncline_fs,
    from: *const c_char,
    to: *const c_char,
    flags: c_uint,
) -> c_int {
    // SAFETY: the caller's promise for each pointer.
    done(|| unsafe {
        if flags & !(SYNCLINE_RENAME_NOREPLACE | SYNCLINE_RENAME_EXCHANGE) != 0 {
            return Err(Failure::Invalid("a flag that is none of SYNCLINE_RENAME_..."));
        }
        let flags = RenameFlags {
            no_replace: flags & SYNCLINE_RENAME_NOREPLACE != 0,
            exchange: flags & SYNCLINE_RENAME_EXCHANGE != 0,
            ..RenameFlags::default()
        };
        let (from, to) = (string(from, "from")?, string(to, "to")?);
        Ok(reference(fs, "fs")?.filesystem.rename_with(from, to, flags)?)
    })
}

/// Gives a file another name.
///
/// # Safety
/// `fs` is NULL or an open handle, `original` and `path` are strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_link(
    fs: *const syncline_fs,
    original: *const c_char,
    path: *const c_char,
) -> c_int {
    // SAFETY: the caller's promise for each pointer.
    done(|| unsafe {
        let (original, path) = (string(original, "original")?, string(path, "path")?);
        Ok(reference(fs, "fs")?.filesystem.hard_link(original, path)?)
    })
}

/// Makes a symbolic link.
///
/// # Safety
/// `fs` is NULL or an open handle, `target` and `path` are strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_symlink(
    fs: *const syncline_fs,
    target: *const c_char,
    path: *const c_char,
) -> c_int {
    // SAFETY: the caller's promise for each pointer.
    done(|| unsafe {
        let (target, path) = (string(target, "target")?, string(path, "path")?);
        Ok(reference(fs, "fs")?.filesystem.symlink(target, path)?)
    })
}

/// Where a symbolic link leads.
///
/// # Safety
/// `fs` is NULL or an open handle, `path` a string; `target` has room for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_readlink(
    fs: *const syncline_fs,
    path: *const c_char,
    target: *mut c_char,
    size: usize,
) -> i64 {
    // SAFETY: the caller's promise for each pointer.
    answer(|| unsafe {
        let leads = reference(fs, "fs")?.filesystem.read_link(string(path, "path")?)?;
        copy_text_out(leads.as_os_str().as_bytes(), target, size)
    })
}
