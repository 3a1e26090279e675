//! A device that fails as told: errors, wrong bytes.

use bytes::Bytes;
use parking_lot::Mutex;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use syncline_device::{AlignedBuf, Completion, Device, DeviceError, Operation};

/// What happens to an operation that a fault hits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    /// It fails with EIO. Whether a write reached the device is unknown; here it did not.
    Error,
    /// A read succeeds with one bit wrong.
    FlippedBit,
}

/// A fault: which operations it hits, and how.
#[derive(Clone, Debug)]
pub struct Fault {
    /// The operations concerned.
    pub operation: Operation,
    /// Only those that touch these bytes; flushes touch all.
    pub bytes: Range<u64>,
    /// How many such operations pass before it strikes.
    pub after: u64,
    /// How many it strikes.
    pub times: u64,
    /// What becomes of them.
    pub effect: Effect,
}

impl Fault {
    /// The next `times` operations of this kind fail, wherever they are.
    pub fn next(operation: Operation, times: u64) -> Self {
        Self { operation, bytes: 0..u64::MAX, after: 0, times, effect: Effect::Error }
    }

    /// True when the operation is to be hit; counts it.
    fn strikes(&mut self, operation: Operation, bytes: &Range<u64>) -> bool {
        let touched = bytes.start < self.bytes.end && self.bytes.start < bytes.end;
        if self.operation != operation || !touched || self.times == 0 {
            return false;
        }
        if self.after > 0 {
            self.after -= 1;
            return false;
        }
        self.times -= 1;
        true
    }
}

/// A device with faults in front of it.
pub struct FaultDevice {
    inner: Arc<dyn Device>,
    faults: Mutex<Vec<Fault>>,
}

impl FaultDevice {
    /// `inner`, without a fault so far.
    pub fn new(inner: Arc<dyn Device>) -> Arc<Self> {
        Arc::new(Self { inner, faults: Mutex::default() })
    }

    /// Adds a fault.
    pub fn add(&self, fault: Fault) {
        self.faults.lock().push(fault);
    }

    /// Takes all faults away.
    pub fn mend(&self) {
        self.faults.lock().clear();
    }

    fn effect(&self, operation: Operation, bytes: Range<u64>) -> Option<Effect> {
        let mut faults = self.faults.lock();
        faults.iter_mut().find_map(|fault| fault.strikes(operation, &bytes).then_some(fault.effect))
    }
}

fn error(operation: Operation, bytes: &Range<u64>) -> DeviceError {
    const EIO: i32 = 5;
    DeviceError::io(operation, bytes.start, bytes.end - bytes.start, io::Error::from_raw_os_error(EIO))
}

impl Device for FaultDevice {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }

    fn read(&self, offset: u64, buf: AlignedBuf, done: Completion<AlignedBuf>) {
        let bytes = offset..offset + buf.len() as u64;
        match self.effect(Operation::Read, bytes.clone()) {
            None => self.inner.read(offset, buf, done),
            Some(Effect::Error) => done(Err(error(Operation::Read, &bytes))),
            Some(Effect::FlippedBit) => {
                let flip = |mut buf: AlignedBuf| {
                    buf[0] ^= 1;
                    buf
                };
                self.inner.read(offset, buf, Box::new(move |result| done(result.map(flip))));
            }
        }
    }

    fn write(&self, offset: u64, bufs: Vec<Bytes>, done: Completion<()>) {
        let bytes = offset..offset + bufs.iter().map(|buf| buf.len() as u64).sum::<u64>();
        match self.effect(Operation::Write, bytes.clone()) {
            None => self.inner.write(offset, bufs, done),
            Some(_) => done(Err(error(Operation::Write, &bytes))),
        }
    }

    fn flush(&self, done: Completion<()>) {
        match self.effect(Operation::Flush, 0..u64::MAX) {
            None => self.inner.flush(done),
            Some(_) => done(Err(error(Operation::Flush, &(0..0)))),
        }
    }

    fn discard(&self, offset: u64, len_bytes: u64, done: Completion<()>) {
        self.inner.discard(offset, len_bytes, done);
    }
}
