//! The filesystem that a program works in while it is recorded: a [`Tree`] behind FUSE. The kernel sends
//! one request at a time, and each change is recorded before it is answered.

mod answers;
mod changes;
mod syncs;

use crate::action::{Action, Ino, Name, ROOT, What};
use crate::output::Output;
use crate::recording::Recorder;
use crate::tree::{Kind, Tree};
use crate::unwind::Callers;
pub(crate) use answers::empty;
use answers::{entry, file_type, nanoseconds, sized, time};
use fuser::{
    Errno, FileAttr, FileHandle, FopenFlags, Generation, INodeNo, InitFlags, KernelConfig, LockOwner,
    OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry,
    ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

/// How long the kernel may keep names and attributes.
const KEPT: Duration = Duration::from_secs(1);
/// The longest name.
const NAME_BYTES_MAX: usize = 255;
/// Size of the filesystem that programs are told.
const SIZE_BLOCKS: u64 = 1 << 28;
/// Handle of a file that is open for writing.
const WRITER: FileHandle = FileHandle(1);

/// A tree that a program works in, and the recorder that it tells of each change. Clones share the tree.
#[derive(Clone)]
pub struct Recorded {
    state: Arc<Mutex<State>>,
    recorder: Arc<Recorder>,
    output: Arc<Output>,
    /// Files bypass the page cache, so each write(2) is one request.
    is_direct: bool,
    /// The thread that watches syncs; its own are not the program's.
    watcher: Arc<AtomicU32>,
}

struct State {
    tree: Tree,
    callers: Callers,
    next_ino: Ino,
    next_handle: u64,
    /// Listings of open directories: what was there when they were opened.
    listings: HashMap<u64, Vec<(Ino, Name)>>,
    /// The kernel's references to inodes.
    references: HashMap<Ino, u64>,
    /// How often each file is open for writing.
    writers: HashMap<Ino, u64>,
}

impl Recorded {
    /// Serves `tree`, whose inodes are all below `next_ino`.
    pub fn new(
        tree: Tree,
        next_ino: Ino,
        recorder: Arc<Recorder>,
        output: Arc<Output>,
        callers: Callers,
    ) -> Self {
        let (listings, references, writers) = (HashMap::new(), HashMap::new(), HashMap::new());
        let state = State { tree, callers, next_ino, next_handle: 1, listings, references, writers };
        let (state, watcher) = (Arc::new(Mutex::new(state)), Arc::new(AtomicU32::new(0)));
        Self { state, recorder, output, is_direct: false, watcher }
    }

    /// A handle and flags for an opened file.
    fn opened(&self, ino: Ino, flags: i32) -> (FileHandle, FopenFlags) {
        let writes = flags & libc::O_ACCMODE != libc::O_RDONLY;
        if writes {
            *self.state.lock().writers.entry(ino).or_default() += 1;
        }
        let is_direct = self.is_direct;
        let how = if is_direct { FopenFlags::FOPEN_DIRECT_IO } else { FopenFlags::FOPEN_KEEP_CACHE };
        (if writes { WRITER } else { FileHandle(0) }, how)
    }
}

impl State {
    fn free_name(&self, parent: Ino, name: &OsStr) -> Result<Name, Errno> {
        let name = name.as_bytes();
        if name.len() > NAME_BYTES_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        match self.tree.lookup(parent, name) {
            Some(_) => Err(Errno::EEXIST),
            None => Ok(name.to_vec()),
        }
    }

    fn attributes(&self, ino: Ino) -> Result<FileAttr, Errno> {
        let node = self.tree.node(ino).ok_or(Errno::ENOENT)?;
        let (size, blocks, device) = match &node.kind {
            Kind::File(contents) => (contents.len(), contents.allocated_bytes() / 512, 0),
            Kind::Directory(entries) => (entries.size() as u64, 0, 0),
            Kind::Symlink(target) => (target.len() as u64, 0, 0),
            Kind::Special(_, device) => (0, 0, *device),
        };
        let mtime = time(node.mtime_ns);
        Ok(FileAttr {
            ino: INodeNo(ino),
            size,
            blocks,
            atime: mtime,
            mtime,
            ctime: mtime,
            crtime: mtime,
            kind: file_type(&node.kind),
            perm: node.mode as u16,
            nlink: node.links,
            uid: node.uid,
            gid: node.gid,
            rdev: device,
            blksize: 4096,
            flags: 0,
        })
    }

    /// Attributes for an answer that gives the kernel a reference.
    fn referred(&mut self, ino: Ino) -> Result<FileAttr, Errno> {
        let attributes = self.attributes(ino)?;
        *self.references.entry(ino).or_default() += 1;
        Ok(attributes)
    }

    /// Follows the end of an open file.
    fn closed(&mut self, ino: Ino, handle: FileHandle) {
        let left = self.writers.get(&ino).map_or(0, |writers| writers.saturating_sub(1));
        match (handle, left) {
            (WRITER, 0) => drop(self.writers.remove(&ino)),
            (WRITER, left) => drop(self.writers.insert(ino, left)),
            _ => {}
        }
    }

    /// Forgets an inode that has neither a name nor a reference.
    fn drop_unused(&mut self, ino: Ino) {
        if !self.references.contains_key(&ino) && self.tree.node(ino).is_some_and(|node| node.links == 0) {
            self.tree.forget(ino);
        }
    }
}

impl fuser::Filesystem for Recorded {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        self.is_direct = config.add_capabilities(InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP).is_ok();
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let mut state = self.state.lock();
        if name.len() > NAME_BYTES_MAX {
            return reply.error(Errno::ENAMETOOLONG);
        }
        let found = state.tree.lookup(parent.0, name.as_bytes()).ok_or(Errno::ENOENT);
        entry(reply, found.and_then(|ino| state.referred(ino)));
    }

    fn forget(&self, _: &Request, ino: INodeNo, count: u64) {
        let mut state = self.state.lock();
        let left = state.references.get(&ino.0).map_or(0, |references| references.saturating_sub(count));
        match left {
            0 => drop(state.references.remove(&ino.0)),
            left => drop(state.references.insert(ino.0, left)),
        }
        if ino.0 != ROOT {
            state.drop_unused(ino.0);
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.state.lock().attributes(ino.0) {
            Ok(attributes) => reply.attr(&KEPT, &attributes),
            Err(errno) => reply.error(errno),
        }
    }

    fn setattr(
        &self,
        request: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let (mut state, ino) = (self.state.lock(), ino.0);
        if let Some(to) = size {
            let resized = match state.tree.contents(ino).map(|contents| contents.len()) {
                Some(from) if from == to => Ok(()),
                Some(from) => self.act(&mut state, request.pid(), Action::Truncate { ino, from, to }, &[]),
                None => Err(Errno::EINVAL),
            };
            if let Err(errno) = resized {
                return reply.error(errno);
            }
        }
        let mtime_ns = mtime.map(|time| match time {
            TimeOrNow::SpecificTime(time) => nanoseconds(time),
            TimeOrNow::Now => nanoseconds(SystemTime::now()),
        });
        let mode = mode.map(|mode| mode & 0o7777);
        let set = match mode.is_some() || uid.is_some() || gid.is_some() || mtime_ns.is_some() {
            true => {
                let action = Action::Attributes { ino, mode, uid, gid, mtime_ns };
                self.act(&mut state, request.pid(), action, &[])
            }
            false => Ok(()),
        };
        match set.and_then(|()| state.attributes(ino)) {
            Ok(attributes) => reply.attr(&KEPT, &attributes),
            Err(errno) => reply.error(errno),
        }
    }

    fn readlink(&self, _: &Request, ino: INodeNo, reply: ReplyData) {
        match self.state.lock().tree.node(ino.0).map(|node| &node.kind) {
            Some(Kind::Symlink(target)) => reply.data(target),
            _ => reply.error(Errno::EINVAL),
        }
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let what = match mode & libc::S_IFMT {
            0 | libc::S_IFREG => What::File,
            kind => What::Special(kind, rdev),
        };
        entry(reply, Self::create(self, request, parent, name, what, mode & !umask));
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        entry(reply, Self::create(self, request, parent, name, What::Directory, mode & !umask));
    }

    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let what = What::Symlink(target.as_os_str().as_bytes().to_vec());
        entry(reply, Self::create(self, request, parent, name, what, 0o777));
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        match Self::create(self, request, parent, name, What::File, mode & !umask) {
            Ok(attributes) => {
                let (handle, how) = self.opened(attributes.ino.0, flags);
                reply.created(&KEPT, &attributes, Generation(0), handle, how);
            }
            Err(errno) => reply.error(errno),
        }
    }

    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        empty(reply, self.remove(request, parent, name, false));
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        empty(reply, self.remove(request, parent, name, true));
    }

    fn rename(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        empty(reply, self.rename_to(request, (parent, name), (newparent, newname), flags));
    }

    fn link(&self, request: &Request, ino: INodeNo, newparent: INodeNo, newname: &OsStr, reply: ReplyEntry) {
        let mut state = self.state.lock();
        let outcome = state.free_name(newparent.0, newname).and_then(|name| {
            let action = Action::Link { ino: ino.0, parent: newparent.0, name };
            self.act(&mut state, request.pid(), action, &[])?;
            state.referred(ino.0)
        });
        entry(reply, outcome);
    }

    fn open(&self, _: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let (handle, how) = self.opened(ino.0, flags.0);
        reply.opened(handle, how);
    }

    fn release(
        &self,
        _: &Request,
        ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.state.lock().closed(ino.0, fh);
        reply.ok();
    }

    fn read(
        &self,
        _: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let read = match self.state.lock().tree.contents(ino.0) {
            Some(contents) => contents.read(offset, size as usize).map_err(|error| error.errno()),
            None => Err(Errno::EBADF),
        };
        match read {
            Ok(bytes) => reply.data(&bytes),
            Err(errno) => reply.error(errno),
        }
    }

    fn write(
        &self,
        request: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let mapped = write_flags.contains(WriteFlags::FUSE_WRITE_CACHE);
        // O_SYNC contains O_DSYNC.
        let is_synced = !mapped && flags.0 & libc::O_DSYNC != 0;
        let synced = is_synced.then_some(flags.0 & libc::O_SYNC != libc::O_SYNC);
        let written = self.write_bytes(request, ino.0, offset, data, mapped);
        let sync = |_| synced.map_or(Ok(()), |data_only| self.sync(request, ino.0, data_only));
        match written.and_then(sync) {
            Ok(()) => reply.written(data.len() as u32),
            Err(errno) => reply.error(errno),
        }
    }

    fn fsync(&self, request: &Request, ino: INodeNo, _fh: FileHandle, datasync: bool, reply: ReplyEmpty) {
        let is_own = request.pid() == self.watcher.load(Ordering::Relaxed);
        empty(reply, if is_own { Ok(()) } else { self.sync(request, ino.0, datasync) });
    }

    fn fsyncdir(&self, request: &Request, ino: INodeNo, _fh: FileHandle, datasync: bool, reply: ReplyEmpty) {
        empty(reply, self.sync(request, ino.0, datasync));
    }

    fn opendir(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let mut state = self.state.lock();
        state.next_handle += 1;
        reply.opened(FileHandle(state.next_handle), FopenFlags::empty());
    }

    fn readdir(&self, _: &Request, ino: INodeNo, fh: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let mut state = self.state.lock();
        // From its beginning, it is another listing.
        if offset == 0 || !state.listings.contains_key(&fh.0) {
            let Some(entries) = state.tree.entries(ino.0) else { return reply.error(Errno::ENOTDIR) };
            let dots = [(ino.0, b".".to_vec()), (ino.0, b"..".to_vec())];
            let listing =
                dots.into_iter().chain(entries.iter().map(|(name, ino)| (*ino, name.clone()))).collect();
            state.listings.insert(fh.0, listing);
        }
        let listing = state.listings.get(&fh.0).map(Vec::as_slice).unwrap_or_default();
        for (next, (ino, name)) in (1..).zip(listing).skip(offset as usize) {
            let Some(node) = state.tree.node(*ino) else { continue };
            if reply.add(INodeNo(*ino), next, file_type(&node.kind), OsStr::from_bytes(name)) {
                break;
            }
        }
        reply.ok();
    }

    fn releasedir(&self, _: &Request, _: INodeNo, fh: FileHandle, _: OpenFlags, reply: ReplyEmpty) {
        self.state.lock().listings.remove(&fh.0);
        reply.ok();
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        let free = SIZE_BLOCKS / 2;
        reply.statfs(SIZE_BLOCKS, free, free, 1 << 30, 1 << 29, 4096, NAME_BYTES_MAX as u32, 4096);
    }

    fn setxattr(
        &self,
        request: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        empty(reply, self.set_xattr(request, ino.0, name, Some(value), flags));
    }

    fn removexattr(&self, request: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        empty(reply, self.set_xattr(request, ino.0, name, None, 0));
    }

    fn getxattr(&self, _: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        match self.state.lock().tree.node(ino.0).and_then(|node| node.xattrs.get(name.as_bytes())) {
            Some(value) => sized(reply, size, value),
            None => reply.error(Errno::NO_XATTR),
        }
    }

    fn listxattr(&self, _: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        let state = self.state.lock();
        let Some(node) = state.tree.node(ino.0) else { return reply.error(Errno::ENOENT) };
        let names: Vec<u8> = node.xattrs.keys().flat_map(|name| name.iter().copied().chain([0])).collect();
        sized(reply, size, &names);
    }

    fn fallocate(
        &self,
        request: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        empty(reply, self.allocate(request, ino.0, offset, length, mode));
    }
}
