//! A request that is refused because its change could not be made durable has counted nothing: the
//! kernel sends no FORGET and no RELEASE for it.

use super::*;
use crate::options::Synchronous;
use bytes::Bytes;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use syncline_device::{AlignedBuf, Completion, Device, DeviceError, MemoryDevice, Operation};
use syncline_fs::Durability;

/// A device whose flushes can be made to fail.
struct Flaky {
    below: Arc<MemoryDevice>,
    fails: AtomicBool,
}

impl Device for Flaky {
    fn size_bytes(&self) -> u64 {
        self.below.size_bytes()
    }
    fn read(&self, offset: u64, buf: AlignedBuf, done: Completion<AlignedBuf>) {
        self.below.read(offset, buf, done);
    }
    fn write(&self, offset: u64, bufs: Vec<Bytes>, done: Completion<()>) {
        self.below.write(offset, bufs, done);
    }
    fn flush(&self, done: Completion<()>) {
        if self.fails.load(Ordering::SeqCst) {
            return done(Err(DeviceError::Abandoned { operation: Operation::Flush }));
        }
        self.below.flush(done);
    }
    fn discard(&self, offset: u64, len_bytes: u64, done: Completion<()>) {
        self.below.discard(offset, len_bytes, done);
    }
}

/// The durability that a mount option or a class demands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Demand {
    Sync,
    DirSync,
    Strict,
}

struct Lab {
    bench: Bench,
    device: Arc<Flaky>,
}

impl Lab {
    fn of(demand: Demand) -> Self {
        let device = Arc::new(Flaky { below: MemoryDevice::new(64 << 20), fails: AtomicBool::new(false) });
        let synchronous = match demand {
            Demand::Sync => Synchronous::Everything,
            Demand::DirSync => Synchronous::Directories,
            Demand::Strict => Synchronous::Never,
        };
        let options = MountOptions { synchronous, ..MountOptions::new("test") };
        let bench = Bench::over(TestFilesystem::on(device.clone(), true), options);
        if demand == Demand::Strict {
            block_on(bench.session.fs().set_durability(ROOT_NODE, Some(Durability::Strict))).unwrap();
        }
        Self { bench, device }
    }

    /// A file with a name that nobody refers to.
    fn file(&self, name: &str) -> u64 {
        let made = self.bench.create(ROOT_NODE, name.as_bytes(), libc::O_RDWR);
        assert_eq!(self.bench.write(made.entry.node, 0, &[7; 9000]).errno(), 0);
        let release = ReleaseIn { handle: made.open.handle, ..ReleaseIn::default() };
        assert_eq!(self.bench.errno(Opcode::Release, made.entry.node, &[release.as_bytes()]), 0);
        self.forget(made.entry.node);
        made.entry.node
    }

    fn forget(&self, ino: u64) {
        self.bench.send(Opcode::Forget, ino, &[ForgetIn { lookups: 1 }.as_bytes()]);
    }

    /// The request is refused because the device does not flush, and has counted nothing of the
    /// inode that now has this name: it goes with that.
    fn is_refused(&self, opcode: Opcode, node: u64, arguments: &[&[u8]], name: &str) {
        self.device.fails.store(true, Ordering::SeqCst);
        let refused = self.bench.errno(opcode, node, arguments);
        self.device.fails.store(false, Ordering::SeqCst);
        assert_eq!(refused, libc::EIO, "{opcode:?}");
        let (fs, path) = (self.bench.session.fs(), [name.as_bytes(), b"\0"].concat());
        let ino = self.bench.ask::<EntryOut>(Opcode::Lookup, ROOT_NODE, &[&path]).0.node;
        self.forget(ino);
        assert!(!fs.is_referred_to(ino), "{opcode:?} keeps a reference");
        let remove = if opcode == Opcode::MkDir { Opcode::RmDir } else { Opcode::Unlink };
        assert_eq!(self.bench.errno(remove, ROOT_NODE, &[&path]), 0);
        if opcode == Opcode::Link {
            return;
        }
        let end = Instant::now() + Duration::from_secs(60);
        while block_on(fs.getattr(ino)).is_ok() {
            assert!(Instant::now() < end, "{opcode:?} keeps the file open");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

#[test]
fn a_request_whose_change_is_not_durable_counts_nothing() {
    for demand in [Demand::Sync, Demand::DirSync, Demand::Strict] {
        let lab = Lab::of(demand);
        let create = CreateIn { flags: libc::O_RDWR as u32, mode: 0o100644, umask: 0, open_flags: 0 };
        lab.is_refused(Opcode::Create, ROOT_NODE, &[create.as_bytes(), b"a\0"], "a");
        let mknod = MkNodIn { mode: 0o100644, ..MkNodIn::default() };
        lab.is_refused(Opcode::MkNod, ROOT_NODE, &[mknod.as_bytes(), b"b\0"], "b");
        let mkdir = MkDirIn { mode: 0o755, umask: 0 };
        lab.is_refused(Opcode::MkDir, ROOT_NODE, &[mkdir.as_bytes(), b"c\0"], "c");
        lab.is_refused(Opcode::Symlink, ROOT_NODE, &[b"d\0target\0"], "d");
        let link = LinkIn { old_node: lab.file("e") };
        lab.is_refused(Opcode::Link, ROOT_NODE, &[link.as_bytes(), b"f\0"], "f");
        if demand != Demand::DirSync {
            let open = OpenIn { flags: (libc::O_RDWR | libc::O_TRUNC) as u32, ..OpenIn::default() };
            lab.is_refused(Opcode::Open, lab.file("g"), &[open.as_bytes()], "g");
        }
        lab.file("h");
        let truncate = CreateIn { flags: (libc::O_RDWR | libc::O_TRUNC) as u32, ..create };
        lab.is_refused(Opcode::Create, ROOT_NODE, &[truncate.as_bytes(), b"h\0"], "h");
    }
}
