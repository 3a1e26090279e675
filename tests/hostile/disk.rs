//! A disk for tests that can be made slow or made to fail: the only file of a filesystem.

use crate::support::{Place, tool};
use fuser::{
    BackgroundSession, BsdFileFlags, Config, Errno, FileAttr, FileHandle, FileType, Generation, INodeNo,
    LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry, ReplyWrite, Request, TimeOrNow,
    WriteFlags,
};
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const KEPT: Duration = Duration::from_secs(3600);

/// The disk; needs root. When dropped, it is unmounted, even if still in use.
pub struct Disk {
    /// Path of its file.
    pub path: PathBuf,
    pub troubles: Arc<Troubles>,
    below: PathBuf,
    _session: BackgroundSession,
}

impl Disk {
    /// A disk of this size, in a place without one, whose flushes take this long.
    pub fn new(place: &Place, size_bytes: u64, flush: Duration) -> Self {
        let file = File::options().read(true).write(true).create_new(true).open(place.path().join("backing"));
        let file = file.expect("the name is new");
        file.set_len(size_bytes).expect("it is sparse");
        let troubles = Arc::<Troubles>::default();
        let below = place.directory("below");
        let served = Served { file, flush, troubles: troubles.clone() };
        let session = fuser::spawn_mount(served, &below, &Config::default()).expect("FUSE works here");
        Self { path: below.join(Served::NAME), troubles, below, _session: session }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.troubles.flushes_hang.store(false, Ordering::Relaxed);
        tool("umount", &[OsStr::new("-l"), self.below.as_ref()]);
    }
}

/// The disk's current faults.
#[derive(Default)]
pub struct Troubles {
    pub reads_fail: AtomicBool,
    pub writes_fail: AtomicBool,
    pub flushes_fail: AtomicBool,
    /// Flushes are answered when this ends.
    pub flushes_hang: AtomicBool,
    /// Bytes that were submitted for writing.
    pub written_bytes: AtomicU64,
}

impl Troubles {
    /// Makes reads, writes and flushes fail from now on, or not.
    pub fn set(&self, reads: bool, writes: bool, flushes: bool) {
        self.reads_fail.store(reads, Ordering::Relaxed);
        self.writes_fail.store(writes, Ordering::Relaxed);
        self.flushes_fail.store(flushes, Ordering::Relaxed);
    }
}

/// A filesystem with one file.
struct Served {
    file: File,
    flush: Duration,
    troubles: Arc<Troubles>,
}

impl Served {
    const NAME: &str = "disk";
    const INO: INodeNo = INodeNo(2);

    fn attributes(&self, ino: INodeNo) -> FileAttr {
        let (kind, size) = match ino {
            Self::INO => (FileType::RegularFile, self.file.metadata().map_or(0, |metadata| metadata.len())),
            _ => (FileType::Directory, 0),
        };
        FileAttr {
            ino,
            size,
            blocks: size / 512,
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind,
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
    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match name == Self::NAME {
            true => reply.entry(&KEPT, &self.attributes(Self::INO), Generation(0)),
            false => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&KEPT, &self.attributes(ino));
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
        reply.attr(&KEPT, &self.attributes(ino));
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        if self.troubles.reads_fail.load(Ordering::Relaxed) {
            return reply.error(Errno::EIO);
        }
        let mut buf = vec![0; size as usize];
        match self.file.read_at(&mut buf, offset) {
            Ok(len) => reply.data(&buf[..len]),
            Err(error) => reply.error(error.into()),
        }
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        self.troubles.written_bytes.fetch_add(data.len() as u64, Ordering::Relaxed);
        if self.troubles.writes_fail.load(Ordering::Relaxed) {
            return reply.error(Errno::EIO);
        }
        match self.file.write_all_at(data, offset) {
            Ok(()) => reply.written(data.len() as u32),
            Err(error) => reply.error(error.into()),
        }
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        let (flush, troubles) = (self.flush, self.troubles.clone());
        // Reads and writes continue meanwhile.
        std::thread::spawn(move || {
            std::thread::sleep(flush);
            while troubles.flushes_hang.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(10));
            }
            match troubles.flushes_fail.load(Ordering::Relaxed) {
                true => reply.error(Errno::EIO),
                false => reply.ok(),
            }
        });
    }
}
