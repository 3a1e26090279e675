//! Flushes: one at a time, for all who have asked so far.
//!
//! A server may report a failed flush once, to whichever request comes first. So two are never in
//! flight at once, and the error of one goes to everybody who waits by then. If nobody waits, since
//! this device flushed by itself, the error is owed: the next who asks gets it (rule R6).

use super::kept::Cover;
use super::operation::{Answer, Breaks};
use super::outgoing::Message;
use super::protocol::{Command, Request, io_error};
use super::state::{Outbox, State};
use super::wires::{Target, Wire};
use smallvec::SmallVec;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};
use syncline_device::{Completion, DeviceError, Operation};

/// A reconnect takes about as long to write the kept changes again as writing them took. A lease that
/// is in the image ends after some seconds without a renewal, and the renewal comes after the writing
/// again. So the next flush is due this long after the last one, once so much is kept that writing it
/// again takes any time at all.
const OWN_AFTER: Duration = Duration::from_secs(2);
const OWN_BYTES: u64 = 8 << 20;

#[derive(Default)]
pub(super) struct Flushes {
    flight: Option<Flight>,
    /// The waiters for the next flush.
    gathered: Vec<Waiter>,
    owed: Option<Arc<io::Error>>,
    /// When the newest flush was sent.
    sent: Option<Instant>,
}

struct Flight {
    /// Covers the changes that had completed when it was sent.
    cover: Cover,
    waiters: Vec<Waiter>,
}

/// Somebody who needs a flush.
pub(super) struct Waiter {
    pub(super) done: Completion<()>,
    pub(super) asked: Instant,
    /// The write that it belongs to, if to one.
    pub(super) write: Option<(u64, u64)>,
    pub(super) breaks: Breaks,
}

impl Waiter {
    fn fail(self, source: Arc<io::Error>) -> Answer {
        let (operation, (offset, len_bytes)) = match self.write {
            Some(range) => (Operation::Write, range),
            None => (Operation::Flush, (0, 0)),
        };
        Answer::Done(self.done, Err(DeviceError::Io { operation, offset, len_bytes, source }))
    }
}

impl Flushes {
    pub(super) fn ask(&mut self, waiter: Waiter) {
        self.gathered.push(waiter);
    }

    pub(super) fn is_idle(&self) -> bool {
        self.flight.is_none() && self.gathered.is_empty()
    }

    /// How many wait for one.
    pub(super) fn waiting(&self) -> u64 {
        let flight = self.flight.as_ref().map_or(0, |flight| flight.waiters.len());
        (flight + self.gathered.len()) as u64
    }

    /// True if the next one who asks gets an error.
    pub(super) fn owes(&self) -> bool {
        self.owed.is_some()
    }

    /// The connection is gone: the flush in flight is to be sent again.
    pub(super) fn requeue(&mut self, now: Instant) {
        let mut waiters = self.flight.take().map_or_else(Vec::new, |flight| flight.waiters);
        waiters.iter_mut().for_each(|waiter| waiter.breaks.add(now));
        waiters.append(&mut self.gathered);
        self.gathered = waiters;
    }

    pub(super) fn stuck_since(&self) -> Option<Instant> {
        self.gathered.iter().filter_map(|waiter| waiter.breaks.stuck_since()).min()
    }

    /// Ends everybody's wait with this error.
    pub(super) fn fail(&mut self, source: &Arc<io::Error>, outbox: &mut Outbox) {
        let flight = self.flight.take().map_or_else(Vec::new, |flight| flight.waiters);
        let all = flight.into_iter().chain(std::mem::take(&mut self.gathered));
        outbox.answers.extend(all.map(|waiter| waiter.fail(source.clone())));
    }
}

impl State {
    /// Sends a flush if one is wanted and none is in flight.
    pub(super) fn pump_flush(&mut self, outbox: &mut Outbox) {
        if self.flushes.flight.is_some() {
            return;
        }
        if !self.flushes.gathered.is_empty()
            && let Some(owed) = self.flushes.owed.take()
        {
            self.flushes.fail(&owed, outbox);
        }
        let own = self.flushes.gathered.is_empty();
        if own && !self.wants_own_flush() {
            return;
        }
        self.flushes.sent = Some(Instant::now());
        self.counters.flushes.add(1);
        self.counters.own_flushes.add(own.into());
        // The cover is fixed before the request is sent (rule R4).
        let waiters = std::mem::take(&mut self.flushes.gathered);
        self.flushes.flight = Some(Flight { cover: self.kept.cover(), waiters });
        let (cookie, index) = (self.next_cookie(), self.least_busy());
        self.wires.insert(cookie, Wire::new(Target::Flush, index, 0, 0));
        self.loads[index] += self.wires[&cookie].load();
        let request = Request { command: Command::Flush, flags: 0, cookie, offset: 0, len_bytes: 0 };
        // In front of writes that are not on their way: it covers none of them.
        outbox.messages.push((index, Message::new(&request, SmallVec::new(), true)));
    }

    /// True if so much is kept that it is time to flush though nobody has asked.
    fn wants_own_flush(&self) -> bool {
        let open_bytes = self.kept.open_bytes();
        let is_due = || self.flushes.sent.is_none_or(|sent| sent.elapsed() >= OWN_AFTER);
        open_bytes > 0 && (self.is_full || open_bytes >= self.kept_max_bytes / 2)
            || open_bytes >= OWN_BYTES && is_due()
    }

    /// The flush in flight was answered.
    pub(super) fn flush_ended(&mut self, error: Option<u32>, outbox: &mut Outbox) {
        let Some(flight) = self.flushes.flight.take() else { return };
        let Some(error) = error else {
            self.kept.flushed(flight.cover);
            for waiter in flight.waiters {
                self.counters.flush_ns.record(waiter.asked.elapsed());
                outbox.answers.push(Answer::Done(waiter.done, Ok(())));
            }
            return;
        };
        self.kept.poison(flight.cover);
        let error = Arc::new(io_error(error));
        if flight.waiters.is_empty() && self.flushes.gathered.is_empty() {
            tracing::warn!("a flush failed that nobody waited for ({error}): the next one fails with it");
            self.flushes.owed = Some(error);
            return;
        }
        self.flushes.flight = Some(flight);
        self.flushes.fail(&error, outbox);
    }
}
