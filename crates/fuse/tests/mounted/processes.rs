//! Programs that would have a thread that serves requests wait for itself, if that could be.

use super::TestMount;
use crate::support::Setup;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// Far longer than anything here takes on a busy machine.
const LONG: Duration = Duration::from_secs(120);
/// Where the program of the first test has its file.
const DIRECTORY: &str = "SYNCLINE_TEST_DIRECTORY";

/// The daemon looks at the descriptors of the process that allocates. It can read an epoll(7) descriptor
/// only when nobody has the descriptor locked. Here the owner of the descriptor waits for its own memory,
/// as a process may for a page of a file.
#[test]
fn descriptors_that_do_not_tell_of_themselves_hang_nobody() {
    let Some(mut mount) = TestMount::with(Setup::default()) else { return };
    let mut program = Command::new(std::env::current_exe().unwrap());
    program.args([
        "--ignored",
        "--exact",
        "--nocapture",
        "mounted::processes::program_with_a_locked_descriptor",
    ]);
    let program = program.env(DIRECTORY, mount.path()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut program = program.spawn().unwrap();
    let begun = Instant::now();
    while program.try_wait().unwrap().is_none() && begun.elapsed() < LONG {
        thread::sleep(Duration::from_millis(5));
    }
    let ended = program.try_wait().unwrap().is_some();
    if !ended {
        program.kill().unwrap();
        mount.abort();
    }
    assert!(ended, "it waits for the daemon, which waits for it");
    let told = String::from_utf8(program.wait_with_output().unwrap().stdout).unwrap();
    assert!(told.contains("allocated") || told.contains("skipped"), "{told}");
    mount.unmount();
}

#[test]
#[ignore = "run as a process of its own by another test"]
fn program_with_a_locked_descriptor() {
    let Some(directory) = std::env::var_os(DIRECTORY) else { return };
    let Some(page) = page_that_never_comes() else {
        println!("skipped: no userfaultfd(2)");
        return;
    };
    let (thread, threads) = mpsc::channel();
    thread::spawn(move || {
        // SAFETY: the calls take no memory but the event, and a page that is mapped.
        unsafe {
            let (ready, epoll) = (libc::eventfd(1, 0), libc::epoll_create1(0));
            let mut wanted = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
            assert_eq!(libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, ready, &raw mut wanted), 0);
            thread.send(libc::gettid()).unwrap();
            libc::epoll_wait(epoll, page as *mut libc::epoll_event, 1, 0);
        }
    });
    let call = format!("/proc/self/task/{}/syscall", threads.recv().unwrap());
    // It waits for nothing but the page. Until it does, it is called "running", or waits elsewhere.
    let waits = [libc::SYS_epoll_pwait, epoll_wait_number()].map(|number| format!("{number} "));
    let is_waiting = |call: &str| waits.iter().any(|wait| call.starts_with(wait));
    while !is_waiting(&std::fs::read_to_string(&call).unwrap()) {
        thread::yield_now();
    }
    let file = std::fs::File::create(Path::new(&directory).join("file")).unwrap();
    // SAFETY: takes no memory.
    assert_eq!(unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, 4096) }, 0);
    println!("allocated");
    std::process::exit(0);
}

#[cfg(target_arch = "x86_64")]
fn epoll_wait_number() -> libc::c_long {
    libc::SYS_epoll_wait
}

#[cfg(not(target_arch = "x86_64"))]
fn epoll_wait_number() -> libc::c_long {
    libc::SYS_epoll_pwait
}

/// The address of a page. A thread that touches the page waits for ever. `None` if this user may not
/// register such a page.
fn page_that_never_comes() -> Option<usize> {
    /// `UFFDIO_API` and `UFFDIO_REGISTER`.
    const AGREE: libc::Ioctl = 0xc018_aa3f_u32 as libc::Ioctl;
    const REGISTER: libc::Ioctl = 0xc020_aa00_u32 as libc::Ioctl;
    /// `UFFD_API`, and `UFFDIO_REGISTER_MODE_MISSING`.
    const VERSION: u64 = 0xaa;
    const MISSING: u64 = 1;
    // SAFETY: the mapping is new, and the commands read and write the structures that they are given.
    unsafe {
        let faults = libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) as libc::c_int;
        let mut agreed = [VERSION, 0, 0];
        if faults < 0 || libc::ioctl(faults, AGREE, agreed.as_mut_ptr()) != 0 {
            return None;
        }
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        let page = libc::mmap(std::ptr::null_mut(), 4096, access, kind, -1, 0);
        assert_ne!(page, libc::MAP_FAILED);
        let mut registered = [page as u64, 4096, MISSING, 0];
        (libc::ioctl(faults, REGISTER, registered.as_mut_ptr()) == 0).then_some(page as usize)
    }
}
