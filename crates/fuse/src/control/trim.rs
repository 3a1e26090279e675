//! FITRIM: telling the device below a mount what is free, as fstrim(8) asks it of every filesystem.

use super::client::{ControlError, failed, open};
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Arc;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// `struct fstrim_range`: what goes in, and comes out with the number of bytes that were discarded as `len`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct TrimRange {
    pub(crate) start: u64,
    pub(crate) len: u64,
    pub(crate) min_len: u64,
}

/// `FITRIM`: `_IOWR('X', 121, struct fstrim_range)`.
pub(crate) const TRIM: u32 = (3 << 30) | ((size_of::<TrimRange>() as u32) << 16) | ((b'X' as u32) << 8) | 121;

/// Has all that is free on the filesystem mounted at (or above) `path` discarded, in runs of at least `min_bytes`; how many
/// bytes that were. For the daemon's owner and root.
pub fn trim(path: &Path, min_bytes: u64) -> Result<u64, ControlError> {
    let file = open(path)?;
    let mut range = TrimRange { start: 0, len: u64::MAX, min_len: min_bytes };
    // SAFETY: the kernel reads and writes a `TrimRange` at the pointer, as the command's number says.
    match unsafe { libc::ioctl(file.as_raw_fd(), TRIM as _, std::ptr::from_mut(&mut range)) } {
        0 => Ok(range.len),
        _ => Err(refused(path, io::Error::last_os_error())),
    }
}

fn refused(path: &Path, source: io::Error) -> ControlError {
    match source.raw_os_error() {
        // It has the call, and an image that keeps its room.
        Some(libc::EOPNOTSUPP) => ControlError::Failed { path: path.to_owned(), source: Arc::new(source) },
        _ => failed(path, "trim", source),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `<linux/fs.h>` has it.
    #[test]
    fn the_number_is_the_kernels() {
        assert_eq!(TRIM, 0xc018_5879);
    }
}
