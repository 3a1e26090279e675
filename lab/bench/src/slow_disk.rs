//! A disk whose flushes take a chosen time: the only file of a filesystem.
//!
//! Reads and writes go straight to the backing file, in the kernel (FUSE passthrough, Linux 6.9 and
//! newer). Only FSYNC comes here, and is answered when the time is over. A loop device over the file
//! is the disk, so that kernel filesystems can lie on it too.
//!
//! The kernel holds the file's lock during FSYNC, so writes wait while a flush is under way, as on a
//! disk that stops for it.

use fuser::{
    BackgroundSession, BsdFileFlags, Config, Errno, FileAttr, FileHandle, FileType, FopenFlags, Generation,
    INodeNo, InitFlags, KernelConfig, OpenFlags, ReplyAttr, ReplyEmpty, ReplyEntry, ReplyOpen, Request,
    TimeOrNow,
};
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How long the kernel may keep what it was told: nothing of it changes.
const FOREVER: Duration = Duration::from_secs(24 * 60 * 60);

/// The disk. When dropped, it is unmounted.
pub struct SlowDisk {
    path: PathBuf,
    _session: BackgroundSession,
}

impl SlowDisk {
    /// A disk that keeps its bytes in `backing`, at an empty directory. Needs root.
    pub fn new(backing: File, directory: &Path, flush: Duration) -> io::Result<Self> {
        let size = backing.metadata()?.len();
        let served = Served { backing, size, flush, id: OnceLock::new() };
        let session = fuser::spawn_mount(served, directory, &Config::default())?;
        Ok(Self { path: directory.join(Served::NAME), _session: session })
    }

    /// The path of its file.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// A filesystem with one file.
struct Served {
    backing: File,
    size: u64,
    flush: Duration,
    /// The kernel's number of the backing file.
    id: OnceLock<fuser::BackingId>,
}

impl Served {
    const NAME: &str = "disk";
    const INO: INodeNo = INodeNo(2);

    fn attributes(&self, ino: INodeNo) -> FileAttr {
        let is_disk = ino == Self::INO;
        let size = if is_disk { self.size } else { 0 };
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
}

impl fuser::Filesystem for Served {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let unsupported =
            |_| io::Error::other("FUSE passthrough needs Linux 6.9 or newer, and CONFIG_FUSE_PASSTHROUGH");
        config.add_capabilities(InitFlags::FUSE_PASSTHROUGH).map_err(unsupported)?;
        config.set_max_stack_depth(1).map_err(|_| io::Error::from(io::ErrorKind::Unsupported))?;
        Ok(())
    }

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
        let id = match self.id.get() {
            Some(id) => id,
            None => match reply.open_backing(&self.backing) {
                Ok(id) => self.id.get_or_init(|| id),
                Err(error) => return reply.error(error.into()),
            },
        };
        reply.opened_passthrough(FileHandle(0), FopenFlags::empty(), id);
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        let flush = self.flush;
        // Requests about other things are answered meanwhile.
        std::thread::spawn(move || {
            std::thread::sleep(flush);
            reply.ok();
        });
    }
}
