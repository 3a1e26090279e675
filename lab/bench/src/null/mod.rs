//! The null filesystem: does only what FUSE requires, and leaves out everything else that a
//! filesystem does. It keeps names, attributes and sizes. Data is dropped, reads get zeros, and an
//! fsync has nothing to wait for. With a device, the device takes the data and is flushed, and a
//! read returns what the device holds at the file's offset. Syncline's own transports serve the
//! null filesystem, so kernel, requests and threads are the same, and the difference between the
//! two is Syncline's own cost.

mod listing;
mod sink;
mod tree;

use bytes::Bytes;
use listing::{readdir, readdirplus};
use sink::Sink;
use std::path::Path;
use std::sync::Arc;
use syncline_device::Device;
use syncline_fuse::abi::flags::setattr as valid;
use syncline_fuse::abi::{
    Attr, AttrOut, BatchForgetIn, EntryOut, ForgetIn, ForgetOne, GetXattrIn, GetXattrOut, MkDirIn, MkNodIn,
    Opcode, OpenOut, ReadIn, SetAttrIn, StatFsOut, WriteIn, WriteOut,
};
use syncline_fuse::{Malformed, MountError, MountOptions, Mounted, Reply, Request, Serve};
use tree::{Errno, New, Tree, now, touch};

/// Printed by its process when it is mounted.
pub const READY: &str = "ready";
/// The longest READ that is negotiated.
const READ_BYTES_MAX: usize = 1 << 20;
static ZEROS: [u8; READ_BYTES_MAX] = [0; READ_BYTES_MAX];
/// The blocks that statfs reports: the filesystem is never full.
const BLOCKS: u64 = 1 << 30;
const BLOCK_BYTES: u32 = 4096;
const NAME_BYTES_MAX: u32 = 255;

type Session = syncline_fuse::Session<Null>;
type Answer = Result<Reply, Errno>;

/// A filesystem that keeps nothing.
pub struct Null {
    tree: Tree,
    sink: Option<Sink>,
}

impl Null {
    /// An empty filesystem. Written data goes to `device`, if there is one, whose contents behind
    /// the first MiB are lost.
    pub fn new(device: Option<Arc<dyn Device>>) -> Self {
        Self { tree: Tree::new(), sink: device.map(Sink::new) }
    }

    /// Mounts it in the same way as Syncline's images.
    pub fn mount(self, path: &Path, options: &MountOptions) -> Result<Mounted<Self>, MountError> {
        Session::mount(Arc::new(self), path, options)
    }
}

impl Serve for Null {
    async fn serve(session: &Session, request: &Request) -> Reply {
        let Some(opcode) = request.opcode() else {
            return Reply::error(libc::ENOSYS);
        };
        let answered = match (opcode, &session.fs().sink) {
            (Opcode::FSync | Opcode::FSyncDir, Some(sink)) => {
                sink.sync(request.ino()).await.map(|()| Reply::empty())
            }
            (Opcode::Read, Some(sink)) => read_device(session, request, sink).await,
            _ => answer(session, request, opcode),
        };
        answered.unwrap_or_else(|Errno(errno)| Reply::error(errno))
    }
}

impl From<Malformed> for Errno {
    fn from(_: Malformed) -> Self {
        Self(libc::EINVAL)
    }
}

fn answer(session: &Session, request: &Request, opcode: Opcode) -> Answer {
    match opcode {
        Opcode::Lookup => lookup(session, request),
        Opcode::Forget | Opcode::BatchForget => Ok(forget(session, request, opcode)),
        Opcode::MkNod => mknod(session, request),
        Opcode::MkDir => mkdir(session, request),
        Opcode::Unlink => unlink(session, request),
        Opcode::RmDir => rmdir(session, request),
        Opcode::GetAttr => getattr(session, request),
        Opcode::SetAttr => setattr(session, request),
        Opcode::StatFs => Ok(statfs()),
        Opcode::Read => read(session, request),
        Opcode::Write => write(session, request),
        Opcode::FSync | Opcode::FSyncDir | Opcode::SyncFs | Opcode::Destroy => Ok(Reply::empty()),
        // As for Syncline: the kernel caches no listings.
        Opcode::OpenDir => Ok(Reply::fixed(&OpenOut::default())),
        Opcode::ReleaseDir => Ok(Reply::empty()),
        Opcode::ReadDir => readdir(session, request),
        Opcode::ReadDirPlus => readdirplus(session, request),
        Opcode::GetXattr => Err(Errno(libc::ENODATA)),
        Opcode::ListXattr => no_xattrs(request),
        Opcode::Ioctl => Err(Errno(libc::ENOTTY)),
        // These include OPEN and CREATE, as for Syncline: the kernel then creates files with MKNOD,
        // and opens and closes them without asking.
        _ => Err(Errno(libc::ENOSYS)),
    }
}

fn attr_out(session: &Session, attr: Attr) -> Reply {
    Reply::fixed(&AttrOut { valid: session.cache_seconds(), valid_ns: 0, padding: 0, attr })
}

fn entry_out(session: &Session, attr: Attr) -> EntryOut {
    let seconds = session.cache_seconds();
    EntryOut { node: attr.ino, entry_valid: seconds, attr_valid: seconds, attr, ..EntryOut::default() }
}

fn lookup(session: &Session, request: &Request) -> Answer {
    match session.fs().tree.lookup(request.ino(), request.arguments().name()?) {
        Ok(attr) => Ok(Reply::fixed(&entry_out(session, attr))),
        // "No such name", which may be cached.
        Err(Errno(libc::ENOENT)) => {
            Ok(Reply::fixed(&EntryOut { entry_valid: session.cache_seconds(), ..EntryOut::default() }))
        }
        Err(errno) => Err(errno),
    }
}

/// FORGET gets no answer, even if the request is invalid.
fn forget(session: &Session, request: &Request, opcode: Opcode) -> Reply {
    let Null { tree, sink } = &**session.fs();
    let forget = |ino, lookups| {
        tree.forget(ino, lookups);
        if let Some(sink) = sink {
            sink.forget(ino);
        }
    };
    let mut arguments = request.arguments();
    if opcode == Opcode::Forget {
        let lookups = arguments.take::<ForgetIn>().map_or(0, |input| input.lookups);
        forget(request.ino(), lookups);
        return Reply::none();
    }
    let count = arguments.take::<BatchForgetIn>().map_or(0, |input| input.count);
    for one in (0..count).map_while(|_| arguments.take::<ForgetOne>().ok()) {
        forget(one.node, one.lookups);
    }
    Reply::none()
}

fn make(session: &Session, request: &Request, name: &[u8], mode: u32, rdev: u32) -> Answer {
    let caller = request.caller();
    let new = New { mode, uid: caller.uid, gid: caller.gid, rdev };
    Ok(Reply::fixed(&entry_out(session, session.fs().tree.make(request.ino(), name, new)?)))
}

fn mknod(session: &Session, request: &Request) -> Answer {
    let mut arguments = request.arguments();
    let input: MkNodIn = arguments.take()?;
    let kind = match input.mode & libc::S_IFMT {
        0 => libc::S_IFREG,
        libc::S_IFDIR => return Err(Errno(libc::EINVAL)),
        kind => kind,
    };
    let mode = kind | (input.mode & 0o7777 & !input.umask);
    make(session, request, arguments.name()?, mode, input.rdev)
}

fn mkdir(session: &Session, request: &Request) -> Answer {
    let mut arguments = request.arguments();
    let input: MkDirIn = arguments.take()?;
    let mode = libc::S_IFDIR | (input.mode & 0o7777 & !input.umask);
    make(session, request, arguments.name()?, mode, 0)
}

fn unlink(session: &Session, request: &Request) -> Answer {
    session.fs().tree.unlink(request.ino(), request.arguments().name()?)?;
    Ok(Reply::empty())
}

fn rmdir(session: &Session, request: &Request) -> Answer {
    session.fs().tree.rmdir(request.ino(), request.arguments().name()?)?;
    Ok(Reply::empty())
}

fn getattr(session: &Session, request: &Request) -> Answer {
    Ok(attr_out(session, session.fs().tree.attr(request.ino())?))
}

fn setattr(session: &Session, request: &Request) -> Answer {
    let input: SetAttrIn = request.arguments().take()?;
    Ok(attr_out(session, session.fs().tree.change(request.ino(), |attr| change(attr, &input))?))
}

/// Changes the attributes that are marked as valid.
fn change(attr: &mut Attr, input: &SetAttrIn) {
    let has = |flag: u32| input.valid & flag != 0;
    let (seconds, ns) = now();
    if has(valid::SIZE) {
        attr.size = input.size;
        touch(attr);
    }
    if has(valid::MODE) {
        attr.mode = (attr.mode & libc::S_IFMT) | (input.mode & 0o7777);
    }
    if has(valid::UID) {
        attr.uid = input.uid;
    }
    if has(valid::GID) {
        attr.gid = input.gid;
    }
    if has(valid::ATIME) {
        (attr.atime, attr.atime_ns) = (input.atime, input.atime_ns);
    }
    if has(valid::ATIME_NOW) {
        (attr.atime, attr.atime_ns) = (seconds, ns);
    }
    if has(valid::MTIME) {
        (attr.mtime, attr.mtime_ns) = (input.mtime, input.mtime_ns);
    }
    if has(valid::MTIME_NOW) {
        (attr.mtime, attr.mtime_ns) = (seconds, ns);
    }
    (attr.ctime, attr.ctime_ns) = (seconds, ns);
}

fn statfs() -> Reply {
    Reply::fixed(&StatFsOut {
        blocks: BLOCKS,
        free: BLOCKS,
        available: BLOCKS,
        files: BLOCKS,
        files_free: BLOCKS,
        block_size: BLOCK_BYTES,
        name_len: NAME_BYTES_MAX,
        fragment_size: BLOCK_BYTES,
        ..StatFsOut::default()
    })
}

/// Where to read, and how much of it is there.
fn range(session: &Session, request: &Request) -> Result<(u64, usize), Errno> {
    let input: ReadIn = request.arguments().take()?;
    let left = session.fs().tree.attr(request.ino())?.size.saturating_sub(input.offset);
    Ok((input.offset, left.min(input.size.into()).min(READ_BYTES_MAX as u64) as usize))
}

/// Returns zeros, as if nothing but holes had ever been written.
fn read(session: &Session, request: &Request) -> Answer {
    let (_, len) = range(session, request)?;
    Ok(Reply::data(vec![Bytes::from_static(&ZEROS[..len])]))
}

/// One read of the device, into the transport's own memory where it lends some.
async fn read_device(session: &Session, request: &Request, sink: &Sink) -> Answer {
    let (offset, len) = range(session, request)?;
    if len == 0 {
        return Ok(Reply::data(Vec::new()));
    }
    let mut room = request.take_room();
    let room = room.as_mut().and_then(|room| room.take(len.next_multiple_of(syncline_device::BLOCK_BYTES)));
    Ok(Reply::data(vec![sink.read(offset, len, room).await?]))
}

/// The data is dropped or goes to the sink; the size is kept.
fn write(session: &Session, request: &Request) -> Answer {
    let input: WriteIn = request.arguments().take()?;
    let end = input.offset.checked_add(input.size.into()).filter(|end| *end <= i64::MAX as u64);
    let end = end.ok_or(Errno(libc::EFBIG))?;
    session.fs().tree.change(request.ino(), |attr| {
        attr.size = attr.size.max(end);
        touch(attr);
    })?;
    if let Some(sink) = &session.fs().sink {
        sink.write(request.ino(), request.payload());
    }
    Ok(Reply::fixed(&WriteOut { size: input.size, padding: 0 }))
}

fn no_xattrs(request: &Request) -> Answer {
    let asked: GetXattrIn = request.arguments().take()?;
    // A size of zero asks for the length.
    Ok(if asked.size == 0 { Reply::fixed(&GetXattrOut::default()) } else { Reply::empty() })
}
