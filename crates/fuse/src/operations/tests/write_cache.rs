//! Mounts whose kernel keeps writes: what it hands over, and what is told of losses.

use super::*;
use crate::abi::flags::{open, setattr, write as write_flags};
use crate::control::durability::{DURABILITY, DurabilityMessage, SET};
use crate::operations::write_cache::stalls;
use std::time::{Duration, Instant};
use syncline_device::{Worker, WorkerOptions};
use syncline_fs::Durability;
use syncline_fs::types::{Caller, FileFlags, SetAttributes, SetTime, Timestamp};

const PAGE: usize = 4096;
/// A time long before any test.
const OLD: i64 = 1_000_000_000;

fn bench() -> Bench {
    Bench::of(MountOptions { writeback_cache: true, ..MountOptions::new("test") })
}

impl Bench {
    fn hand_over(&self, ino: u64, offset: u64, data: &[u8]) -> i32 {
        let input = WriteIn {
            offset,
            size: data.len() as u32,
            write_flags: write_flags::CACHE,
            ..WriteIn::default()
        };
        self.errno(Opcode::Write, ino, &[input.as_bytes(), data])
    }

    fn hand_times_over(&self, ino: u64, handle: u32, mtime: i64, ctime: i64) -> i32 {
        let valid = setattr::MTIME | setattr::CTIME | handle;
        let input = SetAttrIn { valid, mtime, ctime, ..SetAttrIn::default() };
        self.errno(Opcode::SetAttr, ino, &[input.as_bytes()])
    }

    fn sync(&self, ino: u64) -> i32 {
        self.errno(Opcode::FSync, ino, &[FSyncIn::default().as_bytes()])
    }

    fn release(&self, ino: u64, handle: u64) {
        let input = ReleaseIn { handle, flags: libc::O_RDWR as u32, ..ReleaseIn::default() };
        assert_eq!(self.errno(Opcode::Release, ino, &[input.as_bytes()]), 0);
    }

    fn times(&self, ino: u64) -> (i64, i64) {
        let found = block_on(self.session.fs().getattr(ino)).unwrap();
        (found.mtime.seconds, found.ctime.seconds)
    }

    fn flag(&self, ino: u64, flags: FileFlags) {
        block_on(self.session.fs().set_file_flags(ino, flags)).unwrap();
    }

    fn make_strict(&self, ino: u64) -> i32 {
        let message =
            DurabilityMessage { action: SET, own: Some(Durability::Strict).into(), ..Default::default() };
        let size = size_of::<DurabilityMessage>() as u32;
        let input = IoctlIn { command: DURABILITY, in_size: size, out_size: size, ..IoctlIn::default() };
        self.errno(Opcode::Ioctl, ino, &[input.as_bytes(), message.as_bytes()])
    }
}

/// Contents that no longer exist anywhere are missing until they are written again.
#[test]
fn a_sync_fails_as_long_as_something_is_missing() {
    let bench = bench();
    let made = bench.create(ROOT_NODE, b"file", libc::O_RDWR);
    let ino = made.entry.node;
    assert_eq!(bench.hand_over(ino, 0, &[1; 2 * PAGE]), 0);
    assert_eq!(bench.sync(ino), 0);
    bench.flag(ino, FileFlags { immutable: true, ..FileFlags::default() });
    assert_eq!(bench.hand_over(ino, 0, &[2; 2 * PAGE]), libc::EPERM);
    bench.flag(ino, FileFlags::default());
    assert_eq!(bench.session.fs().counters().writes_lost, 1);
    // The next write(2), for which the kernel asks, is told too; one that only looks is not.
    let ask = |flags: u32, handle: u64| {
        let input = GetAttrIn { flags, handle, ..GetAttrIn::default() };
        bench.errno(Opcode::GetAttr, ino, &[input.as_bytes()])
    };
    assert_eq!((ask(0, 0), ask(1, 0)), (0, 0));
    assert_eq!((ask(1, made.open.handle), ask(1, made.open.handle)), (libc::EPERM, 0));
    for _ in 0..2 {
        assert_eq!(bench.sync(ino), libc::EPERM);
    }
    // P3: it does not take another name either, and no other file takes its.
    bench.create(ROOT_NODE, b"whole", libc::O_RDWR);
    let rename = |old: &[u8], new: &[u8], flags: u32| {
        let input = Rename2In { new_dir: ROOT_NODE, flags, padding: 0 };
        bench.errno(Opcode::Rename2, ROOT_NODE, &[input.as_bytes(), old, b"\0", new, b"\0"])
    };
    assert_eq!(rename(b"file", b"whole", 0), libc::EPERM);
    assert_eq!(rename(b"whole", b"file", libc::RENAME_EXCHANGE), libc::EPERM);
    let plain = RenameIn { new_dir: ROOT_NODE };
    assert_eq!(bench.errno(Opcode::Rename, ROOT_NODE, &[plain.as_bytes(), b"file\0whole\0"]), libc::EPERM);
    // One page is written again, the other one is cut off.
    assert_eq!(bench.hand_over(ino, 0, &[3; PAGE]), 0);
    assert_eq!(bench.sync(ino), libc::EPERM);
    let cut = SetAttrIn { valid: setattr::SIZE, size: PAGE as u64, ..SetAttrIn::default() };
    assert_eq!(bench.errno(Opcode::SetAttr, ino, &[cut.as_bytes()]), 0);
    assert_eq!(bench.sync(ino), 0);
    assert_eq!(rename(b"file", b"whole", 0), 0);
    assert_eq!(bench.read(ino, 0, 1 << 16), [3; PAGE]);
    bench.release(ino, made.open.handle);
}

/// Few programs look at what close(2) returns, and `File` in Rust does not.
#[test]
fn half_a_file_takes_no_name_when_its_programs_have_closed_it() {
    let bench = bench();
    let made = bench.create(ROOT_NODE, b"half", libc::O_RDWR);
    let ino = made.entry.node;
    let whole = bench.create(ROOT_NODE, b"whole", libc::O_RDWR);
    bench.release(whole.entry.node, whole.open.handle);
    bench.flag(ino, FileFlags { immutable: true, ..FileFlags::default() });
    assert_eq!(bench.hand_over(ino, 0, &[2; PAGE]), libc::EPERM);
    bench.flag(ino, FileFlags::default());
    bench.release(ino, made.open.handle);
    assert!(bench.session.write_cache().is_empty());
    let rename = |old: &[u8], new: &[u8], flags: u32| {
        let input = Rename2In { new_dir: ROOT_NODE, flags, padding: 0 };
        bench.errno(Opcode::Rename2, ROOT_NODE, &[input.as_bytes(), old, b"\0", new, b"\0"])
    };
    assert_eq!(rename(b"half", b"whole", 0), libc::EPERM);
    assert_eq!(rename(b"whole", b"half", libc::RENAME_EXCHANGE), libc::EPERM);
    // Who opens it later has lost nothing.
    let input = OpenIn { flags: libc::O_RDWR as u32, open_flags: 0 };
    let opened = bench.ask::<OpenOut>(Opcode::Open, ino, &[input.as_bytes()]).0;
    assert_eq!(bench.sync(ino), 0);
    assert_eq!(rename(b"half", b"whole", 0), libc::EPERM);
    assert_eq!(bench.hand_over(ino, 0, &[2; PAGE]), 0);
    assert_eq!(rename(b"half", b"whole", 0), 0);
    bench.release(ino, opened.handle);
}

/// Where writes are lost, memory may be short, and the kernel forgets files that nobody has open.
#[test]
fn half_a_file_replaces_no_whole_one_when_the_kernel_has_forgotten_it() {
    let bench = bench();
    let whole = bench.create(ROOT_NODE, b"whole", libc::O_RDWR);
    bench.release(whole.entry.node, whole.open.handle);
    let lose = |name: &[u8]| {
        let made = bench.create(ROOT_NODE, name, libc::O_RDWR);
        let ino = made.entry.node;
        bench.flag(ino, FileFlags { immutable: true, ..FileFlags::default() });
        assert_eq!(bench.hand_over(ino, 0, &[2; PAGE]), libc::EPERM);
        bench.flag(ino, FileFlags::default());
        bench.release(ino, made.open.handle);
        ino
    };
    let forget = |ino| drop(bench.send(Opcode::Forget, ino, &[ForgetIn { lookups: 1 }.as_bytes()]));
    let rename = |old: &[u8], new: &[u8], flags: u32| {
        let input = Rename2In { new_dir: ROOT_NODE, flags, padding: 0 };
        bench.errno(Opcode::Rename2, ROOT_NODE, &[input.as_bytes(), old, b"\0", new, b"\0"])
    };
    let ino = lose(b"half");
    assert_eq!(rename(b"half", b"another", 0), libc::EPERM);
    forget(ino);
    assert_eq!(rename(b"half", b"whole", 0), libc::EPERM);
    assert_eq!(rename(b"whole", b"half", libc::RENAME_EXCHANGE), libc::EPERM);
    // A log in which something is missing can be put aside.
    assert_eq!(rename(b"half", b"another", 0), 0);
    assert_eq!(rename(b"another", b"whole", 0), libc::EPERM);
    assert_eq!(bench.ask::<EntryOut>(Opcode::Lookup, ROOT_NODE, &[b"another\0"]).0.node, ino);
    let input = OpenIn { flags: libc::O_RDWR as u32, open_flags: 0 };
    let opened = bench.ask::<OpenOut>(Opcode::Open, ino, &[input.as_bytes()]).0;
    assert_eq!(bench.hand_over(ino, 0, &[2; PAGE]), 0);
    assert_eq!(rename(b"another", b"whole", 0), 0);
    bench.release(ino, opened.handle);
    // Nothing is kept of what was removed.
    let ino = lose(b"removed");
    assert_eq!(bench.errno(Opcode::Unlink, ROOT_NODE, &[b"removed\0"]), 0);
    assert!(bench.session.write_cache().has_losses());
    forget(ino);
    assert!(!bench.session.write_cache().has_losses());
}

/// The kernel reads a page of which a part is written, if it does not have it, and hands over all
/// of it.
#[test]
fn a_part_of_a_lost_page_that_is_written_again_does_not_make_it_whole() {
    let bench = bench();
    let made = bench.create(ROOT_NODE, b"log", libc::O_RDWR);
    let ino = made.entry.node;
    bench.flag(ino, FileFlags { immutable: true, ..FileFlags::default() });
    assert_eq!(bench.hand_over(ino, 0, &[1; 3000]), libc::EPERM);
    bench.flag(ino, FileFlags::default());
    assert_eq!(bench.sync(ino), libc::EPERM);
    assert_eq!(bench.read(ino, 0, PAGE as u32), b"");
    let page = [[0; 2000], [1; 2000]].concat();
    assert_eq!(bench.hand_over(ino, 0, &page), 0);
    assert_eq!(bench.sync(ino), libc::EPERM, "the first 2000 bytes are missing");
    // What is written in other ways comes as it was written.
    let exactly = |len: usize| {
        let input = WriteIn { size: len as u32, ..WriteIn::default() };
        bench.errno(Opcode::Write, ino, &[input.as_bytes(), &vec![1; len]])
    };
    assert_eq!((exactly(2000), bench.sync(ino)), (0, libc::EPERM));
    assert_eq!((exactly(3000), bench.sync(ino)), (0, 0));
    bench.release(ino, made.open.handle);
}

#[test]
fn opening_with_truncation_cuts_off_what_is_missing() {
    let bench = bench();
    let made = bench.create(ROOT_NODE, b"log", libc::O_RDWR);
    let ino = made.entry.node;
    let lose = || {
        bench.flag(ino, FileFlags { immutable: true, ..FileFlags::default() });
        assert_eq!(bench.hand_over(ino, 0, &[1; PAGE]), libc::EPERM);
        bench.flag(ino, FileFlags::default());
        assert_eq!(bench.sync(ino), libc::EPERM);
    };
    lose();
    let input = OpenIn { flags: (libc::O_RDWR | libc::O_TRUNC) as u32, open_flags: 0 };
    let opened = bench.ask::<OpenOut>(Opcode::Open, ino, &[input.as_bytes()]).0;
    assert_eq!(bench.sync(ino), 0);
    bench.release(ino, opened.handle);
    lose();
    let again = bench.create(ROOT_NODE, b"log", libc::O_RDWR | libc::O_TRUNC);
    assert_eq!((again.entry.node, bench.sync(ino)), (ino, 0));
    bench.release(ino, again.open.handle);
    bench.release(ino, made.open.handle);
}

/// The attributes that a look brings would keep the kernel from asking before a write.
#[test]
fn who_looks_at_a_file_does_not_keep_its_writer_from_being_told() {
    let bench = bench();
    let made = bench.create(ROOT_NODE, b"file", libc::O_RDWR);
    let ino = made.entry.node;
    let keeps_none = || {
        let looked = bench.send(Opcode::GetAttr, ino, &[GetAttrIn::default().as_bytes()]);
        let more = bench.send(Opcode::StatX, ino, &[StatxIn::default().as_bytes()]);
        let found = bench.ask::<EntryOut>(Opcode::Lookup, ROOT_NODE, &[b"file\0"]).0;
        let all = [looked.notification().is_some(), more.notification().is_some(), found.attr_valid == 0];
        assert!(all == [all[0]; 3], "{all:?}");
        all[0]
    };
    assert!(!keeps_none());
    bench.flag(ino, FileFlags { immutable: true, ..FileFlags::default() });
    assert_eq!(bench.hand_over(ino, 0, &[2; PAGE]), libc::EPERM);
    bench.flag(ino, FileFlags::default());
    assert!(keeps_none());
    let input = GetAttrIn { flags: 1, handle: made.open.handle, ..GetAttrIn::default() };
    assert_eq!(bench.errno(Opcode::GetAttr, ino, &[input.as_bytes()]), libc::EPERM);
    assert!(!keeps_none());
    // chattr +i and -i.
    for (flags, refuses) in [(0x10u32, true), (0, false)] {
        let input = IoctlIn { command: 0x4008_6602, in_size: 4, ..IoctlIn::default() };
        assert_eq!(bench.errno(Opcode::Ioctl, ino, &[input.as_bytes(), flags.as_bytes()]), 0);
        assert_eq!(keeps_none(), refuses);
    }
    bench.release(ino, made.open.handle);
}

/// Who had it open before chattr(1) learns it from write(2), as the kernel asks once it was told that
/// something changed.
#[test]
fn an_immutable_file_takes_no_more_writes() {
    let bench = bench();
    let made = bench.create(ROOT_NODE, b"file", libc::O_RDWR);
    let input = GetAttrIn { flags: 1, handle: made.open.handle, ..GetAttrIn::default() };
    let ask = || bench.errno(Opcode::GetAttr, made.entry.node, &[input.as_bytes()]);
    assert_eq!(ask(), 0);
    bench.flag(made.entry.node, FileFlags { immutable: true, ..FileFlags::default() });
    assert_eq!((ask(), ask()), (libc::EPERM, libc::EPERM));
    let lost = bench.send(
        Opcode::Write,
        made.entry.node,
        &[WriteIn { size: 1, write_flags: write_flags::CACHE, ..WriteIn::default() }.as_bytes(), b"x"],
    );
    assert_eq!(lost.errno(), libc::EPERM);
    assert!(lost.notification().is_some(), "the kernel asks before the next write");
}

#[test]
fn a_file_without_a_name_gets_none_while_something_is_missing() {
    let bench = bench();
    let input = CreateIn { flags: libc::O_RDWR as u32, mode: 0o100644, ..CreateIn::default() };
    let made = bench.ask::<CreateOut>(Opcode::TmpFile, ROOT_NODE, &[input.as_bytes(), b"-\0"]).0;
    let ino = made.entry.node;
    bench.flag(ino, FileFlags { immutable: true, ..FileFlags::default() });
    assert_eq!(bench.hand_over(ino, 0, b"contents"), libc::EPERM);
    bench.flag(ino, FileFlags::default());
    let link = |name: &[u8]| {
        let input = LinkIn { old_node: ino };
        bench.errno(Opcode::Link, ROOT_NODE, &[input.as_bytes(), name])
    };
    assert_eq!(link(b"name\0"), libc::EPERM);
    assert_eq!(bench.hand_over(ino, 0, b"contents"), 0);
    assert_eq!(link(b"name\0"), 0);
    bench.release(ino, made.open.handle);
}

#[test]
fn what_is_punched_out_is_not_missing() {
    let bench = bench();
    let ino = bench.create(ROOT_NODE, b"file", libc::O_RDWR).entry.node;
    assert_eq!(bench.hand_over(ino, 0, &[1; 2 * PAGE]), 0);
    bench.flag(ino, FileFlags { immutable: true, ..FileFlags::default() });
    assert_eq!(bench.hand_over(ino, 0, &[2; PAGE]), libc::EPERM);
    bench.flag(ino, FileFlags::default());
    let mode = (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE) as u32;
    let input = FAllocateIn { len: PAGE as u64, mode, ..FAllocateIn::default() };
    assert_eq!(bench.errno(Opcode::FAllocate, ino, &[input.as_bytes()]), 0);
    assert_eq!(bench.sync(ino), 0);
}

#[test]
fn the_times_of_writes_are_the_kernels() {
    let bench = bench();
    let made = bench.create(ROOT_NODE, b"file", libc::O_RDWR);
    let ino = made.entry.node;
    assert_eq!(bench.hand_over(ino, 0, b"contents"), 0);
    assert!(bench.times(ino).0 > OLD, "new contents never have an old mtime");
    assert_eq!(bench.hand_times_over(ino, setattr::HANDLE, OLD, OLD + 1), 0);
    assert_eq!(bench.times(ino), (OLD, OLD + 1));
    // Contents that come late, as they do from write-back in the background.
    assert_eq!(bench.hand_over(ino, 0, b"late"), 0);
    assert!(bench.times(ino).0 > OLD + 1);
    assert_eq!(bench.sync(ino), 0);
    assert_eq!(bench.times(ino), (OLD, OLD + 1), "there is nothing left to come");
    assert_eq!(bench.hand_over(ino, 0, b"later"), 0);
    bench.release(ino, made.open.handle);
    assert_eq!(bench.times(ino), (OLD, OLD + 1));
}

/// Another one may have written since, and the kernel has yet to tell when.
#[test]
fn a_close_that_is_not_the_last_sets_no_times_back() {
    let bench = bench();
    let made = bench.create(ROOT_NODE, b"file", libc::O_RDWR);
    let ino = made.entry.node;
    let input = OpenIn { flags: libc::O_RDWR as u32, open_flags: 0 };
    let other = bench.ask::<OpenOut>(Opcode::Open, ino, &[input.as_bytes()]).0;
    assert_eq!(bench.hand_times_over(ino, setattr::HANDLE, OLD, OLD), 0);
    assert_eq!(bench.hand_over(ino, 0, b"contents"), 0);
    bench.release(ino, other.handle);
    assert!(bench.times(ino).0 > OLD);
    bench.release(ino, made.open.handle);
    assert_eq!(bench.times(ino), (OLD, OLD));
}

#[test]
fn times_that_a_program_sets_stay() {
    let bench = bench();
    let made = bench.create(ROOT_NODE, b"file", libc::O_RDWR);
    let ino = made.entry.node;
    assert_eq!(bench.hand_times_over(ino, setattr::HANDLE, OLD, OLD), 0);
    assert_eq!(bench.hand_over(ino, 0, b"contents"), 0);
    let (valid, at) = (setattr::MTIME | setattr::ATIME | setattr::CTIME, OLD + 5);
    let input = SetAttrIn { valid, mtime: at, atime: at, ctime: at, ..SetAttrIn::default() };
    assert_eq!(bench.errno(Opcode::SetAttr, ino, &[input.as_bytes()]), 0);
    // The close that came before is told of only now.
    bench.release(ino, made.open.handle);
    assert_eq!(bench.times(ino), (at, at));
    // utimensat(2) that leaves the access time, after the last close.
    assert_eq!(bench.hand_times_over(ino, 0, OLD + 7, OLD + 8), 0);
    assert_eq!(bench.times(ino), (OLD + 7, OLD + 8));
}

/// Times of writes that came before their contents hold in the end, but for those of later changes.
#[test]
fn a_change_of_mode_keeps_its_time() {
    for is_synced in [true, false] {
        let bench = bench();
        let made = bench.create(ROOT_NODE, b"file", libc::O_RDWR);
        let ino = made.entry.node;
        assert_eq!(bench.hand_times_over(ino, setattr::HANDLE, OLD, OLD), 0);
        assert_eq!(bench.hand_over(ino, 0, b"contents"), 0);
        let (valid, ctime) = (setattr::MODE | setattr::CTIME, OLD + 5);
        let input = SetAttrIn { valid, mode: 0o600, ctime, ..SetAttrIn::default() };
        assert_eq!(bench.errno(Opcode::SetAttr, ino, &[input.as_bytes()]), 0);
        if is_synced {
            assert_eq!(bench.sync(ino), 0);
        } else {
            bench.release(ino, made.open.handle);
        }
        assert_eq!(bench.times(ino), (OLD, OLD + 5));
    }
}

#[test]
fn a_truncation_has_the_kernels_times() {
    let bench = bench();
    let ino = bench.create(ROOT_NODE, b"file", libc::O_RDWR).entry.node;
    assert_eq!(bench.hand_over(ino, 0, b"contents"), 0);
    let valid = setattr::SIZE | setattr::MTIME | setattr::CTIME | setattr::HANDLE;
    let input = SetAttrIn { valid, size: 3, mtime: OLD, ctime: OLD, ..SetAttrIn::default() };
    let (answer, _) = bench.ask::<AttrOut>(Opcode::SetAttr, ino, &[input.as_bytes()]);
    assert_eq!((answer.attr.size, bench.times(ino)), (3, (OLD, OLD)));
}

/// A size that the kernel knows and we don't lies between: what was written there is not what was
/// stored behind the end.
#[test]
fn a_file_that_grows_keeps_what_was_written_behind_the_size_that_came() {
    let bench = bench();
    let ino = bench.create(ROOT_NODE, b"file", libc::O_RDWR).entry.node;
    assert_eq!(bench.hand_over(ino, 0, &[1; 50]), 0);
    let longer = SetAttrIn { valid: setattr::SIZE, size: 100, ..SetAttrIn::default() };
    assert_eq!(bench.errno(Opcode::SetAttr, ino, &[longer.as_bytes()]), 0);
    assert_eq!(bench.hand_over(ino, 0, &[2; 100]), 0);
    assert_eq!(bench.read(ino, 0, 200), [2; 100]);
}

#[test]
fn an_append_only_file_takes_pages_that_begin_as_they_were() {
    let bench = bench();
    let ino = bench.create(ROOT_NODE, b"log", libc::O_RDWR).entry.node;
    assert_eq!(bench.hand_over(ino, 0, b"one line\n"), 0);
    bench.flag(ino, FileFlags { append_only: true, ..FileFlags::default() });
    assert_eq!(bench.hand_over(ino, 0, b"one line\nanother\n"), 0);
    assert_eq!(bench.hand_over(ino, 0, b"one line\n"), 0);
    assert_eq!(bench.hand_over(ino, 0, b"one line!another\nand a third\n"), libc::EPERM);
    assert_eq!(bench.hand_over(ino, 17, b"last\n"), 0);
    assert_eq!(bench.read(ino, 0, 100), b"one line\nanother\nlast\n");
}

#[test]
fn what_was_appended_comes_in_any_order() {
    let bench = bench();
    let ino = bench.create(ROOT_NODE, b"log", libc::O_RDWR).entry.node;
    assert_eq!(bench.hand_over(ino, 0, b"one line\n"), 0);
    bench.flag(ino, FileFlags { append_only: true, ..FileFlags::default() });
    let mut page = [b'x'; PAGE];
    page[..9].copy_from_slice(b"one line\n");
    assert_eq!(bench.hand_over(ino, PAGE as u64, b"behind the first page\n"), 0);
    assert_eq!(bench.hand_over(ino, 0, &page), 0);
    assert_eq!(bench.read(ino, 0, 1 << 16), [&page[..], b"behind the first page\n"].concat());
    assert_eq!(bench.sync(ino), 0);
    page[100] = b'y';
    assert_eq!(bench.hand_over(ino, 0, &page), libc::EPERM, "that has come");
}

#[test]
fn strict_files_are_written_past_the_cache() {
    let bench = bench();
    let made = bench.create(ROOT_NODE, b"file", libc::O_RDWR);
    let ino = made.entry.node;
    assert_eq!(made.open.open_flags & open::DIRECT_IO, 0);
    assert_eq!(bench.make_strict(ino), libc::EBUSY, "what is written through it is not durable at once");
    bench.release(ino, made.open.handle);
    assert_eq!(bench.make_strict(ino), 0);
    let input = OpenIn { flags: libc::O_RDWR as u32, open_flags: 0 };
    let opened = bench.ask::<OpenOut>(Opcode::Open, ino, &[input.as_bytes()]).0;
    assert_ne!(opened.open_flags & open::DIRECT_IO, 0);
    let reading = OpenIn { flags: libc::O_RDONLY as u32, open_flags: 0 };
    let reading = bench.ask::<OpenOut>(Opcode::Open, ino, &[reading.as_bytes()]).0;
    assert_eq!(reading.open_flags & open::DIRECT_IO, 0);
    assert!(bench.session.write_cache().is_empty());
    // The kernel does not move the mtime for such writes, and hands it over with the ctime of a
    // rename.
    let old = SetTime::To(Timestamp { seconds: OLD, nanoseconds: 0 });
    let changes = SetAttributes { mtime: Some(old), ..SetAttributes::default() };
    block_on(bench.session.fs().setattr(Caller { uid: 0, gid: 0 }, ino, changes)).unwrap();
    let input = WriteIn { handle: opened.handle, size: 1, ..WriteIn::default() };
    assert_eq!(bench.errno(Opcode::Write, ino, &[input.as_bytes(), b"x"]), 0);
    let store = bench.session.fs().store();
    assert!(store.is_durable(store.last_op()));
    let written = bench.times(ino).0;
    for handle in [setattr::HANDLE, 0] {
        assert_eq!(bench.hand_times_over(ino, handle, OLD, OLD + 9), 0);
        assert_eq!(bench.times(ino), (written, OLD + 9));
    }
    // A program sets another one.
    assert_eq!(bench.hand_times_over(ino, 0, OLD + 3, OLD + 4), 0);
    assert_eq!(bench.times(ino), (OLD + 3, OLD + 4));
    bench.release(ino, opened.handle);
    // In a directory of that class, a file is so from the beginning.
    assert_eq!(bench.make_strict(ROOT_NODE), 0);
    let born = bench.create(ROOT_NODE, b"born", libc::O_RDWR);
    assert_ne!(born.open.open_flags & open::DIRECT_IO, 0);
}

#[test]
fn a_bare_chown_with_a_change_time_takes_setuid_away() {
    let bench = bench();
    let ino = bench.create(ROOT_NODE, b"tool", libc::O_RDWR).entry.node;
    let chmod = SetAttrIn { valid: setattr::MODE, mode: 0o104755, ..SetAttrIn::default() };
    assert_eq!(bench.errno(Opcode::SetAttr, ino, &[chmod.as_bytes()]), 0);
    let chown = SetAttrIn { valid: setattr::CTIME, ctime: OLD, ..SetAttrIn::default() };
    let (answer, _) = bench.ask::<AttrOut>(Opcode::SetAttr, ino, &[chown.as_bytes()]);
    assert_eq!((answer.attr.mode, answer.attr.ctime), (0o100755, OLD));
}

#[test]
fn a_removed_file_still_takes_what_comes() {
    let bench = bench();
    let made = bench.create(ROOT_NODE, b"file", libc::O_RDWR);
    let ino = made.entry.node;
    assert_eq!(bench.errno(Opcode::Unlink, ROOT_NODE, &[b"file\0"]), 0);
    let before = bench.session.fs().store().last_op();
    for handle in [0, setattr::HANDLE] {
        assert_eq!(bench.hand_times_over(ino, handle, OLD, OLD), 0);
    }
    assert_eq!(bench.session.fs().store().last_op(), before, "nobody will see these times");
    assert_eq!(bench.hand_over(ino, 0, b"contents"), 0);
    assert_eq!(bench.sync(ino), 0);
    bench.release(ino, made.open.handle);
}

/// A slow device takes its time for what a large memory has kept.
#[test]
fn patience_lasts_while_something_comes() {
    let bench = bench();
    let worker = Worker::new(WorkerOptions::default()).unwrap();
    let begun = Instant::now();
    worker.run(async {
        let comes = async {
            for _ in 0..20 {
                Worker::current().sleep(Duration::from_millis(20)).await;
                bench.session.write_cache().pages_came(7, &(0..1));
            }
        };
        futures_lite::future::zip(comes, stalls(&bench.session, Duration::from_millis(100))).await
    });
    assert!(begun.elapsed() >= Duration::from_millis(450), "{:?}", begun.elapsed());
}
