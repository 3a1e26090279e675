//! Requests whose sender may hold a page of the kernel's cache until it has its answer: none of them
//! waits until the kernel has dropped pages.

use super::*;
use crate::abi::flags::{read as read_flags, setattr, write as write_flags};
use std::io::{self, PipeReader, Read, Write};
use std::os::fd::AsRawFd;
use std::sync::mpsc;
use std::time::Duration;
use syncline_device::{MemoryDevice, Operation, Worker, WorkerOptions};
use syncline_sim::{Fault, FaultDevice};

/// Far longer than any request here takes.
const LONG: Duration = Duration::from_secs(60);

/// A kernel that drops no pages until something is read.
fn slow_kernel(bench: &Bench) -> PipeReader {
    let (reader, mut writer) = io::pipe().unwrap();
    // SAFETY: takes no memory.
    let bytes = unsafe { libc::fcntl(writer.as_raw_fd(), libc::F_SETPIPE_SZ, 4096) };
    writer.write_all(&vec![0; usize::try_from(bytes).unwrap()]).unwrap();
    bench.session.page_cache().start(|| Ok(writer.try_clone()?.into())).unwrap();
    reader
}

/// A kernel whose notifications can be read.
fn quick_kernel(bench: &Bench) -> PipeReader {
    let (reader, writer) = io::pipe().unwrap();
    bench.session.page_cache().start(|| Ok(writer.try_clone()?.into())).unwrap();
    reader
}

/// True if a request is answered while the kernel drops nothing.
fn is_answered(bench: &Arc<Bench>, opcode: Opcode, ino: u64, arguments: &[&[u8]]) -> bool {
    let (bench, arguments) = (bench.clone(), arguments.concat());
    let (answered, answer) = mpsc::channel();
    std::thread::spawn(move || {
        let worker = Worker::new(WorkerOptions::default()).unwrap();
        let reply = worker.run(serve(&bench.session, &bench.request(opcode, ino, &[&arguments])));
        assert_eq!(reply.errno(), 0, "{opcode:?}");
        let _ = answered.send(());
    });
    answer.recv_timeout(LONG).is_ok()
}

fn write(offset: u64, flags: i32, write_flags: u32) -> WriteIn {
    WriteIn { offset, size: 1, flags: flags as u32, write_flags, ..WriteIn::default() }
}

#[test]
fn no_answer_waits_for_a_page_that_its_sender_may_hold() {
    let bench = Arc::new(Bench::new());
    let ino = bench.create(ROOT_NODE, b"file", libc::O_RDWR).entry.node;
    assert_eq!(bench.write(ino, 0, &[1; 5000]).errno(), 0);
    let mut kernel = slow_kernel(&bench);
    // The descriptor's O_DIRECT may have been switched on when the page was held already.
    let cached = write(512, libc::O_RDWR | libc::O_DIRECT, 0);
    assert!(is_answered(&bench, Opcode::Write, ino, &[cached.as_bytes(), b"x"]), "a cached write");
    // Others wait for the pages of the file.
    let direct = write(0, libc::O_RDWR | libc::O_DIRECT, write_flags::LOCK_OWNER);
    let waiting = bench.clone();
    let waiting = std::thread::spawn(move || {
        waiting.errno(Opcode::Write, ino, &[direct.as_bytes(), b"x"]);
    });
    let read = ReadIn { offset: 4096, size: 4096, ..ReadIn::default() };
    assert!(is_answered(&bench, Opcode::Read, ino, &[read.as_bytes()]), "a read into the cache");
    let back = write(4096, libc::O_RDWR, write_flags::CACHE);
    assert!(is_answered(&bench, Opcode::Write, ino, &[back.as_bytes(), b"x"]), "a write-back");
    // The last page has been read; it may have been dropped and made again since.
    for behind_end in [6000, 20_000] {
        let gap = write(behind_end, libc::O_RDWR, 0);
        assert!(is_answered(&bench, Opcode::Read, ino, &[read.as_bytes()]), "a read");
        assert!(is_answered(&bench, Opcode::Write, ino, &[gap.as_bytes(), b"x"]), "a write behind the end");
    }
    let size = SetAttrIn { valid: setattr::SIZE, size: 30_001, ..SetAttrIn::default() };
    assert!(is_answered(&bench, Opcode::SetAttr, ino, &[size.as_bytes()]), "a truncation");
    let direct = ReadIn { read_flags: read_flags::LOCK_OWNER, ..read };
    assert!(is_answered(&bench, Opcode::Read, ino, &[direct.as_bytes()]), "a direct read");
    assert!(!waiting.is_finished(), "only the direct write waits");
    std::thread::spawn(move || io::copy(&mut kernel, &mut io::sink()));
    waiting.join().unwrap();
}

/// A process that is told a new size reads up to it. It must not find the old page in which the
/// file ended before.
#[test]
fn a_size_is_told_when_the_write_that_made_it_is_answered() {
    let bench = Arc::new(Bench::new());
    let ino = bench.create(ROOT_NODE, b"file", libc::O_RDWR).entry.node;
    assert_eq!(bench.write(ino, 0, &[1; 5000]).errno(), 0);
    let mut kernel = slow_kernel(&bench);
    let mut direct = write(5000, libc::O_WRONLY, write_flags::LOCK_OWNER);
    direct.size = 500;
    let writer = bench.clone();
    let writing = std::thread::spawn(move || {
        assert_eq!(writer.errno(Opcode::Write, ino, &[direct.as_bytes(), &[2; 500]]), 0);
    });
    let deadline = std::time::Instant::now() + LONG;
    while bench.read(ino, 0, 8192).len() != 5500 {
        assert!(std::time::Instant::now() < deadline, "it is not carried out");
        std::thread::yield_now();
    }
    let sizes = || {
        let (told, _) = bench.ask::<AttrOut>(Opcode::GetAttr, ino, &[GetAttrIn::default().as_bytes()]);
        let (found, _) = bench.ask::<EntryOut>(Opcode::Lookup, ROOT_NODE, &[b"file\0"]);
        let (stat, _) = bench.ask::<StatxOut>(Opcode::StatX, ino, &[StatxIn::default().as_bytes()]);
        [told.attr.size, found.attr.size, stat.stat.size]
    };
    assert_eq!(sizes(), [5000; 3], "its pages are not gone");
    std::thread::spawn(move || io::copy(&mut kernel, &mut io::sink()));
    writing.join().unwrap();
    assert_eq!(sizes(), [5500; 3]);
}

/// A second one, of a snapshot for instance, used to take the pages for gone.
#[test]
fn whoever_changes_times_while_pages_are_dropped_waits_for_them_too() {
    let bench = Arc::new(Bench::new());
    let ino = bench.create(ROOT_NODE, b"file", libc::O_RDWR).entry.node;
    let whole = WriteIn { size: 4096, flags: libc::O_RDWR as u32, ..WriteIn::default() };
    assert_eq!(bench.errno(Opcode::Write, ino, &[whole.as_bytes(), &[1; 4096]]), 0);
    let mut kernel = slow_kernel(&bench);
    let times = SetAttrIn { valid: setattr::MTIME, mtime: 7, ..SetAttrIn::default() };
    let (answered, answers) = mpsc::channel();
    let changes: Vec<_> = (0..2)
        .map(|_| {
            let (bench, answered) = (bench.clone(), answered.clone());
            std::thread::spawn(move || {
                assert_eq!(bench.errno(Opcode::SetAttr, ino, &[times.as_bytes()]), 0);
                answered.send(()).unwrap();
            })
        })
        .collect();
    assert!(answers.recv_timeout(Duration::from_millis(300)).is_err(), "its pages are not gone");
    std::thread::spawn(move || io::copy(&mut kernel, &mut io::sink()));
    changes.into_iter().for_each(|change| change.join().unwrap());
    assert!(!bench.session.page_cache().may_be_stored_to(ino));
}

/// A range without an end used to be hundreds of notifications, for each file.
#[test]
fn pages_are_dropped_as_far_as_there_are_any() {
    let bench = Bench::new();
    let mut kernel = quick_kernel(&bench);
    let files = [&b"empty"[..], b"small", b"other"]
        .map(|name| bench.create(ROOT_NODE, name, libc::O_RDWR).entry.node);
    let whole = WriteIn { size: 4096, flags: libc::O_RDWR as u32, ..WriteIn::default() };
    for ino in &files[1..] {
        assert_eq!(bench.errno(Opcode::Write, *ino, &[whole.as_bytes(), &[1; 4096]]), 0);
    }
    bench.mkdir(ROOT_NODE, b"directory");
    let mode = SetAttrIn { valid: setattr::MODE, mode: 0o600, ..SetAttrIn::default() };
    assert_eq!(bench.errno(Opcode::SetAttr, files[1], &[mode.as_bytes()]), 0);
    bench.session.take_over_mapped();
    let mut dropped = Vec::new();
    for _ in 0..3 {
        let mut message = [0; OUT_HEADER_BYTES + size_of::<InvalidateInodeOut>()];
        kernel.read_exact(&mut message).unwrap();
        let (body, _) = InvalidateInodeOut::read_from_prefix(&message[OUT_HEADER_BYTES..]).unwrap();
        assert_eq!((body.offset, body.len), (0, 4096));
        dropped.push(body.ino);
    }
    dropped[1..].sort_unstable();
    assert_eq!(dropped, [files[1], files[1], files[2]]);
    bench.session.page_cache().end();
    drop(bench);
    assert_eq!(kernel.read(&mut [0; 1]).unwrap(), 0, "and nothing else");
}

/// The kernel takes the size from the answer, when it runs the thread that asked.
#[test]
fn a_size_that_a_truncation_makes_waits_for_the_kernel_too() {
    let bench = Bench::new();
    let ino = bench.create(ROOT_NODE, b"file", libc::O_RDWR).entry.node;
    // A busy machine may look too late.
    let may_be_told_early = |size| {
        let size = SetAttrIn { valid: setattr::SIZE, size, ..SetAttrIn::default() };
        assert_eq!(bench.errno(Opcode::SetAttr, ino, &[size.as_bytes()]), 0);
        bench.session.page_cache().tells_its_size(ino, 1)
    };
    assert!(!(1..1000).all(may_be_told_early), "another thread is told it at once");
}

/// The write is carried out, whatever became of its sync.
#[test]
fn pages_of_a_write_whose_sync_fails_are_dropped() {
    let device = FaultDevice::new(MemoryDevice::new(64 << 20));
    let bench = Bench::over(TestFilesystem::on(device.clone(), true), MountOptions::new("test"));
    let ino = bench.create(ROOT_NODE, b"file", libc::O_RDWR).entry.node;
    assert_eq!(bench.write(ino, 0, &[1; 5000]).errno(), 0);
    let mut direct = write(0, libc::O_RDWR | libc::O_DIRECT, write_flags::LOCK_OWNER);
    assert_eq!(bench.errno(Opcode::Write, ino, &[direct.as_bytes(), b"x"]), 0);
    let mut kernel = quick_kernel(&bench);
    assert_eq!(bench.read(ino, 0, 4096).len(), 4096);
    device.add(Fault::next(Operation::Flush, u64::MAX));
    direct.flags |= libc::O_DSYNC as u32;
    assert_eq!(bench.errno(Opcode::Write, ino, &[direct.as_bytes(), b"y"]), libc::EIO);
    device.mend();
    bench.session.page_cache().end();
    let mut message = [0; OUT_HEADER_BYTES + size_of::<InvalidateInodeOut>()];
    kernel.read_exact(&mut message).expect("nothing is dropped");
    let (body, _) = InvalidateInodeOut::read_from_prefix(&message[OUT_HEADER_BYTES..]).unwrap();
    assert_eq!((body.ino, body.offset, body.len), (ino, 0, 4096));
}
