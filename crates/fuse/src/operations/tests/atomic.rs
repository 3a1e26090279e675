//! Atomic writes that a close takes back while their program goes on.

use super::*;
use std::io::{self, PipeReader, Write};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

const START: u32 = 0xf501;
const COMMIT: u32 = 0xf502;
const ABORT: u32 = 0xf505;

impl Bench {
    fn atomic(&self, ino: u64, handle: u64, command: u32) -> i32 {
        let input = IoctlIn { command, handle, ..IoctlIn::default() };
        self.errno(Opcode::Ioctl, ino, &[input.as_bytes()])
    }

    fn put(&self, ino: u64, handle: u64, data: &[u8]) -> i32 {
        let input = WriteIn { handle, size: data.len() as u32, ..WriteIn::default() };
        self.errno(Opcode::Write, ino, &[input.as_bytes(), data])
    }

    /// A kernel that drops no pages until something is read.
    fn slow_kernel(&self) -> PipeReader {
        let (reader, mut writer) = io::pipe().unwrap();
        // SAFETY: takes no memory.
        let bytes = unsafe { libc::fcntl(writer.as_raw_fd(), libc::F_SETPIPE_SZ, 4096) };
        writer.write_all(&vec![0; usize::try_from(bytes).unwrap()]).unwrap();
        self.session.page_cache().letting_go.start(writer.into()).unwrap();
        reader
    }
}

/// The close of a copy of the descriptor takes its time. Its program is told, and begins again before
/// that is over.
#[test]
fn a_close_takes_nothing_back_that_began_after_it() {
    for aborts in [false, true] {
        let bench = Bench::of(MountOptions { atomic_writes: true, ..MountOptions::new("test") });
        let made = bench.create(ROOT_NODE, b"database", libc::O_RDWR);
        let (ino, handle) = (made.entry.node, made.open.handle);
        assert_eq!(bench.atomic(ino, handle, START), 0);
        assert_eq!(bench.put(ino, handle, &[1; 5000]), 0);
        let (mut kernel, bench) = (bench.slow_kernel(), &bench);
        std::thread::scope(|scope| {
            let input = FlushIn { handle, ..FlushIn::default() };
            let close = scope.spawn(move || bench.errno(Opcode::Flush, ino, &[input.as_bytes()]));
            let deadline = Instant::now() + Duration::from_secs(20);
            while !bench.session.atomic_writers().has_lost(ino, handle) {
                assert!(Instant::now() < deadline, "it takes nothing back");
                std::thread::sleep(Duration::from_millis(1));
            }
            assert_eq!(bench.put(ino, handle, &[2; 5000]), libc::EIO);
            assert_eq!(bench.atomic(ino, handle, COMMIT), libc::EIO);
            let again = scope.spawn(move || {
                if aborts {
                    assert_eq!(bench.atomic(ino, handle, ABORT), 0);
                }
                assert_eq!(bench.atomic(ino, handle, START), 0);
                assert_eq!(bench.put(ino, handle, &[3; 5000]), 0);
            });
            std::thread::sleep(Duration::from_millis(100));
            std::thread::spawn(move || io::copy(&mut kernel, &mut io::sink()));
            again.join().unwrap();
            assert_eq!(close.join().unwrap(), 0);
        });
        assert_eq!(bench.atomic(ino, handle, COMMIT), 0);
        assert!(bench.read(ino, 0, 10_000) == [3; 5000], "it was acknowledged");
        let input = ReleaseIn { handle, ..ReleaseIn::default() };
        assert_eq!(bench.errno(Opcode::Release, ino, &[input.as_bytes()]), 0);
    }
}

/// What was lost is lost until it is aborted or begun anew, however late the program looks.
#[test]
fn what_a_close_took_back_is_not_committed() {
    let bench = Bench::of(MountOptions { atomic_writes: true, ..MountOptions::new("test") });
    let made = bench.create(ROOT_NODE, b"database", libc::O_RDWR);
    let (ino, handle) = (made.entry.node, made.open.handle);
    assert_eq!(bench.atomic(ino, handle, START), 0);
    assert_eq!(bench.put(ino, handle, &[1; 5000]), 0);
    let input = FlushIn { handle, ..FlushIn::default() };
    assert_eq!(bench.errno(Opcode::Flush, ino, &[input.as_bytes()]), 0);
    for _ in 0..2 {
        assert_eq!(bench.put(ino, handle, &[2; 5000]), libc::EIO);
        assert_eq!(bench.atomic(ino, handle, COMMIT), libc::EIO);
        // As if another thread had begun again and been told.
        bench.session.atomic_writers().forget_loss(ino, handle);
    }
    assert_eq!(bench.read(ino, 0, 10_000), b"");
    assert_eq!(bench.atomic(ino, handle, ABORT), 0);
    assert_eq!(bench.put(ino, handle, &[2; 5000]), 0);
    assert_eq!(bench.atomic(ino, handle, COMMIT), 0);
    assert!(bench.read(ino, 0, 10_000) == [2; 5000]);
}
