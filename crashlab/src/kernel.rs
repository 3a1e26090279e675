//! System calls that no crate has in a safe form: all unsafe code of crashlab.
//!
//! A program that is started here stops at each sync(2), syncfs(2) and sync_file_range(2), which do not reach
//! a FUSE filesystem, until a [`Listener`] has seen it. The kernel does the call itself then. See
//! seccomp_unotify(2).
#![expect(
    unsafe_code,
    reason = "seccomp(2), its ioctls, pre_exec, close_range(2) and sync_file_range(2) have no safe form"
)]

use libc::{c_long, c_uint, seccomp_notif, seccomp_notif_resp, sock_filter};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use rustix::process::{Pid, Signal};
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::{MaybeUninit, offset_of};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

/// The instruction set in which the kernel counts the calls; with another one, a filter lets all calls pass.
const ARCHITECTURE: Option<u32> = match () {
    () if cfg!(all(target_arch = "x86_64", target_pointer_width = "64")) => Some(0xc000_003e),
    () if cfg!(all(target_arch = "aarch64", target_pointer_width = "64")) => Some(0xc000_00b7),
    () => None,
};
/// The calls at which a program stops.
const CALLS: [c_long; 3] = [libc::SYS_sync, libc::SYS_syncfs, libc::SYS_sync_file_range];
/// A new listener, and a stopped thread goes on only when it has been answered or killed, whatever other signals
/// come. That needs Linux 5.19.
const FLAGS: libc::c_ulong =
    libc::SECCOMP_FILTER_FLAG_NEW_LISTENER | libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV;
const RECEIVE: libc::Ioctl = libc::_IOWR::<seccomp_notif>(b'!' as u32, 0);
const SEND: libc::Ioctl = libc::_IOWR::<seccomp_notif_resp>(b'!' as u32, 1);

/// Starts a program, which is killed when the calling thread ends. Returns the listener, or why there is none.
pub fn spawn(command: &mut Command) -> io::Result<(Child, io::Result<Listener>)> {
    let (ours, its) = UnixStream::pair()?;
    let (parent, filter) = (rustix::process::getpid(), filter());
    let prepare = move || {
        die_with(parent)?;
        tell(&its, &filter)
    };
    // SAFETY: between fork and exec it makes system calls only, takes no lock and needs no memory.
    unsafe { command.pre_exec(prepare) };
    let child = command.spawn()?;
    // It has been told: the program runs.
    Ok((child, told(&ours)))
}

/// Gives the calling thread a table of descriptors of its own, with none but the standard ones and `kept`.
///
/// A thread that serves a FUSE mount needs it where other threads use the mount: if the process is killed,
/// such a thread waits for an answer with the process's table open, and with the server's device in it the
/// kernel would never give up the mount.
pub fn take_own_descriptors(kept: BorrowedFd<'_>) -> io::Result<()> {
    let (first, kept) = (libc::STDERR_FILENO as c_uint + 1, kept.as_raw_fd() as c_uint);
    let close = |first: c_uint, last: c_uint, flags: c_uint| {
        // SAFETY: the thread's own copies are closed; the descriptors of all other threads stay.
        match unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    close(first.max(kept + 1), c_uint::MAX, libc::CLOSE_RANGE_UNSHARE)?;
    match first < kept {
        true => close(first, kept - 1, 0),
        false => Ok(()),
    }
}

/// The kernel kills this process when the thread that has started it ends, or has ended.
fn die_with(parent: Pid) -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    match rustix::process::getppid() == Some(parent) {
        true => Ok(()),
        false => Err(io::ErrorKind::Interrupted.into()),
    }
}

/// Stops at [`CALLS`], and lets all others pass.
fn filter() -> Vec<sock_filter> {
    let statement = |code: u32, k: u32| sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let load = |offset: usize| statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset as u32);
    let unless = |k: u32, skipped: usize| sock_filter {
        code: (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16,
        jt: 0,
        jf: skipped as u8,
        k,
    };
    let end = |action: c_uint| statement(libc::BPF_RET | libc::BPF_K, action);
    let mut filter = vec![load(offset_of!(libc::seccomp_data, arch))];
    filter.push(unless(ARCHITECTURE.unwrap_or_default(), 1 + 2 * CALLS.len()));
    filter.push(load(offset_of!(libc::seccomp_data, nr)));
    for call in CALLS {
        filter.extend([unless(call as u32, 1), end(libc::SECCOMP_RET_USER_NOTIF)]);
    }
    filter.push(end(libc::SECCOMP_RET_ALLOW));
    filter
}

/// Puts the filter before this process, and sends its listener, or else the error.
fn tell(socket: &UnixStream, filter: &[sock_filter]) -> io::Result<()> {
    let listener = install(filter).or_else(|error| match error.raw_os_error() {
        // Nobody but root may do so to programs that gain rights, by a setuid bit for example.
        Some(libc::EACCES) => {
            rustix::thread::set_no_new_privs(true)?;
            install(filter)
        }
        _ => Err(error),
    });
    let errno = listener.as_ref().err().map_or(0, |error| error.raw_os_error().unwrap_or(libc::EINVAL));
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = listener.as_ref().ok().map(|listener| [listener.as_fd()]);
    if let Some(descriptors) = &descriptors {
        control.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    sendmsg(socket, &[IoSlice::new(&errno.to_ne_bytes())], &mut control, SendFlags::empty())?;
    Ok(())
}

fn install(filter: &[sock_filter]) -> io::Result<OwnedFd> {
    if ARCHITECTURE.is_none() {
        return Err(io::Error::from_raw_os_error(libc::ENOSYS));
    }
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
    // SAFETY: the kernel reads the program, whose filter is as long as it says and outlives the call.
    let listener =
        unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, FLAGS, &raw const program) };
    if listener < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it is a new descriptor, which nobody else knows.
    Ok(unsafe { OwnedFd::from_raw_fd(listener as i32) })
}

/// Receives the listener, or the error, from the child before its exec.
fn told(socket: &UnixStream) -> io::Result<Listener> {
    let mut errno = [0; size_of::<i32>()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    recvmsg(socket, &mut [IoSliceMut::new(&mut errno)], &mut control, flags)?;
    let descriptor = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    descriptor.map(Listener).ok_or_else(|| io::Error::from_raw_os_error(i32::from_ne_bytes(errno)))
}

/// A system call at which a thread has stopped.
#[derive(Debug)]
pub struct Call {
    id: u64,
    /// The thread.
    pub thread: u32,
    /// The system call.
    pub what: Asked,
}

/// A call that syncs.
#[derive(Clone, Copy, Debug)]
pub enum Asked {
    /// sync(2).
    All,
    /// syncfs(2) with this descriptor.
    Filesystem(i32),
    /// sync_file_range(2).
    Range {
        /// The descriptor.
        descriptor: i32,
        /// The first byte.
        offset: i64,
        /// Bytes; none for all from the offset on.
        len: i64,
        /// The flags.
        flags: u32,
    },
}

/// Receives the system calls of a program and of all processes that it starts.
#[derive(Debug)]
pub struct Listener(OwnedFd);

impl Listener {
    /// Waits for the next call; `None` when all processes have ended.
    pub fn next(&self) -> Option<Call> {
        loop {
            let mut poll_fds = [PollFd::new(&self.0, PollFlags::IN)];
            match poll(&mut poll_fds, None) {
                Err(rustix::io::Errno::INTR) => continue,
                Ok(_) if poll_fds[0].revents().contains(PollFlags::IN) => {}
                _ => return None,
            }
            // SAFETY: the structure consists of numbers.
            let mut notification: seccomp_notif = unsafe { std::mem::zeroed() };
            // SAFETY: the kernel fills the structure, whose size the request has.
            let received = unsafe { libc::ioctl(self.0.as_raw_fd(), RECEIVE, &raw mut notification) };
            // Or else the thread has been killed.
            if received == 0 {
                return Some(Call::of(&notification));
            }
        }
    }

    /// Lets the kernel do the call.
    pub fn go_on(&self, call: &Call) {
        let flags = libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32;
        let mut answer = seccomp_notif_resp { id: call.id, val: 0, error: 0, flags };
        // It fails if the thread has been killed.
        // SAFETY: the kernel reads the structure, whose size the request has.
        let _ = unsafe { libc::ioctl(self.0.as_raw_fd(), SEND, &raw mut answer) };
    }
}

impl Call {
    fn of(notification: &seccomp_notif) -> Self {
        let arguments = notification.data.args;
        let descriptor = arguments[0] as i32;
        let what = match c_long::from(notification.data.nr) {
            libc::SYS_syncfs => Asked::Filesystem(descriptor),
            libc::SYS_sync_file_range => Asked::Range {
                descriptor,
                offset: arguments[1] as i64,
                len: arguments[2] as i64,
                flags: arguments[3] as u32,
            },
            _ => Asked::All,
        };
        Self { id: notification.id, thread: notification.pid, what }
    }
}

/// Writes a range of a file, and waits for the writes: sync_file_range(2).
pub fn write_range(file: &File, offset: u64, len: u64) -> io::Result<()> {
    let flags =
        libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    // SAFETY: it takes numbers only.
    match unsafe { libc::sync_file_range(file.as_raw_fd(), offset as i64, len as i64, flags) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
