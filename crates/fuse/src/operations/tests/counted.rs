//! A request that is refused because its change could not be made durable has counted nothing: the
//! kernel sends no FORGET and no RELEASE for it.

use super::*;
use crate::options::Synchronous;
use std::time::{Duration, Instant};
use syncline_device::{MemoryDevice, Operation};
use syncline_fs::Durability;
use syncline_sim::{Fault, FaultDevice};

/// The durability that a mount option or a class demands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Demand {
    Sync,
    DirSync,
    Strict,
}

struct Lab {
    bench: Bench,
    device: Arc<FaultDevice>,
}

impl Lab {
    fn of(demand: Demand) -> Self {
        let device = FaultDevice::new(MemoryDevice::new(64 << 20));
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
        self.device.add(Fault::next(Operation::Flush, u64::MAX));
        let refused = self.bench.errno(opcode, node, arguments);
        self.device.mend();
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
