//! The thread that renews a lease. It stands in no queue of the engine.

use crate::gate::Gate;
use crate::renewal::{Event, Renewal, Step};
use crate::status::Counters;
use crate::traffic::Traffic;
use crate::{LEASE_OFFSET, LeaseError, LeaseLost};
use parking_lot::{Condvar, Mutex};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};
use syncline_device::{AlignedBuf, BLOCK_BYTES, Device, DeviceError, Operation};
use syncline_format::lease::{Lease, LeaseState};

/// A release takes no longer than this: the next holder can wait instead.
const RELEASE_MAX: Duration = Duration::from_secs(5);
/// Until nothing is in flight any more, a release looks again after this time.
const TRAFFIC_PAUSE: Duration = Duration::from_millis(5);
/// How long who has the lease now is looked for after it has expired. Everybody who waits for the
/// device waits for that too.
const SUCCESSOR_MAX: Duration = Duration::from_millis(500);
/// The stack of the thread.
const STACK_BYTES: usize = 256 << 10;

/// The thread, as its owner sees it.
pub(crate) struct Renewer {
    shared: Arc<Shared>,
    thread: Thread,
}

#[derive(Default)]
struct Shared {
    /// The lease is to be released.
    ends: AtomicBool,
    /// How it ended: true if the block says that the lease is free.
    ended: Mutex<Option<bool>>,
    /// `ended` has changed.
    changed: Condvar,
}

/// The one operation that is in flight, or its answer.
type Answer = Arc<Mutex<Option<Event>>>;

struct Running {
    device: Arc<dyn Device>,
    gate: Arc<Gate>,
    renewal: Renewal,
    traffic: Arc<Traffic>,
    counters: Arc<Counters>,
    shared: Arc<Shared>,
    released: bool,
}

impl Renewer {
    pub(crate) fn start(
        device: Arc<dyn Device>,
        gate: Arc<Gate>,
        lease: Lease,
        traffic: Arc<Traffic>,
        counters: Arc<Counters>,
    ) -> Result<Self, LeaseError> {
        let shared = Arc::<Shared>::default();
        let renewal = Renewal::new(gate.clone(), lease);
        let running =
            Running { device, gate, renewal, traffic, counters, shared: shared.clone(), released: false };
        let builder = thread::Builder::new().name("syncline-lease".into()).stack_size(STACK_BYTES);
        let handle =
            builder.spawn(move || running.run()).map_err(|error| LeaseError::Thread(Arc::new(error)))?;
        Ok(Self { shared, thread: handle.thread().clone() })
    }

    /// Ends the lease, and waits until the block says so; false if it can't.
    pub(crate) fn release(&self) -> bool {
        self.shared.ends.store(true, Ordering::SeqCst);
        self.thread.unpark();
        if self.thread.id() == thread::current().id() {
            // A listener of the lost lease: nothing is left to release.
            return false;
        }
        let mut ended = self.shared.ended.lock();
        // The thread has its own limit; this is for one that does not get a processor.
        let limit = Instant::now() + 2 * RELEASE_MAX;
        while ended.is_none() && !self.shared.changed.wait_until(&mut ended, limit).timed_out() {}
        ended.unwrap_or(false)
    }
}

impl Drop for Renewer {
    fn drop(&mut self) {
        self.release();
    }
}

impl Running {
    fn run(mut self) {
        self.gate.renewed_by_this_thread();
        let mut step = self.renewal.step(Event::Woke);
        loop {
            if let Some(took) = self.renewal.renewed() {
                self.counters.renewed(took);
            }
            let event = match step {
                Step::Pause(until) => self.pause(until),
                Step::Lost(_) => break,
                Step::Released => break,
                Step::Read => self.read(),
                Step::Write(lease) => self.write(*lease),
                Step::Flush => self.flush(),
            };
            let Some(event) = event else {
                // The lease has expired while the device did not answer, or the release took too
                // long. The operation goes on by itself; its answer changes nothing any more.
                let _ = self.gate.check();
                break;
            };
            step = self.renewal.step(event);
        }
        self.end();
    }

    fn end(self) {
        self.look_for_successor();
        let told = || {
            *self.shared.ended.lock() = Some(self.released);
            self.shared.changed.notify_all();
        };
        // The device is dropped before any listener hears of it: a caller that waits may want to
        // close it.
        drop(self.device);
        told();
        self.gate.tell_listeners();
    }

    /// Reads the block once more if the lease has expired: its listeners are told who has it, if
    /// somebody does. A read does no harm.
    fn look_for_successor(&self) {
        if !matches!(self.gate.lost(), Some(LeaseLost::Expired { .. })) {
            return;
        }
        let answer = Answer::default();
        self.begin_read(answer.clone());
        self.device.submit();
        let limit = Instant::now() + SUCCESSOR_MAX;
        while answer.lock().is_none() && Instant::now() < limit {
            thread::park_timeout(limit.saturating_duration_since(Instant::now()));
        }
        let answer = answer.lock().take();
        if let Some(Event::Read(Ok(found))) = answer {
            let _ = self.gate.check_block(&found);
        }
    }

    /// Waits until the next renewal is due, the lease is lost or it is to be released.
    fn pause(&mut self, until: Duration) -> Option<Event> {
        loop {
            if self.shared.ends.load(Ordering::SeqCst) {
                return self.nothing_in_flight().then_some(Event::Release);
            }
            let clock = self.gate.clock();
            if self.gate.lost().is_some() || clock.now() >= until.min(self.gate.valid_until()) {
                return Some(Event::Woke);
            }
            thread::park_timeout(clock.sleep(until.min(self.gate.valid_until())));
        }
    }

    /// Closes the gate, and waits until everything that passed it has ended.
    fn nothing_in_flight(&self) -> bool {
        self.gate.lose(LeaseLost::Released);
        let limit = Instant::now() + RELEASE_MAX;
        while !self.traffic.is_over() {
            let expired = self.gate.clock().now() >= self.gate.valid_until();
            if self.traffic.is_unclear() || expired || Instant::now() >= limit {
                tracing::warn!(
                    "the device lease is not released, as a write of it may still be under way: it expires"
                );
                return false;
            }
            thread::park_timeout(TRAFFIC_PAUSE);
        }
        true
    }

    fn read(&self) -> Option<Event> {
        let event = self.answered(|answer| self.begin_read(answer));
        self.note_failure(&event);
        event
    }

    fn begin_read(&self, answer: Answer) {
        let mut post = Post::new(answer, |lost| Event::Read(Err(lost)), Operation::Read);
        let done = move |result: Result<AlignedBuf, DeviceError>| {
            post.send(Event::Read(result.map(|block| Lease::decode(&block))));
        };
        self.device.read(LEASE_OFFSET, AlignedBuf::for_read(BLOCK_BYTES), Box::new(done));
    }

    fn write(&mut self, lease: Lease) -> Option<Event> {
        self.released = false;
        let releases = lease.state == LeaseState::Released;
        let block = AlignedBuf::copy_from(&lease.encode()).into_bytes();
        let event = self.answered(|answer| {
            let mut post = Post::new(answer, |lost| Event::Done(Err(lost)), Operation::Write);
            self.device.write(
                LEASE_OFFSET,
                vec![block],
                Box::new(move |result| post.send(Event::Done(result))),
            );
        });
        self.note_failure(&event);
        self.released = releases && matches!(event, Some(Event::Done(Ok(()))));
        event
    }

    fn flush(&mut self) -> Option<Event> {
        let event = self.answered(|answer| {
            let mut post = Post::new(answer, |lost| Event::Done(Err(lost)), Operation::Flush);
            self.device.flush(Box::new(move |result| post.send(Event::Done(result))));
        });
        self.note_failure(&event);
        // Without it the block may be an older one again.
        self.released &= matches!(event, Some(Event::Done(Ok(()))));
        event
    }

    fn note_failure(&self, event: &Option<Event>) {
        if matches!(event, Some(Event::Done(Err(_)) | Event::Read(Err(_)))) {
            self.counters.failed();
        }
    }

    /// Starts an operation and waits for its answer; `None` if there was none while the lease was
    /// valid.
    fn answered(&self, start: impl FnOnce(Answer)) -> Option<Event> {
        let answer = Answer::default();
        start(answer.clone());
        // A thread that is in no worker's loop hands its operations over itself.
        self.device.submit();
        let limit = Instant::now() + RELEASE_MAX;
        loop {
            if let Some(event) = answer.lock().take() {
                return Some(event);
            }
            let (clock, until) = (self.gate.clock(), self.gate.valid_until());
            let releasing = self.gate.lost().is_some();
            if clock.now() >= until || releasing && Instant::now() >= limit {
                return None;
            }
            let sleep = clock.sleep(until);
            thread::park_timeout(if releasing { sleep.min(TRAFFIC_PAUSE) } else { sleep });
        }
    }
}

/// The way of an answer to the thread, even if the device drops the completion.
struct Post {
    answer: Option<Answer>,
    thread: Thread,
    abandoned: fn(DeviceError) -> Event,
    operation: Operation,
}

impl Post {
    fn new(answer: Answer, abandoned: fn(DeviceError) -> Event, operation: Operation) -> Self {
        Self { answer: Some(answer), thread: thread::current(), abandoned, operation }
    }

    fn send(&mut self, event: Event) {
        if let Some(answer) = self.answer.take() {
            *answer.lock() = Some(event);
            self.thread.unpark();
        }
    }
}

impl Drop for Post {
    fn drop(&mut self) {
        let why = io::Error::other("the device dropped the operation");
        let event = (self.abandoned)(DeviceError::io(self.operation, LEASE_OFFSET, BLOCK_BYTES as u64, why));
        self.send(event);
    }
}
