//! The waiting part of a worker's thread: a ring, or poll(2) and the thread pool. Also the entry
//! from outside: a device operation goes to the ring of the thread that starts it, or to a shared
//! one.

use crate::aside::Aside;
use crate::descriptors::Descriptors;
use crate::mailbox::Mailbox;
use crate::request::{Finished, Request, shielded};
use crate::ring::{self, Event, Issuer, RawDone, Ring};
use crate::worker::{Current, Worker, WorkerOptions};
use crate::{caller, oneshot, pool};
use io_uring::squeue;
use std::cell::{Cell, OnceCell, RefCell};
use std::io;
use std::os::fd::RawFd;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// The waiting part of a worker.
pub(crate) struct Reactor {
    pub(crate) mailbox: Arc<Mailbox>,
    backend: Backend,
    /// Operations at the pool whose completions must be called here.
    at_pool: Cell<usize>,
    /// The mailbox accepts nothing more.
    closed: Cell<bool>,
    /// The callers that the entries queued in this turn answer.
    answers: Cell<Answers>,
    /// Set at the first answer; `None` inside if workers can't stand aside.
    aside: OnceCell<Option<Aside>>,
    /// Kept to reuse its memory.
    completed: RefCell<Vec<(u64, i32)>>,
}

enum Backend {
    Ring(Box<RefCell<Ring>>),
    Poll(RefCell<Descriptors>),
}

/// The callers that a turn answers.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum Answers {
    #[default]
    Nobody,
    /// The worker's only caller, which asked on this CPU.
    One {
        cpu: usize,
    },
    Several,
}

impl Reactor {
    pub(crate) fn new(use_ring: bool) -> io::Result<Self> {
        let mailbox = Mailbox::new()?;
        let ring = if use_ring && ring::is_available() { Ring::new(Issuer::One).map(Some) } else { Ok(None) };
        let backend = match ring {
            Ok(Some(mut ring)) => {
                ring.watch_event(mailbox.event_fd());
                Backend::Ring(Box::new(RefCell::new(ring)))
            }
            Ok(None) => Backend::Poll(RefCell::default()),
            Err(error) => {
                // One ring more than the limits on memory or descriptors allow: slower is better
                // than not at all.
                tracing::warn!(%error, "no ring for this worker: its I/O goes through threads");
                Backend::Poll(RefCell::default())
            }
        };
        Ok(Self {
            mailbox,
            backend,
            at_pool: Cell::new(0),
            closed: Cell::new(false),
            answers: Cell::default(),
            aside: OnceCell::new(),
            completed: RefCell::default(),
        })
    }

    pub(crate) fn has_ring(&self) -> bool {
        matches!(self.backend, Backend::Ring(_))
    }

    /// Starts a device operation.
    pub(crate) fn start(&self, request: Request, ring_allowed: bool) {
        self.return_to_post();
        match &self.backend {
            Backend::Ring(ring) if ring_allowed && !request.needs_blocking_thread() => {
                ring.borrow_mut().start(request);
            }
            _ => self.start_at_pool(request),
        }
    }

    fn start_at_pool(&self, request: Request) {
        self.return_to_post();
        if self.closed.get() {
            return pool::start(request, None);
        }
        self.at_pool.set(self.at_pool.get() + 1);
        pool::start(request, Some(self.mailbox.clone()));
    }

    /// Submits the queued requests. No completion is called here.
    fn submit(&self) {
        if let Backend::Ring(ring) = &self.backend {
            // An error is met again, and reported, at the end of the turn.
            let _ = ring.borrow_mut().enter(None);
        }
    }

    /// Waits until `fd` is ready for `events`; the returned id can cancel the wait.
    pub(crate) fn poll_fd(&self, fd: RawFd, events: u32, sender: oneshot::Sender<io::Result<u32>>) -> u64 {
        match &self.backend {
            Backend::Ring(ring) => ring.borrow_mut().poll(fd, events, sender),
            Backend::Poll(descriptors) => descriptors.borrow_mut().watch(fd, events, sender),
        }
    }

    /// Submits an entry as it is; gives it back if there is no ring.
    pub(crate) fn raw(&self, entry: squeue::Entry128, done: RawDone) -> Result<(), RawDone> {
        match &self.backend {
            Backend::Ring(ring) => {
                ring.borrow_mut().raw(entry, done);
                Ok(())
            }
            Backend::Poll(_) => Err(done),
        }
    }

    /// Stops standing aside: a device operation or a thread is about to start.
    fn return_to_post(&self) {
        if let Some(Some(aside)) = self.aside.get() {
            aside.return_to_post();
        }
    }

    /// Notes that an entry queued in this turn answers a caller. With `cpu`, it is this worker's
    /// only caller and asked on that CPU, which this thread is bound to.
    pub(crate) fn answers(&self, cpu: Option<usize>) {
        self.answers.set(match (self.answers.get(), cpu) {
            (Answers::Nobody, Some(cpu)) => Answers::One { cpu },
            _ => Answers::Several,
        });
    }

    /// Called before answers go out: keeps the caller on this CPU, if there is only one.
    fn place_callers(&self) {
        let (one, aside) = match self.answers.take() {
            Answers::Nobody => return,
            Answers::One { cpu } => {
                (self.in_flight() == 0, self.aside.get_or_init(|| Aside::new(cpu)).as_ref())
            }
            Answers::Several => (false, self.aside.get().and_then(Option::as_ref)),
        };
        if let Some(aside) = aside {
            aside.answering(one);
        }
    }

    pub(crate) fn cancel(&self, id: u64) {
        match &self.backend {
            Backend::Ring(ring) => ring.borrow_mut().cancel(id),
            Backend::Poll(descriptors) => descriptors.borrow_mut().cancel(id),
        }
    }

    /// Device operations in flight whose completions this worker has yet to call.
    pub(crate) fn in_flight(&self) -> usize {
        let in_ring = match &self.backend {
            Backend::Ring(ring) => ring.borrow().requests(),
            Backend::Poll(_) => 0,
        };
        in_ring + self.at_pool.get()
    }

    /// Calls the completion of an operation that the pool carried out for us.
    pub(crate) fn deliver(&self, finished: Finished) {
        self.at_pool.set(self.at_pool.get() - 1);
        finished.deliver();
    }

    /// Submits the queued requests and calls the completions of those that have ended. With `wait` it first
    /// sleeps until something ends, a wake-up comes, or the time (if any) is over.
    pub(crate) fn turn(&self, wait: Option<Option<Duration>>) {
        let wait = wait.filter(|_| self.mailbox.try_sleep());
        let result = match &self.backend {
            Backend::Ring(ring) => self.turn_ring(ring, wait),
            Backend::Poll(descriptors) => self.turn_poll(descriptors, wait),
        };
        // Neither fails for a transient reason (only for a bad descriptor of our own, or no memory
        // for the kernel's wait).
        result.expect("the kernel waits for our own descriptors");
    }

    fn turn_ring(&self, ring: &RefCell<Ring>, wait: Option<Option<Duration>>) -> io::Result<()> {
        let mut completed = self.completed.take();
        self.place_callers();
        {
            let mut ring = ring.borrow_mut();
            let entered = ring.enter(wait);
            // Before any completion is called, so that what it wakes on this thread needs no event.
            self.mailbox.awake();
            entered?;
            ring.completions(&mut completed);
        }
        for (id, result) in completed.drain(..) {
            // The ring is not borrowed while a completion runs: it may start the next operation.
            let event = ring.borrow_mut().complete(id, result);
            match event {
                Event::Finished(finished) => finished.deliver(),
                Event::Elsewhere(request) => self.start_at_pool(request),
                Event::Ready(sender, result) => shielded(|| sender.send(result)),
                Event::Raw(done, result) => {
                    if let Some(Some(aside)) = self.aside.get() {
                        aside.asked();
                    }
                    shielded(|| done(result));
                }
                Event::Woken => {
                    self.mailbox.clear_event();
                    ring.borrow_mut().watch_event(self.mailbox.event_fd());
                }
                Event::Nothing => {}
            }
        }
        self.completed.replace(completed);
        Ok(())
    }

    fn turn_poll(
        &self,
        descriptors: &RefCell<Descriptors>,
        wait: Option<Option<Duration>>,
    ) -> io::Result<()> {
        let time = wait.unwrap_or(Some(Duration::ZERO));
        let waited = descriptors.borrow_mut().wait(self.mailbox.event_fd(), time);
        self.mailbox.awake();
        let (woken, ready) = waited?;
        if woken {
            self.mailbox.clear_event();
        }
        ready.into_iter().for_each(|(sender, result)| sender.send(result));
        Ok(())
    }

    /// Accepts nothing more from other threads, and ends every wait that is not a device operation.
    /// Call it when no device operation is in flight.
    pub(crate) fn shut_down(&self) {
        self.closed.set(true);
        let post = self.mailbox.close();
        post.finished.into_iter().for_each(|finished| self.deliver(finished));
        post.requests.into_iter().for_each(|request| pool::start(request, None));
        drop(post.tasks);
        let Backend::Ring(ring) = &self.backend else { return };
        ring.borrow_mut().cancel_others();
        // A cancelled wait completes at once; one that takes longer than this hangs in a foreign
        // driver. The watch on the event descriptor stays: it refers to no memory.
        for _ in 0..100 {
            if self.in_flight() == 0 && ring.borrow().others() <= 1 {
                return;
            }
            self.turn(Some(Some(Duration::from_millis(10))));
        }
        while self.in_flight() > 0 {
            self.turn(Some(None));
        }
        tracing::warn!("the kernel holds on to entries of a ring: their memory is left to it");
        ring.borrow_mut().abandon();
    }
}

/// Starts a device operation: on this thread's worker, if it has one, or by the thread itself, if it
/// drives a future; otherwise elsewhere.
pub(crate) fn start(request: Request, ring_allowed: bool) {
    if request.is_empty() {
        return request.finish(Ok(())).deliver();
    }
    let Some(request) = Current::with(|current| match current {
        Some(current) => {
            current.reactor.start(request, ring_allowed);
            None
        }
        None => Some(request),
    }) else {
        return;
    };
    let queued =
        if request.needs_blocking_thread() { Some(request) } else { caller::queue(request, ring_allowed) };
    if let Some(request) = queued {
        start_elsewhere(request, ring_allowed);
    }
}

/// Starts a device operation on the shared ring or the pool.
pub(crate) fn start_elsewhere(request: Request, ring_allowed: bool) {
    let request = match shared().filter(|_| ring_allowed && !request.needs_blocking_thread()) {
        Some(mailbox) => match mailbox.post_request(request) {
            Ok(()) => return,
            Err(request) => request,
        },
        None => request,
    };
    pool::start(request, None);
}

/// Call this before a thread is started, which would otherwise keep the policy of a worker that
/// stands aside.
pub(crate) fn thread_ahead() {
    Current::with(|current| {
        if let Some(current) = current {
            current.reactor.return_to_post();
        }
    });
}

/// Submits what this thread has queued.
pub(crate) fn submit() {
    Current::with(|current| match current {
        Some(current) => current.reactor.submit(),
        None => caller::submit(),
    });
}

/// The worker for operations of threads without one: one ring, one thread that submits and reaps.
/// (A ring cannot simply be shared: when a thread ends, the kernel cancels what it submitted, and
/// the end of a calling thread must not cancel a write.)
fn shared() -> Option<&'static Mailbox> {
    static SHARED: OnceLock<Option<Arc<Mailbox>>> = OnceLock::new();
    SHARED.get_or_init(|| ring::is_available().then(start_shared).flatten()).as_deref()
}

fn start_shared() -> Option<Arc<Mailbox>> {
    let (sender, receiver) = std::sync::mpsc::channel();
    let serve = move || match Worker::new(WorkerOptions::default()) {
        Ok(worker) => {
            let _ = sender.send(worker.mailbox().clone());
            worker.run(std::future::pending::<()>());
        }
        Err(error) => tracing::warn!(%error, "no shared ring: device I/O goes through threads"),
    };
    std::thread::Builder::new().name("syncline-io".into()).spawn(serve).ok()?;
    receiver.recv().ok()
}
