//! Loop devices, as the kernel reports them: what is below each, and which bytes of it.

use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// A range that contains every possible byte.
pub(super) const WHOLE: Range<u64> = 0..1 << 62;
/// `LOOP_GET_STATUS64`
const GET_STATUS: libc::Ioctl = 0x4c05;
/// The unit of a partition's `start` and `size`, whatever the disk's sector size.
const SECTOR_BYTES: u64 = 512;

/// The identity of a file or block device, independent of its path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Identity {
    File { device: u64, inode: u64 },
    Block { number: u64 },
}

impl Identity {
    pub(super) fn of(metadata: &fs::Metadata) -> Self {
        match metadata.file_type().is_block_device() {
            true => Self::Block { number: metadata.rdev() },
            false => Self::File { device: metadata.dev(), inode: metadata.ino() },
        }
    }
}

/// The file or device below a loop device, or below a partition of one.
#[derive(Debug)]
pub(super) struct Below {
    pub(super) identity: Identity,
    /// Its path when the loop device was set up, as this process sees it; something else may be
    /// there by now.
    pub(super) path: PathBuf,
    /// The bytes of it that the device shows.
    pub(super) bytes: Range<u64>,
    /// The number of the loop device.
    pub(super) number: u64,
}

/// `struct loop_info64`
#[repr(C)]
struct Status {
    device: u64,
    inode: u64,
    block_number: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    names: [u8; 64 + 64 + 32],
    init: [u64; 2],
}

const _: () = assert!(size_of::<Status>() == 232);

impl Status {
    fn of(device: &File) -> io::Result<Self> {
        // SAFETY: it consists of numbers and bytes, for which zeros are valid.
        let mut status: Self = unsafe { std::mem::zeroed() };
        // SAFETY: the kernel writes one `struct loop_info64`. The caller has checked that this is a
        // loop device.
        match unsafe { libc::ioctl(device.as_raw_fd(), GET_STATUS, &raw mut status) } {
            0 => Ok(status),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn below(&self) -> Identity {
        match self.block_number {
            0 => Identity::File { device: self.device, inode: self.inode },
            number => Identity::Block { number },
        }
    }
}

/// The file or device below these bytes of an open block device; `None` if it is not a loop device.
pub(super) fn below(device: &File, bytes: &Range<u64>) -> Option<Below> {
    let number = device.metadata().ok()?.rdev();
    let mut disk =
        fs::canonicalize(format!("/sys/dev/block/{}:{}", libc::major(number), libc::minor(number))).ok()?;
    let mut shown = bytes.clone();
    if disk.join("partition").exists() {
        let (start, size) = (sectors(&disk.join("start"))?, sectors(&disk.join("size"))?);
        shown = part(start..start.saturating_add(size), &shown);
        disk.pop();
    }
    let known = Known::of(&disk)?;
    let status = Status::of(device).ok()?;
    let bytes = part(known.bytes, &shown);
    Some(Below { identity: status.below(), path: known.path, bytes, number: known.number })
}

/// A loop device that shows bytes of something else.
#[derive(Debug)]
pub(super) struct Above {
    pub(super) path: PathBuf,
    pub(super) number: u64,
}

/// The loop devices that show any of these bytes.
pub(super) fn above(identity: Identity, bytes: &Range<u64>) -> Vec<Above> {
    let Ok(entries) = fs::read_dir("/sys/block") else { return Vec::new() };
    let disks = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let over = disks.filter_map(|disk| {
        let known = Known::of(&disk)?;
        if known.bytes.start >= bytes.end || bytes.start >= known.bytes.end {
            return None;
        }
        let path = Path::new("/dev").join(disk.file_name()?);
        let below = match open(&path, known.number).and_then(|device| Status::of(&device)) {
            Ok(status) => status.below(),
            // A user who may not open it can still compare the file at the path.
            Err(_) => Identity::of(&fs::metadata(&known.path).ok()?),
        };
        (below == identity).then_some(Above { path, number: known.number })
    });
    over.collect()
}

/// Opens a loop device to query it; checks its identity, since a node in /dev may be anything.
fn open(path: &Path, number: u64) -> io::Result<File> {
    let device = File::open(path)?;
    match Identity::of(&device.metadata()?) == (Identity::Block { number }) {
        true => Ok(device),
        false => Err(io::ErrorKind::NotFound.into()),
    }
}

/// The information in /sys about a loop device.
struct Known {
    path: PathBuf,
    bytes: Range<u64>,
    number: u64,
}

impl Known {
    /// `None` if it is not a loop device, or has nothing below it.
    fn of(disk: &Path) -> Option<Self> {
        let mut path = fs::read(disk.join("loop/backing_file")).ok()?;
        path.pop_if(|&mut last| last == b'\n');
        let figure = |name| fs::read_to_string(disk.join(name)).ok()?.trim().parse::<u64>().ok();
        let start = figure("loop/offset")?;
        let end = match figure("loop/sizelimit")? {
            0 => WHOLE.end,
            size => start.saturating_add(size),
        };
        let number = fs::read_to_string(disk.join("dev")).ok()?;
        let (major, minor) = number.trim().split_once(':')?;
        let number = libc::makedev(major.parse().ok()?, minor.parse().ok()?);
        Some(Self { path: std::ffi::OsString::from_vec(path).into(), bytes: start..end, number })
    }
}

/// The bytes `of` a thing that occupies `within`, as positions in the same space as `within`, and
/// cut off at its end.
fn part(within: Range<u64>, of: &Range<u64>) -> Range<u64> {
    let at = |byte: u64| within.start.saturating_add(byte).min(within.end);
    at(of.start)..at(of.end)
}

fn sectors(path: &Path) -> Option<u64> {
    let count: u64 = fs::read_to_string(path).ok()?.trim().parse().ok()?;
    count.checked_mul(SECTOR_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_lie_within_what_they_are_of() {
        assert_eq!(part(WHOLE, &WHOLE), WHOLE);
        assert_eq!(part(1000..3000, &WHOLE), 1000..3000);
        assert_eq!(part(1000..3000, &(500..700)), 1500..1700);
        assert_eq!(part(1000..3000, &(1500..u64::MAX)), 2500..3000);
    }
}
