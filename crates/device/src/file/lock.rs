//! The locks on an image: who may write it, who reads it, who has which snapshot (promise P7).
//!
//! They are locks of the open file description that does the I/O, so they last as long as it does,
//! and closing another descriptor of the same image does not release them. A writer locks
//! everything exclusively; readers lock everything but [`MARK`] as shared.
//!
//! Anyone who may open an image for reading can lock it for reading, and so prevent everybody from
//! locking it for writing. Root passes by such strangers ([`strangers`]): it takes a shared lock on
//! everything, the mark included. That excludes other writers, who can't lock exclusively and find
//! a holder who is no stranger, and readers, whom the mark tells. The mark can be forged, so a
//! reader that is able to checks who holds it.

use super::loops::WHOLE;
use super::strangers;
use crate::Claim;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;

/// Where the locks of snapshots begin: past every byte that an image can have.
const CLAIMS: i64 = 1 << 62;
/// The distance between the snapshot locks of images that are 512 bytes apart in a file. It is
/// larger than the number of snapshots, and odd, so that no two images share locks.
const PART_STRIDE: u64 = 0x1357_9bdf_0246_8ace | 1;
/// Locked by writers only.
const MARK: i64 = CLAIMS - 1;

/// Locked briefly to find the kernel's name of this file.
const ASKED: i64 = i64::MAX;

/// Locks these bytes, for a writer or a reader; false if another lock conflicts. The range is all
/// bytes, except for a file below a loop device that shows a part of it.
pub(super) fn lock(file: &File, shared: bool, bytes: &Range<u64>) -> io::Result<bool> {
    let at = |byte: u64| i64::try_from(byte).unwrap_or(CLAIMS).min(CLAIMS);
    // A part does not contain the mark: all parts share one, which is locked only where strangers
    // are passed by.
    let end = if *bytes == WHOLE { CLAIMS } else { at(bytes.end).min(MARK) };
    let bytes = at(bytes.start)..end;
    if shared { lock_to_read(file, bytes) } else { lock_to_write(file, bytes) }
}

fn lock_to_write(file: &File, bytes: Range<i64>) -> io::Result<bool> {
    let len = bytes.end - bytes.start;
    if set(file, libc::F_WRLCK, bytes.start, len)? {
        return Ok(true);
    }
    // From here on no other writer gets past this point. One that is already past it conflicts, or
    // is found below: each locks first and looks afterwards, so at least one of two sees the other.
    if !strangers::can_be_told() || !set(file, libc::F_RDLCK, bytes.start, len)? {
        return Ok(false);
    }
    if set(file, libc::F_RDLCK, MARK, 1)? && strangers::are_all(file)? {
        tracing::warn!("other users' locks for reading are passed by");
        return Ok(true);
    }
    set(file, libc::F_UNLCK, 0, CLAIMS)?;
    Ok(false)
}

/// Lets readers in beside a writer that has locked everything exclusively. The image stays locked
/// throughout.
pub(super) fn share(file: &File) -> io::Result<()> {
    set(file, libc::F_RDLCK, 0, MARK)?;
    set(file, libc::F_UNLCK, MARK, 1).map(drop)
}

/// Gives up every lock on this file.
pub(super) fn unlock(file: &File) -> io::Result<()> {
    // A length of 0 means up to the end.
    set(file, libc::F_UNLCK, 0, 0).map(drop)
}

fn lock_to_read(file: &File, bytes: Range<i64>) -> io::Result<bool> {
    if !set(file, libc::F_RDLCK, bytes.start, bytes.end.min(MARK) - bytes.start)? {
        return Ok(false);
    }
    if would_get(file, libc::F_WRLCK, MARK, 1)? || (strangers::can_be_told() && strangers::are_all(file)?) {
        return Ok(true);
    }
    set(file, libc::F_UNLCK, 0, MARK)?;
    Ok(false)
}

/// The kernel's name for this file in its lists of locks. It need not be the device and inode that
/// stat(2) reports.
pub(super) fn place(file: &File) -> Option<String> {
    set(file, libc::F_RDLCK, ASKED, 1).ok().filter(|&got| got)?;
    let about = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", file.as_raw_fd()));
    set(file, libc::F_UNLCK, ASKED, 1).ok()?;
    let about = about.ok()?;
    strangers::locks(&about).find_map(strangers::place).map(str::to_owned)
}

/// Locks or unlocks the byte that stands for a snapshot of the image that begins at byte `start`;
/// false if others hold it.
pub(super) fn claim(file: &File, start: u64, number: u64, claim: Claim) -> io::Result<bool> {
    let sort = match claim {
        Claim::Shared => libc::F_RDLCK,
        Claim::Exclusive => libc::F_WRLCK,
        Claim::Released => libc::F_UNLCK,
    };
    // Images in other parts of the file have snapshots with the same numbers.
    let number = number.wrapping_add((start / 512).wrapping_mul(PART_STRIDE));
    set(file, sort, CLAIMS + (number % CLAIMS as u64) as i64, 1)
}

/// True if no snapshot of any image in this file is claimed.
pub(super) fn no_claims(file: &File) -> io::Result<bool> {
    would_get(file, libc::F_WRLCK, CLAIMS, ASKED - CLAIMS)
}

fn range(sort: libc::c_int, start: i64, len: i64) -> libc::flock {
    // SAFETY: a flock of all zeros is valid: the whole file, and no process, as these locks
    // require.
    let mut range: libc::flock = unsafe { std::mem::zeroed() };
    range.l_type = sort as libc::c_short;
    range.l_whence = libc::SEEK_SET as libc::c_short;
    (range.l_start, range.l_len) = (start, len);
    range
}

/// Sets a lock of the open file description; false if another one conflicts.
fn set(file: &File, sort: libc::c_int, start: i64, len: i64) -> io::Result<bool> {
    let range = range(sort, start, len);
    // SAFETY: the kernel reads `range`.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const range) } == 0 {
        return Ok(true);
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EAGAIN | libc::EACCES) => Ok(false),
        _ => Err(error),
    }
}

/// True if such a lock would conflict with no other.
fn would_get(file: &File, sort: libc::c_int, start: i64, len: i64) -> io::Result<bool> {
    let mut range = range(sort, start, len);
    // SAFETY: the kernel reads and writes `range`.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut range) } {
        0 => Ok(range.l_type == libc::F_UNLCK as libc::c_short),
        _ => Err(io::Error::last_os_error()),
    }
}
