//! The filesystem that a program works in while it is recorded: a [`Tree`] behind FUSE. The kernel sends
//! one request at a time, and each change is recorded before it is answered.

use crate::action::{Action, Ino, Name, ROOT, Stored, What};
use crate::contents::BLOCK_BYTES;
use crate::output::Output;
use crate::recording::Recorder;
use crate::tree::{Kind, Node, Tree};
use fuser::{
    Errno, FileAttr, FileHandle, FileType, FopenFlags, Generation, INodeNo, InitFlags, KernelConfig,
    LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty,
    ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How long the kernel may keep names and attributes.
const KEPT: Duration = Duration::from_secs(1);
/// The longest name.
const NAME_BYTES_MAX: usize = 255;
/// Size of the filesystem that programs are told.
const SIZE_BLOCKS: u64 = 1 << 28;

/// A tree that a program works in, and the recorder that it tells of each change.
pub struct Recorded {
    state: Mutex<State>,
    recorder: Arc<Recorder>,
    output: Arc<Output>,
    /// Files bypass the page cache, so each write(2) is one request.
    is_direct: bool,
}

struct State {
    tree: Tree,
    next_ino: Ino,
    next_handle: u64,
    /// Listings of open directories: what was there when they were opened.
    listings: HashMap<u64, Vec<(Ino, Name)>>,
    /// The kernel's references to inodes.
    references: HashMap<Ino, u64>,
}

impl Recorded {
    /// Serves `tree`, whose inodes are all below `next_ino`.
    pub fn new(tree: Tree, next_ino: Ino, recorder: Arc<Recorder>, output: Arc<Output>) -> Self {
        let (listings, references) = (HashMap::new(), HashMap::new());
        Self {
            state: Mutex::new(State { tree, next_ino, next_handle: 1, listings, references }),
            recorder,
            output,
            is_direct: false,
        }
    }

    fn opened(&self) -> FopenFlags {
        if self.is_direct { FopenFlags::FOPEN_DIRECT_IO } else { FopenFlags::FOPEN_KEEP_CACHE }
    }

    /// Records an action, after what the program has printed before it, and applies it.
    fn act(&self, state: &mut State, pid: u32, action: Action, bytes: &[u8]) {
        self.output.drain();
        let time_ns = self.recorder.record(pid, action.clone(), bytes);
        state.tree.apply(&action, time_ns.into(), bytes);
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        what: What,
        mode: u32,
    ) -> Result<FileAttr, Errno> {
        let mut state = self.state.lock();
        let (parent, name) = (parent.0, state.free_name(parent.0, name)?);
        let folder = state.tree.node(parent).ok_or(Errno::ENOENT)?;
        let inherits = folder.mode & libc::S_ISGID != 0;
        let gid = if inherits { folder.gid } else { request.gid() };
        let mode = if inherits && what == What::Directory { mode | libc::S_ISGID } else { mode };
        let ino = state.next_ino;
        state.next_ino += 1;
        let action = Action::Create { parent, name, ino, what, mode: mode & 0o7777, uid: request.uid(), gid };
        self.act(&mut state, request.pid(), action, &[]);
        state.referred(ino)
    }

    fn remove(&self, request: &Request, parent: INodeNo, name: &OsStr, directory: bool) -> Result<(), Errno> {
        let mut state = self.state.lock();
        let (parent, name) = (parent.0, name.as_bytes().to_vec());
        let ino = state.tree.lookup(parent, &name).ok_or(Errno::ENOENT)?;
        match (directory, state.tree.entries(ino)) {
            (true, None) => return Err(Errno::ENOTDIR),
            (true, Some(entries)) if !entries.is_empty() => return Err(Errno::ENOTEMPTY),
            (false, Some(_)) => return Err(Errno::EISDIR),
            _ => {}
        }
        self.act(&mut state, request.pid(), Action::Unlink { parent, name, ino }, &[]);
        state.drop_unused(ino);
        Ok(())
    }

    fn rename_to(
        &self,
        request: &Request,
        (parent, name): (INodeNo, &OsStr),
        (to, to_name): (INodeNo, &OsStr),
        flags: RenameFlags,
    ) -> Result<(), Errno> {
        let mut state = self.state.lock();
        let tree = &state.tree;
        let (name, to_name) = (name.as_bytes().to_vec(), to_name.as_bytes().to_vec());
        let ino = tree.lookup(parent.0, &name).ok_or(Errno::ENOENT)?;
        let replaced = tree.lookup(to.0, &to_name);
        let exchanged = flags.contains(RenameFlags::RENAME_EXCHANGE);
        if flags.contains(RenameFlags::RENAME_WHITEOUT) {
            return Err(Errno::EINVAL);
        }
        match replaced {
            None if exchanged => return Err(Errno::ENOENT),
            None if to_name.len() > NAME_BYTES_MAX => return Err(Errno::ENAMETOOLONG),
            Some(_) if flags.contains(RenameFlags::RENAME_NOREPLACE) => return Err(Errno::EEXIST),
            Some(other) if other == ino => return Ok(()),
            Some(other) if !exchanged => {
                let is_directory = tree.node(ino).is_some_and(Node::is_directory);
                match (is_directory, tree.entries(other)) {
                    (true, None) => return Err(Errno::ENOTDIR),
                    (false, Some(_)) => return Err(Errno::EISDIR),
                    (true, Some(entries)) if !entries.is_empty() => return Err(Errno::ENOTEMPTY),
                    _ => {}
                }
            }
            _ => {}
        }
        let action = Action::Rename { parent: parent.0, name, to: to.0, to_name, ino, replaced, exchanged };
        self.act(&mut state, request.pid(), action, &[]);
        if let Some(other) = replaced {
            state.drop_unused(other);
        }
        Ok(())
    }

    fn write_bytes(
        &self,
        request: &Request,
        ino: Ino,
        offset: u64,
        data: &[u8],
        mapped: bool,
    ) -> Result<u32, Errno> {
        let mut state = self.state.lock();
        let size = state.tree.contents(ino).ok_or(Errno::EBADF)?.len();
        // The kernel writes whole pages back, and the last one may reach beyond the end of the file.
        let data = match mapped {
            true => &data[..size.saturating_sub(offset).min(data.len() as u64) as usize],
            false => data,
        };
        let pid = if mapped { 0 } else { request.pid() };
        // Each page of a mapping is written back by itself.
        let pieces = if mapped { data.chunks(BLOCK_BYTES as usize) } else { data.chunks(data.len().max(1)) };
        let mut offset = offset;
        for piece in pieces {
            let len = piece.len() as u32;
            let action = Action::Write { ino, offset, len, size, mapped, stored: Stored::default() };
            self.act(&mut state, pid, action, piece);
            offset += u64::from(len);
        }
        Ok(data.len() as u32)
    }

    fn allocate(&self, request: &Request, ino: Ino, offset: u64, len: u64, mode: i32) -> Result<(), Errno> {
        let mut state = self.state.lock();
        let size = state.tree.contents(ino).ok_or(Errno::EBADF)?.len();
        let end = offset.checked_add(len).ok_or(Errno::EFBIG)?;
        let keeps_size = mode & libc::FALLOC_FL_KEEP_SIZE != 0;
        let new_size = if keeps_size { size } else { size.max(end) };
        let action = match mode & !libc::FALLOC_FL_KEEP_SIZE {
            0 if new_size == size => return Ok(()),
            0 => Action::Truncate { ino, from: size, to: new_size },
            libc::FALLOC_FL_PUNCH_HOLE if keeps_size => Action::Zero { ino, offset, len, size },
            libc::FALLOC_FL_ZERO_RANGE => Action::Zero { ino, offset, len, size: new_size },
            _ => return Err(Errno::EOPNOTSUPP),
        };
        self.act(&mut state, request.pid(), action, &[]);
        Ok(())
    }

    fn set_xattr(
        &self,
        request: &Request,
        ino: Ino,
        name: &OsStr,
        value: Option<&[u8]>,
        flags: i32,
    ) -> Result<(), Errno> {
        let mut state = self.state.lock();
        let name = name.as_bytes().to_vec();
        let exists = state.tree.node(ino).ok_or(Errno::ENOENT)?.xattrs.contains_key(&name);
        if !exists && (value.is_none() || flags & libc::XATTR_REPLACE != 0) {
            return Err(Errno::NO_XATTR);
        }
        if exists && flags & libc::XATTR_CREATE != 0 {
            return Err(Errno::EEXIST);
        }
        let value = value.map(<[u8]>::to_vec);
        self.act(&mut state, request.pid(), Action::Xattr { ino, name, value }, &[]);
        Ok(())
    }

    fn sync(&self, request: &Request, ino: Ino, data_only: bool) {
        self.act(&mut self.state.lock(), request.pid(), Action::Sync { ino, data_only }, &[]);
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

    /// Forgets an inode that has neither a name nor a reference.
    fn drop_unused(&mut self, ino: Ino) {
        if !self.references.contains_key(&ino) && self.tree.node(ino).is_some_and(|node| node.links == 0) {
            self.tree.forget(ino);
        }
    }
}

fn file_type(kind: &Kind) -> FileType {
    match kind {
        Kind::File(_) => FileType::RegularFile,
        Kind::Directory(_) => FileType::Directory,
        Kind::Symlink(_) => FileType::Symlink,
        Kind::Special(kind, _) => match *kind {
            libc::S_IFIFO => FileType::NamedPipe,
            libc::S_IFSOCK => FileType::Socket,
            libc::S_IFCHR => FileType::CharDevice,
            _ => FileType::BlockDevice,
        },
    }
}

fn entry(reply: ReplyEntry, outcome: Result<FileAttr, Errno>) {
    match outcome {
        Ok(attributes) => reply.entry(&KEPT, &attributes, Generation(0)),
        Err(errno) => reply.error(errno),
    }
}

fn empty(reply: ReplyEmpty, outcome: Result<(), Errno>) {
    match outcome {
        Ok(()) => reply.ok(),
        Err(errno) => reply.error(errno),
    }
}

fn sized(reply: ReplyXattr, size: u32, value: &[u8]) {
    match size {
        0 => reply.size(value.len() as u32),
        size if value.len() > size as usize => reply.error(Errno::ERANGE),
        _ => reply.data(value),
    }
}

fn time(nanoseconds: i128) -> SystemTime {
    let distance = Duration::from_nanos(u64::try_from(nanoseconds.unsigned_abs()).unwrap_or(0));
    if nanoseconds < 0 { UNIX_EPOCH - distance } else { UNIX_EPOCH + distance }
}

fn nanoseconds(time: SystemTime) -> i128 {
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => since.as_nanos() as i128,
        Err(before) => -(before.duration().as_nanos() as i128),
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
            match state.tree.contents(ino).map(|contents| contents.len()) {
                Some(from) if from == to => {}
                Some(from) => self.act(&mut state, request.pid(), Action::Truncate { ino, from, to }, &[]),
                None => return reply.error(Errno::EINVAL),
            }
        }
        let mtime_ns = mtime.map(|time| match time {
            TimeOrNow::SpecificTime(time) => nanoseconds(time),
            TimeOrNow::Now => nanoseconds(SystemTime::now()),
        });
        let mode = mode.map(|mode| mode & 0o7777);
        if mode.is_some() || uid.is_some() || gid.is_some() || mtime_ns.is_some() {
            self.act(&mut state, request.pid(), Action::Attributes { ino, mode, uid, gid, mtime_ns }, &[]);
        }
        match state.attributes(ino) {
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
        _flags: i32,
        reply: ReplyCreate,
    ) {
        match Self::create(self, request, parent, name, What::File, mode & !umask) {
            Ok(attributes) => {
                reply.created(&KEPT, &attributes, Generation(0), FileHandle(0), self.opened());
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
            self.act(&mut state, request.pid(), action, &[]);
            state.referred(ino.0)
        });
        entry(reply, outcome);
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), self.opened());
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
        match self.state.lock().tree.contents(ino.0) {
            Some(contents) => reply.data(&contents.read(offset, size as usize)),
            None => reply.error(Errno::EBADF),
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
        if let Err(errno) = self.write_bytes(request, ino.0, offset, data, mapped) {
            return reply.error(errno);
        }
        // O_SYNC contains O_DSYNC.
        if !mapped && flags.0 & libc::O_DSYNC != 0 {
            self.sync(request, ino.0, flags.0 & libc::O_SYNC != libc::O_SYNC);
        }
        reply.written(data.len() as u32);
    }

    fn fsync(&self, request: &Request, ino: INodeNo, _fh: FileHandle, datasync: bool, reply: ReplyEmpty) {
        self.sync(request, ino.0, datasync);
        reply.ok();
    }

    fn fsyncdir(&self, request: &Request, ino: INodeNo, _fh: FileHandle, datasync: bool, reply: ReplyEmpty) {
        self.sync(request, ino.0, datasync);
        reply.ok();
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
