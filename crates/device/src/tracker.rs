//! The flush tracker: every completed write takes a ticket, and a flush covers the tickets taken
//! before it started.
//!
//! Why it is right: tickets are taken in the completions of writes, under one lock. A flush's cover
//! is the newest ticket, read under that lock before the device is asked; so each covered write
//! completed before the flush was submitted (rule R4). At most one flush is in flight, so flushes
//! end in the order in which they were submitted, and the ledger's settled mark only grows.
//! Requests that the flush in flight does not cover gather for the next one, which its completion
//! submits: the tracker drives itself, and dropping a waiter drops nothing but an answer.
//!
//! A write-through is a write with a flush behind it, in one request. It takes its ticket when it
//! is submitted, under the lock, and counts as the flush in flight until it ends. Everything up to
//! its own ticket is durable then: earlier writes had completed, and it precedes its own flush. If
//! it fails, it fails as a flush.

mod counters;
mod ledger;
#[cfg(test)]
mod tests;
mod write;

pub use counters::TrackerCounters;
pub use write::{WriteHandle, WriteHook};

use crate::oneshot::{self, Receiver, Sender};
use crate::{AlignedBuf, Device, DeviceError, DeviceExt, DeviceFuture, Operation, Room};
use bytes::Bytes;
use counters::Counters;
use ledger::{Fate, Ledger};
use smallvec::{SmallVec, smallvec};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use syncline_sync::atomic::{AtomicU64, Ordering};
use syncline_sync::{Mutex, MutexGuard};

/// Position of a completed write in the order of completions. A flush that was submitted when the
/// newest ticket was `t` makes every ticket up to `t` durable (rule R4). The default, zero, means
/// "nothing was written" and is always durable.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Ticket(pub u64);

/// How a ticket became durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FlushCover {
    /// A flush that had already completed covered it: no device operation was needed.
    Elided,
    /// A flush that another caller had asked for covers it.
    Joined,
    /// This caller's own flush.
    Issued,
}

/// How a ticket became durable, and by which flush.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Flushed {
    /// Whether the flush was elided, joined or issued for this caller.
    pub cover: FlushCover,
    /// The number of the flush, counted from 1 in order of submission. For an elided one, the
    /// newest flush that had succeeded; it covers everything that earlier ones covered. Zero if
    /// none was ever needed.
    pub flush: u64,
    /// The newest ticket that this flush covers.
    pub through: Ticket,
}

/// Counts the writes and flushes of one device, and shares flushes among the callers that need one.
pub struct FlushTracker {
    shared: Arc<Shared>,
}

struct Shared {
    device: Arc<dyn Device>,
    state: Mutex<State>,
    counters: Counters,
    /// Number of failed flushes. A write records it when it starts: see `WriteCompletion::finish`.
    failures: AtomicU64,
}

#[derive(Default)]
struct State {
    ledger: Ledger,
    /// Flushes submitted so far.
    submitted: u64,
    /// The newest flush that succeeded, and its cover.
    succeeded: (u64, Ticket),
    in_flight: Option<InFlight>,
    /// Waiters for a flush that has yet to be submitted.
    gathered: Waiters,
    /// A thread is inside `Shared::drive`; others that would call it can leave the work to that
    /// thread.
    driving: bool,
    /// The error of the newest failed flush.
    last_failure: Option<Arc<std::io::Error>>,
}

/// The flush in flight.
struct InFlight {
    number: u64,
    cover: Ticket,
    waiters: Waiters,
}

/// A caller that needs a flush.
struct Waiter {
    answer: Sender<Result<Flushed, DeviceError>>,
    cover: FlushCover,
    need: Need,
}

/// A caller that needed a flush, and its outcome.
type Answered = (Waiter, Result<Flushed, DeviceError>);

/// Mostly the driver of a group, who waits for all of it.
type Waiters = SmallVec<[Waiter; 2]>;
type Answers = SmallVec<[Answered; 2]>;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Need {
    /// Any flush that covers its ticket.
    Ticket,
    /// A flush submitted after the call, whatever the tickets say.
    FreshFlush,
}

impl FlushTracker {
    /// A tracker over `device`; all of the device's writes and flushes must go through it.
    pub fn new(device: Arc<dyn Device>) -> Arc<Self> {
        let shared = Shared {
            device,
            state: Mutex::default(),
            counters: Counters::default(),
            failures: AtomicU64::new(0),
        };
        Arc::new(Self { shared: Arc::new(shared) })
    }

    /// The device underneath.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.shared.device
    }

    /// Starts a write. A write that fails has no ticket. One that was in flight while a flush
    /// failed fails as poisoned even if the device took it: the effect of the failed flush on it is
    /// unknown (rule R6).
    pub fn write(&self, offset: u64, bufs: Vec<Bytes>) -> WriteHandle {
        let handle = WriteHandle::new();
        let counters = &self.shared.counters;
        counters.writes.add(1);
        counters.write_bytes.add(bufs.iter().map(|buf| buf.len() as u64).sum());
        let mut completion = WriteCompletion {
            shared: self.shared.clone(),
            handle: Some(handle.clone()),
            failures_at_start: self.shared.failures.load(Ordering::Acquire),
        };
        self.shared.device.write(offset, bufs, Box::new(move |result| completion.finish(result)));
        handle
    }

    /// Starts a write that ends with a flush, if the device can do that in one request and no flush
    /// is in flight. Then the second part of the result waits until the write, and everything that
    /// had completed before, is durable. Otherwise this is a plain [`write`](Self::write).
    pub fn write_through(&self, offset: u64, bufs: Vec<Bytes>) -> (WriteHandle, Option<Durability>) {
        let Some((cover, durability)) = self.shared.begin_write_through() else {
            return (self.write(offset, bufs), None);
        };
        let handle = WriteHandle::new();
        let counters = &self.shared.counters;
        counters.writes.add(1);
        counters.writes_through.add(1);
        counters.write_bytes.add(bufs.iter().map(|buf| buf.len() as u64).sum());
        let mut write =
            WriteThrough { handle: handle.clone(), cover, flush: FlushCompletion(Some(self.shared.clone())) };
        self.shared.device.write_through(offset, bufs, Box::new(move |result| write.finish(result)));
        (handle, Some(durability))
    }

    /// Hands the writes that this thread has started to the device at once; see [`Device::submit`].
    pub fn submit(&self) {
        self.shared.device.submit();
    }

    /// Starts a read, which is only counted here.
    pub fn read(&self, offset: u64, len_bytes: usize) -> DeviceFuture<AlignedBuf> {
        self.read_into(offset, len_bytes, None)
    }

    /// Starts a read into `room`, if one of this length is given.
    pub fn read_into(&self, offset: u64, len_bytes: usize, room: Option<Room>) -> DeviceFuture<AlignedBuf> {
        self.shared.counters.reads.add(1);
        self.shared.counters.read_bytes.add(len_bytes as u64);
        self.shared.device.read_into(offset, len_bytes, room)
    }

    /// Ticket of the newest completed write.
    pub fn newest_ticket(&self) -> Ticket {
        self.shared.state.lock().ledger.newest()
    }

    /// True if a completed flush covers `ticket`.
    pub fn is_durable(&self, ticket: Ticket) -> bool {
        matches!(self.shared.state.lock().ledger.fate(ticket), Fate::Durable)
    }

    /// True if a flush failed before any covered `ticket`: only writing again helps (rule R6).
    pub fn is_lost(&self, ticket: Ticket) -> bool {
        matches!(self.shared.state.lock().ledger.fate(ticket), Fate::Poisoned(_))
    }

    /// How many flushes have failed, and the error of the newest of these: for somebody else who writes
    /// to the device, and can't know what they took along (rule R6).
    pub fn failed_flushes(&self) -> (u64, Option<Arc<std::io::Error>>) {
        let state = self.shared.state.lock();
        (self.shared.failures.load(Ordering::Acquire), state.last_failure.clone())
    }

    /// Returns at once if a completed flush covers `ticket`, joins a flush that will, or issues
    /// one. The flush is in flight when this returns; the future only waits for it.
    pub fn make_durable(self: &Arc<Self>, ticket: Ticket) -> Durability {
        let mut state = self.shared.state.lock();
        debug_assert!(ticket <= state.ledger.newest(), "tickets come from completed writes");
        match state.ledger.fate(ticket) {
            Fate::Durable => {
                self.shared.counters.flushes_elided.add(1);
                let (flush, through) = state.succeeded;
                return Durability::known(Ok(Flushed { cover: FlushCover::Elided, flush, through }));
            }
            Fate::Poisoned(source) => return Durability::known(Err(DeviceError::Poisoned { source })),
            Fate::Open => {}
        }
        if let Some(flight) = state.in_flight.as_mut().filter(|flight| ticket <= flight.cover) {
            let (waiter, durability) = waiter(FlushCover::Joined, Need::Ticket);
            flight.waiters.push(waiter);
            self.shared.counters.flushes_joined.add(1);
            return durability;
        }
        self.gather(state, Need::Ticket)
    }

    /// Flushes whatever the tickets say: for recovery, which trusts no cache from an earlier life.
    pub fn flush_now(self: &Arc<Self>) -> Durability {
        self.gather(self.shared.state.lock(), Need::FreshFlush)
    }

    /// The counters so far.
    pub fn counters(&self) -> TrackerCounters {
        self.shared.counters.snapshot()
    }

    /// Joins the waiters for the next flush, and submits it if none is in flight.
    fn gather(&self, mut state: MutexGuard<'_, State>, need: Need) -> Durability {
        let cover = if state.gathered.is_empty() { FlushCover::Issued } else { FlushCover::Joined };
        if cover == FlushCover::Joined {
            self.shared.counters.flushes_joined.add(1);
        }
        let (waiter, durability) = waiter(cover, need);
        state.gathered.push(waiter);
        drop(state);
        Shared::drive(&self.shared);
        durability
    }
}

impl Shared {
    /// Makes a write that is about to start the flush in flight; returns its ticket and the future
    /// that waits for it.
    fn begin_write_through(&self) -> Option<(Ticket, Durability)> {
        if !self.device.writes_through() {
            return None;
        }
        let mut state = self.state.lock();
        if state.in_flight.is_some() {
            return None;
        }
        let cover = state.ledger.take_ticket();
        let (waiter, durability) = waiter(FlushCover::Issued, Need::Ticket);
        state.submitted += 1;
        state.in_flight = Some(InFlight { number: state.submitted, cover, waiters: smallvec![waiter] });
        drop(state);
        self.counters.flushes_issued.add(1);
        Some((cover, durability))
    }

    /// Submits a flush whenever one is needed and none is in flight.
    ///
    /// A device may complete a flush inside the call that submits it. `driving` turns that
    /// recursion into iterations of this loop: the completion leaves the next flush to us, and we
    /// look again under the lock.
    fn drive(shared: &Arc<Self>) {
        let mut state = shared.state.lock();
        if state.driving {
            return;
        }
        state.driving = true;
        while state.in_flight.is_none() && !state.gathered.is_empty() {
            // The cover is fixed before the device is asked (rule R4).
            state.submitted += 1;
            let flight = InFlight {
                number: state.submitted,
                cover: state.ledger.newest(),
                waiters: std::mem::take(&mut state.gathered),
            };
            state.in_flight = Some(flight);
            drop(state);
            shared.counters.flushes_issued.add(1);
            let mut completion = FlushCompletion(Some(shared.clone()));
            shared.device.flush(Box::new(move |result| completion.finish(result)));
            state = shared.state.lock();
        }
        state.driving = false;
    }

    /// Settles the outcome of the flush in flight; returns the waiters to answer, each with its
    /// answer.
    fn settle(&self, result: &Result<(), DeviceError>) -> Answers {
        let mut state = self.state.lock();
        let flight = state.in_flight.take().expect("only the one flush on its way ends here");
        match result {
            Ok(()) => {
                state.ledger.flush_succeeded(flight.cover);
                let (flush, through) = (flight.number, flight.cover);
                state.succeeded = (flush, through);
                let answered = |waiter: Waiter| {
                    let flushed = Flushed { cover: waiter.cover, flush, through };
                    (waiter, Ok(flushed))
                };
                flight.waiters.into_iter().map(answered).collect()
            }
            Err(error) => {
                let source = error.poison_source();
                // Under the lock, so that a write's completion sees both or neither.
                self.failures.fetch_add(1, Ordering::Release);
                self.counters.flushes_failed.add(1);
                state.last_failure = Some(source.clone());
                state.ledger.flush_failed(source.clone());
                // Waiters that gathered for the next flush hold tickets that are now lost too (rule
                // R6).
                let (lost, fresh) = std::mem::take(&mut state.gathered)
                    .into_iter()
                    .partition(|waiter| waiter.need == Need::Ticket);
                state.gathered = fresh;
                if let Some(first) = state.gathered.first_mut() {
                    first.cover = FlushCover::Issued;
                }
                let lost: Waiters = lost;
                let answer = || Err(DeviceError::Poisoned { source: source.clone() });
                flight.waiters.into_iter().chain(lost).map(|waiter| (waiter, answer())).collect()
            }
        }
    }
}

/// Ends one write, even if the device drops its completion unanswered.
struct WriteCompletion {
    shared: Arc<Shared>,
    handle: Option<WriteHandle>,
    failures_at_start: u64,
}

impl WriteCompletion {
    fn finish(&mut self, result: Result<(), DeviceError>) {
        let Some(handle) = self.handle.take() else { return };
        let outcome = result.and_then(|()| self.take_ticket());
        if outcome.is_err() {
            self.shared.counters.writes_failed.add(1);
        }
        handle.end(outcome);
    }

    /// A write that was in flight while a flush failed may have reached a cache before that failure
    /// and been dropped with it, although we learn of its completion only now: a later flush would
    /// prove nothing about it (rule R6).
    fn take_ticket(&self) -> Result<Ticket, DeviceError> {
        let mut state = self.shared.state.lock();
        if self.shared.failures.load(Ordering::Acquire) == self.failures_at_start {
            return Ok(state.ledger.take_ticket());
        }
        let source = state.last_failure.clone().expect("a flush that failed left its reason");
        Err(DeviceError::Poisoned { source })
    }
}

impl Drop for WriteCompletion {
    fn drop(&mut self) {
        self.finish(Err(DeviceError::Abandoned { operation: Operation::Write }));
    }
}

/// Ends a write-through.
struct WriteThrough {
    handle: WriteHandle,
    cover: Ticket,
    flush: FlushCompletion,
}

impl WriteThrough {
    fn finish(&mut self, result: Result<(), DeviceError>) {
        let outcome = match &result {
            Ok(()) => Ok(self.cover),
            Err(error) => Err(error.clone()),
        };
        let Some(answers) = self.flush.settle(&result) else { return };
        self.handle.end(outcome);
        answer(answers);
    }
}

impl Drop for WriteThrough {
    fn drop(&mut self) {
        self.finish(Err(DeviceError::Abandoned { operation: Operation::Write }));
    }
}

/// Ends one flush, even if the device drops its completion unanswered, and submits the next.
struct FlushCompletion(Option<Arc<Shared>>);

impl FlushCompletion {
    fn finish(&mut self, result: Result<(), DeviceError>) {
        if let Some(answers) = self.settle(&result) {
            answer(answers);
        }
    }

    /// Settles the flush and submits the next; returns the waiters to answer. `None` if it had
    /// already ended.
    fn settle(&mut self, result: &Result<(), DeviceError>) -> Option<Answers> {
        let shared = self.0.take()?;
        let answers = shared.settle(result);
        // The next flush first: woken waiters may take their time.
        Shared::drive(&shared);
        Some(answers)
    }
}

fn answer(answers: Answers) {
    for (waiter, answer) in answers {
        waiter.answer.send(answer);
    }
}

impl Drop for FlushCompletion {
    fn drop(&mut self) {
        self.finish(Err(DeviceError::Abandoned { operation: Operation::Flush }));
    }
}

/// Waits until a ticket is durable or lost. Dropping it cancels the wait and nothing else.
#[must_use = "durable only when this says so"]
pub struct Durability(Inner);

enum Inner {
    Known(Option<Result<Flushed, DeviceError>>),
    Waiting(Receiver<Result<Flushed, DeviceError>>),
}

impl Durability {
    fn known(answer: Result<Flushed, DeviceError>) -> Self {
        Self(Inner::Known(Some(answer)))
    }
}

fn waiter(cover: FlushCover, need: Need) -> (Waiter, Durability) {
    let (answer, receiver) = oneshot::channel();
    (Waiter { answer, cover, need }, Durability(Inner::Waiting(receiver)))
}

impl Future for Durability {
    type Output = Result<Flushed, DeviceError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            Inner::Known(answer) => Poll::Ready(answer.take().expect("polled again after its end")),
            Inner::Waiting(receiver) => Pin::new(receiver)
                .poll(context)
                .map(|answer| answer.unwrap_or(Err(DeviceError::Abandoned { operation: Operation::Flush }))),
        }
    }
}
