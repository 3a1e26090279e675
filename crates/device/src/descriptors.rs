//! Waiting for descriptors with poll(2), for workers without a ring.

use crate::oneshot;
use std::io;
use std::os::fd::RawFd;
use std::time::Duration;

/// The descriptors that are waited for.
#[derive(Default)]
pub(crate) struct Descriptors {
    watched: Vec<Watched>,
    next_id: u64,
}

struct Watched {
    id: u64,
    fd: RawFd,
    events: i16,
    sender: oneshot::Sender<io::Result<u32>>,
}

/// The waits that are over.
pub(crate) type Ready = Vec<(oneshot::Sender<io::Result<u32>>, io::Result<u32>)>;

impl Descriptors {
    pub(crate) fn watch(&mut self, fd: RawFd, events: u32, sender: oneshot::Sender<io::Result<u32>>) -> u64 {
        self.next_id += 1;
        self.watched.push(Watched { id: self.next_id, fd, events: events as i16, sender });
        self.next_id
    }

    pub(crate) fn cancel(&mut self, id: u64) {
        self.watched.retain(|watched| watched.id != id);
    }

    /// Waits for `event_fd` or any watched descriptor, at most for `time` (`None`: for ever).
    /// Returns whether `event_fd` is readable, and the waits that are over.
    pub(crate) fn wait(&mut self, event_fd: RawFd, time: Option<Duration>) -> io::Result<(bool, Ready)> {
        let mut polled = Vec::with_capacity(1 + self.watched.len());
        polled.push(libc::pollfd { fd: event_fd, events: libc::POLLIN, revents: 0 });
        polled.extend(self.watched.iter().map(|w| libc::pollfd { fd: w.fd, events: w.events, revents: 0 }));
        let time = time.map(|time| libc::timespec {
            tv_sec: time.as_secs().min(i32::MAX as u64) as _,
            tv_nsec: time.subsec_nanos() as libc::c_long,
        });
        let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: the array and the time live until the call returns.
        let found =
            unsafe { libc::ppoll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, time, std::ptr::null()) };
        if found < 0 {
            let error = io::Error::last_os_error();
            return if error.kind() == io::ErrorKind::Interrupted {
                Ok((false, Vec::new()))
            } else {
                Err(error)
            };
        }
        let woken = polled[0].revents != 0;
        let mut ready = Vec::new();
        let states = polled[1..].iter().map(|polled| polled.revents);
        for (watched, state) in std::mem::take(&mut self.watched).into_iter().zip(states) {
            if state == 0 {
                self.watched.push(watched);
            } else if state & libc::POLLNVAL != 0 {
                ready.push((watched.sender, Err(io::Error::from_raw_os_error(libc::EBADF))));
            } else {
                ready.push((watched.sender, Ok(state as u32)));
            }
        }
        Ok((woken, ready))
    }
}
