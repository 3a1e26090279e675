//! Snapshots of a whole image.

use crate::arguments::{hand_out, reference, string};
use crate::attributes::syncline_time;
use crate::directory::SYNCLINE_NAME_BYTES;
use crate::failure::{Failure, answer, done};
use crate::image::{SYNCLINE_NO_IO_URING, SYNCLINE_READ_ONLY, options, syncline_fs};
use std::ffi::{OsStr, c_char, c_int, c_uint};
use std::time::UNIX_EPOCH;
use syncline::{Filesystem, Snapshot};

/// A snapshot.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct syncline_snapshot {
    /// Its name, with a zero at its end.
    pub name: [c_char; SYNCLINE_NAME_BYTES],
    /// When it was made.
    pub created: syncline_time,
    /// Bytes that it uses, most of them together with others.
    pub used_bytes: u64,
    /// Bytes that only it uses.
    pub exclusive_bytes: u64,
}

impl From<Snapshot> for syncline_snapshot {
    fn from(snapshot: Snapshot) -> Self {
        let mut name = [0; SYNCLINE_NAME_BYTES];
        // Names of snapshots have at most 255 bytes.
        for (to, &byte) in name[..SYNCLINE_NAME_BYTES - 1].iter_mut().zip(snapshot.name.as_bytes()) {
            *to = byte as c_char;
        }
        let created = snapshot.created.duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            name,
            created: syncline_time {
                seconds: i64::try_from(created.as_secs()).unwrap_or(i64::MAX),
                nanoseconds: created.subsec_nanos(),
                reserved: 0,
            },
            used_bytes: snapshot.used_bytes,
            exclusive_bytes: snapshot.exclusive_bytes,
        }
    }
}

/// A snapshot's name as text; names of snapshots are UTF-8.
pub(crate) fn text(name: &OsStr) -> Result<&str, Failure> {
    name.to_str().ok_or(Failure::Invalid("the name of a snapshot is UTF-8"))
}

/// Makes a snapshot.
///
/// # Safety
/// `fs` is NULL or an open handle, `name` a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_snapshot_create(fs: *const syncline_fs, name: *const c_char) -> c_int {
    // SAFETY: the caller's promise for each pointer.
    done(|| unsafe { Ok(reference(fs, "fs")?.filesystem.create_snapshot(text(string(name, "name")?)?)?) })
}

/// Deletes a snapshot.
///
/// # Safety
/// `fs` is NULL or an open handle, `name` a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_snapshot_delete(fs: *const syncline_fs, name: *const c_char) -> c_int {
    // SAFETY: the caller's promise for each pointer.
    done(|| unsafe { Ok(reference(fs, "fs")?.filesystem.delete_snapshot(text(string(name, "name")?)?)?) })
}

/// Tells of the snapshots and returns how many there are.
///
/// # Safety
/// `fs` is NULL or an open handle; `list` has room for `count` snapshots.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_snapshot_list(
    fs: *const syncline_fs,
    list: *mut syncline_snapshot,
    count: usize,
) -> i64 {
    answer(|| {
        // SAFETY: the caller's promise.
        let snapshots = unsafe { reference(fs, "fs") }?.filesystem.snapshots()?;
        let there = snapshots.len();
        if list.is_null() && count > 0 {
            return Err(Failure::Null("list"));
        }
        for (at, snapshot) in snapshots.into_iter().take(count).enumerate() {
            // SAFETY: the caller's promise: there is room for `count`, and `at` is less.
            unsafe { list.add(at).write(snapshot.into()) };
        }
        Ok(there as i64)
    })
}

/// Opens a snapshot, for reading.
///
/// # Safety
/// `image` and `name` are strings; `fs` may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_snapshot_open(
    image: *const c_char,
    name: *const c_char,
    flags: c_uint,
    fs: *mut *mut syncline_fs,
) -> c_int {
    // SAFETY: the caller's promise for each pointer.
    done(|| unsafe {
        hand_out(fs, || {
            let options = options(flags | SYNCLINE_READ_ONLY, SYNCLINE_READ_ONLY | SYNCLINE_NO_IO_URING)?;
            let (image, name) = (string(image, "image")?, text(string(name, "name")?)?);
            let filesystem = Filesystem::open_snapshot(image, name, options)?;
            Ok(syncline_fs { filesystem })
        })
    })
}

/// Returns an image to the state of a snapshot.
///
/// # Safety
/// `image` and `name` are strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_roll_back(image: *const c_char, name: *const c_char) -> c_int {
    // SAFETY: the caller's promise for each pointer.
    done(|| unsafe { Ok(Filesystem::roll_back(string(image, "image")?, text(string(name, "name")?)?)?) })
}
