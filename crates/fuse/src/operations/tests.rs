//! Tests the table against a real filesystem, request by request, without a kernel between.

mod counted;
mod durability;
mod listings;
mod pages;

use super::serve;
use crate::abi::*;
use crate::negotiate::Negotiated;
use crate::options::{DirectIo, MountOptions};
use crate::reply::Reply;
use crate::request::Request;
use crate::session::Session;
use crate::test_filesystem::TestFilesystem;
use std::sync::Arc;
use syncline_device::block_on;
use zerocopy::{FromBytes, Immutable, IntoBytes};

const TRANSFER_BYTES_MAX: u32 = 1 << 20;

/// A session over a fresh filesystem.
pub(super) struct Bench {
    pub(super) session: Session,
    filesystem: TestFilesystem,
}

impl Bench {
    pub(super) fn new() -> Self {
        Self::with(DirectIo::Never)
    }

    fn with(direct_io: DirectIo) -> Self {
        Self::of(MountOptions { direct_io, ..MountOptions::new("test") })
    }

    fn of(options: MountOptions) -> Self {
        Self::over(TestFilesystem::new(256 << 20), options)
    }

    fn over(filesystem: TestFilesystem, options: MountOptions) -> Self {
        let negotiated = Negotiated {
            minor: MINOR_MAX,
            flags: 0,
            transfer_bytes_max: TRANSFER_BYTES_MAX,
            background_max: 64,
        };
        Self {
            session: Session::new(filesystem.fs.clone(), negotiated, &options, Arc::default()),
            filesystem,
        }
    }

    fn request(&self, opcode: Opcode, node: u64, arguments: &[&[u8]]) -> Request {
        let arguments = arguments.concat();
        let len = (IN_HEADER_BYTES + arguments.len()) as u32;
        // No thread has this number.
        let pid = i32::MAX as u32;
        let header = InHeader { len, opcode: opcode as u32, unique: 2, node, pid, ..InHeader::default() };
        Request::parse(&[header.as_bytes(), &arguments].concat()).unwrap()
    }

    fn send(&self, opcode: Opcode, node: u64, arguments: &[&[u8]]) -> Reply {
        block_on(serve(&self.session, &self.request(opcode, node, arguments)))
    }

    /// Sends a request that must succeed; returns the `T` in its answer and the bytes after it.
    fn ask<T: FromBytes>(&self, opcode: Opcode, node: u64, arguments: &[&[u8]]) -> (T, Vec<u8>) {
        let reply = self.send(opcode, node, arguments);
        assert_eq!(reply.errno(), 0, "{opcode:?}");
        let body = reply.body();
        let (value, rest) = T::read_from_prefix(&body).unwrap();
        (value, rest.to_vec())
    }

    fn create(&self, parent: u64, name: &[u8], flags: i32) -> CreateOut {
        let input = CreateIn { flags: flags as u32, mode: 0o100644, umask: 0, open_flags: 0 };
        self.ask(Opcode::Create, parent, &[input.as_bytes(), name, b"\0"]).0
    }

    fn mkdir(&self, parent: u64, name: &[u8]) -> u64 {
        let input = MkDirIn { mode: 0o755, umask: 0 };
        self.ask::<EntryOut>(Opcode::MkDir, parent, &[input.as_bytes(), name, b"\0"]).0.node
    }

    fn write(&self, node: u64, offset: u64, data: &[u8]) -> Reply {
        let input = WriteIn { offset, size: data.len() as u32, ..WriteIn::default() };
        self.send(Opcode::Write, node, &[input.as_bytes(), data])
    }

    fn read(&self, node: u64, offset: u64, size: u32) -> Vec<u8> {
        let input = ReadIn { offset, size, ..ReadIn::default() };
        self.send(Opcode::Read, node, &[input.as_bytes()]).body()
    }

    fn errno(&self, opcode: Opcode, node: u64, arguments: &[&[u8]]) -> i32 {
        self.send(opcode, node, arguments).errno()
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.filesystem.close();
        }
    }
}

/// Every request's future is allocated and filled again, so it must be small. Steps that few
/// requests need, such as a checkpoint or a read of a tree node, are boxed where they begin.
#[test]
fn serving_a_request_takes_little_memory() {
    let bench = Bench::new();
    let header = InHeader { len: IN_HEADER_BYTES as u32, ..InHeader::default() };
    let request = Request::parse(header.as_bytes()).unwrap();
    let bytes = size_of_val(&serve(&bench.session, &request));
    assert!(bytes <= 4096, "{bytes} bytes for each request");
}

#[test]
fn a_file_from_creation_to_removal() {
    let bench = Bench::new();
    let made = bench.create(ROOT_NODE, b"file", libc::O_RDWR);
    let ino = made.entry.node;
    assert_eq!((made.entry.attr.mode, made.entry.attr.nlink, made.entry.generation), (0o100644, 1, 0));
    assert!(made.entry.entry_valid > 3600 && made.entry.attr_valid > 3600);
    let data: Vec<u8> = (0..10_000).map(|index| (index % 251) as u8).collect();
    assert_eq!(bench.write(ino, 5, &data).body(), WriteOut { size: 10_000, padding: 0 }.as_bytes());
    assert_eq!(bench.read(ino, 0, 5), [0; 5]);
    assert_eq!(bench.read(ino, 5, 20_000), data);
    assert_eq!(bench.read(ino, 10_005, 100), b"");
    let (found, _) = bench.ask::<AttrOut>(Opcode::GetAttr, ino, &[GetAttrIn::default().as_bytes()]);
    assert_eq!(found.attr.size, 10_005);
    assert_eq!(bench.errno(Opcode::FSync, ino, &[FSyncIn::default().as_bytes()]), 0);
    assert_eq!(bench.errno(Opcode::Unlink, ROOT_NODE, &[b"file\0"]), 0);
    // Still readable, since it is open.
    assert_eq!(bench.read(ino, 5, 1), data[..1]);
    assert_eq!(bench.errno(Opcode::Release, ino, &[ReleaseIn::default().as_bytes()]), 0);
    let forgotten = bench.send(Opcode::Forget, ino, &[ForgetIn { lookups: 1 }.as_bytes()]);
    assert!(forgotten.is_silent());
    let (missing, _) = bench.ask::<EntryOut>(Opcode::Lookup, ROOT_NODE, &[b"file\0"]);
    assert_eq!(missing.node, 0);
    assert!(missing.entry_valid > 3600, "that there is nothing may be remembered");
}

#[test]
fn create_opens_what_another_made_in_between() {
    let bench = Bench::new();
    let first = bench.create(ROOT_NODE, b"file", libc::O_RDWR);
    bench.write(first.entry.node, 0, b"content");
    let second = bench.create(ROOT_NODE, b"file", libc::O_RDWR);
    assert_eq!((second.entry.node, second.entry.attr.size), (first.entry.node, 7));
    let emptied = bench.create(ROOT_NODE, b"file", libc::O_RDWR | libc::O_TRUNC);
    assert_eq!(emptied.entry.attr.size, 0);
    let exclusive = CreateIn { flags: libc::O_EXCL as u32, mode: 0o644, ..CreateIn::default() };
    assert_eq!(bench.errno(Opcode::Create, ROOT_NODE, &[exclusive.as_bytes(), b"file\0"]), libc::EEXIST);
    let made = bench.mkdir(ROOT_NODE, b"directory");
    let plain = CreateIn { flags: 0, mode: 0o644, ..CreateIn::default() };
    assert_eq!(bench.errno(Opcode::Create, ROOT_NODE, &[plain.as_bytes(), b"directory\0"]), libc::ESTALE);
    assert_eq!(bench.errno(Opcode::Create, made, &[plain.as_bytes(), b"a/b\0"]), libc::EINVAL);
}

#[test]
fn the_kernel_is_told_when_a_write_took_privileges() {
    let bench = Bench::new();
    let ino = bench.create(ROOT_NODE, b"tool", libc::O_RDWR).entry.node;
    let chmod = SetAttrIn { valid: flags::setattr::MODE, mode: 0o104755, ..SetAttrIn::default() };
    assert_eq!(bench.errno(Opcode::SetAttr, ino, &[chmod.as_bytes()]), 0);
    let input = WriteIn { size: 1, write_flags: flags::write::KILL_SUIDGID, ..WriteIn::default() };
    let reply = bench.send(Opcode::Write, ino, &[input.as_bytes(), b"x"]);
    let notification = reply.notification().expect("the kernel still believes in setuid");
    assert_eq!(notification.len(), 40);
    assert_eq!(InvalidateInodeOut::read_from_bytes(&notification[16..]).unwrap().ino, ino);
    let again = bench.send(Opcode::Write, ino, &[input.as_bytes(), b"x"]);
    assert!(again.notification().is_none());
    assert!(bench.write(ino, 0, b"x").notification().is_none());
    let (found, _) = bench.ask::<AttrOut>(Opcode::GetAttr, ino, &[GetAttrIn::default().as_bytes()]);
    assert_eq!(found.attr.mode, 0o100755);
}

#[test]
fn xattrs_tell_their_length_first() {
    let bench = Bench::new();
    let ino = bench.create(ROOT_NODE, b"f", libc::O_RDWR).entry.node;
    let set = |flags: i32, value: &[u8]| {
        let input = SetXattrIn { size: value.len() as u32, flags: flags as u32 };
        bench.errno(Opcode::SetXattr, ino, &[input.as_bytes(), b"user.x\0", value])
    };
    assert_eq!(set(libc::XATTR_REPLACE, b"value"), libc::ENODATA);
    assert_eq!(set(libc::XATTR_CREATE, b"value"), 0);
    assert_eq!(set(libc::XATTR_CREATE, b"value"), libc::EEXIST);
    // Both at once: the attribute must exist for one flag and must not for the other. The kernel's
    // filesystems report the latter.
    assert_eq!(set(libc::XATTR_CREATE | libc::XATTR_REPLACE, b"value"), libc::EEXIST);
    assert_eq!(set(4, b"value"), libc::EINVAL);
    let get = |size: u32| {
        let input = GetXattrIn { size, padding: 0 };
        bench.send(Opcode::GetXattr, ino, &[input.as_bytes(), b"user.x\0"])
    };
    assert_eq!(get(0).body(), GetXattrOut { size: 5, padding: 0 }.as_bytes());
    assert_eq!(get(5).body(), b"value");
    assert_eq!(get(4).errno(), libc::ERANGE);
    let list = GetXattrIn { size: 100, padding: 0 };
    assert_eq!(bench.send(Opcode::ListXattr, ino, &[list.as_bytes()]).body(), b"user.x\0");
    // The header promises a longer value than was sent.
    let short = SetXattrIn { size: 6, flags: 0 };
    assert_eq!(bench.errno(Opcode::SetXattr, ino, &[short.as_bytes(), b"user.x\0value"]), libc::EINVAL);
}

#[test]
fn renames_take_the_flags_they_know() {
    let bench = Bench::new();
    let rename = |flags: u32, old: &[u8], new: &[u8]| {
        let input = Rename2In { new_dir: ROOT_NODE, flags, padding: 0 };
        bench.errno(Opcode::Rename2, ROOT_NODE, &[input.as_bytes(), old, b"\0", new, b"\0"])
    };
    bench.create(ROOT_NODE, b"a", libc::O_RDWR);
    let b = bench.create(ROOT_NODE, b"b", libc::O_RDWR).entry.node;
    assert_eq!(rename(libc::RENAME_NOREPLACE, b"a", b"b"), libc::EEXIST);
    assert_eq!(rename(libc::RENAME_WHITEOUT | libc::RENAME_EXCHANGE, b"a", b"b"), libc::EINVAL);
    assert_eq!(rename(libc::RENAME_EXCHANGE, b"a", b"b"), 0);
    assert_eq!(bench.ask::<EntryOut>(Opcode::Lookup, ROOT_NODE, &[b"a\0"]).0.node, b);
    let input = RenameIn { new_dir: ROOT_NODE };
    assert_eq!(bench.errno(Opcode::Rename, ROOT_NODE, &[input.as_bytes(), b"a\0b\0"]), 0);
    assert_eq!(rename(libc::RENAME_WHITEOUT, b"b", b"c"), 0);
    let left = bench.ask::<EntryOut>(Opcode::Lookup, ROOT_NODE, &[b"b\0"]).0.attr;
    assert_eq!((left.mode, left.rdev), (libc::S_IFCHR, 0));
}

#[test]
fn birth_times_come_with_statx() {
    let bench = Bench::new();
    let input = MkNodIn { mode: libc::S_IFCHR | 0o600, rdev: 0x0050_1203, umask: 0, padding: 0 };
    let made = bench.ask::<EntryOut>(Opcode::MkNod, ROOT_NODE, &[input.as_bytes(), b"dev\0"]).0;
    assert_eq!(made.attr.rdev, 0x0050_1203);
    let found = bench.ask::<StatxOut>(Opcode::StatX, made.node, &[StatxIn::default().as_bytes()]).0.stat;
    assert!(found.mask & libc::STATX_BTIME != 0 && found.btime.seconds > 1 << 30);
    // 12 bits of major number lie between the low 8 and the high 12 bits of the minor number.
    assert_eq!((found.rdev_major, found.rdev_minor), (0x12, 0x503));
    assert_eq!(u32::from(found.mode), libc::S_IFCHR | 0o600);
}

#[test]
fn direct_openings_sync_by_themselves() {
    let bench = Bench::with(DirectIo::WriteOnly);
    let ino = bench.create(ROOT_NODE, b"f", libc::O_RDWR).entry.node;
    let open = |flags: i32| {
        let input = OpenIn { flags: flags as u32, open_flags: 0 };
        bench.ask::<OpenOut>(Opcode::Open, ino, &[input.as_bytes()]).0
    };
    assert_eq!(open(libc::O_RDWR).open_flags & flags::open::DIRECT_IO, 0);
    let direct = open(libc::O_WRONLY);
    assert_ne!(direct.open_flags & flags::open::DIRECT_IO, 0);
    let durable = || bench.session.fs().store().is_durable(bench.session.fs().store().last_op());
    // As the kernel says it of writes that bypass the page cache.
    let write_flags = flags::write::LOCK_OWNER;
    let input = WriteIn { handle: direct.handle, size: 1, write_flags, ..WriteIn::default() };
    assert_eq!(bench.errno(Opcode::Write, ino, &[input.as_bytes(), b"x"]), 0);
    assert!(!durable());
    let input = WriteIn { flags: libc::O_DSYNC as u32, ..input };
    assert_eq!(bench.errno(Opcode::Write, ino, &[input.as_bytes(), b"y"]), 0);
    assert!(durable());
}

/// A server that answers ENOSYS to these makes the kernel report false success from then on.
#[test]
fn fsync_and_getxattr_are_never_unknown() {
    let bench = Bench::new();
    for node in [0, ROOT_NODE, 12345, u64::MAX] {
        for opcode in [Opcode::FSync, Opcode::FSyncDir, Opcode::GetXattr] {
            for arguments in [&b""[..], &[0; 16], &[0xff; 100]] {
                assert_ne!(bench.errno(opcode, node, &[arguments]), libc::ENOSYS, "{opcode:?}");
            }
        }
    }
}

#[test]
fn what_is_not_done_here_is_left_to_the_kernel() {
    let bench = Bench::new();
    let refused = [Opcode::Flush, Opcode::Interrupt, Opcode::Poll, Opcode::Access, Opcode::BlockMap];
    for opcode in refused {
        assert_eq!(bench.errno(opcode, ROOT_NODE, &[&[0; 64]]), libc::ENOSYS, "{opcode:?}");
    }
    let foreign = IoctlIn { command: 0x5401, ..IoctlIn::default() };
    assert_eq!(bench.errno(Opcode::Ioctl, ROOT_NODE, &[foreign.as_bytes()]), libc::ENOTTY);
    assert_eq!(bench.errno(Opcode::Destroy, ROOT_NODE, &[]), 0);
}

#[test]
fn fallocate_does_what_it_knows_and_never_stops_the_kernel_from_asking() {
    let bench = Bench::new();
    let ino = bench.create(ROOT_NODE, b"f", libc::O_RDWR).entry.node;
    assert_eq!(bench.write(ino, 0, &[7; 9000]).errno(), 0);
    let ask = |node, mode: i32, offset: u64, len: u64| {
        let input = FAllocateIn { offset, len, mode: mode as u32, ..FAllocateIn::default() };
        bench.errno(Opcode::FAllocate, node, &[input.as_bytes()])
    };
    let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    assert_eq!(ask(ino, punch, 0, 4096), 0);
    assert_eq!(ask(ino, libc::FALLOC_FL_ZERO_RANGE, 8000, 4192), 0);
    assert_eq!(ask(ino, libc::FALLOC_FL_KEEP_SIZE, 0, 1 << 20), 0);
    assert_eq!(ask(ino, 0, 0, 12_192), 0);
    assert_eq!(bench.read(ino, 0, 20_000), [vec![0; 4096], vec![7; 8000 - 4096], vec![0; 4192]].concat());
    for (mode, offset, len, errno) in [
        (libc::FALLOC_FL_PUNCH_HOLE, 0, 4096, libc::EOPNOTSUPP),
        (punch | libc::FALLOC_FL_ZERO_RANGE, 0, 4096, libc::EOPNOTSUPP),
        (1 << 20, 0, 4096, libc::EOPNOTSUPP),
        (punch, 0, 0, libc::EINVAL),
        (punch, i64::MAX as u64, 1, libc::EFBIG),
        (punch, u64::MAX, 2, libc::EFBIG),
    ] {
        assert_eq!(ask(ino, mode, offset, len), errno, "mode {mode} at {offset}");
    }
    assert_eq!(ask(ROOT_NODE, punch, 0, 4096), libc::EISDIR);
    assert_eq!(bench.errno(Opcode::FAllocate, ino, &[&[0; 31]]), libc::EINVAL);
}

#[test]
fn ranges_beyond_the_end_of_numbers_are_refused() {
    let bench = Bench::new();
    let ino = bench.create(ROOT_NODE, b"f", libc::O_RDWR).entry.node;
    for offset in [u64::MAX, u64::MAX - 1, i64::MAX as u64] {
        assert_ne!(bench.write(ino, offset, b"xx").errno(), 0);
        let input = ReadIn { offset, size: 2, ..ReadIn::default() };
        assert_eq!(bench.errno(Opcode::Read, ino, &[input.as_bytes()]), libc::EINVAL);
    }
    let huge = ReadIn { size: TRANSFER_BYTES_MAX + 1, ..ReadIn::default() };
    assert_eq!(bench.errno(Opcode::Read, ino, &[huge.as_bytes()]), libc::EINVAL);
    let lying = WriteIn { size: 3, ..WriteIn::default() };
    assert_eq!(bench.errno(Opcode::Write, ino, &[lying.as_bytes(), b"xx"]), libc::EINVAL);
}

/// The bytes of a structure, for the fuzzer.
pub(super) fn bytes_of(value: &(impl IntoBytes + Immutable)) -> Vec<u8> {
    value.as_bytes().to_vec()
}
