//! Opening: the lock first, then whether direct I/O works, then the size.

use super::lock::lock;
use super::loops::{Identity, WHOLE};
use super::through;
use super::ways::{self, meet, open_alone};
use crate::file::{OpenOptions, Use};
use crate::request::OpenFile;
use crate::{AlignedBuf, BLOCK_BYTES, DeviceError, Holder};
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long an image may stay locked after its owner has died: the kernel releases it when the I/O
/// in flight has ended.
pub(super) const LOCK_WAIT: Duration = Duration::from_secs(1);
/// How long to wait if no process has it, so that flushes which take a minute are survived. Less
/// than the 90 s that systemd allows for a mount.
const LEFT_WAIT: Duration = Duration::from_secs(75);

/// Why an image can't be opened.
pub(super) enum Refusal {
    /// Another process holds a lock on this file, which is the image or below it.
    Locked(File),
    /// This block device, which is the image or above or below it, is held exclusively by someone
    /// else.
    Claimed(PathBuf),
    /// The operating system refused.
    Failed(io::Error),
}

/// Opens, locks and probes an existing image.
pub(super) fn open_existing(path: &Path, options: OpenOptions) -> Result<OpenFile, DeviceError> {
    let started = Instant::now();
    let mut told = false;
    loop {
        let refusal = match try_open(path, options) {
            Ok(opened) => return Ok(opened),
            Err(failed @ Refusal::Failed(_)) => return Err(tell(path, failed)),
            Err(refusal) => refusal,
        };
        if started.elapsed() < LOCK_WAIT {
            sleep(Duration::from_millis(10));
            continue;
        }
        let holder = Holder::of(&refusal);
        if started.elapsed() > LEFT_WAIT || !holder.is_left_over(&refusal) {
            // It may have been let go while its holder was looked for.
            return try_open(path, options).map_err(|refusal| match refusal {
                Refusal::Failed(_) => tell(path, refusal),
                _ => DeviceError::in_use(path, holder),
            });
        }
        if !std::mem::replace(&mut told, true) {
            tracing::warn!(
                path = %path.display(),
                "no process is known to have it: waiting for the device to answer what one that ended may have asked it for"
            );
        }
        sleep(Duration::from_millis(250));
    }
}

/// The error for a refusal, with the holder.
pub(super) fn tell(path: &Path, refusal: Refusal) -> DeviceError {
    match refusal {
        Refusal::Failed(source) => DeviceError::open(path, source),
        refusal => DeviceError::in_use(path, Holder::of(&refusal)),
    }
}

fn try_open(path: &Path, options: OpenOptions) -> Result<OpenFile, Refusal> {
    let failed = Refusal::Failed;
    let block_device = is_block_device(&fs::metadata(path).map_err(failed)?).map_err(failed)?;
    // The claim has a descriptor of its own, since the kernel takes its place when it mounts.
    let claimed = block_device && !options.beside_writer;
    let claim = claimed.then(|| open_alone(path, File::options().read(true))).transpose();
    let claim = claim.map_err(|source| match source.raw_os_error() {
        Some(libc::EBUSY) => Refusal::Claimed(fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())),
        _ => failed(source),
    })?;
    let file = File::options().read(true).write(!options.read_only).open(path).map_err(failed)?;
    // The path may lead elsewhere since we looked.
    let found = file.metadata().map_err(failed)?;
    let is_other =
        |claim: &File| claim.metadata().is_ok_and(|claim| Identity::of(&claim) != Identity::of(&found));
    if is_block_device(&found).map_err(failed)? != block_device || claim.as_ref().is_some_and(is_other) {
        return Err(failed(io::Error::other("it was replaced while being opened")));
    }
    // The kernel lets us open a read-only device for writing, and then refuses each write.
    if block_device && !options.read_only && is_read_only(&file).map_err(failed)? {
        return Err(failed(io::Error::from_raw_os_error(libc::EROFS)));
    }
    // A filesystem that does not support locks can't keep P7, so an error is a refusal.
    if !options.beside_writer && !lock(&file, options.read_only, &WHOLE).map_err(failed)? {
        return Err(Refusal::Locked(file));
    }
    // The previous owner may have removed the file: anything written to it would be lost when we
    // close it.
    if file.metadata().map_err(failed)?.nlink() == 0 && !is_at(path, &file) {
        return Err(failed(io::Error::other("it was removed while being opened")));
    }
    let others = meet(
        &file,
        match options {
            OpenOptions { beside_writer: true, .. } => ways::Use::Beside,
            OpenOptions { read_only: true, .. } => ways::Use::Read,
            _ => ways::Use::Write,
        },
    )?;
    *others.own.lock() = claim;
    let direct = options.direct == Use::Auto && enable_direct(path, &file).map_err(failed)?;
    let flushes_with_write = block_device && direct && through::flushes_with_write(&file).unwrap_or(false);
    Ok(OpenFile { file, others, direct, block_device, flushes_with_write, made: false })
}

/// True if this file is the one at the path.
pub(super) fn is_at(path: &Path, file: &File) -> bool {
    let (Ok(there), Ok(own)) = (fs::metadata(path), file.metadata()) else { return false };
    Identity::of(&there) == Identity::of(&own)
}

/// Size in bytes, rounded down to whole blocks.
pub(super) fn size_bytes(opened: &OpenFile) -> io::Result<u64> {
    let size = if opened.block_device {
        const BLKGETSIZE64: u32 = 0x8008_1272;
        let mut size = 0u64;
        // SAFETY: the kernel writes one u64 to `size`.
        if unsafe { libc::ioctl(opened.file.as_raw_fd(), BLKGETSIZE64 as _, &raw mut size) } != 0 {
            return Err(io::Error::last_os_error());
        }
        size
    } else {
        opened.file.metadata()?.len()
    };
    Ok(size - size % BLOCK_BYTES as u64)
}

fn is_read_only(block_device: &File) -> io::Result<bool> {
    const BLKROGET: libc::Ioctl = 0x125e;
    let mut read_only: libc::c_int = 0;
    // SAFETY: the kernel writes one int to `read_only`.
    match unsafe { libc::ioctl(block_device.as_raw_fd(), BLKROGET, &raw mut read_only) } {
        0 => Ok(read_only != 0),
        _ => Err(io::Error::last_os_error()),
    }
}

fn is_block_device(metadata: &fs::Metadata) -> io::Result<bool> {
    let kind = metadata.file_type();
    if kind.is_block_device() || kind.is_file() {
        return Ok(kind.is_block_device());
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, "it is neither a regular file nor a block device"))
}

/// Turns direct I/O on if a real read works with it. The flag is changed on the open file, so that
/// the lock stays.
pub(super) fn enable_direct(path: &Path, file: &File) -> io::Result<bool> {
    let why = match set_direct(file, true) {
        Ok(()) => match file.read_at(&mut AlignedBuf::for_read(BLOCK_BYTES), 0) {
            Ok(_) => return Ok(true),
            Err(error) => error,
        },
        Err(error) => error,
    };
    if why.raw_os_error() != Some(libc::EINVAL) && why.raw_os_error() != Some(libc::EOPNOTSUPP) {
        // A bad first block is no reason to fall back to the page cache silently.
        return Err(why);
    }
    set_direct(file, false)?;
    tracing::debug!(path = %path.display(), "no direct I/O here: going through the page cache");
    Ok(false)
}

fn set_direct(file: &File, on: bool) -> io::Result<()> {
    // SAFETY: no memory is passed.
    let flags = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFL) };
    if flags < 0 {
        return Err(io::Error::last_os_error());
    }
    let flags = if on { flags | libc::O_DIRECT } else { flags & !libc::O_DIRECT };
    // SAFETY: no memory is passed.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFL, flags) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
