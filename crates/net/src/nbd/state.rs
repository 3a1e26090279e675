//! The state of the device: the requests without an answer, and the changes that are kept. Methods here
//! do no I/O and call nobody; messages to send and answers to give go to an [`Outbox`].

use super::NbdOptions;
use super::channel::Channel;
use super::fence::Guard;
use super::flushes::{Flushes, Waiter};
use super::kept::{Kept, weight};
use super::lab::Canary;
use super::link::Link;
use super::operation::{Answer, Breaks, Change, Op, Piece, Work, pieces, split};
use super::outgoing::Message;
use super::protocol::{Command, Request, error, export, io_error};
use super::wires::{Target, Wire};
use crate::counters::{Counters, NetGauges};
use smallvec::SmallVec;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::time::Instant;
use syncline_device::{BLOCK_BYTES, Completion, DeviceError};

/// Messages, answers and calls that wait until the state is not locked any more.
#[derive(Default)]
pub(super) struct Outbox {
    /// Where the messages go.
    pub(super) link: Option<Arc<Link>>,
    /// Messages, each with the number of its connection.
    pub(super) messages: SmallVec<[(usize, Message); 2]>,
    /// Called before anybody is answered.
    pub(super) listeners: Vec<(Listener, Arc<io::Error>)>,
    pub(super) answers: SmallVec<[Answer; 2]>,
    /// The manager has something to do.
    pub(super) wake_manager: bool,
    /// A link that ends at once, with everything in it.
    pub(super) ended: Option<Arc<Link>>,
    /// The same for a connection that is no link yet.
    pub(super) ended_early: Option<Arc<Channel>>,
}

/// Called when the device breaks for good.
pub(super) type Listener = Box<dyn FnOnce(&Arc<io::Error>) + Send>;

/// Whether the server can be reached.
pub(super) enum Phase {
    Up(Arc<Link>),
    /// The manager makes a new link. The old one, if any, has yet to be ended.
    Down {
        since: Instant,
        why: io::Error,
        old: Option<Arc<Link>>,
    },
    /// For good: every operation fails with this error.
    Broken {
        error: Arc<io::Error>,
        old: Option<Arc<Link>>,
    },
}

pub(super) struct State {
    pub(super) phase: Phase,
    /// The manager makes a new link, which may take its time.
    pub(super) connecting: bool,
    /// The connection over which the kept changes are written again. No link has it yet.
    pub(super) replays_on: Option<Arc<Channel>>,
    /// The device was dropped: the remaining operations are done, then the connection ends.
    pub(super) closing: bool,
    /// Nothing is sent until a new link stands, for which the present one ends when all of its
    /// requests are answered.
    pub(super) reopen: bool,
    /// Callers that wait for the new size, each with the size that it wants.
    pub(super) growing: Vec<(u64, Completion<u64>)>,
    seq: u64,
    cookie: u64,
    epoch: u64,
    /// The newest read that only asks whether the server lives.
    pub(super) probe: u64,
    /// By number: at least one request is without a reply.
    pub(super) ops: HashMap<u64, Op>,
    pub(super) wires: HashMap<u64, Wire>,
    /// Operations that can't be sent yet, in the order of the calls.
    pub(super) waiting: VecDeque<Op>,
    /// A waiting change needs room among the kept changes, and later changes wait behind it.
    pub(super) is_full: bool,
    pub(super) kept: Kept,
    pub(super) kept_max_bytes: u64,
    pub(super) flushes: Flushes,
    /// The load of each connection: that of its requests without a reply.
    pub(super) loads: SmallVec<[u64; 4]>,
    pub(super) guard: Arc<Guard>,
    /// The place of a block whose reads and writes go before all others, and wait for no room.
    pub(super) urgent: Option<u64>,
    pub(super) listeners: Vec<Listener>,
    pub(super) canary: Option<Canary>,
    pub(super) counters: Arc<Counters>,
}

impl State {
    pub(super) fn new(options: &NbdOptions, guard: Arc<Guard>, counters: Arc<Counters>) -> Self {
        let why = io::Error::from(io::ErrorKind::NotConnected);
        Self {
            phase: Phase::Down { since: Instant::now(), why, old: None },
            connecting: false,
            replays_on: None,
            closing: false,
            reopen: false,
            growing: Vec::new(),
            seq: 0,
            cookie: 0,
            epoch: 0,
            probe: 0,
            ops: HashMap::new(),
            wires: HashMap::new(),
            waiting: VecDeque::new(),
            is_full: false,
            kept: Kept::default(),
            kept_max_bytes: options.kept_bytes,
            flushes: Flushes::default(),
            loads: SmallVec::new(),
            guard,
            urgent: options.urgent,
            listeners: Vec::new(),
            canary: options.canary,
            counters,
        }
    }

    /// Begins an operation; returns its number.
    pub(super) fn start(&mut self, mut op: Op, outbox: &mut Outbox) -> u64 {
        self.seq += 1;
        op.seq = self.seq;
        match &self.phase {
            Phase::Broken { error, .. } => outbox.answers.push(op.fail(error.clone())),
            _ => {
                self.waiting.push_back(op);
                self.pump(outbox);
            }
        }
        self.seq
    }

    /// Asks for a flush.
    pub(super) fn flush(&mut self, waiter: Waiter, outbox: &mut Outbox) {
        self.flushes.ask(waiter);
        match &self.phase {
            Phase::Broken { error, .. } => {
                let error = error.clone();
                self.flushes.fail(&error, outbox);
            }
            _ => self.pump(outbox),
        }
    }

    /// Sends the operations that can be sent now.
    pub(super) fn pump(&mut self, outbox: &mut Outbox) {
        if let Phase::Up(link) = &self.phase {
            let link = link.clone();
            if !self.reopen {
                self.pump_operations(&link, outbox);
            } else if self.wires.is_empty() {
                let why = io::Error::other("its size is asked for");
                self.phase = Phase::Down { since: Instant::now(), why, old: Some(link) };
                outbox.wake_manager = true;
            }
        }
        // Operations before it were marked when they came.
        if let Some(newest) = self.waiting.back_mut() {
            newest.waited = true;
        }
        if self.closing && self.is_idle() {
            outbox.wake_manager = true;
        }
    }

    fn pump_operations(&mut self, link: &Arc<Link>, outbox: &mut Outbox) {
        outbox.link = Some(link.clone());
        self.is_full = false;
        let mut held: VecDeque<Op> = VecDeque::new();
        while let Some(mut op) = self.waiting.pop_front() {
            if !self.may_be_sent(&op, &held) {
                op.waited = true;
                held.push_back(op);
                continue;
            }
            let is_change = matches!(op.work, Work::Change { .. });
            if is_change
                && op.waited
                && let Err(error) = self.guard.may_still_write()
            {
                self.waiting.push_front(op);
                held.into_iter().rev().for_each(|op| self.waiting.push_front(op));
                return self.end(io::Error::new(io::ErrorKind::PermissionDenied, error), outbox);
            }
            self.send(op, link, outbox);
        }
        self.waiting = held;
        self.pump_flush(outbox);
    }

    /// Two changes that overlap are never in flight at once, and the kept changes have a limit.
    fn may_be_sent(&mut self, op: &Op, held: &VecDeque<Op>) -> bool {
        let Work::Change { change, .. } = &op.work else { return true };
        if self.kept.is_in_flight(op.offset, op.len_bytes) || held.iter().any(|earlier| earlier.overlaps(op))
        {
            return false;
        }
        if self.is_urgent(op) {
            // Its writes are few and small.
            return true;
        }
        if self.is_full {
            return false;
        }
        let weight = weight(change);
        let has_room = |kept: &Kept, max| kept.bytes() == 0 || kept.bytes() + weight <= max;
        if !has_room(&self.kept, self.kept_max_bytes) {
            self.kept.drop_poisoned();
            self.is_full = !has_room(&self.kept, self.kept_max_bytes);
        }
        !self.is_full
    }

    fn is_urgent(&self, op: &Op) -> bool {
        self.urgent == Some(op.offset) && op.len_bytes == BLOCK_BYTES as u64
    }

    fn send(&mut self, mut op: Op, link: &Link, outbox: &mut Outbox) {
        let (seq, range, urgent) = (op.seq, (op.offset, op.len_bytes), self.is_urgent(&op));
        let (flags, max_bytes) = (link.export.flags, link.export.max_bytes);
        let parts: Vec<Piece> = match &op.work {
            Work::Read { .. } => split(op.offset, op.len_bytes, max_bytes)
                .map(|(offset, len_bytes)| {
                    let data = SmallVec::new();
                    Piece { command: Command::Read, flags: 0, offset, len_bytes, data }
                })
                .collect(),
            Work::Change { change, through, .. } => {
                // FUA makes this write durable and no other: it is enough if no other needs it.
                let awaits_flush = self.kept.awaits_flush() && self.canary != Some(Canary::TrustFua);
                let alone = !awaits_flush && !self.flushes.owes();
                op.durable = *through && alone && link.export.offers(export::FUA);
                let parts = pieces(change, range, (flags, max_bytes), op.durable);
                if !parts.is_empty() {
                    self.kept.begin(seq, op.offset, op.len_bytes, change.clone());
                }
                parts
            }
        };
        if parts.is_empty() {
            // A discard that this server does not support any more: a hint.
            return self.finish(op, outbox);
        }
        op.parts_left = parts.len() as u32;
        let only = matches!(op.work, Work::Read { .. }).then(|| self.least_busy());
        for part in parts {
            let (cookie, index) = (self.next_cookie(), only.unwrap_or_else(|| self.least_busy()));
            self.count(&part);
            let wire = Wire::new(Target::Op(seq), index, part.offset, part.len_bytes);
            self.loads[index] += wire.load();
            self.wires.insert(cookie, wire);
            let Piece { command, flags, offset, len_bytes, data } = part;
            let request = Request { command, flags, cookie, offset, len_bytes };
            outbox.messages.push((index, Message::new(&request, data, urgent)));
        }
        self.ops.insert(seq, op);
    }

    fn count(&self, part: &Piece) {
        let len_bytes = part.len_bytes.into();
        match part.command {
            Command::Read => {
                self.counters.reads.add(1);
                self.counters.read_bytes.add(len_bytes);
            }
            Command::Write => {
                self.counters.writes.add(1);
                self.counters.written_bytes.add(len_bytes);
                self.counters.durable_writes.add((part.flags & super::protocol::flag::FUA).into());
            }
            _ => self.counters.discards.add(1),
        }
    }

    pub(super) fn next_cookie(&mut self) -> u64 {
        self.cookie += 1;
        self.cookie
    }

    /// The number of the next link.
    pub(super) fn next_epoch(&mut self) -> u64 {
        self.epoch += 1;
        self.epoch
    }

    /// True if the server was asked whether it lives, and has not answered.
    pub(super) fn is_probing(&self) -> bool {
        self.ops.contains_key(&self.probe)
    }

    /// The connection with the least to do.
    pub(super) fn least_busy(&self) -> usize {
        let least = self.loads.iter().enumerate().min_by_key(|(_, load)| **load);
        least.map_or(0, |(index, _)| index)
    }

    /// All requests of an operation have been answered.
    pub(super) fn finish(&mut self, op: Op, outbox: &mut Outbox) {
        let (seq, asked, durable, range) = (op.seq, op.asked, op.durable, (op.offset, op.len_bytes));
        let is_discard = matches!(op.work, Work::Change { change: Change::Discard, .. });
        // Zeros that would not be faster than a write: a discard is a hint.
        if let Some(error) = op.error.filter(|&error| !(is_discard && error == error::NOT_SUPPORTED)) {
            self.kept.forget(seq);
            return outbox.answers.push(op.fail(Arc::new(io_error(error))));
        }
        match op.work {
            Work::Read { buf, done } => {
                self.counters.read_ns.record(asked.elapsed());
                let operation = syncline_device::Operation::Read;
                outbox.answers.push(Answer::Read(done, buf.ok_or(DeviceError::Abandoned { operation })));
            }
            Work::Change { done, .. } if durable => {
                self.kept.forget(seq);
                self.counters.flush_ns.record(asked.elapsed());
                outbox.answers.push(Answer::Done(done, Ok(())));
            }
            Work::Change { done, through: true, .. } => {
                self.kept.complete(seq);
                self.flushes.ask(Waiter { done, asked, write: Some(range), breaks: Breaks::default() });
            }
            Work::Change { done, .. } => {
                self.kept.complete(seq);
                if !is_discard {
                    self.counters.write_ns.record(asked.elapsed());
                }
                outbox.answers.push(Answer::Done(done, Ok(())));
            }
        }
    }

    /// The gauges at this moment.
    pub(super) fn now(&self) -> NetGauges {
        let connections = match &self.phase {
            Phase::Up(link) => link.connections.len(),
            _ => 0,
        };
        let all = || self.ops.values().chain(&self.waiting);
        NetGauges {
            connections: connections as u64,
            in_flight: all().count() as u64 + self.flushes.waiting(),
            in_flight_bytes: all().map(|op| op.len_bytes).sum(),
            kept_bytes: self.kept.bytes(),
        }
    }

    /// True if nobody waits for anything.
    pub(super) fn is_idle(&self) -> bool {
        self.ops.is_empty() && self.waiting.is_empty() && self.growing.is_empty() && self.flushes.is_idle()
    }
}
