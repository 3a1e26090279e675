//! Loop devices, as the kernel reports them: what is below each, and which bytes of it. And those that
//! we make, which only give a mount its name: nothing is read or written through them.

use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

/// A range that contains every possible byte.
pub(super) const WHOLE: Range<u64> = 0..1 << 62;
/// `LOOP_GET_STATUS64`
const GET_STATUS: libc::Ioctl = 0x4c05;
/// `LOOP_CONFIGURE` (Linux 5.8)
const CONFIGURE: libc::Ioctl = 0x4c0a;
/// `LOOP_CTL_ADD` and `LOOP_CTL_REMOVE`, which are given the number of a device.
const ADD: libc::Ioctl = 0x4c80;
const REMOVE: libc::Ioctl = 0x4c81;
/// `LO_FLAGS_AUTOCLEAR`: the device lets go of its file when nobody has it any more, as after the end
/// of a mount, whether its daemon lives or not.
const CLEARED_WITH_LAST_USER: u32 = 4;
/// `LO_FLAGS_DIRECT_IO`: programs that read the device anyway, as udev does, leave no stale copies of
/// the image in the page cache.
const DIRECT: u32 = 16;
/// The numbers of the devices that we make. Each image has its own, so that a mount has the same device
/// number each time; who else makes loop devices takes low numbers.
const NUMBERS: Range<u32> = 4096..32768;
/// How many numbers are tried: an image that is mounted several times for reading needs more than one.
const NUMBERS_TRIED: u32 = 64;
/// How often, and after what pause, one that was removed at once is made again: the kernel takes
/// milliseconds for a removal. (In a `/dev` of which the kernel does not take care it never appears.)
const MAKING_TRIED: u32 = 500;
const MAKING_PAUSE: Duration = Duration::from_millis(2);
/// After how many numbers that stay away one is given up.
const REMOVED_MAX: u32 = 2;
/// The text that tells our devices from others, where the kernel has room for the name of a file.
const MARK: &[u8] = b"syncline: the name of a mount";
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

    /// True if we made the device, for a mount.
    fn is_for_a_mount(&self) -> bool {
        self.names.starts_with(MARK)
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
    /// It only gives a mount of ours its name.
    pub(super) is_for_a_mount: bool,
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
        let (below, is_for_a_mount) = match open(&path, known.number).and_then(|device| Status::of(&device)) {
            Ok(status) => (status.below(), status.is_for_a_mount()),
            // A user who may not open it can still compare the file at the path, and the number:
            // only root could have made it.
            Err(_) => (Identity::of(&fs::metadata(&known.path).ok()?), is_for_a_mount(&disk)),
        };
        (below == identity).then_some(Above { path, number: known.number, is_for_a_mount })
    });
    over.collect()
}

/// True for a loop device, by its directory in /sys, whose number is one of those that we give.
pub(crate) fn is_for_a_mount(disk: &Path) -> bool {
    let name = disk.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_prefix("loop"));
    name.and_then(|number| number.parse().ok()).is_some_and(|number| NUMBERS.contains(&number))
}

/// Makes a loop device over a file for a mount, as its source. It has the number that belongs to `wish`
/// unless another one has that. The device goes when nobody has it any more.
pub(super) fn attach(file: &File, wish: u32) -> io::Result<(PathBuf, File)> {
    tidy();
    let control = File::options().read(true).write(true).open("/dev/loop-control")?;
    let mut removed = 0;
    for attempt in 0..NUMBERS_TRIED {
        let number = NUMBERS.start + (wish % NUMBERS.len() as u32 + attempt) % NUMBERS.len() as u32;
        let path = PathBuf::from(format!("/dev/loop{number}"));
        // Others tidy too, and may remove it before it is opened.
        let mut tries = (0..MAKING_TRIED).map(|tried| make(&control, &path, number, tried > 0));
        let made = tries.find(|made| !made.as_ref().is_err_and(was_removed));
        let device = made.unwrap_or_else(|| Err(io::ErrorKind::NotFound.into()));
        match device.and_then(|device| configure(&device, file.as_raw_fd()).map(|()| device)) {
            // Kernels may refuse to mount a device that somebody can write to.
            Ok(device) => return File::open(&path).map(|kept| (path, kept)).inspect(|_| drop(device)),
            // Another mount has this one.
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {}
            // On a busy machine a removal can take longer, as when somebody looks at all devices.
            Err(error) if was_removed(&error) && removed < REMOVED_MAX => removed += 1,
            Err(error) => {
                let _ = control_device(&control, REMOVE, number);
                return Err(error);
            }
        }
    }
    Err(io::ErrorKind::ResourceBusy.into())
}

/// Makes a loop device, unless there is one of this number, and opens it.
fn make(control: &File, path: &Path, number: u32, again: bool) -> io::Result<File> {
    if again {
        sleep(MAKING_PAUSE);
    }
    match control_device(control, ADD, number) {
        Err(error) if error.raw_os_error() != Some(libc::EEXIST) => Err(error),
        _ => open_to_attach(path, number),
    }
}

fn was_removed(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ENXIO)
}

fn open_to_attach(path: &Path, number: u32) -> io::Result<File> {
    let device = File::options().read(true).write(true).open(path)?;
    let known = fs::read_to_string(format!("/sys/block/loop{number}/dev"))?;
    let own = device.metadata()?.rdev();
    match known.trim() == format!("{}:{}", libc::major(own), libc::minor(own)) {
        true => Ok(device),
        false => Err(io::ErrorKind::NotFound.into()),
    }
}

/// Removes our loop devices that nobody has any more. (The kernel refuses to remove others.)
pub(super) fn tidy() {
    let Ok(control) = File::options().read(true).write(true).open("/dev/loop-control") else { return };
    let disks = fs::read_dir("/sys/block").into_iter().flatten().flatten().map(|entry| entry.path());
    let unused = |disk: &PathBuf| is_for_a_mount(disk) && !disk.join("loop/backing_file").exists();
    for disk in disks.filter(unused) {
        let number = disk.file_name().and_then(|name| name.to_str()?.strip_prefix("loop")?.parse().ok());
        number.map(|number| control_device(&control, REMOVE, number));
    }
}

fn control_device(control: &File, request: libc::Ioctl, number: u32) -> io::Result<()> {
    // SAFETY: the requests take a number, and no memory.
    match unsafe { libc::ioctl(control.as_raw_fd(), request, number) } {
        0.. => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// `struct loop_config`
#[repr(C)]
struct Config {
    file: u32,
    block_bytes: u32,
    status: Status,
    reserved: [u64; 8],
}

const _: () = assert!(size_of::<Config>() == 304);

fn configure(device: &File, file: RawFd) -> io::Result<()> {
    // SAFETY: it consists of numbers and bytes, for which zeros are valid.
    let mut config: Config = unsafe { std::mem::zeroed() };
    config.file = file as u32;
    config.status.flags = CLEARED_WITH_LAST_USER | DIRECT;
    config.status.names[..MARK.len()].copy_from_slice(MARK);
    // SAFETY: the kernel reads one `struct loop_config`.
    match unsafe { libc::ioctl(device.as_raw_fd(), CONFIGURE, &raw const config) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
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
