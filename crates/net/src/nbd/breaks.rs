//! The changes of the state when a connection is lost, when there is a new one, and on giving up.

use super::lab::Canary;
use super::link::Link;
use super::operation::{Answer, Op, Work};
use super::state::{Listener, Outbox, Phase, State};
use std::io;
use std::sync::Arc;
use std::time::Instant;
use syncline_device::{Completion, DeviceError, Operation};

impl State {
    /// A link has ended. Nothing that still comes from it counts. Requests without an answer will be
    /// sent again, and before them the kept changes, which the server may have answered.
    pub(super) fn link_broke(&mut self, link: &Link, why: io::Error, outbox: &mut Outbox) {
        let Phase::Up(up) = &self.phase else { return };
        if up.epoch == link.epoch {
            self.phase = Phase::Down { since: Instant::now(), why, old: Some(up.clone()) };
            outbox.wake_manager = true;
        }
    }

    /// Takes back the operations that were on their way over a link that has ended, to send them again
    /// in their order.
    pub(super) fn requeue(&mut self, outbox: &mut Outbox) {
        let now = Instant::now();
        self.wires.clear();
        for (seq, mut op) in std::mem::take(&mut self.ops) {
            if matches!(op.work, Work::Change { .. }) {
                self.kept.forget(seq);
            }
            let old = self.canary == Some(Canary::AnswerOldWrite) && matches!(op.work, Work::Change { .. });
            if op.error.is_some() || old {
                self.finish(op, outbox);
            } else if let Work::Read { buf: None, done } = op.work {
                // Its receiver panicked.
                let operation = Operation::Read;
                outbox.answers.push(Answer::Read(done, Err(DeviceError::Abandoned { operation })));
            } else {
                op.breaks.add(now);
                (op.parts_left, op.durable, op.waited) = (0, false, true);
                self.waiting.push_back(op);
            }
        }
        self.waiting.make_contiguous().sort_by_key(|op| op.seq);
        if self.canary == Some(Canary::AnswerOldFlush) {
            self.flush_ended(None, outbox);
        }
        self.flushes.requeue(now);
    }

    /// Since when the server is away: from the break on, or from the first one that an operation
    /// met which no connection since has answered.
    pub(super) fn away_since(&self, broke: Instant) -> Instant {
        let stuck = self.waiting.iter().filter_map(|op| op.breaks.stuck_since());
        stuck.chain(self.flushes.stuck_since()).fold(broke, Instant::min)
    }

    /// Asks how large the export is now.
    pub(super) fn ask_size(&mut self, wanted_bytes: u64, done: Completion<u64>, outbox: &mut Outbox) {
        if let Phase::Broken { error, .. } = &self.phase {
            let (operation, source) = (Operation::Write, error.clone());
            let error = DeviceError::Io { operation, offset: 0, len_bytes: 0, source };
            return outbox.answers.push(Answer::Size(done, Err(error)));
        }
        self.growing.push((wanted_bytes, done));
        outbox.wake_manager = true;
    }

    /// Ends the link when everything in flight on it has been answered, for one that stands with a
    /// new size.
    pub(super) fn reopen(&mut self, outbox: &mut Outbox) {
        if matches!(self.phase, Phase::Up(_)) {
            self.reopen = true;
            self.pump(outbox);
        }
    }

    /// Has `listener` called when the device breaks, or now if it has.
    pub(super) fn on_broken(&mut self, listener: Listener, outbox: &mut Outbox) {
        match &self.phase {
            Phase::Broken { error, .. } => outbox.listeners.push((listener, error.clone())),
            _ => self.listeners.push(listener),
        }
    }

    /// A new link is in use: everything that waits is sent. Unless the device was given up meanwhile.
    pub(super) fn link_stands(&mut self, link: Arc<Link>, outbox: &mut Outbox) {
        self.replays_on = None;
        if let Phase::Broken { old, .. } = &mut self.phase {
            *old = Some(link.clone());
            (outbox.ended, outbox.wake_manager) = (Some(link), true);
            return;
        }
        self.loads = link.connections.iter().map(|_| 0).collect();
        self.reopen = false;
        // Some may have asked for the size meanwhile.
        outbox.wake_manager |= !self.growing.is_empty();
        self.phase = Phase::Up(link.clone());
        // It may have ended before its threads could be heard.
        if let Some(why) = link.broke.lock().take() {
            return self.link_broke(&link, why, outbox);
        }
        self.pump(outbox);
    }

    /// Ends all waits with this error, for good. The first error stays. The connections end at once,
    /// with everything that is in them: an operation that was given up must not arrive later.
    pub(super) fn end(&mut self, error: io::Error, outbox: &mut Outbox) {
        if matches!(self.phase, Phase::Broken { .. }) {
            return;
        }
        let error = Arc::new(error);
        tracing::info!("{error}");
        let listeners = std::mem::take(&mut self.listeners);
        outbox.listeners.extend(listeners.into_iter().map(|listener| (listener, error.clone())));
        let ops: Vec<Op> = std::mem::take(&mut self.ops).into_values().collect();
        let mut ops: Vec<Op> = ops.into_iter().chain(std::mem::take(&mut self.waiting)).collect();
        ops.sort_by_key(|op| op.seq);
        outbox.messages.clear();
        outbox.answers.extend(ops.into_iter().map(|op| op.fail(error.clone())));
        self.flushes.fail(&error, outbox);
        for (_, done) in std::mem::take(&mut self.growing) {
            let (operation, source) = (Operation::Write, error.clone());
            let error = DeviceError::Io { operation, offset: 0, len_bytes: 0, source };
            outbox.answers.push(Answer::Size(done, Err(error)));
        }
        self.wires.clear();
        self.kept.clear();
        let old = match &self.phase {
            Phase::Up(link) => Some(link.clone()),
            Phase::Down { old, .. } | Phase::Broken { old, .. } => old.clone(),
        };
        outbox.ended = old.clone();
        outbox.ended_early = self.replays_on.take();
        self.phase = Phase::Broken { error, old };
        outbox.wake_manager = true;
    }
}
