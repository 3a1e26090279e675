//! Keeping the lease, step by step, as a machine that knows neither threads nor devices.

use crate::LeaseLost;
use crate::gate::Gate;
use crate::lab::Canary;
use std::sync::Arc;
use std::time::Duration;
use syncline_device::DeviceError;
use syncline_format::FormatError;
use syncline_format::lease::{Lease, LeaseState};

/// The driver's next step.
#[derive(Debug)]
pub enum Step {
    /// Read the block.
    Read,
    /// Write the block.
    Write(Box<Lease>),
    /// Flush.
    Flush,
    /// Wait until this moment of the clock.
    Pause(Duration),
    /// Nothing any more: the lease was lost.
    Lost(LeaseLost),
    /// Nothing any more: the lease was released.
    Released,
}

/// How the last step ended.
#[derive(Debug)]
pub enum Event {
    /// The pause is over.
    Woke,
    /// The block as it was read.
    Read(Result<Result<Option<Lease>, FormatError>, DeviceError>),
    /// The write or flush has ended.
    Done(Result<(), DeviceError>),
    /// The lease is to be released. Only instead of `Woke`.
    Release,
}

/// Renewing a lease, and releasing it.
pub struct Renewal {
    gate: Arc<Gate>,
    /// The block as it was last written, or may have been.
    lease: Lease,
    stage: Stage,
    /// When the lease was taken.
    began: Duration,
    due: Duration,
    read_began: Duration,
    renewed: Option<Duration>,
}

#[derive(Clone, Copy)]
enum Stage {
    Idle,
    Reading,
    Writing { sent: Duration },
    ReadingLast,
    WritingLast,
    Flushing,
}

impl Renewal {
    /// The renewals of a lease that was just taken. The first is due at once.
    pub fn new(gate: Arc<Gate>, lease: Lease) -> Self {
        let now = gate.clock().now();
        Self { gate, lease, stage: Stage::Idle, began: now, due: now, read_began: now, renewed: None }
    }

    /// The next step; the last one has ended with `event`.
    pub fn step(&mut self, event: Event) -> Step {
        self.renewed = None;
        if matches!(self.stage, Stage::ReadingLast | Stage::WritingLast | Stage::Flushing)
            || matches!(event, Event::Release)
        {
            return self.release(event);
        }
        // A lost lease ends here, whatever the event: nothing more may be written.
        let now = self.gate.clock().now();
        if self.gate.canary() != Some(Canary::Revive)
            && let Err(why) = self.gate.check()
        {
            return Step::Lost(why);
        }
        match (self.stage, event) {
            (Stage::Reading, Event::Read(answer)) => self.compared(now, answer),
            (Stage::Writing { sent }, Event::Done(answer)) => self.written(now, sent, answer),
            _ if now >= self.due => self.begin(now),
            _ => Step::Pause(self.due),
        }
    }

    /// How long the renewal took that the last step ended, if it was one that counts.
    pub fn renewed(&self) -> Option<Duration> {
        self.renewed
    }

    fn begin(&mut self, now: Duration) -> Step {
        self.read_began = now;
        if self.gate.canary() == Some(Canary::NoCompare) {
            return self.write(now);
        }
        self.stage = Stage::Reading;
        Step::Read
    }

    /// The block was read before it is overwritten: it may be somebody else's.
    fn compared(
        &mut self,
        now: Duration,
        answer: Result<Result<Option<Lease>, FormatError>, DeviceError>,
    ) -> Step {
        match answer {
            Err(error) => self.again(now, error.to_string()),
            // Never overwritten: it may hold another's claim that is damaged.
            Ok(Err(error @ FormatError::Checksum { .. })) => self.again(now, error.to_string()),
            Ok(found) => match self.gate.check_block(&found) {
                Ok(()) => self.write(now),
                Err(why) => Step::Lost(why),
            },
        }
    }

    fn write(&mut self, now: Duration) -> Step {
        self.lease.state = LeaseState::Held;
        self.lease.sequence += 1;
        self.lease.held_ms = now.saturating_sub(self.began).as_millis() as u64;
        // Before it is sent: nobody can have seen it earlier.
        self.stage = Stage::Writing { sent: now };
        Step::Write(Box::new(self.lease.clone()))
    }

    fn written(&mut self, now: Duration, sent: Duration, answer: Result<(), DeviceError>) -> Step {
        if let Err(error) = answer {
            return self.again(now, error.to_string());
        }
        if let Err(why) = self.gate.extend(sent) {
            return Step::Lost(why);
        }
        self.renewed = Some(now.saturating_sub(self.read_began));
        self.stage = Stage::Idle;
        self.due = sent + self.gate.times().interval();
        Step::Pause(self.due)
    }

    fn again(&mut self, now: Duration, trouble: String) -> Step {
        self.gate.note(trouble);
        self.stage = Stage::Idle;
        self.due = now + self.gate.times().retry();
        Step::Pause(self.due)
    }

    /// Writes that the lease is free, if it is still ours and has not expired: a host that reads this
    /// begins at once. The gate has been closed before, so that nothing can begin any more.
    fn release(&mut self, event: Event) -> Step {
        let why = self.gate.lose(LeaseLost::Released);
        if why != LeaseLost::Released {
            return Step::Lost(why);
        }
        if self.gate.clock().now() >= self.gate.valid_until() {
            return Step::Released;
        }
        match (self.stage, event) {
            (Stage::ReadingLast, Event::Read(Ok(Ok(Some(found)))))
                if found.nonce == self.lease.nonce && found.term == self.lease.term =>
            {
                self.stage = Stage::WritingLast;
                self.lease.state = LeaseState::Released;
                self.lease.sequence += 1;
                Step::Write(Box::new(self.lease.clone()))
            }
            (Stage::WritingLast, Event::Done(Ok(()))) => {
                self.stage = Stage::Flushing;
                Step::Flush
            }
            (_, Event::Release) => {
                self.stage = Stage::ReadingLast;
                Step::Read
            }
            // Anything else: the next holder waits.
            _ => Step::Released,
        }
    }
}
