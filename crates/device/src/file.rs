//! Image files and block devices.

mod claimed;
mod create;
mod holder;
mod lock;
mod loops;
mod mount_device;
mod open;
mod strangers;
#[cfg(test)]
mod tests;
mod through;
mod ways;

use crate::device::{check_range, check_write};
use crate::request::{OpenFile, Request};
use crate::{AlignedBuf, Claim, Completion, Device, DeviceError, Operation, reactor, ring};
use bytes::Bytes;
pub use holder::Holder;
pub(crate) use loops::is_for_a_mount;
pub use mount_device::MountDevice;
use parking_lot::Mutex;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
pub(crate) use ways::Others;

/// Whether to use a feature that not every system offers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Use {
    /// Use it where it works.
    #[default]
    Auto,
    /// Never use it.
    Never,
}

/// How to open an image or a block device. The default is for reading and writing, in the fastest
/// way that works.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenOptions {
    /// Refuse to change anything. Others may read the image at the same time.
    pub read_only: bool,
    /// Read-only beside a possible writer: for data that is guaranteed not to change, such as a
    /// snapshot.
    pub beside_writer: bool,
    /// Whether to bypass the page cache.
    pub direct: Use,
    /// Whether to use io_uring rather than threads.
    pub io_uring: Use,
    /// Give discarded blocks of an image file back to its host, as holes. When they are written
    /// again, the host may be full. Without this an image file keeps all of its space. Block
    /// devices are always told of discards.
    pub punch_holes: bool,
    /// Create an image file without blocks: its host finds them when they are first written, and may
    /// be full then.
    pub sparse: bool,
}

/// An image file or a block device.
///
/// It is locked against every other process from before the first read until it is dropped (promise
/// P7). Threads serve it, so open it after any fork.
pub struct FileDevice {
    file: Arc<OpenFile>,
    /// The size may grow, by one thread at a time.
    size: Arc<Size>,
    options: OpenOptions,
    /// Others may have it: nothing is written any more.
    let_go: AtomicBool,
}

struct Size {
    path: PathBuf,
    bytes: AtomicU64,
    growing: Mutex<()>,
}

impl FileDevice {
    /// Opens an existing image file or block device.
    pub fn open(path: impl AsRef<Path>, options: OpenOptions) -> Result<Arc<Self>, DeviceError> {
        let path = path.as_ref();
        let options = OpenOptions { read_only: options.read_only || options.beside_writer, ..options };
        let opened = open::open_existing(path, options)?;
        Self::new(path, opened, options)
    }

    /// Creates an image file of `size_bytes` (rounded down to a multiple of 4096). Unless it is to be
    /// sparse, it is completely allocated and written with zeros, so that no later write can be the
    /// first to meet ENOSPC or the host's extent conversion. Takes over an existing file or block
    /// device: a file is given `size_bytes`, if a size is given, and loses its contents; a block device
    /// keeps its contents.
    ///
    /// Without `force`, one whose first MiB holds anything but zeros is refused. `progress` is told
    /// how many bytes have been written.
    pub fn create(
        path: impl AsRef<Path>,
        size_bytes: Option<u64>,
        force: bool,
        options: OpenOptions,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Arc<Self>, DeviceError> {
        let path = path.as_ref();
        let options = OpenOptions { read_only: false, ..options };
        let opened = create::create(path, size_bytes, force, options, progress)?;
        Self::new(path, opened, options)
    }

    /// Opens an existing image file or block device that must have at least `size_bytes` (rounded
    /// down to a multiple of 4096). A shorter image file is extended durably to that size,
    /// allocated and written with zeros behind its old end; a shorter block device is refused.
    /// `progress` is told how many bytes have been written.
    pub fn extend(
        path: impl AsRef<Path>,
        size_bytes: u64,
        options: OpenOptions,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Arc<Self>, DeviceError> {
        let path = path.as_ref();
        let options = OpenOptions { read_only: false, ..options };
        let size_bytes = size_bytes - size_bytes % crate::BLOCK_BYTES as u64;
        let opened = create::extend(path, size_bytes, options, progress)?;
        Self::new(path, opened, options)
    }

    /// Removes the file that [`create`](Self::create) made, unless something else has taken its
    /// place: its contents are of no use. While it is locked nobody else can have it. A file that
    /// existed before stays. Errors are ignored, since the caller reports an earlier one.
    pub fn take_away(&self) {
        if self.file.made {
            create::take_away(&self.size.path, &self.file.file);
        }
    }

    /// Lets others read the image, which they may from now on rely on not to change. The lock is
    /// not released in between.
    pub fn let_read(&self) -> Result<(), DeviceError> {
        lock::share(&self.file.file).map_err(|source| DeviceError::open(&self.size.path, source))
    }

    /// Lets others have the image before this is dropped, as when the kernel waits for the end of a
    /// mount. The caller has finished: nothing is under way, and no write succeeds any more.
    pub fn let_go(&self) {
        self.let_go.store(true, Ordering::Release);
        let others = &self.file.others;
        for file in others.below.iter().map(|(file, _)| file).chain([&self.file.file]) {
            if let Err(error) = lock::unlock(file) {
                tracing::debug!(path = %self.size.path.display(), %error, "it stays locked until the process ends");
            }
        }
        others.above.lock().clear();
        others.own.lock().take();
    }

    fn new(path: &Path, opened: OpenFile, options: OpenOptions) -> Result<Arc<Self>, DeviceError> {
        let size_bytes = open::size_bytes(&opened).map_err(|source| DeviceError::open(path, source))?;
        tracing::debug!(path = %path.display(), size_bytes, direct = opened.direct, "device opened");
        let bytes = AtomicU64::new(size_bytes);
        let size = Arc::new(Size { path: path.to_owned(), bytes, growing: Mutex::default() });
        Ok(Arc::new(Self { file: Arc::new(opened), size, options, let_go: AtomicBool::new(false) }))
    }

    /// Shortens an image file durably to this size (rounded up to a multiple of 4096), if it is
    /// longer: nothing behind that is needed, read or written any more. A block device stays as it
    /// is.
    pub fn shorten(&self, size_bytes: u64) -> Result<(), DeviceError> {
        let size_bytes = size_bytes.next_multiple_of(crate::BLOCK_BYTES as u64);
        self.check_writable(Operation::Write, size_bytes, 0)?;
        if self.is_block_device() || size_bytes >= self.size_bytes() {
            return Ok(());
        }
        let failed = |source| DeviceError::io(Operation::Write, size_bytes, 0, source);
        self.file.file.set_len(size_bytes).and_then(|()| self.file.file.sync_all()).map_err(failed)
    }

    /// True if I/O bypasses the page cache.
    pub fn is_direct(&self) -> bool {
        self.file.direct
    }

    /// True if it refuses changes.
    pub fn is_read_only(&self) -> bool {
        self.options.read_only
    }

    /// True if it is a block device rather than a file.
    pub fn is_block_device(&self) -> bool {
        self.file.block_device
    }

    fn start(&self, request: Request) {
        reactor::start(request, self.options.io_uring == Use::Auto);
    }

    fn check_writable(&self, operation: Operation, offset: u64, len_bytes: u64) -> Result<(), DeviceError> {
        if self.options.read_only || self.let_go.load(Ordering::Acquire) {
            let source = io::Error::from_raw_os_error(libc::EROFS);
            return Err(DeviceError::io(operation, offset, len_bytes, source));
        }
        Ok(())
    }
}

impl Size {
    /// Extends a file that is shorter to this size; returns the resulting size.
    fn enlarge(&self, file: &OpenFile, size_bytes: u64) -> Result<u64, DeviceError> {
        let _alone = self.growing.lock();
        create::lengthen(&self.path, file, size_bytes, &mut |_| {})?;
        let found = open::size_bytes(file).map_err(|source| DeviceError::extend(&self.path, source))?;
        // If the file has been shortened by someone else, reads and writes will report it.
        Ok(self.bytes.fetch_max(found, Ordering::AcqRel).max(found))
    }
}

impl Device for FileDevice {
    fn size_bytes(&self) -> u64 {
        self.size.bytes.load(Ordering::Acquire)
    }

    fn enlarge(&self, size_bytes: u64, done: Completion<u64>) {
        if let Err(error) = self.check_writable(Operation::Write, 0, size_bytes) {
            return done(Err(error));
        }
        let (file, size) = (self.file.clone(), self.size.clone());
        // Allocating and writing may take minutes, which a thread that serves requests can't spend.
        // If no thread can be created, the answer is that the operation was abandoned.
        let work = move || done(size.enlarge(&file, size_bytes));
        reactor::thread_ahead();
        if let Err(error) = std::thread::Builder::new().name("enlarge".to_owned()).spawn(work) {
            tracing::error!("the image can't be made longer: no thread ({error})");
        }
    }

    fn reads_bypass_caches(&self) -> bool {
        self.is_direct()
    }

    fn read(&self, offset: u64, buf: AlignedBuf, done: Completion<AlignedBuf>) {
        match check_range(Operation::Read, self.size_bytes(), offset, buf.len() as u64) {
            Ok(()) => self.start(Request::read(self.file.clone(), offset, buf, done)),
            Err(error) => done(Err(error)),
        }
    }

    fn write(&self, offset: u64, bufs: Vec<Bytes>, done: Completion<()>) {
        let checked = check_write(self.size_bytes(), offset, &bufs)
            .and_then(|len_bytes| self.check_writable(Operation::Write, offset, len_bytes));
        match checked {
            Ok(()) => self.start(Request::write(self.file.clone(), offset, bufs, done)),
            Err(error) => done(Err(error)),
        }
    }

    fn writes_through(&self) -> bool {
        // Outside a ring the kernel flushes a second time after such a write.
        self.file.flushes_with_write && self.options.io_uring == Use::Auto && ring::is_available()
    }

    fn write_through(&self, offset: u64, bufs: Vec<Bytes>, done: Completion<()>) {
        let checked = check_write(self.size_bytes(), offset, &bufs)
            .and_then(|len_bytes| self.check_writable(Operation::Write, offset, len_bytes));
        match checked {
            Ok(()) => self.start(Request::write(self.file.clone(), offset, bufs, done).flushed()),
            Err(error) => done(Err(error)),
        }
    }

    fn flush(&self, done: Completion<()>) {
        self.start(Request::flush(self.file.clone(), done));
    }

    fn submit(&self) {
        reactor::submit();
    }

    fn claim_snapshot(&self, number: u64, claim: Claim) -> Result<bool, DeviceError> {
        // Also on the files below, where those who opened the image by another path find it.
        let below = || self.file.others.below.iter().map(|(file, start)| (file, *start));
        let files = || std::iter::once((&self.file.file, 0)).chain(below());
        let failed = |source| DeviceError::io(Operation::Read, 0, 0, source);
        for (got, (file, start)) in files().enumerate() {
            if !lock::claim(file, start, number, claim).map_err(failed)? {
                for (file, start) in files().take(got) {
                    lock::claim(file, start, number, Claim::Released).map_err(failed)?;
                }
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn discards(&self) -> bool {
        self.is_block_device() || self.options.punch_holes
    }

    fn discard(&self, offset: u64, len_bytes: u64, done: Completion<()>) {
        let checked = check_range(Operation::Discard, self.size_bytes(), offset, len_bytes)
            .and_then(|()| self.check_writable(Operation::Discard, offset, len_bytes))
            .and_then(|()| match self.discards() {
                true => Ok(()),
                false => {
                    let source = io::Error::from_raw_os_error(libc::EOPNOTSUPP);
                    Err(DeviceError::io(Operation::Discard, offset, len_bytes, source))
                }
            });
        match checked {
            Ok(()) => self.start(Request::discard(self.file.clone(), offset, len_bytes, done)),
            Err(error) => done(Err(error)),
        }
    }
}
