//! Listing directories.

use crate::arguments::{hand_out, reference, store, string, take_back};
use crate::failure::{answer, done};
use crate::image::syncline_fs;
use parking_lot::Mutex;
use std::ffi::{c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use syncline::ReadDir;

/// Bytes of a name with its zero.
pub const SYNCLINE_NAME_BYTES: usize = 256;

/// A directory that is being listed.
pub struct syncline_dir {
    entries: Mutex<ReadDir>,
}

/// An entry.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct syncline_dirent {
    /// Inode number.
    pub ino: u64,
    /// The type bits of a mode.
    pub mode: u32,
    /// Length of the name.
    pub name_len: u32,
    /// The name, with a zero at its end.
    pub name: [c_char; SYNCLINE_NAME_BYTES],
}

/// Begins a listing.
///
/// # Safety
/// `fs` is NULL or an open handle, `path` a string; `dir` may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_opendir(
    fs: *const syncline_fs,
    path: *const c_char,
    dir: *mut *mut syncline_dir,
) -> c_int {
    // SAFETY: the caller's promise for each pointer.
    done(|| unsafe {
        hand_out(dir, || {
            let entries = reference(fs, "fs")?.filesystem.read_dir(string(path, "path")?)?;
            Ok(syncline_dir { entries: Mutex::new(entries) })
        })
    })
}

/// Tells the next entry.
///
/// # Safety
/// `dir` is NULL or an open handle; `entry` is NULL or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_readdir(dir: *const syncline_dir, entry: *mut syncline_dirent) -> c_int {
    // 1, 0 or a negative errno.
    answer(|| {
        // SAFETY: the caller's promise.
        let dir = unsafe { reference(dir, "dir") }?;
        let Some(next) = dir.entries.lock().next().transpose()? else { return Ok(0) };
        let bytes = next.file_name();
        let bytes = bytes.as_bytes();
        let mut name = [0; SYNCLINE_NAME_BYTES];
        for (to, &byte) in name[..SYNCLINE_NAME_BYTES - 1].iter_mut().zip(bytes) {
            *to = byte as c_char;
        }
        let mode = u32::from(next.file_type().number()) << 12;
        let told = syncline_dirent { ino: next.ino(), mode, name_len: bytes.len() as u32, name };
        // SAFETY: the caller's promise.
        unsafe { store(entry, told, "entry") }?;
        Ok(1)
    }) as c_int
}

/// Ends a listing.
///
/// # Safety
/// `dir` is NULL or an open handle, and not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_closedir(dir: *mut syncline_dir) -> c_int {
    // SAFETY: the caller's promise.
    done(|| unsafe { take_back(dir) }.map(drop))
}
