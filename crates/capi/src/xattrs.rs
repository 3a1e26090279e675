//! Extended attributes.

use crate::arguments::{copy_out, reference, slice, string};
use crate::failure::{Failure, answer, done};
use crate::image::syncline_fs;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::os::unix::ffi::OsStrExt;
use syncline::XattrMode;

/// Fail if it is set.
pub const SYNCLINE_XATTR_CREATE: c_uint = 1;
/// Fail if it is not set.
pub const SYNCLINE_XATTR_REPLACE: c_uint = 2;

/// The mode that the flags of a call ask for.
pub(crate) fn xattr_mode(flags: c_uint) -> Result<XattrMode, Failure> {
    Ok(match flags {
        0 => XattrMode::Set,
        SYNCLINE_XATTR_CREATE => XattrMode::Create,
        SYNCLINE_XATTR_REPLACE => XattrMode::Replace,
        _ => return Err(Failure::Invalid("a flag that is none of SYNCLINE_XATTR_...")),
    })
}

/// Tells a value.
///
/// # Safety
/// `fs` is NULL or an open handle, `path` and `name` are strings; `value` has room for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_getxattr(
    fs: *const syncline_fs,
    path: *const c_char,
    name: *const c_char,
    value: *mut c_void,
    size: usize,
) -> i64 {
    // SAFETY: the caller's promise for each pointer.
    answer(|| unsafe {
        let has = reference(fs, "fs")?.filesystem.xattr(string(path, "path")?, string(name, "name")?)?;
        copy_out(&has.ok_or(Failure::NoAttribute)?, value, size)
    })
}

/// Sets a value.
///
/// # Safety
/// `fs` is NULL or an open handle, `path` and `name` are strings, `value` has `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_setxattr(
    fs: *const syncline_fs,
    path: *const c_char,
    name: *const c_char,
    value: *const c_void,
    size: usize,
    flags: c_uint,
) -> c_int {
    // SAFETY: the caller's promise for each pointer.
    done(|| unsafe {
        let mode = xattr_mode(flags)?;
        let value = slice(value.cast::<u8>(), size, "value")?;
        let (path, name) = (string(path, "path")?, string(name, "name")?);
        Ok(reference(fs, "fs")?.filesystem.set_xattr_with(path, name, value, mode)?)
    })
}

/// Removes one.
///
/// # Safety
/// `fs` is NULL or an open handle, `path` and `name` are strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_removexattr(
    fs: *const syncline_fs,
    path: *const c_char,
    name: *const c_char,
) -> c_int {
    // SAFETY: the caller's promise for each pointer.
    done(|| unsafe {
        let (path, name) = (string(path, "path")?, string(name, "name")?);
        Ok(reference(fs, "fs")?.filesystem.remove_xattr(path, name)?)
    })
}

/// Tells all names, each with a zero byte after it.
///
/// # Safety
/// `fs` is NULL or an open handle, `path` a string; `names` has room for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_listxattr(
    fs: *const syncline_fs,
    path: *const c_char,
    names: *mut c_char,
    size: usize,
) -> i64 {
    // SAFETY: the caller's promise for each pointer.
    answer(|| unsafe {
        let has = reference(fs, "fs")?.filesystem.xattrs(string(path, "path")?)?;
        let list: Vec<u8> = has.iter().flat_map(|name| [name.as_bytes(), b"\0"].concat()).collect();
        copy_out(&list, names.cast(), size)
    })
}
