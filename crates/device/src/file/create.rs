//! Creating images: allocated first, so that a lack of space shows early, then written completely.

use super::lock::{self, lock};
use super::loops::WHOLE;
use super::open::{self, LOCK_WAIT, Refusal};
use super::ways::Others;
use crate::file::{OpenOptions, Use};
use crate::request::OpenFile;
use crate::{AlignedBuf, BLOCK_BYTES, DeviceError};
use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Zeros are written in pieces of this size.
const PIECE_BYTES: u64 = 4 << 20;
/// Permissions of a new image.
const IMAGE_MODE: u32 = 0o600;
/// The area where most filesystems and partition tables have their signatures.
const LOOK_AT_BYTES: u64 = 1 << 20;

/// Creates or takes over the image at `path`; see
/// [`FileDevice::create`](super::FileDevice::create).
pub(super) fn create(
    path: &Path,
    size_bytes: Option<u64>,
    force: bool,
    options: OpenOptions,
    progress: &mut dyn FnMut(u64),
) -> Result<OpenFile, DeviceError> {
    let size_bytes = size_bytes.map(|size| size - size % BLOCK_BYTES as u64);
    // Only the owner may access the blocks: permissions apply to the files in them.
    match File::options().read(true).write(true).create_new(true).mode(IMAGE_MODE).open(path) {
        Ok(file) => {
            lock_new(path, &file)?;
            let made = create_new(path, &file, size_bytes, options, progress);
            if made.is_err() {
                take_away(path, &file);
            }
            let direct = made?;
            let others = Others::default();
            Ok(OpenFile { file, others, direct, block_device: false, flushes_with_write: false, made: true })
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            take_over(path, size_bytes, force, options, progress)
        }
        Err(error) => Err(DeviceError::create(path, error)),
    }
}

/// Locks a file that was just created. Another process may have opened it before and made an image
/// of it, which is then theirs.
fn lock_new(path: &Path, file: &File) -> Result<(), DeviceError> {
    let failed = |source| DeviceError::create(path, source);
    let started = Instant::now();
    while !lock(file, false, &WHOLE).map_err(failed)? {
        if started.elapsed() > LOCK_WAIT {
            let file = file.try_clone().map_err(failed)?;
            return Err(open::tell(path, Refusal::Locked(file)));
        }
        sleep(Duration::from_millis(10));
    }
    match file.metadata().map_err(failed)?.len() {
        0 => Ok(()),
        _ => Err(DeviceError::NotEmpty { path: path.display().to_string() }),
    }
}

/// Removes a file while it is locked: once it is not, it may be in use by others. Errors are
/// ignored, since the caller reports an earlier one.
pub(super) fn take_away(path: &Path, file: &File) {
    if open::is_at(path, file) {
        // A partial image, or an empty one that nobody asked for, is of no use.
        let _ = fs::remove_file(path);
    }
}

/// Fills a new file. True if direct I/O works.
fn create_new(
    path: &Path,
    file: &File,
    size_bytes: Option<u64>,
    options: OpenOptions,
    progress: &mut dyn FnMut(u64),
) -> Result<bool, DeviceError> {
    let failed = |source| DeviceError::create(path, source);
    let size_bytes = size_bytes
        .filter(|&size| size > 0)
        .ok_or_else(|| failed(io::Error::new(io::ErrorKind::InvalidInput, "a new image needs a --size")))?;
    match options.sparse {
        true => file.set_len(size_bytes).map_err(failed)?,
        false => allocate(file, size_bytes).map_err(failed)?,
    }
    let direct = options.direct == Use::Auto && open::enable_direct(path, file).map_err(failed)?;
    if !options.sparse {
        write_zeros(file, 0..size_bytes, progress).map_err(failed)?;
    }
    file.sync_all().map_err(failed)?;
    sync_parent(path).map_err(failed)?;
    Ok(direct)
}

fn take_over(
    path: &Path,
    size_bytes: Option<u64>,
    force: bool,
    options: OpenOptions,
    progress: &mut dyn FnMut(u64),
) -> Result<OpenFile, DeviceError> {
    let failed = |source| DeviceError::take_over(path, source);
    let opened = open::open_existing(path, options)?;
    if !force && holds_something(&opened).map_err(failed)? {
        return Err(DeviceError::NotEmpty { path: path.display().to_string() });
    }
    // A mounted snapshot does not block writers, because they never write to its blocks; a new
    // image would. A claim on a file below may be on an image in another part of it: the locks
    // there do not say which.
    let below = opened.others.below.iter().map(|(file, _)| file);
    for file in std::iter::once(&opened.file).chain(below) {
        if !lock::no_claims(file).map_err(failed)? {
            return Err(DeviceError::SnapshotInUse { path: path.display().to_string() });
        }
    }
    let present = open::size_bytes(&opened).map_err(failed)?;
    let size_bytes = size_bytes.unwrap_or(present);
    if size_bytes == 0 {
        return Err(failed(io::Error::new(
            io::ErrorKind::InvalidInput,
            "the file is shorter than a block: choose a --size",
        )));
    }
    if opened.block_device {
        if size_bytes != present {
            let text =
                format!("a block device is used whole, and this one has {present} bytes: leave out the size");
            return Err(failed(io::Error::new(io::ErrorKind::InvalidInput, text)));
        }
        return match options.sparse {
            true => Err(failed(io::Error::new(
                io::ErrorKind::InvalidInput,
                "a block device can't be sparse: leave out --sparse",
            ))),
            false => Ok(opened),
        };
    }
    if options.sparse {
        // A size that the host refuses shows before any of the contents are lost.
        let length = opened.file.metadata().map_err(failed)?.len();
        if let Err(error) = opened.file.set_len(length.max(size_bytes)) {
            let _ = opened.file.set_len(length);
            return Err(failed(error));
        }
        let emptied = opened.file.set_len(0).and_then(|()| opened.file.set_len(size_bytes));
        emptied.and_then(|()| opened.file.sync_all()).map_err(failed)?;
        sync_parent(path).map_err(failed)?;
        return Ok(opened);
    }
    // A lack of space shows before any of the file's contents are lost, and leaves it as it was.
    let before = Before::of(&opened.file, size_bytes).map_err(failed)?;
    let written = allocate(&opened.file, size_bytes)
        .and_then(|()| opened.file.set_len(size_bytes))
        .and_then(|()| write_zeros(&opened.file, 0..size_bytes, progress))
        .and_then(|()| opened.file.sync_all());
    if let Err(error) = written {
        before.restore(&opened.file);
        return Err(failed(error));
    }
    sync_parent(path).map_err(failed)?;
    Ok(opened)
}

/// Makes an image file longer; see [`FileDevice::extend`](super::FileDevice::extend).
pub(super) fn extend(
    path: &Path,
    size_bytes: u64,
    options: OpenOptions,
    progress: &mut dyn FnMut(u64),
) -> Result<OpenFile, DeviceError> {
    let opened = open::open_existing(path, options)?;
    lengthen(path, &opened, size_bytes, progress)?;
    opened.file.sync_all().map_err(|source| DeviceError::extend(path, source))?;
    Ok(opened)
}

/// Extends an open image file, not durably. The operating system reports a failed sync only once,
/// and that report must not be consumed here.
pub(super) fn lengthen(
    path: &Path,
    opened: &OpenFile,
    size_bytes: u64,
    progress: &mut dyn FnMut(u64),
) -> Result<(), DeviceError> {
    let failed = |source| DeviceError::extend(path, source);
    let present = open::size_bytes(opened).map_err(failed)?;
    if size_bytes <= present {
        return Ok(());
    }
    if opened.block_device {
        let source = io::Error::new(io::ErrorKind::InvalidInput, "the block device is smaller than that");
        return Err(failed(source));
    }
    let length = opened.file.metadata().map_err(failed)?.len();
    let extended = allocate(&opened.file, size_bytes)
        .and_then(|()| write_zeros(&opened.file, present..size_bytes, progress));
    if let Err(error) = extended {
        // The new part holds no data of the filesystem; a hole in front of it may have been written
        // meanwhile and stays. An error here is ignored, since the first one is reported.
        let _ = opened.file.set_len(length);
        return Err(failed(error));
    }
    Ok(())
}

/// True if there is anything but zeros near the start.
fn holds_something(opened: &OpenFile) -> io::Result<bool> {
    let mut buf = AlignedBuf::zeroed(LOOK_AT_BYTES as usize);
    let mut at = 0;
    while at < buf.len() {
        let read = match opened.file.read_at(&mut buf[at..], at as u64) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            read => read?,
        };
        at += read;
        // A file may end within a block; the rest can't be read with O_DIRECT, and there is nothing
        // there.
        if read == 0 || !read.is_multiple_of(BLOCK_BYTES) {
            break;
        }
    }
    Ok(buf.iter().any(|&byte| byte != 0))
}

fn allocate(file: &File, size_bytes: u64) -> io::Result<()> {
    let size = libc::off_t::try_from(size_bytes).map_err(|_| io::Error::from_raw_os_error(libc::EFBIG))?;
    // SAFETY: no memory is passed.
    if unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, size) } == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        // Writing the zeros will allocate it.
        Some(libc::EOPNOTSUPP | libc::ENOSYS) => file.set_len(size_bytes),
        _ => Err(error),
    }
}

/// The length and holes of a file that nobody else uses, to restore it if it can't be allocated
/// completely.
struct Before {
    length: u64,
    holes: Vec<Range<u64>>,
}

impl Before {
    /// Records the state of a file that will have `size_bytes`.
    fn of(file: &File, size_bytes: u64) -> io::Result<Self> {
        let length = file.metadata()?.len();
        Ok(Self { length, holes: holes(file, length.min(size_bytes))? })
    }

    /// Gives back what was allocated since. Errors are ignored, since the caller reports the first
    /// one.
    fn restore(self, file: &File) {
        let _ = file.set_len(self.length);
        self.holes.into_iter().for_each(|hole| punch(file, hole));
    }
}

/// The holes in the first `end` bytes of a file; none on a filesystem that can't report them.
fn holes(file: &File, end: u64) -> io::Result<Vec<Range<u64>>> {
    let mut holes = Vec::new();
    let mut at = 0;
    while at < end {
        let data = seek(file, at, libc::SEEK_DATA)?.unwrap_or(end).min(end);
        if data > at {
            holes.push(at..data);
        }
        at = if data < end { seek(file, data, libc::SEEK_HOLE)?.unwrap_or(end) } else { end };
    }
    Ok(holes)
}

/// The next data or hole, as `sort` says, if there is one.
fn seek(file: &File, from: u64, sort: libc::c_int) -> io::Result<Option<u64>> {
    // SAFETY: no memory is passed.
    let found = unsafe { libc::lseek(file.as_raw_fd(), from as libc::off_t, sort) };
    if let Ok(found) = u64::try_from(found) {
        return Ok(Some(found));
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::ENXIO) => Ok(None),
        // Without support, everything counts as data.
        Some(libc::EINVAL) if sort == libc::SEEK_DATA => Ok(Some(from)),
        Some(libc::EINVAL) => Ok(None),
        _ => Err(error),
    }
}

/// Gives the blocks of a range back, if the filesystem can.
fn punch(file: &File, range: Range<u64>) {
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    let (start, len) = (range.start as libc::off_t, (range.end - range.start) as libc::off_t);
    // SAFETY: no memory is passed.
    let _ = unsafe { libc::fallocate(file.as_raw_fd(), mode, start, len) };
}

/// Writes zeros over a range, to be made durable by the caller: the host would convert extents that
/// are allocated but unwritten at a later flush of ours, and the flush would wait for its journal.
fn write_zeros(file: &File, bytes: Range<u64>, progress: &mut dyn FnMut(u64)) -> io::Result<()> {
    let zeros = AlignedBuf::zeroed(PIECE_BYTES.min(bytes.end - bytes.start) as usize);
    let mut at = bytes.start;
    while at < bytes.end {
        let piece = PIECE_BYTES.min(bytes.end - at);
        file.write_all_at(&zeros[..piece as usize], at)?;
        at += piece;
        progress(at - bytes.start);
    }
    Ok(())
}

/// Makes the file's name durable.
fn sync_parent(path: &Path) -> io::Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(parent)?.sync_all()
}
