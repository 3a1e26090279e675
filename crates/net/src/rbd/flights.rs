//! The operations of a device that are not answered yet, and whether it answers at all.
//!
//! An operation is answered in one place, here, exactly once: by its result while the device works, or
//! with everything else by the reason why it broke. Once the first sign of a fence is seen, nothing is
//! acknowledged any more, whatever librbd says. The writes that had succeeded before are in the image,
//! and the new holder finds them there.

use super::broken::{Broken, failure};
use super::error::Errno;
use crate::counters::{Counters, NetGauges};
use parking_lot::{Condvar, Mutex};
use std::collections::BTreeMap;
use std::io;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use syncline_device::{AlignedBuf, Completion, DeviceError, Operation};

/// State that a device and the operations under way share.
pub(super) struct Flights {
    /// The image, for messages.
    pub(super) image: String,
    /// Its pool, for messages.
    pub(super) pool: String,
    pub(super) counters: Counters,
    size_bytes: AtomicU64,
    state: Mutex<State>,
    /// Wakes the sentinel: something is to be decided, or the device was closed.
    changed: Condvar,
    /// Wakes the watchman: the device was closed, or is broken.
    closed: Condvar,
}

/// Called when the device breaks.
pub(super) type Listener = Box<dyn FnOnce(&Arc<io::Error>) + Send>;

struct State {
    listeners: Vec<Listener>,
    condition: Condition,
    /// Numbers ascend with time, so the first one is the oldest.
    pending: BTreeMap<u64, Pending>,
    next: u64,
    closed: bool,
}

enum Condition {
    Working,
    /// A sign of a fence; the sentinel is finding out who has the lock. Nothing is sent or answered
    /// meanwhile.
    Doubted(Option<Errno>),
    Broken(Arc<io::Error>),
}

/// An operation that is not answered.
pub(super) struct Pending {
    pub(super) started: Instant,
    pub(super) offset: u64,
    pub(super) len_bytes: u64,
    pub(super) done: Done,
}

/// The completion of an operation.
pub(super) enum Done {
    Read(Completion<AlignedBuf>),
    Other(Operation, Completion<()>),
    /// An enlargement, which gets the size.
    Size(Completion<u64>),
}

impl Done {
    /// An enlargement is none of the operations that are counted.
    fn operation(&self) -> Option<Operation> {
        match self {
            Self::Read(_) => Some(Operation::Read),
            Self::Other(operation, _) => Some(*operation),
            Self::Size(_) => None,
        }
    }
}

/// How an operation that begins goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Begun {
    /// Send it, under this number.
    Send(u64),
    /// Nothing: it has been answered, or will be.
    Answered,
}

/// The sentinel's task.
pub(super) enum Task {
    /// Find out who has the lock, and break the device.
    Explain(Option<Errno>),
    /// Nothing is left to watch over.
    End,
}

impl Flights {
    pub(super) fn new(image: String, pool: String, size_bytes: u64) -> Arc<Self> {
        let state = State {
            listeners: Vec::new(),
            condition: Condition::Working,
            pending: BTreeMap::new(),
            next: 0,
            closed: false,
        };
        Arc::new(Self {
            image,
            pool,
            counters: Counters::default(),
            size_bytes: AtomicU64::new(size_bytes),
            state: Mutex::new(state),
            changed: Condvar::new(),
            closed: Condvar::new(),
        })
    }

    pub(super) fn size_bytes(&self) -> u64 {
        self.size_bytes.load(Ordering::Acquire)
    }

    /// Notes that the image is this large, if that is more than before; returns the size that
    /// holds.
    pub(super) fn grown(&self, size_bytes: u64) -> u64 {
        self.size_bytes.fetch_max(size_bytes, Ordering::AcqRel).max(size_bytes)
    }

    /// Takes an operation in, unless the device is broken.
    pub(super) fn begin(&self, pending: Pending) -> Begun {
        let mut state = self.state.lock();
        if let Condition::Broken(source) = &state.condition {
            let source = source.clone();
            drop(state);
            pending.fail(&self.image, source);
            return Begun::Answered;
        }
        let (operation, len_bytes) = (pending.done.operation(), pending.len_bytes);
        let number = state.next;
        state.next += 1;
        state.pending.insert(number, pending);
        if !matches!(state.condition, Condition::Working) {
            return Begun::Answered;
        }
        drop(state);
        if let Some(operation) = operation {
            self.sent(operation, len_bytes);
        }
        Begun::Send(number)
    }

    /// Takes the result of an operation. Reads come with their buffer.
    pub(super) fn end(&self, number: u64, result: Result<Option<AlignedBuf>, Failure>) {
        let mut state = self.state.lock();
        if !matches!(state.condition, Condition::Working) {
            // It is answered with the others, or was.
            return;
        }
        if let Err(Failure::Errno(errno)) = result
            && errno.means_fenced()
        {
            state.condition = Condition::Doubted(Some(errno));
            drop(state);
            self.changed.notify_all();
            return;
        }
        let Some(pending) = self.take(&mut state, number) else { return };
        drop(state);
        if let (Ok(_), Some(operation)) = (&result, pending.done.operation()) {
            self.succeeded(operation, pending.started.elapsed());
        }
        pending.answer(result, self);
    }

    /// Takes the result of an enlargement. Without an answer it would be waited for without an end,
    /// since librbd's own call waits as long as the cluster is away.
    pub(super) fn end_size(&self, number: u64, result: Result<u64, DeviceError>) {
        let mut state = self.state.lock();
        if !matches!(state.condition, Condition::Working) {
            return;
        }
        let Some(Pending { done: Done::Size(done), .. }) = self.take(&mut state, number) else { return };
        drop(state);
        shielded(|| done(result));
    }

    fn take(&self, state: &mut State, number: u64) -> Option<Pending> {
        let pending = state.pending.remove(&number)?;
        if state.closed && state.pending.is_empty() {
            self.changed.notify_all();
        }
        Some(pending)
    }

    /// Counts an operation that is sent.
    fn sent(&self, operation: Operation, len_bytes: u64) {
        let counters = &self.counters;
        let count = match operation {
            Operation::Read => {
                counters.read_bytes.add(len_bytes);
                &counters.reads
            }
            Operation::Write => {
                counters.written_bytes.add(len_bytes);
                &counters.writes
            }
            Operation::Flush => &counters.flushes,
            Operation::Discard => &counters.discards,
        };
        count.add(1);
    }

    fn succeeded(&self, operation: Operation, took: Duration) {
        match operation {
            Operation::Read => self.counters.read_ns.record(took),
            Operation::Write => self.counters.write_ns.record(took),
            Operation::Flush => self.counters.flush_ns.record(took),
            Operation::Discard => {}
        }
    }

    /// Someone else seems to have the lock. From here on nothing is acknowledged.
    pub(super) fn doubt(&self, errno: Option<Errno>) {
        let mut state = self.state.lock();
        if matches!(state.condition, Condition::Working) {
            state.condition = Condition::Doubted(errno);
            drop(state);
            self.changed.notify_all();
        }
    }

    /// Ends everything with this reason; no later call revives it.
    pub(super) fn break_off(&self, broken: &Broken) {
        let source = Arc::new(broken.error(&self.image));
        let mut state = self.state.lock();
        if matches!(state.condition, Condition::Broken(_)) {
            return;
        }
        state.condition = Condition::Broken(source.clone());
        let pending = std::mem::take(&mut state.pending);
        let listeners = std::mem::take(&mut state.listeners);
        drop(state);
        tracing::info!(unanswered = pending.len(), "{source}");
        listeners.into_iter().for_each(|listener| listener(&source));
        for pending in pending.into_values() {
            pending.fail(&self.image, source.clone());
        }
        self.changed.notify_all();
        self.closed.notify_all();
    }

    /// Calls `listener` when the device breaks, or now if it has.
    pub(super) fn on_broken(&self, listener: Listener) {
        let mut state = self.state.lock();
        match &state.condition {
            Condition::Broken(source) => {
                let source = source.clone();
                drop(state);
                listener(&source);
            }
            _ => state.listeners.push(listener),
        }
    }

    /// The gauges at this moment.
    pub(super) fn now(&self) -> NetGauges {
        let state = self.state.lock();
        NetGauges {
            connections: u64::from(!matches!(state.condition, Condition::Broken(_))),
            in_flight: state.pending.len() as u64,
            in_flight_bytes: state.pending.values().map(|pending| pending.len_bytes).sum(),
            kept_bytes: 0,
        }
    }

    /// Why the device is broken.
    pub(super) fn broken(&self) -> Option<Arc<io::Error>> {
        match &self.state.lock().condition {
            Condition::Broken(source) => Some(source.clone()),
            _ => None,
        }
    }

    /// The device was dropped. Operations under way go on.
    pub(super) fn close(&self) {
        self.state.lock().closed = true;
        self.changed.notify_all();
        self.closed.notify_all();
    }

    /// Waits this long, or until the device is closed or broken; true if it still works.
    pub(super) fn works_after(&self, pause: Duration) -> bool {
        let mut state = self.state.lock();
        let until = Instant::now() + pause;
        while !state.closed && matches!(state.condition, Condition::Working) {
            if self.closed.wait_until(&mut state, until).timed_out() {
                break;
            }
        }
        !state.closed && matches!(state.condition, Condition::Working)
    }

    /// Waits until there is something to do for the sentinel. An operation that has been under way
    /// for longer than `wait` ends the device.
    pub(super) fn next_task(&self, wait: Option<Duration>) -> Task {
        let mut state = self.state.lock();
        loop {
            match state.condition {
                Condition::Doubted(errno) => return Task::Explain(errno),
                Condition::Broken(_) => return Task::End,
                Condition::Working if state.closed && state.pending.is_empty() => return Task::End,
                Condition::Working => {}
            }
            let Some(wait) = wait else {
                self.changed.wait(&mut state);
                continue;
            };
            let oldest = state.pending.first_key_value().map(|(_, pending)| pending.started);
            if oldest.is_some_and(|started| started.elapsed() >= wait) {
                drop(state);
                self.break_off(&Broken::Away { seconds: wait.as_secs_f32() });
                return Task::End;
            }
            // Looking often enough is cheaper than being woken by each operation.
            let pause = (wait / 10).clamp(Duration::from_millis(10), Duration::from_secs(1));
            self.changed.wait_for(&mut state, pause);
        }
    }
}

/// Why an operation failed by itself.
#[derive(Clone, Copy, Debug)]
pub(super) enum Failure {
    /// librbd says so.
    Errno(Errno),
    /// Less was read than was asked for: the image ends before.
    Short,
}

impl Pending {
    fn answer(self, result: Result<Option<AlignedBuf>, Failure>, flights: &Flights) {
        match (self.done, result) {
            (Done::Read(done), Ok(Some(buf))) => shielded(|| done(Ok(buf))),
            (Done::Other(_, done), Ok(_)) => shielded(|| done(Ok(()))),
            (done, result) => {
                let source = match result {
                    Err(Failure::Errno(errno)) => failure(errno, &flights.pool),
                    _ => io::ErrorKind::UnexpectedEof.into(),
                };
                Self { done, ..self }.fail(&flights.image, Arc::new(source));
            }
        }
    }

    fn fail(self, image: &str, source: Arc<io::Error>) {
        let (offset, len_bytes) = (self.offset, self.len_bytes);
        let error = match self.done.operation() {
            Some(operation) => DeviceError::Io { operation, offset, len_bytes, source },
            None => DeviceError::Extend { path: image.to_owned(), source },
        };
        match self.done {
            Done::Read(done) => shielded(|| done(Err(error))),
            Done::Other(_, done) => shielded(|| done(Err(error))),
            Done::Size(done) => shielded(|| done(Err(error))),
        }
    }
}

/// Calls a completion. A panic in it is reported and ends here: the thread is librbd's, and has
/// other completions to call.
fn shielded(complete: impl FnOnce()) {
    if std::panic::catch_unwind(AssertUnwindSafe(complete)).is_err() {
        tracing::error!("the completion of a device operation panicked");
    }
}

#[cfg(test)]
mod tests;
