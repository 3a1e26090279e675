//! A disk in memory that notes every write and flush: the only file of a FUSE filesystem, with a loop
//! device over it for the kernel's own filesystems.
//!
//! One thread answers one request at a time, so the log has them in the order in which they took effect.
//! The loop driver has no forced writes: the kernel sends a write and a flush instead. Nothing here may
//! flush all filesystems (`sync`), which would wait for itself.

use crate::Error;
use crate::blocks::BLOCKS;
use crate::contents::Contents;
use crate::kernel;
use crate::leftovers;
use crate::serve::empty;
use fuser::{
    BsdFileFlags, Config, Errno, FileAttr, FileHandle, FileType, FopenFlags, Generation, INodeNo, LockOwner,
    MountOption, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, Request,
    TimeOrNow, WriteFlags,
};
use parking_lot::Mutex;
use rustix::mount::UnmountFlags;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tempfile::TempDir;

/// How long the kernel may keep what it was told: nothing of it changes.
const FOREVER: Duration = Duration::from_secs(24 * 60 * 60);
/// What is compared to see that the kernel has forgotten the image before: the superblocks.
const HEAD_BYTES: usize = 128 << 10;
/// How long a device or mount may be in use by processes that are being started.
const BUSY: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(1);

/// One request to the disk.
#[derive(Clone, Debug)]
pub enum Access {
    /// Written bytes.
    Write(u64, Arc<[u8]>),
    /// Bytes that were discarded or zeroed: from, to.
    Zero(u64, u64),
    /// A flush: everything before is durable.
    Flush,
}

impl Access {
    /// Applies it.
    pub fn apply(&self, image: &mut Contents) -> Result<(), Error> {
        match self {
            Self::Write(offset, bytes) => image.write(*offset, bytes),
            Self::Zero(begin, end) => image.zero(*begin, *end),
            Self::Flush => Ok(()),
        }
    }
}

#[derive(Default)]
struct Inner {
    image: Contents,
    log: Vec<Access>,
    is_logging: bool,
}

/// A disk. When dropped, its loop device and its mount are gone.
pub struct Disk {
    inner: Arc<Mutex<Inner>>,
    puts: AtomicU64,
    // In this order.
    device: LoopDevice,
    _session: Session,
}

impl Disk {
    /// An empty disk of this size. Needs root.
    pub fn new(bytes: u64) -> Result<Self, Error> {
        leftovers::remove();
        let directory = tempfile::Builder::new().prefix("crashlab-disk-").tempdir();
        let directory = directory.map_err(|error| Error::file(&std::env::temp_dir(), error))?;
        let inner = Arc::new(Mutex::new(Inner::default()));
        inner.lock().image.truncate(bytes)?;
        let blocks = BLOCKS.file()?;
        let mut config = Config::default();
        config.mount_options = vec![MountOption::FSName(leftovers::source())];
        let served = Served { inner: inner.clone(), bytes };
        let session = Session::new(served, directory, config, blocks).map_err(Error::NoFuse)?;
        let device = LoopDevice::new(&session.directory.path().join(Served::NAME))?;
        Ok(Self { inner, puts: AtomicU64::new(1), device, _session: session })
    }

    /// The path of its loop device.
    pub fn device(&self) -> &Path {
        &self.device.0
    }

    /// What is on it.
    pub fn image(&self) -> Contents {
        self.inner.lock().image.clone()
    }

    /// Puts something else on it; nothing may be mounted.
    pub fn put(&self, image: &Contents) -> Result<(), Error> {
        // The kernel forgets what it kept of a device when nobody has it open any more. A process that is
        // just being started has it open for a moment, so this image tells whether it did.
        let mut between = Contents::default();
        between.truncate(image.len())?;
        between.write(0, &self.puts.fetch_add(1, Ordering::Relaxed).to_le_bytes())?;
        let started = Instant::now();
        for image in [&between, image] {
            self.inner.lock().image = image.clone();
            while self.head()? != image.read(0, HEAD_BYTES)? {
                if started.elapsed() > BUSY {
                    return Err(Error::InUse(self.device().to_owned()));
                }
                std::thread::sleep(PAUSE);
            }
        }
        Ok(())
    }

    /// The beginning, as the kernel sees it.
    fn head(&self) -> Result<Vec<u8>, Error> {
        let mut head = vec![0; HEAD_BYTES];
        let device = File::open(self.device()).map_err(|error| Error::file(self.device(), error))?;
        device.read_exact_at(&mut head, 0).map_err(|error| Error::file(self.device(), error))?;
        Ok(head)
    }

    /// From now on every access is noted; returns what is on the disk now.
    pub fn start_log(&self) -> Contents {
        let mut inner = self.inner.lock();
        inner.log.clear();
        inner.is_logging = true;
        inner.image.clone()
    }

    /// Accesses noted so far.
    pub fn log_len(&self) -> usize {
        self.inner.lock().log.len()
    }

    /// Ends the log.
    pub fn take_log(&self) -> Vec<Access> {
        let mut inner = self.inner.lock();
        inner.is_logging = false;
        std::mem::take(&mut inner.log)
    }
}

/// A loop device, detached when dropped.
struct LoopDevice(PathBuf);

impl LoopDevice {
    fn new(file: &Path) -> Result<Self, Error> {
        let failed = |source| Error::Run { what: "losetup".into(), source };
        let mut command = Command::new("losetup");
        command.args(["--direct-io=on", "--find", "--show"]).arg(file).stdin(Stdio::null());
        let output = command.output().map_err(failed)?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            return Err(Error::Stopped(format!("there is no loop device for the disk: {said}")));
        }
        Ok(Self(PathBuf::from(String::from_utf8_lossy(&output.stdout).trim())))
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let mut command = Command::new("losetup");
        let _ = command.arg("-d").arg(&self.0).stdin(Stdio::null()).stderr(Stdio::null()).status();
        // It is detached when the last process that has it open is gone.
        let name = self.0.file_name().unwrap_or_default();
        let backing = Path::new("/sys/block").join(name).join("loop/backing_file");
        wait_until(|| !backing.exists());
    }
}

/// The mount of a disk's file; unmounted when dropped.
struct Session {
    server: Option<JoinHandle<io::Result<()>>>,
    directory: TempDir,
}

impl Session {
    fn new(served: Served, directory: TempDir, config: Config, blocks: &'static File) -> io::Result<Self> {
        let path = directory.path().to_owned();
        let (sender, mounted) = mpsc::channel();
        let serve = move || {
            let session = kernel::take_own_descriptors(blocks.as_fd());
            let session = session.and_then(|()| fuser::Session::new(served, path, &config));
            let session = match session {
                Ok(session) => session,
                Err(error) => {
                    let _ = sender.send(Err(error));
                    return Ok(());
                }
            };
            let _ = sender.send(Ok(()));
            session.run()
        };
        let server = Builder::new().name("crashlab-disk".into()).spawn(serve)?;
        mounted.recv().unwrap_or_else(|_| Err(io::ErrorKind::BrokenPipe.into()))?;
        Ok(Self { server: Some(server), directory })
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let path = self.directory.path();
        match wait_until(|| rustix::mount::unmount(path, UnmountFlags::empty()).is_ok()) {
            true => {
                // It goes on for as long as another mount namespace has a copy of the mount.
                let has_ended = wait_until(|| self.server.as_ref().is_none_or(JoinHandle::is_finished));
                drop(self.server.take().filter(|_| has_ended).map(JoinHandle::join));
            }
            // The same, for as long as somebody uses the file.
            false => drop(rustix::mount::unmount(path, UnmountFlags::DETACH)),
        }
    }
}

/// Waits for something that takes a moment; false if it does not happen.
fn wait_until(mut happens: impl FnMut() -> bool) -> bool {
    let started = Instant::now();
    while !happens() {
        if started.elapsed() > BUSY {
            return false;
        }
        std::thread::sleep(PAUSE);
    }
    true
}

/// A filesystem with one file.
struct Served {
    inner: Arc<Mutex<Inner>>,
    bytes: u64,
}

impl Served {
    const NAME: &str = "disk";
    const INO: INodeNo = INodeNo(2);

    fn attributes(&self, ino: INodeNo) -> FileAttr {
        let is_disk = ino == Self::INO;
        let size = if is_disk { self.bytes } else { 0 };
        FileAttr {
            ino,
            size,
            blocks: size / 512,
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind: if is_disk { FileType::RegularFile } else { FileType::Directory },
            perm: 0o700,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }

    fn act(&self, access: Access) -> Result<(), Errno> {
        let mut inner = self.inner.lock();
        let mut image = inner.image.clone();
        access.apply(&mut image).map_err(|error| error.errno())?;
        inner.image = image;
        if inner.is_logging {
            inner.log.push(access);
        }
        Ok(())
    }
}

impl fuser::Filesystem for Served {
    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match name == Self::NAME {
            true => reply.entry(&FOREVER, &self.attributes(Self::INO), Generation(0)),
            false => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&FOREVER, &self.attributes(ino));
    }

    fn setattr(
        &self,
        _: &Request,
        ino: INodeNo,
        _mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        _size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        // A disk's size does not change.
        reply.attr(&FOREVER, &self.attributes(ino));
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO);
    }

    fn read(
        &self,
        _: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        match self.inner.lock().image.read(offset, size as usize) {
            Ok(bytes) => reply.data(&bytes),
            Err(error) => reply.error(error.errno()),
        }
    }

    fn write(
        &self,
        _: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        if offset + data.len() as u64 > self.bytes {
            return reply.error(Errno::ENOSPC);
        }
        match self.act(Access::Write(offset, data.into())) {
            Ok(()) => reply.written(data.len() as u32),
            Err(errno) => reply.error(errno),
        }
    }

    fn fsync(&self, _: &Request, _ino: INodeNo, _fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        empty(reply, self.act(Access::Flush));
    }

    fn fallocate(
        &self,
        _: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        if mode & (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_ZERO_RANGE) == 0 {
            return reply.error(Errno::EOPNOTSUPP);
        }
        empty(reply, self.act(Access::Zero(offset, offset.saturating_add(length).min(self.bytes))));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_access_changes_the_image_and_a_flush_does_not() {
        let mut image = Contents::default();
        image.truncate(8192).unwrap();
        Access::Write(512, [7; 1024][..].into()).apply(&mut image).unwrap();
        Access::Zero(1024, 8192).apply(&mut image).unwrap();
        let digest = image.digest();
        Access::Flush.apply(&mut image).unwrap();
        assert_eq!((image.digest(), image.len()), (digest, 8192));
        assert_eq!(image.read(1022, 4).unwrap(), [7, 7, 0, 0]);
    }

    #[test]
    fn a_disk_takes_more_than_memory_holds() {
        if !rustix::process::geteuid().is_root() || !Path::new("/dev/loop-control").exists() {
            eprintln!("skipped: loop devices need root");
            return;
        }
        let disk = Disk::new(4 << 20).unwrap();
        let device = File::options().write(true).open(disk.device()).unwrap();
        device.write_all_at(&[7; 1 << 20], 0).unwrap();
        device.sync_all().unwrap();
        let image = disk.image();
        assert_eq!(image.allocated_bytes(), 1 << 20);
        assert_eq!(image.read((1 << 20) - 2, 3).unwrap(), [7, 7, 0]);
    }
}
