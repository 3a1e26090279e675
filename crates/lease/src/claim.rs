//! Taking the lease, step by step, as a machine that knows neither threads nor devices.
//!
//! The driver carries out each [`Step`] and comes back with an [`Event`]. Times are those of this
//! host's clock, read before a step is begun and after it has ended. PROOF.md ("Taking the lease") has
//! the steps and the proof.

use crate::gate::Gate;
use crate::lab::Canary;
use crate::options::{CLAIM_MAX, LeaseOptions, Times, expiry, longest_expiry};
use crate::{LeaseError, this_process};
use std::sync::Arc;
use std::time::Duration;
use syncline_format::FormatError;
use syncline_format::lease::{Lease, LeaseState};

/// A block that is held is read again after this time at most.
const POLL_MAX: Duration = Duration::from_millis(500);
/// A claim that took too long is repeated this often.
const TRIES_MAX: u32 = 3;
/// A take-over puts its block back this often: a living holder overwrites it once at most.
const REPEATS_MAX: u32 = 8;

/// How to treat a holder.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum How {
    /// Refuse if it lives; wait until it has expired if not.
    Wait,
    /// End its lease, and wait until it has expired.
    TakeOver,
    /// End its lease and do not wait: right only if it is known to be off.
    AtOnce,
}

/// The driver's next step.
#[derive(Debug)]
pub enum Step {
    /// Read the block.
    Read,
    /// Write the block.
    Write(Box<Lease>),
    /// Flush.
    Flush,
    /// Wait for this long.
    Pause(Duration),
    /// The lease is held.
    Done(Box<Claimed>),
    /// The lease can't be taken.
    Refused(LeaseError),
}

/// How the last step ended.
#[derive(Debug)]
pub enum Event {
    /// There was none yet.
    Begin,
    /// The block as it was read.
    Read(Result<Option<Lease>, FormatError>),
    /// The write, the flush or the pause has ended.
    Done,
}

/// A lease that was taken.
#[derive(Debug)]
pub struct Claimed {
    /// The block as it was written.
    pub lease: Lease,
    /// Until when it is valid, by this host's clock.
    pub valid_until: Duration,
}

/// Taking the lease.
pub struct Claim {
    how: How,
    times: Times,
    over_unknown: bool,
    canary: Option<Canary>,
    /// The block as this host would write it; its sequence grows with each write.
    own: Lease,
    stage: Stage,
    /// When the newest read began.
    read_began: Duration,
    /// The longest that any holder seen so far needs to expire, and this host itself (D3).
    expiry: Duration,
    tries: u32,
    repeats: u32,
}

enum Stage {
    /// The first read.
    Look,
    /// Waiting whether the block changes.
    Watch { first: Box<Lease>, since: Duration },
    /// The block of a take-over is being written over that of `former`.
    Marking { former: Former, flushing: bool },
    /// It lies there since then.
    Marked { former: Former, since: Duration },
    /// A claim is being written that counts if it is flushed in time.
    Claiming { sent: Duration, flushing: bool },
    /// Waiting before it is read back.
    Pausing { sent: Duration },
    /// Reading it back.
    ReadingBack { sent: Duration },
}

/// The nonce of the holder that is taken over, if its block could be read.
type Former = Option<[u8; 16]>;

impl Claim {
    /// A new attempt to take the lease. `nonce` is random; `began_ns` is the time of the wall clock.
    pub fn new(options: &LeaseOptions, how: How, nonce: [u8; 16], began_ns: u64) -> Self {
        let times = options.times();
        let ms = |time: Duration| time.as_millis() as u32;
        let own = Lease {
            state: LeaseState::Held,
            term: 1,
            sequence: 0,
            nonce,
            duration_ms: ms(times.duration),
            guard_ms: ms(times.guard),
            interval_ms: ms(times.interval()),
            held_ms: 0,
            began_ns,
            holder: options.holder.clone().unwrap_or_else(this_process),
        };
        Self {
            how,
            times,
            over_unknown: options.over_unknown,
            canary: options.canary,
            own,
            stage: Stage::Look,
            read_began: Duration::ZERO,
            expiry: times.expiry(),
            tries: 0,
            repeats: 0,
        }
    }

    /// The next step. `now` is the time at which the last one had ended, and is taken for the time
    /// at which the next one begins.
    pub fn step(&mut self, now: Duration, event: Event) -> Step {
        match event {
            Event::Begin => self.read(now),
            Event::Read(found) => self.found(now, found),
            Event::Done => self.ended(now),
        }
    }

    /// The holder that is waited for and the time that is left, if any.
    pub fn waits_for(&self, now: Duration) -> Option<(&Lease, Duration)> {
        let left = |since: Duration| (since + self.wait()).saturating_sub(now);
        match &self.stage {
            Stage::Watch { first, since } => Some((first, left(*since))),
            Stage::Marked { since, .. } => Some((&self.own, left(*since))),
            _ => None,
        }
    }

    /// The gate of a lease that was taken.
    pub fn gate(options: &LeaseOptions, claimed: &Claimed) -> Arc<Gate> {
        let (clock, times) = (options.clock.clone(), options.times());
        Gate::new(clock, times, &claimed.lease, claimed.valid_until, options.canary)
    }

    fn read(&mut self, now: Duration) -> Step {
        self.read_began = now;
        Step::Read
    }

    fn found(&mut self, now: Duration, found: Result<Option<Lease>, FormatError>) -> Step {
        match std::mem::replace(&mut self.stage, Stage::Look) {
            Stage::Watch { first, since } => self.watched(now, first, since, found),
            Stage::Marked { former, since } => self.still_marked(now, former, since, found),
            Stage::ReadingBack { sent } => self.read_back(now, sent, found),
            _ => self.looked(now, found),
        }
    }

    /// The first look.
    fn looked(&mut self, now: Duration, found: Result<Option<Lease>, FormatError>) -> Step {
        match found {
            Ok(None) => self.claim(now, 0),
            Ok(Some(lease)) if lease.state == LeaseState::Released => self.claim(now, lease.term),
            Err(FormatError::Magic { .. }) if self.over_unknown => self.claim(now, 0),
            Ok(Some(lease)) => {
                self.allow_for(&lease);
                match self.how {
                    How::Wait => self.watch(now, lease),
                    How::TakeOver => {
                        self.own.term = next_term(lease.term);
                        self.mark(Some(lease.nonce))
                    }
                    How::AtOnce => self.claim(now, lease.term),
                }
            }
            Err(error) => match self.how {
                How::Wait => Step::Refused(LeaseError::Damaged(error)),
                How::TakeOver => {
                    self.expiry = self.expiry.max(longest_expiry());
                    self.mark(None)
                }
                How::AtOnce => self.claim(now, 0),
            },
        }
    }

    /// Waits whether this block changes. The time counts from now, when its read has ended: it was
    /// there by then.
    fn watch(&mut self, now: Duration, lease: Lease) -> Step {
        self.stage = Stage::Watch { first: Box::new(lease), since: now };
        Step::Pause(self.poll())
    }

    fn watched(
        &mut self,
        now: Duration,
        first: Box<Lease>,
        since: Duration,
        found: Result<Option<Lease>, FormatError>,
    ) -> Step {
        match found {
            Ok(Some(lease)) if lease == *first => {
                // The beginning of the read counts: everything that was under way had ended by then.
                if self.read_began.saturating_sub(since) >= self.wait() {
                    return self.claim(now, lease.term);
                }
                self.stage = Stage::Watch { first, since };
                Step::Pause(self.poll())
            }
            Ok(Some(lease)) if lease.state == LeaseState::Released => self.claim(now, lease.term),
            Ok(Some(lease)) if first.nonce == self.own.nonce => {
                Step::Refused(LeaseError::TakenMeanwhile(Box::new(lease)))
            }
            Ok(Some(lease)) => Step::Refused(LeaseError::InUse(Box::new(lease))),
            Ok(None) => Step::Refused(LeaseError::Damaged(vanished())),
            Err(error) => Step::Refused(LeaseError::Damaged(error)),
        }
    }

    /// Writes the block of a take-over, which ends the lease of a holder that reads it.
    fn mark(&mut self, former: Former) -> Step {
        self.stage = Stage::Marking { former, flushing: false };
        self.write(LeaseState::Claimed)
    }

    fn still_marked(
        &mut self,
        now: Duration,
        former: Former,
        since: Duration,
        found: Result<Option<Lease>, FormatError>,
    ) -> Step {
        match found {
            Ok(Some(lease)) if lease == self.own => {
                if self.read_began.saturating_sub(since) >= self.wait() {
                    return self.claim(now, lease.term - 1);
                }
                self.stage = Stage::Marked { former, since };
                Step::Pause(self.poll())
            }
            Ok(Some(lease)) if lease.state == LeaseState::Released => self.claim(now, lease.term),
            Ok(Some(lease)) if Some(lease.nonce) == former => {
                // It had read the block before, and wrote then. The time starts again.
                self.allow_for(&lease);
                self.repeats += 1;
                if self.repeats > REPEATS_MAX {
                    return Step::Refused(LeaseError::Resists(Box::new(lease)));
                }
                self.mark(former)
            }
            Ok(Some(lease)) => Step::Refused(LeaseError::TakenMeanwhile(Box::new(lease))),
            Ok(None) => Step::Refused(LeaseError::Damaged(vanished())),
            Err(error) => Step::Refused(LeaseError::Damaged(error)),
        }
    }

    /// Claims the lease, on the strength of the newest read.
    fn claim(&mut self, now: Duration, former_term: u64) -> Step {
        self.own.term = next_term(former_term);
        self.stage = Stage::Claiming { sent: now, flushing: false };
        self.write(LeaseState::Held)
    }

    fn ended(&mut self, now: Duration) -> Step {
        match std::mem::replace(&mut self.stage, Stage::Look) {
            Stage::Marking { former, flushing: false } => {
                self.stage = Stage::Marking { former, flushing: true };
                Step::Flush
            }
            // Only from here on can the block not come back from an unflushed cache, or be sent
            // again by a client that reconnects (D1).
            Stage::Marking { former, flushing: true } => {
                self.stage = Stage::Marked { former, since: now };
                Step::Pause(self.poll())
            }
            Stage::Claiming { sent, flushing: false } if self.canary != Some(Canary::NoFlush) => {
                self.stage = Stage::Claiming { sent, flushing: true };
                Step::Flush
            }
            Stage::Claiming { sent, .. } => self.claim_written(now, sent),
            Stage::Pausing { sent } => {
                self.stage = Stage::ReadingBack { sent };
                self.read(now)
            }
            // A pause between two reads.
            stage => {
                self.stage = stage;
                self.read(now)
            }
        }
    }

    fn claim_written(&mut self, now: Duration, sent: Duration) -> Step {
        let took = now.saturating_sub(self.read_began);
        if took > CLAIM_MAX && self.canary != Some(Canary::NoLimit) {
            return self.too_slow(now, took);
        }
        if self.canary == Some(Canary::NoReadBack) {
            return self.done(sent);
        }
        self.stage = Stage::Pausing { sent };
        Step::Pause(self.times.read_back())
    }

    fn read_back(
        &mut self,
        now: Duration,
        sent: Duration,
        found: Result<Option<Lease>, FormatError>,
    ) -> Step {
        match found {
            Ok(Some(lease)) if lease == self.own => {
                if now < sent + self.times.valid() {
                    return self.done(sent);
                }
                let took = now.saturating_sub(self.read_began);
                self.too_slow(now, took)
            }
            Ok(Some(lease)) => Step::Refused(LeaseError::TakenMeanwhile(Box::new(lease))),
            Ok(None) => Step::Refused(LeaseError::Damaged(vanished())),
            Err(error) => Step::Refused(LeaseError::Damaged(error)),
        }
    }

    /// The claim does not count. It may have overwritten that of a holder, so the wait starts again,
    /// for the own block as for that of a stranger.
    fn too_slow(&mut self, now: Duration, took: Duration) -> Step {
        self.tries += 1;
        if self.tries >= TRIES_MAX {
            return Step::Refused(LeaseError::TooSlow(took));
        }
        tracing::warn!("taking the device lease took {took:?}, which is too long to be safe: waiting");
        let own = self.own.clone();
        self.watch(now, own)
    }

    fn done(&self, sent: Duration) -> Step {
        let valid_until = sent + self.times.valid();
        Step::Done(Box::new(Claimed { lease: self.own.clone(), valid_until }))
    }

    fn write(&mut self, state: LeaseState) -> Step {
        self.own.state = state;
        self.own.sequence += 1;
        Step::Write(Box::new(self.own.clone()))
    }

    fn allow_for(&mut self, lease: &Lease) {
        self.expiry = self.expiry.max(expiry(lease));
    }

    fn wait(&self) -> Duration {
        let guard = if self.canary == Some(Canary::NoGuard) { self.times.guard } else { Duration::ZERO };
        self.times.wait(self.expiry.saturating_sub(guard))
    }

    fn poll(&self) -> Duration {
        POLL_MAX.min(self.expiry / 10)
    }
}

/// Terms start again at the end of their range, which only a hostile block can reach.
fn next_term(term: u64) -> u64 {
    if term >= u64::MAX / 2 { 1 } else { term + 1 }
}

/// A block that was a lease is zeros now.
fn vanished() -> FormatError {
    FormatError::Magic { structure: "device lease" }
}

#[cfg(test)]
mod tests;
