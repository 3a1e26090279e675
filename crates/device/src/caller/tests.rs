//! Operations by the thread that waits for them, together and alone, and what is left behind.

use super::*;
use crate::request::OpenFile;
use crate::{AlignedBuf, Device, DeviceExt, FileDevice, OpenOptions, Use, oneshot};
use bytes::Bytes;
use std::panic::AssertUnwindSafe;
use std::thread::ThreadId;
use tempfile::TempDir;

/// Held alone by the test with more threads than carry out their own writes.
static FEW_CALLERS: parking_lot::RwLock<()> = parking_lot::RwLock::new(());

fn image(io_uring: Use) -> (TempDir, Arc<FileDevice>) {
    let place = tempfile::tempdir().unwrap();
    let options = OpenOptions { io_uring, ..Default::default() };
    let device = FileDevice::create(place.path().join("image"), Some(8 << 20), false, options, &mut |_| {});
    (place, device.unwrap())
}

fn block(fill: u8) -> Vec<Bytes> {
    vec![Bytes::from(vec![fill; 4096])]
}

/// Starts a write, and tells which thread called its completion.
fn write(device: &FileDevice, at: u64, fill: u8) -> oneshot::Receiver<ThreadId> {
    let (sender, receiver) = oneshot::channel();
    let done = move |result: Result<(), crate::DeviceError>| {
        result.unwrap();
        sender.send(thread::current().id());
    };
    device.write(at, block(fill), Box::new(done));
    receiver
}

#[test]
fn a_thread_carries_out_its_own_operations() {
    let _few = FEW_CALLERS.read();
    let here = Some(thread::current().id());
    for io_uring in [Use::Auto, Use::Never] {
        let (_place, device) = image(io_uring);
        drive(async {
            assert_eq!(write(&device, 4096, 7).await, here);
            let (sender, receiver) = oneshot::channel();
            device.flush(Box::new(move |result| {
                result.unwrap();
                sender.send(thread::current().id());
            }));
            assert_eq!(receiver.await, here);
            let (sender, receiver) = oneshot::channel();
            let done = move |result: Result<AlignedBuf, crate::DeviceError>| {
                sender.send((thread::current().id(), result.unwrap()[0]));
            };
            device.read(4096, AlignedBuf::for_read(4096), Box::new(done));
            assert_eq!(receiver.await, Some((thread::current().id(), 7)));
        });
    }
}

#[test]
fn several_operations_go_to_the_kernel_together() {
    let _few = FEW_CALLERS.read();
    let here = Some(thread::current().id());
    for io_uring in [Use::Auto, Use::Never] {
        let (_place, device) = image(io_uring);
        let by_ring = io_uring == Use::Auto && crate::ring::is_available();
        drive(async {
            for count in [2, FEW as u64, 1000] {
                let writes: Vec<_> = (0..count).map(|at| write(&device, at * 4096, at as u8)).collect();
                for write in writes {
                    let there = write.await;
                    assert!(there == here || !by_ring);
                }
                for at in (0..count).step_by(37) {
                    assert_eq!(device.read_at(at * 4096, 4096).await.unwrap()[0], at as u8);
                }
            }
            // A flush beside a write: the write is under way meanwhile.
            let (flush, write) = (device.flush_all(), write(&device, 0, 9));
            flush.await.unwrap();
            assert!(write.await == here || !by_ring);
        });
    }
}

#[test]
fn operations_that_nobody_waits_for_are_carried_out() {
    for io_uring in [Use::Auto, Use::Never] {
        let (_place, device) = image(io_uring);
        let mut left = None;
        drive(async { left = Some(write(&device, 4096, 5)) });
        assert!(block_on(left.take().unwrap()).is_some());
        // Also if the future panics.
        let panics = AssertUnwindSafe(|| {
            drive(async {
                left = Some(write(&device, 8192, 6));
                panic!("on purpose");
            })
        });
        assert!(std::panic::catch_unwind(panics).is_err());
        assert!(block_on(left.unwrap()).is_some());
    }
}

/// As those do who look for progress while they read a superblock or a stream.
#[test]
fn operations_complete_while_the_future_blocks_its_thread() {
    let (_place, device) = image(Use::Auto);
    let blocks = |submits: bool| {
        let (sender, receiver) = std::sync::mpsc::channel();
        device.write(4096, block(1), Box::new(move |result| sender.send(result).unwrap()));
        if submits {
            device.submit();
        }
        receiver.recv_timeout(Duration::from_secs(120)).unwrap().unwrap();
    };
    drive(async { blocks(true) });
    block_on(async { blocks(false) });
    // The same inside a future that is driven.
    drive(async { block_on(async { blocks(false) }) });
}

#[test]
fn operations_begin_while_the_future_is_busy() {
    let (_place, device) = image(Use::Auto);
    drive(async {
        let mut write = write(&device, 0, 1);
        let start = Instant::now();
        while futures_lite::future::poll_once(&mut write).await.is_none() {
            assert!(start.elapsed() < Duration::from_secs(120), "the write never went out");
            futures_lite::future::yield_now().await;
        }
    });
}

/// The inner future waits for a write that the outer future has started.
#[test]
fn a_future_may_wait_for_another() {
    for driven in [false, true] {
        let (_place, device) = image(Use::Auto);
        drive(async {
            let (one, two) = (write(&device, 0, 1), write(&device, 4096, 2));
            let inner = async {
                assert!(one.await.is_some());
                assert_eq!(device.read_at(0, 4096).await.unwrap()[0], 1);
            };
            if driven {
                drive(inner)
            } else {
                block_on(inner)
            }
            assert!(two.await.is_some());
            assert_eq!(device.read_at(4096, 4096).await.unwrap()[0], 2);
        });
    }
}

#[test]
fn other_threads_and_moments_wake_it() {
    for _ in 0..1000 {
        let (sender, receiver) = oneshot::channel();
        let sending = thread::spawn(move || sender.send(3));
        assert_eq!(block_on(receiver), Some(3));
        sending.join().unwrap();
    }
    assert!(moment(Duration::ZERO).is_none(), "nobody waits here");
    drive(async {
        let start = Instant::now();
        let long = moment(Duration::from_secs(1000)).unwrap();
        let short = moment(Duration::from_millis(5)).unwrap();
        futures_lite::future::or(long, short).await;
        assert!(start.elapsed() >= Duration::from_millis(5));
        assert_eq!(with(|caller| caller.moments.len()), Some(0));
        // A wake-up of the outer future that comes during the inner one is not lost.
        let (sender, receiver) = oneshot::channel();
        let mut receiver = receiver;
        assert!(futures_lite::future::poll_once(&mut receiver).await.is_none());
        drive(async {
            sender.send(());
            moment(Duration::from_millis(1)).unwrap().await;
        });
        assert_eq!(receiver.await, Some(()));
    });
}

#[test]
fn a_thread_that_ends_may_still_wait() {
    struct AtEnd(Arc<FileDevice>);
    impl Drop for AtEnd {
        fn drop(&mut self) {
            drive(self.0.write_at(0, block(4))).unwrap();
        }
    }
    thread_local! {
        static AT_END: RefCell<Option<AtEnd>> = const { RefCell::new(None) };
    }
    let (_place, device) = image(Use::Auto);
    let last = device.clone();
    let thread = thread::spawn(move || {
        AT_END.set(Some(AtEnd(last.clone())));
        drive(last.flush_all()).unwrap();
    });
    thread.join().unwrap();
    assert_eq!(block_on(device.read_at(0, 4096)).unwrap()[0], 4);
}

/// With so many threads one submits for all.
#[test]
fn many_threads_share_a_device() {
    let _many = FEW_CALLERS.write();
    let (_place, device) = image(Use::Auto);
    thread::scope(|scope| {
        for thread in 0..2 * MANY_CALLERS as u64 {
            let device = &device;
            scope.spawn(move || {
                for turn in 0..20 {
                    drive(async {
                        device.write_at((thread * 20 + turn) * 4096, block(turn as u8)).await.unwrap();
                        device.flush_all().await.unwrap();
                    });
                }
            });
        }
    });
    for at in 0..40 * MANY_CALLERS as u64 {
        assert_eq!(block_on(device.read_at(at * 4096, 4096)).unwrap()[0], (at % 20) as u8);
    }
}

/// The kernel refuses io_uring to this thread from now on, as in a sandbox that it has entered.
fn enter_sandbox() {
    let step = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let (first, last) = (libc::SYS_io_uring_setup as u32, libc::SYS_io_uring_register as u32);
    let mut filter = [
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        step(libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K, 0, 2, first),
        step(libc::BPF_JMP | libc::BPF_JGT | libc::BPF_K, 1, 0, last),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the program lives until the calls have returned, and restricts only this thread.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program), 0);
    }
}

#[test]
fn operations_of_a_thread_in_a_sandbox_end_elsewhere() {
    let _few = FEW_CALLERS.read();
    let (_place, device) = image(Use::Auto);
    // Two at once need a ring, and leave an idle one.
    let both = |fill| {
        drive(async {
            let (one, two) = (write(&device, 0, fill), write(&device, 4096, fill));
            (one.await, two.await)
        })
    };
    both(1);
    let (here, (one, other)) = thread::scope(|scope| {
        let sandboxed = scope.spawn(|| {
            enter_sandbox();
            (thread::current().id(), both(2))
        });
        sandboxed.join().unwrap()
    });
    assert!(one.is_some_and(|one| one != here) && other.is_some_and(|other| other != here));
    assert_eq!(drive(device.read_at(4096, 4096)).unwrap()[0], 2);
    both(3);
}

#[test]
fn operations_end_while_their_future_keeps_waking_itself() {
    let _few = FEW_CALLERS.read();
    if !crate::ring::is_available() {
        return;
    }
    let (_place, device) = image(Use::Auto);
    // A read that lasts until this thread writes into the pipe.
    let (reader, mut writer) = std::io::pipe().unwrap();
    let file = OpenFile {
        file: std::os::fd::OwnedFd::from(reader).into(),
        others: Default::default(),
        direct: false,
        block_device: false,
        flushes_with_write: false,
        made: false,
    };
    let (sender, mut answer) = oneshot::channel();
    let done = Box::new(move |result: Result<AlignedBuf, _>| sender.send(result.unwrap()[0]));
    let slow = Request::read(Arc::new(file), 0, AlignedBuf::for_read(4096), done);
    drive(async {
        assert!(queue(slow, true).is_none());
        // More than are waited for all together.
        let fast: Vec<_> = (0..2 * FEW as u64).map(|at| write(&device, at * 4096, 1)).collect();
        for fast in fast {
            fast.await;
        }
        std::io::Write::write_all(&mut writer, &[7; 4096]).unwrap();
        let start = Instant::now();
        let read = loop {
            if let Some(read) = futures_lite::future::poll_once(&mut answer).await {
                break read;
            }
            assert!(start.elapsed() < Duration::from_secs(20), "its end was not seen");
            futures_lite::future::yield_now().await;
        };
        assert_eq!(read, Some(7));
    });
}

#[test]
fn a_completion_may_not_wait() {
    let _few = FEW_CALLERS.read();
    let (_place, device) = image(Use::Auto);
    let (sender, answer) = oneshot::channel();
    let other = device.clone();
    let waits = move |_| {
        let waited = AssertUnwindSafe(|| drive(other.read_at(0, 4096)).map(drop));
        sender.send(std::panic::catch_unwind(waited).is_err());
    };
    drive(async {
        device.write(0, block(1), Box::new(waits));
        assert_eq!(answer.await, Some(true), "it is told");
        assert!(write(&device, 4096, 2).await.is_some(), "the thread goes on");
    });
}
