//! A thread that runs tasks and the I/O they start: one executor, one ring, no hand-over to other
//! threads.

#[cfg(test)]
mod tests;

use crate::file::Use;
use crate::mailbox::{MAIN, Mailbox, POST, ReasonWaker, SendTask, Sleep, TASKS};
use crate::oneshot;
use crate::reactor::Reactor;
use async_executor::{LocalExecutor, Task};
use futures_lite::FutureExt;
use io_uring::squeue;
use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::marker::PhantomData;
use std::os::fd::RawFd;
use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// Tasks that run between two looks at the ring, which bounds how long the entries that they queue
/// wait.
const TASKS_PER_TURN: usize = 16;

/// How to create a worker.
#[derive(Clone, Copy, Debug, Default)]
pub struct WorkerOptions {
    /// Whether to use io_uring where the kernel lets us.
    pub io_uring: Use,
}

/// A thread's reactor and executor. It stays on the thread that created it.
///
/// Device operations started inside [`Worker::run`] go to this worker's ring and complete on its
/// thread. A task must not block its thread: it would wait for completions that only this thread
/// can see.
pub struct Worker {
    reactor: Rc<Reactor>,
    /// `None` once the worker is being dropped.
    executor: Option<Rc<LocalExecutor<'static>>>,
}

/// The running worker, as code on its thread sees it.
pub(crate) struct Current {
    pub(crate) reactor: Rc<Reactor>,
    executor: Option<Rc<LocalExecutor<'static>>>,
}

thread_local! {
    static CURRENT: RefCell<Option<Rc<Current>>> = const { RefCell::new(None) };
}

impl Current {
    /// Calls `f` with this thread's running worker, if there is one.
    pub(crate) fn with<R>(f: impl FnOnce(Option<&Current>) -> R) -> R {
        // A thread that is ending runs no worker.
        let current = CURRENT.try_with(|current| current.borrow().clone()).ok().flatten();
        f(current.as_deref())
    }
}

/// Unregisters the worker from the thread, even after a panic.
struct Entered;

impl Entered {
    fn new(worker: &Worker) -> Self {
        CURRENT.with(|current| {
            let mut current = current.borrow_mut();
            assert!(current.is_none(), "a worker runs inside another one on the same thread");
            let (reactor, executor) = (worker.reactor.clone(), worker.executor.clone());
            *current = Some(Rc::new(Current { reactor, executor }));
        });
        Self
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        CURRENT.with(|current| current.take());
    }
}

impl Worker {
    /// A worker for this thread.
    pub fn new(options: WorkerOptions) -> io::Result<Self> {
        let reactor = Rc::new(Reactor::new(options.io_uring == Use::Auto)?);
        Ok(Self { reactor, executor: Some(Rc::new(LocalExecutor::new())) })
    }

    /// The worker that runs on this thread. Panics outside [`Worker::run`]; see
    /// [`Worker::try_current`].
    pub fn current() -> CurrentWorker {
        Self::try_current().expect("this thread runs a worker")
    }

    /// The worker that runs on this thread, if any.
    pub fn try_current() -> Option<CurrentWorker> {
        Current::with(|current| current.map(|_| CurrentWorker(PhantomData)))
    }

    /// A handle for other threads.
    pub fn handle(&self) -> WorkerHandle {
        WorkerHandle(self.mailbox().clone())
    }

    /// True if it has an io_uring.
    pub fn has_ring(&self) -> bool {
        self.reactor.has_ring()
    }

    pub(crate) fn mailbox(&self) -> &Arc<Mailbox> {
        &self.reactor.mailbox
    }

    /// Runs tasks and their I/O on this thread until `until` ends, and then until the I/O in flight
    /// has ended too. Unfinished tasks stay, and continue in the next run.
    pub fn run<T>(&self, until: impl Future<Output = T>) -> T {
        let _entered = Entered::new(self);
        let mailbox = self.mailbox();
        let executor = self.executor.as_deref().expect("only a drop takes the executor");
        let mut until = pin!(until);
        let (main_waker, task_waker) = (self.waker(MAIN), self.waker(TASKS));
        let mut main_context = Context::from_waker(&main_waker);
        mailbox.wake(MAIN | POST);
        let outcome = loop {
            if mailbox.take_reason(MAIN)
                && let Poll::Ready(outcome) = until.as_mut().poll(&mut main_context)
            {
                break outcome;
            }
            self.take_post();
            let next_timer = mailbox.fire_timers();
            self.run_tasks(executor, &task_waker, next_timer);
        };
        self.drain();
        outcome
    }

    /// Runs some tasks, then submits what they queued; sleeps if there was nothing to run.
    fn run_tasks(&self, executor: &LocalExecutor<'static>, waker: &Waker, next_timer: Option<Duration>) {
        for _ in 0..TASKS_PER_TURN {
            if !executor.try_tick() {
                self.mailbox().take_reason(TASKS);
                // Polled once, a tick runs a task that has just become ready, or arranges for a
                // wake-up by the next one.
                let mut tick = pin!(executor.tick());
                let idle = tick.as_mut().poll(&mut Context::from_waker(waker)).is_pending();
                return self.reactor.turn(idle.then_some(next_timer));
            }
        }
        self.reactor.turn(None);
    }

    /// Takes the tasks that other threads handed over.
    fn take_post(&self) {
        if !self.mailbox().take_reason(POST) {
            return;
        }
        let post = self.mailbox().take_post();
        for task in post.tasks {
            if let Some(executor) = &self.executor {
                executor.spawn(catching_panics(task)).detach();
            }
        }
        post.requests.into_iter().for_each(|request| self.reactor.start(request, true));
        post.finished.into_iter().for_each(|finished| self.reactor.deliver(finished));
        post.cancels.into_iter().for_each(|id| self.reactor.cancel(id));
    }

    /// Waits until no device operation is in flight: its completion must not depend on a later run.
    fn drain(&self) {
        self.take_post();
        while self.reactor.in_flight() > 0 {
            self.reactor.turn(Some(None));
            // Wakes of tasks are left for the next run; they must not keep us from sleeping.
            self.mailbox().take_reason(TASKS | MAIN);
            self.take_post();
        }
    }

    fn waker(&self, reason: u8) -> Waker {
        Waker::from(Arc::new(ReasonWaker { mailbox: self.mailbox().clone(), reason }))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let executor = self.executor.take();
        // Tasks' destructors may still start I/O, so they run while the worker is in place.
        let _entered = Entered::new(self);
        drop(executor);
        self.drain();
        self.reactor.shut_down();
    }
}

/// Runs a task that nobody waits for: a panic in it is an error to report, not the end of its
/// thread.
async fn catching_panics(task: SendTask) {
    if AssertUnwindSafe(task).catch_unwind().await.is_err() {
        tracing::error!("a background task panicked");
    }
}

/// The worker of this thread. It refers to whichever runs here, and so stays on the thread.
#[derive(Clone, Copy)]
pub struct CurrentWorker(PhantomData<*const ()>);

impl CurrentWorker {
    fn with<R>(self, f: impl FnOnce(&Current) -> R) -> R {
        Current::with(|current| f(current.expect("this thread runs a worker")))
    }

    /// Starts a task on this worker. Dropping the [`Task`] cancels it; detach it to let it run.
    pub fn spawn_local<T: 'static>(self, future: impl Future<Output = T> + 'static) -> Task<T> {
        self.with(|current| current.executor.as_ref().expect("the worker is not being dropped").spawn(future))
    }

    /// Waits until `fd` can be read (or has an error to report); returns poll(2)'s set of events.
    /// The descriptor must stay open until then.
    pub fn readable(self, fd: RawFd) -> Readiness {
        self.ready_for(fd, libc::POLLIN as u32)
    }

    /// Like `readable`, but of several such waits on one file the kernel wakes only one at a time,
    /// where it supports that (with a ring).
    pub fn readable_in_turn(self, fd: RawFd) -> Readiness {
        self.ready_for(fd, libc::POLLIN as u32 | libc::EPOLLEXCLUSIVE as u32)
    }

    fn ready_for(self, fd: RawFd, events: u32) -> Readiness {
        self.with(|current| {
            let (sender, receiver) = oneshot::channel();
            let id = current.reactor.poll_fd(fd, events, sender);
            Readiness { receiver, id, mailbox: current.reactor.mailbox.clone() }
        })
    }

    /// A future that ends after `duration`.
    pub fn sleep(self, duration: Duration) -> Sleep {
        Sleep::new(self.with(|current| current.reactor.mailbox.clone()), duration)
    }

    /// A handle for other threads.
    pub fn handle(self) -> WorkerHandle {
        WorkerHandle(self.with(|current| current.reactor.mailbox.clone()))
    }

    /// True if it has an io_uring.
    pub fn has_ring(self) -> bool {
        self.with(|current| current.reactor.has_ring())
    }

    /// Says that an entry submitted in this turn answers a caller. With `cpu`, it is this worker's
    /// only caller and asked on that CPU, which this thread is bound to: a caller that asks again
    /// and again is then kept there.
    pub fn answers(self, cpu: Option<usize>) {
        self.with(|current| current.reactor.answers(cpu));
    }

    /// Submits a caller's own entry to this worker's ring, at the end of the executor's turn. Its
    /// user data is overwritten. `done` gets the raw result on this thread; it may submit again.
    /// Without a ring `done` is given back. When the worker is dropped, entries still in flight are
    /// cancelled and then waited for.
    ///
    /// # Safety
    ///
    /// All memory and descriptors that the entry refers to must stay valid until `done` is called
    /// or dropped; `done` owning the memory is enough. The entry must complete exactly once (no
    /// multishot).
    pub unsafe fn submit_entry(
        self,
        entry: squeue::Entry128,
        done: Box<dyn FnOnce(i32)>,
    ) -> Result<(), Box<dyn FnOnce(i32)>> {
        self.with(|current| current.reactor.raw(entry, done))
    }
}

/// Waits until a descriptor is ready. Dropping it ends the wait.
pub struct Readiness {
    receiver: oneshot::Receiver<io::Result<u32>>,
    id: u64,
    mailbox: Arc<Mailbox>,
}

impl Readiness {
    /// Cancels the wait and waits until it has ended: a wait in turn then takes no wake-up from
    /// others any more.
    pub async fn give_up(mut self) {
        if !self.receiver.is_settled() {
            self.mailbox.post_cancel(self.id);
        }
        (&mut self.receiver).await;
    }
}

impl Future for Readiness {
    type Output = io::Result<u32>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let gone = || Err(io::Error::new(io::ErrorKind::BrokenPipe, "the worker has gone"));
        Pin::new(&mut self.receiver).poll(context).map(|answer| answer.unwrap_or_else(gone))
    }
}

impl Drop for Readiness {
    fn drop(&mut self) {
        if !self.receiver.is_settled() {
            self.mailbox.post_cancel(self.id);
        }
    }
}

/// A worker as other threads see it.
#[derive(Clone)]
pub struct WorkerHandle(Arc<Mailbox>);

impl WorkerHandle {
    /// Starts a task on the worker. A worker that has gone drops the task.
    pub fn spawn_task(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.spawn_boxed(Box::pin(task));
    }

    pub(crate) fn spawn_boxed(&self, task: SendTask) {
        if self.0.post_task(task).is_err() {
            tracing::debug!("a task for a worker that has gone was dropped");
        }
    }

    pub(crate) fn sleep_for(&self, duration: Duration) -> Sleep {
        Sleep::new(self.0.clone(), duration)
    }
}
