//! Reading and changing the attributes of files.

use crate::arguments::{reference, slice, store, string};
use crate::failure::{Failure, done};
use crate::file::syncline_file;
use crate::image::syncline_fs;
use std::ffi::{c_char, c_int};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use syncline::{Metadata, Timestamp};

/// A moment.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct syncline_time {
    /// Seconds since 1970.
    pub seconds: i64,
    /// Below 1,000,000,000; in calls that set times, [`SYNCLINE_TIME_OMIT`] leaves the time as it is.
    pub nanoseconds: u32,
    /// 0.
    pub reserved: u32,
}

/// See [`syncline_time`].
pub const SYNCLINE_TIME_OMIT: u32 = 0xffff_ffff;

/// Attributes of a file or directory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct syncline_stat {
    /// Inode number.
    pub ino: u64,
    /// Bytes; of a directory its entries.
    pub size: u64,
    /// 512-byte units allocated.
    pub blocks: u64,
    /// Type and permissions.
    pub mode: u32,
    /// Number of names.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Number of a device node.
    pub rdev: u32,
    /// 0.
    pub reserved: u32,
    /// Last access.
    pub atime: syncline_time,
    /// Last change of the contents.
    pub mtime: syncline_time,
    /// Last change of the inode.
    pub ctime: syncline_time,
    /// Birth.
    pub btime: syncline_time,
}

impl From<Timestamp> for syncline_time {
    fn from(time: Timestamp) -> Self {
        Self { seconds: time.seconds, nanoseconds: time.nanoseconds, reserved: 0 }
    }
}

impl From<Metadata> for syncline_stat {
    fn from(metadata: Metadata) -> Self {
        let has = metadata.attributes();
        Self {
            ino: has.ino,
            size: has.size,
            blocks: has.blocks,
            mode: metadata.mode(),
            nlink: has.nlink,
            uid: has.uid,
            gid: has.gid,
            rdev: has.rdev,
            reserved: 0,
            atime: has.atime.into(),
            mtime: has.mtime.into(),
            ctime: has.ctime.into(),
            btime: has.btime.into(),
        }
    }
}

/// Follows symbolic links.
///
/// # Safety
/// `fs` is NULL or an open handle, `path` a string; `stat` is NULL or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_stat(
    fs: *const syncline_fs,
    path: *const c_char,
    stat: *mut syncline_stat,
) -> c_int {
    // SAFETY: the caller's promise for each pointer.
    done(|| unsafe {
        let metadata = reference(fs, "fs")?.filesystem.metadata(string(path, "path")?)?;
        store(stat, metadata.into(), "stat")
    })
}

/// Tells of a symbolic link itself.
///
/// # Safety
/// As for [`syncline_stat()`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_lstat(
    fs: *const syncline_fs,
    path: *const c_char,
    stat: *mut syncline_stat,
) -> c_int {
    // SAFETY: the caller's promise for each pointer.
    done(|| unsafe {
        let metadata = reference(fs, "fs")?.filesystem.symlink_metadata(string(path, "path")?)?;
        store(stat, metadata.into(), "stat")
    })
}

/// Tells of an open file.
///
/// # Safety
/// `file` is NULL or an open handle; `stat` is NULL or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_fstat(file: *const syncline_file, stat: *mut syncline_stat) -> c_int {
    // SAFETY: the caller's promise for each pointer.
    done(|| unsafe { store(stat, reference(file, "file")?.file.metadata()?.into(), "stat") })
}

/// Changes permission bits.
///
/// # Safety
/// `fs` is NULL or an open handle, `path` a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_chmod(fs: *const syncline_fs, path: *const c_char, mode: u32) -> c_int {
    // SAFETY: the caller's promise for each pointer.
    done(|| unsafe {
        let permissions = (mode & 0o7777) as u16;
        Ok(reference(fs, "fs")?.filesystem.set_permissions(string(path, "path")?, permissions)?)
    })
}

/// Changes owner and group; of a symbolic link itself.
///
/// # Safety
/// `fs` is NULL or an open handle, `path` a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_chown(
    fs: *const syncline_fs,
    path: *const c_char,
    uid: u32,
    gid: u32,
) -> c_int {
    // -1 leaves it as it is, as in chown(2).
    let given = |id: u32| (id != u32::MAX).then_some(id);
    // SAFETY: the caller's promise for each pointer.
    done(|| unsafe {
        Ok(reference(fs, "fs")?.filesystem.set_owner(string(path, "path")?, given(uid), given(gid))?)
    })
}

/// Changes the times of the last access and of the last change of the contents.
///
/// # Safety
/// `fs` is NULL or an open handle, `path` a string, `times` NULL or two times.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_utimens(
    fs: *const syncline_fs,
    path: *const c_char,
    times: *const syncline_time,
) -> c_int {
    // SAFETY: the caller's promise for each pointer.
    done(|| unsafe {
        let [accessed, modified] = slice(times, 2, "times")? else { return Err(Failure::Null("times")) };
        let (accessed, modified) = (moment(accessed)?, moment(modified)?);
        Ok(reference(fs, "fs")?.filesystem.set_times(string(path, "path")?, accessed, modified)?)
    })
}

fn moment(time: &syncline_time) -> Result<Option<SystemTime>, Failure> {
    if time.nanoseconds == SYNCLINE_TIME_OMIT {
        return Ok(None);
    }
    if time.nanoseconds >= 1_000_000_000 {
        return Err(Failure::Invalid("a time has 1,000,000,000 nanoseconds or more"));
    }
    let seconds = Duration::from_secs(time.seconds.unsigned_abs());
    let whole = match time.seconds < 0 {
        true => UNIX_EPOCH.checked_sub(seconds),
        false => UNIX_EPOCH.checked_add(seconds),
    };
    let whole = whole.and_then(|whole| whole.checked_add(Duration::from_nanos(time.nanoseconds.into())));
    Ok(Some(whole.ok_or(Failure::Invalid("a time past all times"))?))
}
