//! The channel from other threads to a worker: tasks, requests, results, timers; and the way to
//! wake it.

use crate::request::{Finished, Request};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

/// A task for any worker.
pub(crate) type SendTask = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The main future, which the worker runs to its end.
pub(crate) const MAIN: u8 = 1;
/// A task is ready to run.
pub(crate) const TASKS: u8 = 2;
/// Something arrived in the mailbox.
pub(crate) const POST: u8 = 4;

/// The part of a worker that other threads reach.
pub(crate) struct Mailbox {
    event_fd: OwnedFd,
    /// The reasons to wake: `MAIN`, `TASKS`, `POST`.
    reasons: AtomicU8,
    /// The worker is asleep or about to sleep; the thread that clears this writes to the event descriptor.
    sleeping: AtomicBool,
    inbox: Mutex<Inbox>,
    timers: Mutex<Timers>,
}

/// Arrivals since the worker last looked.
#[derive(Default)]
pub(crate) struct Inbox {
    pub(crate) tasks: Vec<SendTask>,
    pub(crate) requests: Vec<Request>,
    pub(crate) finished: Vec<Finished>,
    pub(crate) cancels: Vec<u64>,
    /// The worker has gone and will not look again.
    closed: bool,
}

#[derive(Default)]
struct Timers {
    by_deadline: BTreeMap<(Instant, u64), Waker>,
    next_id: u64,
}

impl Mailbox {
    pub(crate) fn new() -> io::Result<Arc<Self>> {
        // SAFETY: no memory is passed.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just created, and nobody else has it.
        let event_fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Arc::new(Self {
            event_fd,
            reasons: AtomicU8::new(0),
            sleeping: AtomicBool::new(false),
            inbox: Mutex::default(),
            timers: Mutex::default(),
        }))
    }

    /// Readable when the worker should wake up.
    pub(crate) fn event_fd(&self) -> RawFd {
        self.event_fd.as_raw_fd()
    }

    /// Resets the event descriptor.
    pub(crate) fn clear_event(&self) {
        let mut count = 0u64;
        // SAFETY: the kernel writes eight bytes to `count`. Nothing to read is no error here.
        unsafe { libc::read(self.event_fd(), (&raw mut count).cast(), 8) };
    }

    /// Wakes the worker for `reason`. The reason is set before `sleeping` is read, and the worker
    /// sets `sleeping` before it reads the reasons: one of the two sees the other (both
    /// sequentially consistent).
    pub(crate) fn wake(&self, reason: u8) {
        self.reasons.fetch_or(reason, Ordering::SeqCst);
        if self.sleeping.swap(false, Ordering::SeqCst) {
            let one = 1u64;
            // SAFETY: the kernel reads eight bytes from `one`. A full counter is readable too,
            // which is all we want.
            unsafe { libc::write(self.event_fd(), (&raw const one).cast(), 8) };
        }
    }

    /// True if `reason` was given since it was last taken.
    pub(crate) fn take_reason(&self, reason: u8) -> bool {
        // A plain load first: most turns find nothing.
        self.reasons.load(Ordering::SeqCst) & reason != 0
            && self.reasons.fetch_and(!reason, Ordering::SeqCst) & reason != 0
    }

    /// Announces that the worker will sleep; false if there is a reason not to.
    pub(crate) fn try_sleep(&self) -> bool {
        self.sleeping.store(true, Ordering::SeqCst);
        let quiet = self.reasons.load(Ordering::SeqCst) == 0;
        if !quiet {
            self.sleeping.store(false, Ordering::SeqCst);
        }
        quiet
    }

    /// Notes that the worker is awake.
    pub(crate) fn awake(&self) {
        self.sleeping.store(false, Ordering::SeqCst);
    }

    /// Hands a task over; gives it back if the worker has gone.
    pub(crate) fn post_task(&self, task: SendTask) -> Result<(), SendTask> {
        self.post(task, |inbox, task| inbox.tasks.push(task))
    }

    /// Hands a request over; gives it back if the worker has gone.
    pub(crate) fn post_request(&self, request: Request) -> Result<(), Request> {
        self.post(request, |inbox, request| inbox.requests.push(request))
    }

    /// Asks the worker to cancel the wait `id`.
    pub(crate) fn post_cancel(&self, id: u64) {
        // A worker that has gone has nothing to cancel.
        let _ = self.post(id, |inbox, id| inbox.cancels.push(id));
    }

    /// Hands over the result of an operation that the worker had sent elsewhere. A worker waits for
    /// these before it ends, but in no case may a completion be lost.
    pub(crate) fn deliver(&self, finished: Finished) {
        if let Err(finished) = self.post(finished, |inbox, finished| inbox.finished.push(finished)) {
            finished.deliver();
        }
    }

    fn post<T>(&self, item: T, put: impl FnOnce(&mut Inbox, T)) -> Result<(), T> {
        let mut inbox = self.inbox.lock();
        if inbox.closed {
            return Err(item);
        }
        put(&mut inbox, item);
        drop(inbox);
        self.wake(POST);
        Ok(())
    }

    /// Takes everything that arrived.
    pub(crate) fn take_post(&self) -> Inbox {
        let mut inbox = self.inbox.lock();
        let closed = inbox.closed;
        std::mem::replace(&mut *inbox, Inbox { closed, ..Inbox::default() })
    }

    /// Takes everything that arrived; nothing more will be accepted.
    pub(crate) fn close(&self) -> Inbox {
        std::mem::replace(&mut *self.inbox.lock(), Inbox { closed: true, ..Inbox::default() })
    }

    /// Wakes the timers that are due; returns the time until the next.
    pub(crate) fn fire_timers(&self) -> Option<Duration> {
        let mut timers = self.timers.lock();
        timers.by_deadline.first_key_value()?;
        let now = Instant::now();
        let later = timers.by_deadline.split_off(&(now, u64::MAX));
        let due = std::mem::replace(&mut timers.by_deadline, later);
        let next = timers.by_deadline.first_key_value().map(|((deadline, _), _)| *deadline - now);
        drop(timers);
        due.into_values().for_each(Waker::wake);
        next
    }
}

/// Wakes a worker for one reason.
pub(crate) struct ReasonWaker {
    pub(crate) mailbox: Arc<Mailbox>,
    pub(crate) reason: u8,
}

impl Wake for ReasonWaker {
    fn wake(self: Arc<Self>) {
        self.mailbox.wake(self.reason);
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.mailbox.wake(self.reason);
    }
}

/// Resolves when its time has come. The worker that it belongs to fires it; it can be awaited on
/// any thread.
pub struct Sleep {
    mailbox: Arc<Mailbox>,
    deadline: Instant,
    registered: Option<u64>,
}

impl Sleep {
    pub(crate) fn new(mailbox: Arc<Mailbox>, duration: Duration) -> Self {
        // A time beyond the range of the clock never comes; a century will do.
        let century = Duration::from_secs(100 * 365 * 24 * 3600);
        Self { mailbox, deadline: Instant::now() + duration.min(century), registered: None }
    }

    fn unregister(&mut self) {
        if let Some(id) = self.registered.take() {
            let waker = self.mailbox.timers.lock().by_deadline.remove(&(self.deadline, id));
            drop(waker);
        }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if Instant::now() >= self.deadline {
            self.unregister();
            return Poll::Ready(());
        }
        let deadline = self.deadline;
        let mut timers = self.mailbox.timers.lock();
        let id = self.registered.unwrap_or(timers.next_id);
        if self.registered.is_none() {
            timers.next_id += 1;
        }
        let replaced = timers.by_deadline.insert((deadline, id), context.waker().clone());
        let is_next = timers.by_deadline.first_key_value().is_some_and(|(&key, _)| key == (deadline, id));
        drop(timers);
        drop(replaced);
        self.registered = Some(id);
        if is_next {
            // The worker may be asleep until a later time, or for ever.
            self.mailbox.wake(POST);
        }
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        self.unregister();
    }
}
