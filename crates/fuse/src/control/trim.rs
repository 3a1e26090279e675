//! FITRIM: tells the device below a mount which blocks are free, as fstrim(8) asks of every
//! filesystem.

use super::client::{ControlError, failed, open};
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Arc;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// `struct fstrim_range`: passed in, and passed back with the number of discarded bytes in `len`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct TrimRange {
    pub(crate) start: u64,
    pub(crate) len: u64,
    pub(crate) min_len: u64,
}

/// `FITRIM`: `_IOWR('X', 121, struct fstrim_range)`.
pub(crate) const TRIM: u32 = (3 << 30) | ((size_of::<TrimRange>() as u32) << 16) | ((b'X' as u32) << 8) | 121;

/// Discards all free space of the filesystem mounted at (or above) `path`, in runs of at least
/// `min_bytes`, and returns how many bytes that was. For the daemon's owner and root.
pub fn trim(path: &Path, min_bytes: u64) -> Result<u64, ControlError> {
    let file = open(path)?;
    let mut range = TrimRange { start: 0, len: u64::MAX, min_len: min_bytes };
    // SAFETY: the kernel reads and writes a `TrimRange` at the pointer, as the command's number
    // says.
    match unsafe { libc::ioctl(file.as_raw_fd(), TRIM as _, std::ptr::from_mut(&mut range)) } {
        0 => Ok(range.len),
        _ => Err(refused(path, io::Error::last_os_error())),
    }
}

fn refused(path: &Path, source: io::Error) -> ControlError {
    match source.raw_os_error() {
        // The daemon knows the call, but its image does not give up space.
        Some(libc::EOPNOTSUPP) => ControlError::Failed { path: path.to_owned(), source: Arc::new(source) },
        _ => failed(path, "trim", source),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number from `<linux/fs.h>`.
    #[test]
    fn the_number_is_the_kernels() {
        assert_eq!(TRIM, 0xc018_5879);
    }
}
