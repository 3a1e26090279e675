//! fsync2 and fbarrier: ioctls that name many files of a mount at once. `include/syncline.h` offers
//! the same to C.

use super::client::{ControlError, failed, open};
use super::wire::IOCTL_TYPE;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The most files in one call: the limit of the size field in an ioctl's number.
pub const FILES_MAX: usize = 2046;

/// The operations on several files.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(crate) enum FilesCommand {
    /// Make them durable together.
    Sync = 0x54,
    /// Order earlier writes to them before everything that comes later.
    Barrier = 0x55,
}

/// The header that precedes the inode numbers.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct FilesIn {
    pub(crate) count: u32,
    pub(crate) flags: u32,
}

const HEADER_BYTES: usize = size_of::<FilesIn>();
const _: () = assert!(HEADER_BYTES + 8 * FILES_MAX < 1 << 14);

impl FilesCommand {
    /// The ioctl number, as built by `_IOC(_IOC_WRITE, ...)`.
    pub(crate) fn number(self, count: usize) -> u32 {
        let size = (HEADER_BYTES + 8 * count) as u32;
        (1 << 30) | (size << 16) | (IOCTL_TYPE << 8) | self as u32
    }

    /// The command with this ioctl number, whatever the length of its argument.
    pub(crate) fn from_number(number: u32) -> Option<Self> {
        let is = |command: &Self| number & !(0x3fff << 16) == command.number(0) & !(0x3fff << 16);
        [Self::Sync, Self::Barrier].into_iter().find(is)
    }
}

/// The inode numbers in an argument; `None` if it is malformed.
pub(crate) fn inodes(argument: &[u8]) -> Option<Vec<u64>> {
    let (header, rest) = FilesIn::read_from_prefix(argument).ok()?;
    let count = header.count as usize;
    let whole = header.flags == 0 && count > 0 && rest.len() == 8 * count;
    whole.then(|| rest.chunks_exact(8).map(|ino| u64::read_from_bytes(ino).expect("eight bytes")).collect())
}

/// Makes several files of one mount durable with one log batch and at most one flush. Their changes
/// that were not logged before survive a crash all or not at all.
pub fn sync_files(paths: &[impl AsRef<Path>]) -> Result<(), ControlError> {
    name(FilesCommand::Sync, paths)
}

/// Orders what was written to these files of one mount before everything written, created or
/// changed afterwards: if any of the latter survives a crash, so does the former. Waits for no
/// flush.
pub fn order_files(paths: &[impl AsRef<Path>]) -> Result<(), ControlError> {
    name(FilesCommand::Barrier, paths)
}

fn name(command: FilesCommand, paths: &[impl AsRef<Path>]) -> Result<(), ControlError> {
    let Some(first) = paths.first().map(AsRef::as_ref) else { return Ok(()) };
    if paths.len() > FILES_MAX {
        return Err(ControlError::TooMany { count: paths.len() });
    }
    let mut message = FilesIn { count: paths.len() as u32, flags: 0 }.as_bytes().to_vec();
    let (mut asked, mut device) = (None, None);
    for path in paths.iter().map(AsRef::as_ref) {
        let file = open(path)?;
        let ino = (|| {
            let metadata = file.metadata()?;
            if *device.get_or_insert(metadata.dev()) != metadata.dev() {
                return Err(io::Error::from_raw_os_error(libc::EXDEV));
            }
            if metadata.is_file() {
                push_mapped_pages(&file)?;
            } else if !metadata.is_dir() {
                // Opening a device node or FIFO by its name gives a file that is not on the mount.
                return Err(io::Error::from_raw_os_error(libc::EINVAL));
            }
            Ok(metadata.ino())
        })()
        .map_err(|source: io::Error| ControlError::File { path: path.to_owned(), source: source.into() })?;
        message.extend_from_slice(ino.as_bytes());
        asked.get_or_insert(file);
    }
    let asked = asked.expect("there is a first path");
    ask(&asked, command, &message, paths.len()).map_err(|source| failed(first, "fsync2", source))
}

/// Makes the kernel send us what was written through a mapping.
fn push_mapped_pages(file: &File) -> io::Result<()> {
    let all =
        libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    // SAFETY: a system call on an open file, without pointers.
    match unsafe { libc::sync_file_range(file.as_raw_fd(), 0, 0, all) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn ask(file: &File, command: FilesCommand, message: &[u8], count: usize) -> io::Result<()> {
    debug_assert_eq!(message.len(), HEADER_BYTES + 8 * count);
    // SAFETY: the command's number tells the kernel to read exactly the size of `message` at the
    // pointer.
    match unsafe { libc::ioctl(file.as_raw_fd(), command.number(count) as _, message.as_ptr()) } {
        0.. => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_header() {
        assert_eq!(FilesCommand::Sync.number(1), 0x4010_f554);
        for count in [1, 2, FILES_MAX] {
            for command in [FilesCommand::Sync, FilesCommand::Barrier] {
                assert_eq!(FilesCommand::from_number(command.number(count)), Some(command));
            }
        }
        assert_eq!(FilesCommand::from_number(super::super::wire::COMMAND), None);
        assert_eq!(FilesCommand::from_number(0x8010_f554), None);
    }

    #[test]
    fn arguments_that_are_none_are_refused() {
        let argument = |count: u32, flags: u32, inodes: &[u64]| {
            [FilesIn { count, flags }.as_bytes(), inodes.as_bytes()].concat()
        };
        assert_eq!(inodes(&argument(2, 0, &[7, 8])), Some(vec![7, 8]));
        for bad in [argument(0, 0, &[]), argument(2, 0, &[7]), argument(1, 0, &[7, 8]), argument(1, 1, &[7])]
        {
            assert_eq!(inodes(&bad), None);
        }
        assert_eq!(inodes(&[1, 0]), None);
    }
}
