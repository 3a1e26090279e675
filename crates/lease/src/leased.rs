//! The device that its owner may write to only while the lease is valid.

use crate::gate::Gate;
use crate::lab::Canary;
use crate::permit::Permit;
use crate::status::{Counters, LeaseStatus};
use crate::thread::Renewer;
use crate::traffic::Traffic;
use crate::{LEASE_OFFSET, LeaseLost};
use bytes::Bytes;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use syncline_device::{AlignedBuf, BLOCK_BYTES, Claim, Completion, Device, DeviceError, Operation};

/// A device whose lease this process holds.
///
/// Writes, discards and enlargements begin only while the lease is valid, and flushes are answered
/// with success only if it still is. A lease that was lost stays so: every operation fails then,
/// with [`LeaseLost`] as the reason. Dropping it, or [`release`](Self::release), gives the lease
/// back. The block of the lease is left out of everything that is written.
pub struct Leased {
    inner: Arc<dyn Device>,
    gate: Arc<Gate>,
    traffic: Arc<Traffic>,
    counters: Arc<Counters>,
    renewer: Option<Renewer>,
}

impl Leased {
    pub(crate) fn new(
        inner: Arc<dyn Device>,
        gate: Arc<Gate>,
        traffic: Arc<Traffic>,
        counters: Arc<Counters>,
        renewer: Renewer,
    ) -> Arc<Self> {
        Arc::new(Self { inner, gate, traffic, counters, renewer: Some(renewer) })
    }

    /// A device without a thread that renews its lease: somebody else does, with a
    /// [`Renewal`](crate::lab::Renewal).
    #[doc(hidden)]
    pub fn without_thread(inner: Arc<dyn Device>, gate: Arc<Gate>, traffic: Arc<Traffic>) -> Self {
        Self { inner, gate, traffic, counters: Arc::default(), renewer: None }
    }

    /// The number of this holder, counted from 1.
    pub fn term(&self) -> u64 {
        self.gate.term()
    }

    /// Fails if the lease is not valid at this moment.
    pub fn check(&self) -> Result<(), LeaseLost> {
        self.gate.check()
    }

    /// The check for the client of a network device.
    pub fn permit(&self) -> Permit {
        Permit(self.gate.clone())
    }

    /// Calls `listener` when the lease is lost, on a thread of the lease; at once if it was lost
    /// before. The mount ends then, and the client of a network device closes its connections, so
    /// that nothing more leaves this host. A release is no loss.
    pub fn on_lost(&self, listener: impl FnOnce(&LeaseLost) + Send + 'static) {
        self.gate.on_lost(Box::new(listener));
    }

    /// The lease as it is now.
    pub fn status(&self) -> LeaseStatus {
        let (counts, valid) = (self.counters.get(), self.gate.times().valid());
        let (now, lost) = (self.gate.clock().now(), self.gate.lost());
        let left = self.gate.valid_until().saturating_sub(now);
        LeaseStatus {
            term: self.gate.term(),
            valid,
            left: if lost.is_some() { Duration::ZERO } else { left },
            age: (now + valid).saturating_sub(self.gate.valid_until()),
            renewals: counts.renewals,
            late: self.gate.late(),
            failed: counts.failed,
            slowest: counts.slowest,
            lost,
        }
    }

    /// Gives the lease back, so that the next host need not wait, and returns whether that worked.
    /// It does not while operations are under way, or if a write failed: then the lease expires. No
    /// operation succeeds afterwards.
    pub fn release(&self) -> bool {
        self.renewer.as_ref().is_some_and(Renewer::release)
    }

    fn begin(&self, operation: Operation, offset: u64, len_bytes: u64) -> Result<Flight, DeviceError> {
        let flying = self.traffic.begin();
        let unchecked = matches!(self.gate.canary(), Some(Canary::WriteUnchecked | Canary::Unchecked));
        if !unchecked && let Err(why) = self.gate.check() {
            flying.harmless();
            return Err(refused(operation, offset, len_bytes, why));
        }
        Ok(Flight { flying, gate: self.gate.clone() })
    }
}

/// An operation that was begun.
struct Flight {
    flying: crate::traffic::Flying,
    gate: Arc<Gate>,
}

impl Flight {
    /// A completion that counts the operation as ended.
    fn ends<T: 'static>(self, done: Completion<T>) -> Completion<T> {
        Box::new(move |answer| {
            self.flying.ended(&answer);
            done(answer);
        })
    }

    /// The same for an operation that makes something durable: after the lease has ended, its answer is
    /// no success. The clock is read after the device has answered, so acknowledged data was durable
    /// while nobody else could hold the lease.
    fn acknowledges(self, operation: Operation, done: Completion<()>) -> Completion<()> {
        Box::new(move |answer| {
            let answer = answer.and_then(|()| match self.gate.check() {
                Err(_) if matches!(self.gate.canary(), Some(Canary::AnswerUnchecked | Canary::Unchecked)) => {
                    Ok(())
                }
                checked => checked.map_err(|why| refused(operation, 0, 0, why)),
            });
            match operation {
                Operation::Flush => self.flying.harmless(),
                _ => self.flying.ended(&answer),
            }
            done(answer);
        })
    }
}

fn refused(operation: Operation, offset: u64, len_bytes: u64, why: LeaseLost) -> DeviceError {
    DeviceError::io(operation, offset, len_bytes, why.into())
}

fn len_of(bufs: &[Bytes]) -> u64 {
    bufs.iter().map(|buf| buf.len() as u64).sum()
}

/// True if the range has the block of the lease in it.
fn touches_lease(offset: u64, len_bytes: u64) -> bool {
    let end = offset.saturating_add(len_bytes);
    offset < LEASE_OFFSET + BLOCK_BYTES as u64 && end > LEASE_OFFSET
}

/// Buffers of a write at `offset`, without the block of the lease: the part before the block and the
/// part behind it.
fn around_lease(offset: u64, bufs: Vec<Bytes>) -> [(u64, Vec<Bytes>); 2] {
    let lease_end = LEASE_OFFSET + BLOCK_BYTES as u64;
    let (mut before, mut behind) = (Vec::new(), Vec::new());
    let mut at = offset;
    for buf in bufs {
        let end = at + buf.len() as u64;
        let within = |place: u64| (place.clamp(at, end) - at) as usize;
        before.push(buf.slice(..within(LEASE_OFFSET)));
        behind.push(buf.slice(within(lease_end)..));
        at = end;
    }
    before.retain(|buf| !buf.is_empty());
    behind.retain(|buf| !buf.is_empty());
    [(offset, before), (offset.max(lease_end), behind)]
}

impl Device for Leased {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }

    fn reads_bypass_caches(&self) -> bool {
        self.inner.reads_bypass_caches()
    }

    fn read(&self, offset: u64, buf: AlignedBuf, done: Completion<AlignedBuf>) {
        // Refused only once the lease is known to be lost: a read does no harm, but a successor's
        // writes would look like damage.
        match self.gate.lost() {
            None => self.inner.read(offset, buf, done),
            Some(why) => done(Err(refused(Operation::Read, offset, buf.len() as u64, why))),
        }
    }

    fn write(&self, offset: u64, bufs: Vec<Bytes>, done: Completion<()>) {
        let len_bytes = len_of(&bufs);
        let flight = match self.begin(Operation::Write, offset, len_bytes) {
            Ok(flight) => flight,
            Err(error) => return done(Err(error)),
        };
        let done = flight.ends(done);
        if !touches_lease(offset, len_bytes) {
            return self.inner.write(offset, bufs, done);
        }
        let [(first, before), (second, behind)] = around_lease(offset, bufs);
        let (inner, gate) = (self.inner.clone(), self.gate.clone());
        let write_behind = move |answer: Result<(), DeviceError>| {
            let checked = || gate.check().map_err(|why| refused(Operation::Write, offset, len_bytes, why));
            match answer.and_then(|()| checked()) {
                Ok(()) if behind.is_empty() => done(Ok(())),
                Ok(()) => inner.write(second, behind, done),
                Err(error) => done(Err(error)),
            }
        };
        match before.is_empty() {
            true => write_behind(Ok(())),
            false => self.inner.write(first, before, Box::new(write_behind)),
        }
    }

    fn flush(&self, done: Completion<()>) {
        match self.begin(Operation::Flush, 0, 0) {
            Ok(flight) => self.inner.flush(flight.acknowledges(Operation::Flush, done)),
            Err(error) => done(Err(error)),
        }
    }

    fn writes_through(&self) -> bool {
        self.inner.writes_through()
    }

    fn write_through(&self, offset: u64, bufs: Vec<Bytes>, done: Completion<()>) {
        let len_bytes = len_of(&bufs);
        if touches_lease(offset, len_bytes) {
            // Nobody does that; it would be several requests.
            let why = io::Error::other("block 48 is the device lease's, and not written with a flush");
            return done(Err(DeviceError::io(Operation::Write, offset, len_bytes, why)));
        }
        match self.begin(Operation::Write, offset, len_bytes) {
            Ok(flight) => {
                self.inner.write_through(offset, bufs, flight.acknowledges(Operation::Write, done));
            }
            Err(error) => done(Err(error)),
        }
    }

    fn submit(&self) {
        self.inner.submit();
    }

    fn enlarge(&self, size_bytes: u64, done: Completion<u64>) {
        match self.begin(Operation::Write, self.size_bytes(), 0) {
            Ok(flight) => self.inner.enlarge(size_bytes, flight.ends(done)),
            Err(error) => done(Err(error)),
        }
    }

    fn claim_snapshot(&self, number: u64, claim: Claim) -> Result<bool, DeviceError> {
        self.inner.claim_snapshot(number, claim)
    }

    fn discards(&self) -> bool {
        self.inner.discards()
    }

    fn discard(&self, offset: u64, len_bytes: u64, done: Completion<()>) {
        if touches_lease(offset, len_bytes) {
            let why = io::Error::other("block 48 is the device lease's, and not to be discarded");
            return done(Err(DeviceError::io(Operation::Discard, offset, len_bytes, why)));
        }
        match self.begin(Operation::Discard, offset, len_bytes) {
            Ok(flight) => self.inner.discard(offset, len_bytes, flight.ends(done)),
            Err(error) => done(Err(error)),
        }
    }
}

#[cfg(test)]
mod tests;
