//! The label of a mounted filesystem, through the ioctls that other filesystems use for it.

use super::client::{ControlError, failed, open};
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

/// Size of a label in the ioctls, including the terminating NUL.
pub(crate) const LABEL_MAX: usize = 256;
/// `FS_IOC_GETFSLABEL`: `_IOR(0x94, 49, char[256])`.
pub(crate) const GET_LABEL: u32 = (2 << 30) | ((LABEL_MAX as u32) << 16) | (0x94 << 8) | 49;
/// `FS_IOC_SETFSLABEL`: `_IOW(0x94, 50, char[256])`.
pub(crate) const SET_LABEL: u32 = (1 << 30) | ((LABEL_MAX as u32) << 16) | (0x94 << 8) | 50;

/// Sets the label of the filesystem mounted at (or above) `path`: at most 64 bytes, without a NUL.
/// For the daemon's owner and root.
pub fn set_label(path: &Path, label: &str) -> Result<(), ControlError> {
    let file = open(path)?;
    let mut room = [0u8; LABEL_MAX];
    match room.get_mut(..label.len()) {
        Some(start) if label.len() < LABEL_MAX => start.copy_from_slice(label.as_bytes()),
        _ => return Err(failed(path, "label", io::Error::from_raw_os_error(libc::EINVAL))),
    }
    // SAFETY: the kernel reads `LABEL_MAX` bytes at the pointer, as the command's number says.
    match unsafe { libc::ioctl(file.as_raw_fd(), SET_LABEL as _, room.as_ptr()) } {
        0 => Ok(()),
        _ => Err(failed(path, "label", io::Error::last_os_error())),
    }
}

/// The label of the filesystem that `path` is on, whatever its type.
pub fn label(path: &Path) -> Result<String, ControlError> {
    let file = open(path)?;
    let mut room = [0u8; LABEL_MAX];
    // SAFETY: the kernel writes `LABEL_MAX` bytes at the pointer, as the command's number says.
    match unsafe { libc::ioctl(file.as_raw_fd(), GET_LABEL as _, room.as_mut_ptr()) } {
        0 => {
            let end = room.iter().position(|&byte| byte == 0).unwrap_or(LABEL_MAX);
            Ok(String::from_utf8_lossy(&room[..end]).into_owned())
        }
        _ => Err(failed(path, "label", io::Error::last_os_error())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers from `<linux/fs.h>`.
    #[test]
    fn the_numbers_are_the_kernels() {
        assert_eq!((GET_LABEL, SET_LABEL), (0x8100_9431, 0x4100_9432));
    }
}
