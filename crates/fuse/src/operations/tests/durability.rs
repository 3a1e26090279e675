//! The changes that are durable after a request, by the mount's option and the class of the files.

use super::*;
use crate::control::wire::{COMMAND, ControlIn, MESSAGE_BYTES, Question};
use crate::options::{SyncObserver, Synced, Synchronous};
use parking_lot::Mutex;
use std::mem::ManuallyDrop;
use syncline_fs::Durability;
use syncline_fs::types::Caller;

const ORDERED: Durability = Durability::Ordered(255);

fn set(bench: &Bench, ino: u64, class: Durability) {
    block_on(bench.session.fs().set_durability(ino, Some(class))).unwrap();
}

fn is_durable(bench: &Bench) -> bool {
    let store = bench.session.fs().store();
    store.is_durable(store.last_op())
}

#[test]
fn a_synchronous_mount_keeps_its_word_in_ordered_trees() {
    let bench = Bench::of(MountOptions { synchronous: Synchronous::Everything, ..MountOptions::new("test") });
    set(&bench, ROOT_NODE, ORDERED);
    let ino = bench.create(ROOT_NODE, b"file", libc::O_RDWR).entry.node;
    assert!(is_durable(&bench), "the name");
    assert_eq!(bench.write(ino, 0, b"contents").errno(), 0);
    assert!(is_durable(&bench), "the contents");
    let receipt = bench.session.fs().last_receipt().unwrap();
    assert_eq!((receipt.inodes.listed(), receipt.durability), (&[ino][..], Durability::Fsync));
}

#[test]
fn only_syncs_that_made_something_durable_are_observed() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let observed = seen.clone();
    let observer = SyncObserver::new(move |synced| observed.lock().push(synced));
    let bench = Bench::of(MountOptions { sync_observer: Some(observer), ..MountOptions::new("test") });
    let [ordered, plain] =
        ["ordered", "plain"].map(|name| bench.create(ROOT_NODE, name.as_bytes(), libc::O_RDWR).entry.node);
    set(&bench, ordered, ORDERED);
    for ino in [ordered, plain] {
        assert_eq!(bench.errno(Opcode::FSync, ino, &[FSyncIn::default().as_bytes()]), 0);
    }
    assert_eq!(*seen.lock(), [Synced::Fsync(plain)]);
}

/// A request that changes something: its name, whether it changes a directory, and how it is sent,
/// about the file that is named "file".
type Row = (&'static str, bool, fn(&Bench, u64) -> Reply);

const ROWS: [Row; 21] = [
    ("WRITE", false, |bench, ino| bench.write(ino, 0, &[8; 5000])),
    ("COPY_FILE_RANGE", false, |bench, ino| {
        let input = CopyFileRangeIn { to_node: ino, to_offset: 1 << 20, len: 5000, ..Default::default() };
        bench.send(Opcode::CopyFileRange, ino, &[input.as_bytes()])
    }),
    ("FALLOCATE", false, |bench, ino| allocate(bench, ino, 0, 2 << 20)),
    ("FALLOCATE, punch", false, |bench, ino| {
        allocate(bench, ino, libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE, 0)
    }),
    ("FALLOCATE, zero", false, |bench, ino| allocate(bench, ino, libc::FALLOC_FL_ZERO_RANGE, 0)),
    ("SETATTR, size", false, |bench, ino| {
        let input = SetAttrIn { valid: flags::setattr::SIZE, size: 100, ..SetAttrIn::default() };
        bench.send(Opcode::SetAttr, ino, &[input.as_bytes()])
    }),
    ("SETATTR, mode", false, |bench, ino| {
        let input = SetAttrIn { valid: flags::setattr::MODE, mode: 0o100600, ..SetAttrIn::default() };
        bench.send(Opcode::SetAttr, ino, &[input.as_bytes()])
    }),
    ("OPEN, O_TRUNC", false, |bench, ino| {
        let input = OpenIn { flags: (libc::O_RDWR | libc::O_TRUNC) as u32, ..OpenIn::default() };
        bench.send(Opcode::Open, ino, &[input.as_bytes()])
    }),
    ("SETXATTR", false, |bench, ino| {
        let input = SetXattrIn { size: 5, ..SetXattrIn::default() };
        bench.send(Opcode::SetXattr, ino, &[input.as_bytes(), b"user.name\0value"])
    }),
    ("REMOVEXATTR", false, |bench, ino| bench.send(Opcode::RemoveXattr, ino, &[b"user.name\0"])),
    ("CREATE", true, |bench, _| create(bench, b"created\0", 0)),
    ("CREATE, O_TRUNC", true, |bench, _| create(bench, b"file\0", libc::O_TRUNC)),
    ("MKNOD", true, |bench, _| {
        let input = MkNodIn { mode: 0o100644, ..MkNodIn::default() };
        bench.send(Opcode::MkNod, ROOT_NODE, &[input.as_bytes(), b"node\0"])
    }),
    ("MKDIR", true, |bench, _| {
        let input = MkDirIn { mode: 0o755, umask: 0 };
        bench.send(Opcode::MkDir, ROOT_NODE, &[input.as_bytes(), b"another\0"])
    }),
    ("SYMLINK", true, |bench, _| bench.send(Opcode::Symlink, ROOT_NODE, &[b"symlink\0target\0"])),
    ("LINK", true, |bench, ino| {
        bench.send(Opcode::Link, ROOT_NODE, &[LinkIn { old_node: ino }.as_bytes(), b"link\0"])
    }),
    ("RENAME", true, |bench, _| {
        let input = RenameIn { new_dir: ROOT_NODE };
        bench.send(Opcode::Rename, ROOT_NODE, &[input.as_bytes(), b"link\0renamed\0"])
    }),
    ("RENAME2, exchange", true, |bench, _| {
        let input = Rename2In { new_dir: ROOT_NODE, flags: libc::RENAME_EXCHANGE, ..Default::default() };
        bench.send(Opcode::Rename2, ROOT_NODE, &[input.as_bytes(), b"symlink\0node\0"])
    }),
    ("UNLINK", true, |bench, _| bench.send(Opcode::Unlink, ROOT_NODE, &[b"renamed\0"])),
    ("RMDIR", true, |bench, _| bench.send(Opcode::RmDir, ROOT_NODE, &[b"another\0"])),
    ("LINK, the first name", true, |bench, _| {
        let input = CreateIn { flags: libc::O_RDWR as u32, mode: 0o100644, ..CreateIn::default() };
        let made: CreateOut = bench.ask(Opcode::TmpFile, ROOT_NODE, &[input.as_bytes(), b"x\0"]).0;
        let link = LinkIn { old_node: made.entry.node };
        bench.send(Opcode::Link, ROOT_NODE, &[link.as_bytes(), b"first\0"])
    }),
];

fn allocate(bench: &Bench, ino: u64, mode: i32, offset: u64) -> Reply {
    let input = FAllocateIn { offset, len: 4096, mode: mode as u32, ..FAllocateIn::default() };
    bench.send(Opcode::FAllocate, ino, &[input.as_bytes()])
}

fn create(bench: &Bench, path: &[u8], flags: i32) -> Reply {
    let flags = (libc::O_RDWR | flags) as u32;
    let input = CreateIn { flags, mode: 0o100644, ..CreateIn::default() };
    bench.send(Opcode::Create, ROOT_NODE, &[input.as_bytes(), path])
}

/// Each request with each way in which a mount or a class asks for durability.
#[test]
fn every_change_is_as_durable_as_was_asked_for() {
    let of = |synchronous| Bench::of(MountOptions { synchronous, ..MountOptions::new("test") });
    for (asked, bench, files, directories) in [
        ("nothing", of(Synchronous::Never), false, false),
        ("-o dirsync", of(Synchronous::Directories), false, true),
        ("-o sync", of(Synchronous::Everything), true, true),
        ("class strict", of(Synchronous::Never), true, true),
    ] {
        if asked == "class strict" {
            set(&bench, ROOT_NODE, Durability::Strict);
        }
        let ino = bench.create(ROOT_NODE, b"file", libc::O_RDWR).entry.node;
        for (name, is_of_a_directory, send) in ROWS {
            assert_eq!(bench.write(ino, 1 << 16, &[9; 9000]).errno(), 0);
            assert_eq!(bench.errno(Opcode::FSync, ino, &[FSyncIn::default().as_bytes()]), 0);
            assert!(is_durable(&bench));
            let before = bench.session.fs().store().last_op();
            assert_eq!(send(&bench, ino).errno(), 0, "{name}");
            // A write that nobody syncs commits nothing.
            let is_durable = is_durable(&bench) && bench.session.fs().store().last_op() > before;
            // The daemon does not know which open file the call came through, so it may be one
            // opened with O_SYNC.
            let unknown = name.starts_with("COPY_FILE_RANGE") || name.starts_with("FALLOCATE");
            let expected = unknown || if is_of_a_directory { directories } else { files };
            assert_eq!(is_durable, expected, "{name} with {asked}");
        }
    }
}

/// Another open may have made the file in between, and given it its class.
#[test]
fn a_create_that_truncates_a_strict_file_settles_that() {
    let bench = Bench::new();
    let ino = bench.create(ROOT_NODE, b"file", libc::O_RDWR).entry.node;
    assert_eq!(bench.write(ino, 0, b"contents").errno(), 0);
    set(&bench, ino, Durability::Strict);
    assert_eq!(bench.errno(Opcode::FSync, ino, &[FSyncIn::default().as_bytes()]), 0);
    bench.create(ROOT_NODE, b"file", libc::O_RDWR);
    bench.create(ROOT_NODE, b"file", libc::O_RDWR | libc::O_TRUNC);
    assert!(is_durable(&bench), "its size");
    bench.create(ROOT_NODE, b"another", libc::O_RDWR | libc::O_TRUNC);
    assert!(!is_durable(&bench), "the directory is not strict");
}

/// Why nothing can be written is asked over the control channel.
#[test]
fn a_strict_filesystem_that_gave_up_writing_still_answers() {
    // It can't be closed any more.
    let bench = ManuallyDrop::new(Bench::new());
    set(&bench, ROOT_NODE, Durability::Strict);
    bench.session.control().register("why", || "it is a test".into());
    let somebody = Caller { uid: 0, gid: 0 };
    block_on(bench.session.fs().mkdir(somebody, ROOT_NODE, b"not durable", 0o755)).unwrap();
    bench.session.fs().store().shut_down("the test wants it");
    let question = ControlIn::new(Question::Text, "why", 0, 0).unwrap();
    let mut message = question.as_bytes().to_vec();
    message.resize(MESSAGE_BYTES, 0);
    let (size, command) = (MESSAGE_BYTES as u32, COMMAND);
    let input = IoctlIn { command, in_size: size, out_size: size, ..IoctlIn::default() };
    assert_eq!(bench.errno(Opcode::Ioctl, ROOT_NODE, &[input.as_bytes(), &message]), 0);
}
