//! Threads that are not workers, and wait for a future.
//!
//! In [`block_on`] the I/O that the future starts goes to a thread with a ring. A hand-over to another
//! thread and back costs more than many a write, so in [`drive`] the thread carries it out by itself:
//! what the future starts is queued until the future has to wait. A single operation is one system
//! call then. Several operations go to the kernel together, in a ring that the thread borrows. Operations
//! that are still queued when the future ends, or when it goes on computing, go to the thread with the
//! ring.
//!
//! While the thread is in the kernel, its future is not polled. To the future that is a slow device.

#[cfg(test)]
mod tests;

use crate::reactor;
use crate::request::{Finished, Request};
use crate::ring::{Event, Issuer, Ring};
use crate::worker::Worker;
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// Of so few operations in flight, all are waited for: one sleep instead of one for each.
const FEW: usize = 8;
/// With so many threads that drive futures, one thread submits the writes of all of them: that
/// costs fewer context switches than a system call of each.
const MANY_CALLERS: usize = 24;
/// How often to look for completions in a ring that this thread may not enter.
const POLL: Duration = Duration::from_millis(1);
/// The longest [`Moment`].
const LONGEST: Duration = Duration::from_secs(60 * 60);
/// The most rings; a thread that gets none hands its operations over.
const RINGS_MAX: usize = 16;

thread_local! {
    /// The innermost future that this thread waits for.
    static CALLER: RefCell<Option<Caller>> = const { RefCell::new(None) };
    /// Kept to reuse its memory.
    static ALARM: Arc<Alarm> = Alarm::new();
    /// This thread calls a completion.
    static DELIVERS: Cell<bool> = const { Cell::new(false) };
    /// The kernel has refused this thread a ring.
    static REFUSED: Cell<bool> = const { Cell::new(false) };
}

/// Threads that drive futures.
static CALLERS: AtomicUsize = AtomicUsize::new(0);

/// The work of a thread for the future that it waits for.
#[derive(Default)]
struct Caller {
    queued: SmallVec<[Queued; 2]>,
    /// Borrowed when several operations are queued at once.
    ring: Option<Ring>,
    /// When to wake the future, by the number of the [`Moment`] that asked.
    moments: Vec<(u64, Instant, Waker)>,
}

/// An operation that has yet to be carried out.
struct Queued {
    request: Request,
    ring_allowed: bool,
}

/// Waits for `future` on this thread, which must not be a worker's: there it would wait for
/// completions that only the worker can see.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    assert!(Worker::try_current().is_none(), "a task of a worker must await, not block");
    let _entered = Entered::new(None);
    syncline_sync::block_on(future)
}

/// Waits for `future` like [`block_on`], and carries out its I/O on this thread. The future must not
/// block the thread in another way after it has started I/O. If it waits in another `drive` while it is
/// polled, its own I/O ends first.
pub fn drive<T>(future: impl Future<Output = T>) -> T {
    assert!(Worker::try_current().is_none(), "a task of a worker must await, not block");
    let entered = Entered::new(Some(Caller::default()));
    let rang = &entered.alarm.rang;
    let waker = Waker::from(entered.alarm.clone());
    let mut future = pin!(future);
    loop {
        rang.swap(false, Ordering::AcqRel);
        if let Poll::Ready(outcome) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return outcome;
        }
        if rang.load(Ordering::Acquire) {
            // The future goes on, perhaps for long.
            submit();
            look();
        }
        while !rang.load(Ordering::Acquire) {
            if !carry_out() {
                sleep();
            }
        }
    }
}

/// Registers the caller with its thread until it is dropped.
struct Entered {
    alarm: Arc<Alarm>,
    /// The caller around this one: its future is being polled further up the stack.
    outer: Option<Caller>,
}

impl Entered {
    fn new(caller: Option<Caller>) -> Self {
        assert!(!DELIVERS.get(), "a completion must not wait: other completions wait behind it");
        // A thread that ends has none of the two: its operations go to the thread with the ring.
        let alarm = ALARM.try_with(Arc::clone).unwrap_or_else(|_| Alarm::new());
        let drives = caller.is_some();
        let outer = CALLER.try_with(|current| {
            CALLERS.fetch_add(usize::from(drives), Ordering::Relaxed);
            current.replace(caller)
        });
        let outer = outer.ok().flatten();
        let mut entered = Self { alarm, outer };
        if let Some(outer) = &mut entered.outer {
            // The inner future may wait for them.
            hand_over(std::mem::take(&mut outer.queued));
            outer.ring.take().into_iter().for_each(give_back);
        }
        entered
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        let caller = CALLER.try_with(|caller| caller.replace(self.outer.take())).ok().flatten();
        if let Some(mut caller) = caller {
            CALLERS.fetch_sub(1, Ordering::Relaxed);
            hand_over(std::mem::take(&mut caller.queued));
            caller.ring.into_iter().for_each(give_back);
        }
        // The caller around this one may have been woken meanwhile.
        self.alarm.rang.store(true, Ordering::Release);
    }
}

/// Wakes a thread.
struct Alarm {
    thread: Thread,
    rang: AtomicBool,
}

impl Alarm {
    fn new() -> Arc<Self> {
        Arc::new(Self { thread: thread::current(), rang: AtomicBool::new(false) })
    }
}

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // A thread that wakes itself is not asleep.
        if !self.rang.swap(true, Ordering::AcqRel) && self.thread.id() != thread::current().id() {
            self.thread.unpark();
        }
    }
}

/// Calls `f` with this thread's caller, if it has one.
fn with<T>(f: impl FnOnce(&mut Caller) -> T) -> Option<T> {
    CALLER.try_with(|caller| caller.borrow_mut().as_mut().map(f)).ok().flatten()
}

/// Queues an operation, if this thread drives a future; gives it back otherwise.
pub(crate) fn queue(request: Request, ring_allowed: bool) -> Option<Request> {
    let mut left = Some(request);
    if left.as_ref().is_some_and(Request::is_plain_write) && CALLERS.load(Ordering::Relaxed) >= MANY_CALLERS {
        return left;
    }
    with(|caller| caller.queued.extend(left.take().map(|request| Queued { request, ring_allowed })));
    left
}

/// Begins the queued operations on other threads: this one may never look for their completions.
pub(crate) fn submit() {
    with(|caller| std::mem::take(&mut caller.queued)).into_iter().for_each(hand_over);
}

/// Carries out the queued operations, and waits for some operations in flight. Returns false if none is
/// queued and none is in flight.
fn carry_out() -> bool {
    let Some((mut queued, mut ring)) =
        with(|caller| (std::mem::take(&mut caller.queued), caller.ring.take()))
    else {
        return false;
    };
    let is_busy = |ring: &Option<Ring>| ring.as_ref().is_some_and(|ring| ring.requests() > 0);
    // In a ring a flush would wake a thread of the kernel's, which has to wait for it.
    let flush = queued.iter().position(|queued| queued.request.is_flush());
    let single = || queued.len() == 1 && !is_busy(&ring) && !queued[0].request.is_through();
    let alone = flush.or_else(|| single().then_some(0)).map(|index| queued.swap_remove(index));
    start_together(queued, &mut ring);
    let mut carried = false;
    if let Some(Queued { request, .. }) = alone {
        if is_busy(&ring) {
            enter(&mut ring, |ring| ring.enter(None));
        }
        deliver(request.run_blocking());
        carried = true;
    }
    if is_busy(&ring) {
        reap(&mut ring);
        carried = true;
    }
    with(|caller| caller.ring = ring);
    carried
}

/// Puts operations into the ring, which is borrowed for them.
fn start_together(queued: SmallVec<[Queued; 2]>, ring: &mut Option<Ring>) {
    let (together, others): (SmallVec<[Queued; 2]>, _) =
        queued.into_iter().partition(|queued| queued.ring_allowed);
    hand_over(others);
    if together.is_empty() {
        return;
    }
    if ring.is_none() {
        *ring = borrow();
    }
    match ring {
        Some(ring) => together.into_iter().for_each(|queued| ring.start(queued.request)),
        None => hand_over(together),
    }
}

/// Waits for operations in flight, and calls their completions.
fn reap(ring: &mut Option<Ring>) {
    enter(ring, |ring| {
        let in_flight = ring.requests();
        ring.wait_for(if in_flight <= FEW { in_flight } else { in_flight / 2 })
    });
    if let Some(ring) = ring {
        call_completions(ring);
    }
}

/// Calls the completions of operations that have ended.
fn look() {
    let mut ring = with(|caller| caller.ring.take()).flatten();
    if ring.as_ref().is_some_and(|ring| ring.requests() > 0) {
        enter(&mut ring, |ring| ring.enter(None));
        ring.iter_mut().for_each(call_completions);
    }
    with(|caller| caller.ring = ring);
}

/// Enters the ring. If the kernel refuses that to this thread, as in a sandbox, the ring is given up
/// once its operations have ended.
fn enter(ring: &mut Option<Ring>, how: impl FnOnce(&mut Ring) -> io::Result<()>) {
    let Some(Err(error)) = ring.as_mut().map(how) else { return };
    let Some(mut refused) = ring.take() else { return };
    REFUSED.set(true);
    tracing::debug!(%error, "a ring is refused to a thread: others do its device I/O");
    refused.take_back().into_iter().for_each(|request| reactor::start_elsewhere(request, true));
    while refused.requests() > 0 {
        // The kernel ends them without being asked.
        thread::sleep(POLL);
        call_completions(&mut refused);
    }
    RINGS.lock().all -= 1;
}

fn call_completions(ring: &mut Ring) {
    let mut completed = Vec::new();
    ring.completions(&mut completed);
    for (id, result) in completed {
        match ring.complete(id, result) {
            Event::Finished(finished) => deliver(finished),
            Event::Elsewhere(request) => deliver(request.run_blocking()),
            Event::Ready(..) | Event::Raw(..) | Event::Woken | Event::Nothing => {}
        }
    }
}

fn deliver(finished: Finished) {
    let before = DELIVERS.replace(true);
    finished.deliver();
    DELIVERS.set(before);
}

/// Hands operations to threads that serve everybody.
fn hand_over(queued: SmallVec<[Queued; 2]>) {
    queued.into_iter().for_each(|queued| reactor::start_elsewhere(queued.request, queued.ring_allowed));
}

/// Sleeps until somebody wakes this thread or a moment has come.
fn sleep() {
    let moments = with(|caller| std::mem::take(&mut caller.moments)).unwrap_or_default();
    let now = (!moments.is_empty()).then(Instant::now);
    let (due, later): (Vec<_>, Vec<_>) = moments.into_iter().partition(|(_, end, _)| Some(*end) <= now);
    let next = later.iter().map(|(_, end, _)| *end).min();
    with(|caller| caller.moments = later);
    match next.zip(now) {
        _ if !due.is_empty() => due.into_iter().for_each(|(.., waker)| waker.wake()),
        None => thread::park(),
        Some((next, now)) => thread::park_timeout(next - now),
    }
}

/// A future that ends after `duration`, an hour at most, if this thread waits in [`drive`] and so can wake itself.
pub fn moment(duration: Duration) -> Option<Moment> {
    static ASKED: AtomicU64 = AtomicU64::new(0);
    with(|_| ())?;
    Some(Moment {
        end: Instant::now() + duration.min(LONGEST),
        number: ASKED.fetch_add(1, Ordering::Relaxed),
    })
}

/// See [`moment`].
pub struct Moment {
    end: Instant,
    number: u64,
}

impl Future for Moment {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if Instant::now() >= self.end {
            return Poll::Ready(());
        }
        let waits = with(|caller| {
            caller.moments.retain(|(number, ..)| *number != self.number);
            caller.moments.push((self.number, self.end, context.waker().clone()));
        });
        // A thread that can't wake itself must not wait for ever.
        if waits.is_some() { Poll::Pending } else { Poll::Ready(()) }
    }
}

impl Drop for Moment {
    fn drop(&mut self) {
        with(|caller| caller.moments.retain(|(number, ..)| *number != self.number));
    }
}

/// The rings of all callers.
struct Rings {
    /// Nothing is in flight in them.
    idle: Vec<Ring>,
    /// Their number, with those that are borrowed.
    all: usize,
}

// SAFETY: what can't be sent are the completions of entries that are not device operations. A caller
// submits none.
unsafe impl Send for Rings {}

static RINGS: Mutex<Rings> = Mutex::new(Rings { idle: Vec::new(), all: 0 });

fn borrow() -> Option<Ring> {
    if REFUSED.get() {
        return None;
    }
    let mut rings = RINGS.lock();
    if let Some(ring) = rings.idle.pop() {
        return Some(ring);
    }
    if rings.all >= RINGS_MAX || !crate::ring::is_available() {
        return None;
    }
    let ring = Ring::new(Issuer::Several).ok()?;
    rings.all += 1;
    Some(ring)
}

/// Gives a ring back when nothing is in flight any more: the kernel cancels what a thread submitted
/// when the thread ends.
fn give_back(ring: Ring) {
    let mut ring = Some(ring);
    while ring.as_ref().is_some_and(|ring| ring.requests() > 0) {
        reap(&mut ring);
    }
    RINGS.lock().idle.extend(ring);
}
