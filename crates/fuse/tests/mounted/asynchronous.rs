//! Direct writes through io_uring and AIO, for which no thread waits: writes acknowledged as
//! durable are durable, and readers through the page cache see them.

use super::TestMount;
use crate::support::{Setup, TestFilesystem};
use io_uring::{IoUring, opcode, types};
use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use syncline_device::{AlignedBuf, block_on};
use syncline_fs::types::ROOT;

const BLOCK: usize = 4096;
/// Writes in flight at once.
const DEPTH: u32 = 32;

/// How writes are handed to the kernel.
#[derive(Clone, Copy, Debug)]
enum Way {
    Uring,
    Aio,
}

/// `struct iocb` of io_submit(2).
#[derive(Default)]
#[repr(C)]
struct ControlBlock {
    data: u64,
    key: u32,
    flags_of_write: i32,
    opcode: u16,
    priority: i16,
    descriptor: u32,
    buffer: u64,
    len: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    event_descriptor: u32,
}

/// `struct io_event`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Event {
    data: u64,
    control_block: u64,
    result: i64,
    result2: i64,
}

const AIO_WRITE: u16 = 1;

/// Writes these blocks (at most [`DEPTH`]) all at once, with these flags of pwritev2(2), and
/// returns when all are acknowledged.
fn write_all(way: Way, file: &File, blocks: &[(u64, AlignedBuf)], flags: i32) {
    match way {
        Way::Uring => write_by_uring(file, blocks, flags),
        Way::Aio => write_by_aio(file, blocks, flags),
    }
}

fn write_by_uring(file: &File, blocks: &[(u64, AlignedBuf)], flags: i32) {
    let mut ring = IoUring::new(DEPTH).unwrap();
    for (offset, contents) in blocks {
        let descriptor = types::Fd(file.as_raw_fd());
        let write = opcode::Write::new(descriptor, contents.as_ptr(), contents.len() as u32);
        let write = write.offset(*offset).rw_flags(flags).build();
        // SAFETY: the caller keeps file and buffers until all writes have completed.
        unsafe { ring.submission().push(&write).unwrap() };
    }
    let mut results = Vec::new();
    while results.len() < blocks.len() {
        // A thread that is stopped for a moment gets EINTR.
        match ring.submit_and_wait(1) {
            Err(error) if error.raw_os_error() != Some(libc::EINTR) => panic!("{error}"),
            _ => {}
        }
        results.extend(ring.completion().map(|completion| completion.result()));
    }
    assert_eq!(results, vec![BLOCK as i32; blocks.len()]);
}

fn write_by_aio(file: &File, blocks: &[(u64, AlignedBuf)], flags: i32) {
    let of = |(offset, contents): &(u64, AlignedBuf)| ControlBlock {
        flags_of_write: flags,
        opcode: AIO_WRITE,
        descriptor: file.as_raw_fd() as u32,
        buffer: contents.as_ptr().addr() as u64,
        len: contents.len() as u64,
        offset: *offset as i64,
        ..ControlBlock::default()
    };
    let mut controls: Vec<ControlBlock> = blocks.iter().map(of).collect();
    let pointers: Vec<*mut ControlBlock> = controls.iter_mut().map(std::ptr::from_mut).collect();
    let mut events = vec![Event::default(); blocks.len()];
    let mut context = 0u64;
    let count = blocks.len() as libc::c_long;
    let nothing = std::ptr::null_mut::<libc::timespec>();
    let failure = || std::io::Error::last_os_error();
    // SAFETY: everything that the pointers refer to lives until the last event has come, and has
    // the kernel's layout.
    unsafe {
        assert_eq!(libc::syscall(libc::SYS_io_setup, DEPTH, &raw mut context), 0, "{}", failure());
        let submitted = libc::syscall(libc::SYS_io_submit, context, count, pointers.as_ptr());
        assert_eq!(submitted, count, "{}", failure());
        let mut got = 0;
        while got < count {
            let (rest, room) = (count - got, events.as_mut_ptr().add(got as usize));
            let more = libc::syscall(libc::SYS_io_getevents, context, rest, rest, room, nothing);
            // A thread that is stopped for a moment gets EINTR.
            assert!(more >= 0 || failure().raw_os_error() == Some(libc::EINTR), "{}", failure());
            got += more.max(0);
        }
        assert_eq!(libc::syscall(libc::SYS_io_destroy, context), 0, "{}", failure());
    }
    assert!(events.iter().all(|event| event.result == BLOCK as i64));
}

/// Consecutive blocks filled with one byte.
fn blocks(count: u32, byte: u8) -> Vec<(u64, AlignedBuf)> {
    (0..u64::from(count)).map(|index| (index * BLOCK as u64, AlignedBuf::copy_from(&[byte; BLOCK]))).collect()
}

fn open_direct(path: &Path, flags: i32) -> File {
    OpenOptions::new().write(true).custom_flags(libc::O_DIRECT | flags).open(path).unwrap()
}

/// Creates a durable file of zeros, long enough for [`DEPTH`] blocks: writing beyond the end is
/// never asynchronous.
fn make(path: &Path) {
    fs::write(path, vec![0; DEPTH as usize * BLOCK]).unwrap();
    File::open(path).unwrap().sync_all().unwrap();
}

#[test]
fn what_is_acknowledged_as_synced_outlives_a_killed_daemon() {
    for direct_io in [false, true] {
        let Some(mut mount) = TestMount::with(Setup { in_file: true, direct_io, ..Setup::default() }) else {
            return;
        };
        let mut expected = Vec::new();
        for way in [Way::Uring, Way::Aio] {
            let kinds = [(libc::O_DSYNC, 0), (libc::O_SYNC, 0), (0, libc::RWF_DSYNC), (0, libc::RWF_SYNC)];
            for (open_flags, write_flags) in kinds {
                let byte = expected.len() as u8 + 1;
                let path = mount.path().join(byte.to_string());
                make(&path);
                write_all(way, &open_direct(&path, open_flags), &blocks(DEPTH, byte), write_flags);
                expected.push((byte, way, open_flags, write_flags));
            }
        }
        mount.kill_daemon();
        let left = TestFilesystem::open(&mount.image());
        for (byte, way, open_flags, write_flags) in expected {
            let ino = block_on(left.fs.lookup(ROOT, byte.to_string().as_bytes())).unwrap().ino;
            let pieces = block_on(left.fs.read(ino, 0, DEPTH as usize * BLOCK)).unwrap();
            let lost =
                pieces.concat().chunks(BLOCK).filter(|block| block.iter().any(|&is| is != byte)).count();
            let kind = format!("{way:?}, opened with {open_flags:#x}, written with {write_flags:#x}");
            assert_eq!(lost, 0, "blocks lost of {DEPTH}: {kind}, direct_io {direct_io}");
        }
        left.close();
    }
}

#[test]
fn a_synced_direct_write_costs_one_flush() {
    const WRITES: u64 = 50;
    for direct_io in [false, true] {
        let Some(mount) = TestMount::with(Setup { direct_io, ..Setup::default() }) else { return };
        let path = mount.path().join("file");
        make(&path);
        for flags in [libc::O_DSYNC, libc::O_SYNC] {
            let file = open_direct(&path, flags);
            let before = mount.flushes();
            for index in 0..WRITES {
                file.write_all_at(&blocks(1, index as u8)[0].1, index % 8 * BLOCK as u64).unwrap();
            }
            let used = mount.flushes() - before;
            // A checkpoint may fall into this time, with two flushes of its own.
            assert!((WRITES..=WRITES + 2).contains(&used), "{used} flushes for {WRITES} writes");
        }
        mount.unmount();
    }
}

#[test]
fn cached_readers_see_what_asynchronous_direct_writes_have_written() {
    const WRITES: u64 = 300;
    for way in [Way::Uring, Way::Aio] {
        let Some(mount) = TestMount::or_skip() else { return };
        let path = mount.path().join("shared");
        make(&path);
        let written = AtomicU64::new(0);
        let stale = AtomicU64::new(0);
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let file = File::open(&path).unwrap();
                    loop {
                        let least = written.load(Ordering::SeqCst);
                        if least == u64::MAX {
                            break;
                        }
                        let mut number = [0; 8];
                        file.read_exact_at(&mut number, BLOCK as u64).unwrap();
                        if u64::from_le_bytes(number) < least {
                            stale.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
            }
            let file = open_direct(&path, 0);
            for number in 1..=WRITES {
                let block = AlignedBuf::copy_from(&number.to_le_bytes().repeat(BLOCK / 8));
                write_all(way, &file, &[(BLOCK as u64, block)], 0);
                written.store(number, Ordering::SeqCst);
            }
            written.store(u64::MAX, Ordering::SeqCst);
        });
        assert_eq!(stale.into_inner(), 0, "reads after a write that showed what was before: {way:?}");
        let mut number = [0; 8];
        File::open(&path).unwrap().read_exact_at(&mut number, BLOCK as u64).unwrap();
        assert_eq!(u64::from_le_bytes(number), WRITES);
        mount.unmount();
    }
}
