//! A device that fails on request: errors, operations that take place in part, wrong bytes.

use bytes::Bytes;
use parking_lot::Mutex;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use syncline_device::{AlignedBuf, BLOCK_BYTES, Completion, Device, DeviceError, Operation};
use syncline_powercut::tear::{Volatile, get, put, tear};

/// The effect of a fault on an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    /// It fails with EIO and has no effect. A flush that fails this way loses nothing either.
    Error,
    /// It fails with EIO after taking place in part: a write is torn; a flush has dropped some of
    /// the writes before it, and only writing them again brings them back.
    Partial,
    /// A read succeeds with one bit wrong.
    FlippedBit,
    /// A read succeeds with nothing but zeros.
    Zeros,
    /// A read succeeds with the bytes of another place.
    Elsewhere,
}

/// A fault: the operations it hits, and its effect.
#[derive(Clone, Debug)]
pub struct Fault {
    /// The operations concerned.
    pub operation: Operation,
    /// Hits only operations that touch these bytes; a flush touches all bytes.
    pub bytes: Range<u64>,
    /// Number of operations of this kind that pass before the fault strikes.
    pub after: u64,
    /// Number of operations it hits.
    pub times: u64,
    /// The effect on these operations.
    pub effect: Effect,
}

impl Fault {
    /// The next `times` operations of this kind fail, at any offset.
    pub fn next(operation: Operation, times: u64) -> Self {
        Self { operation, bytes: 0..u64::MAX, after: 0, times, effect: Effect::Error }
    }

    /// True if the fault hits this operation; counts the operation.
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
    state: Arc<Mutex<State>>,
}

struct State {
    faults: Vec<Fault>,
    rng: ChaCha8Rng,
    /// Contents, before they were written, of blocks written since the last successful flush; a
    /// flush that drops writes restores these.
    before: BTreeMap<u64, Bytes>,
    injected: u64,
}

impl FaultDevice {
    /// `inner`, without faults so far.
    pub fn new(inner: Arc<dyn Device>) -> Arc<Self> {
        Self::seeded(inner, 0)
    }

    /// `inner`, with a seed that decides the outcome of partial faults. `inner` must complete at
    /// once.
    pub fn seeded(inner: Arc<dyn Device>, seed: u64) -> Arc<Self> {
        let rng = ChaCha8Rng::seed_from_u64(seed);
        let state = State { faults: Vec::new(), rng, before: BTreeMap::new(), injected: 0 };
        Arc::new(Self { inner, state: Arc::new(Mutex::new(state)) })
    }

    /// Adds a fault.
    pub fn add(&self, fault: Fault) {
        self.state.lock().faults.push(fault);
    }

    /// Removes all faults.
    pub fn mend(&self) {
        self.state.lock().faults.clear();
    }

    /// How often faults have struck.
    pub fn injected(&self) -> u64 {
        self.state.lock().injected
    }

    fn effect(&self, operation: Operation, offset: u64, len_bytes: u64) -> Option<Effect> {
        let state = &mut *self.state.lock();
        let bytes = if operation == Operation::Flush { 0..u64::MAX } else { offset..offset + len_bytes };
        let effect = state
            .faults
            .iter_mut()
            .find_map(|fault| fault.strikes(operation, &bytes).then_some(fault.effect));
        if let Some(effect) = effect {
            tracing::info!("{operation:?} of {len_bytes} bytes at {offset}: {effect:?}");
            state.injected += 1;
        }
        effect
    }

    /// Saves the blocks that a write will replace, so that a failing flush can drop the write.
    fn keep_before(&self, offset: u64, len_bytes: u64) {
        for block in (offset..offset + len_bytes).step_by(BLOCK_BYTES) {
            if !self.state.lock().before.contains_key(&block) {
                let bytes = get(&self.inner, block, BLOCK_BYTES).into_bytes();
                self.state.lock().before.insert(block, bytes);
            }
        }
    }

    fn drop_some_writes(&self) {
        let state = &mut *self.state.lock();
        for (block, bytes) in std::mem::take(&mut state.before) {
            if state.rng.random() {
                put(&self.inner, block, vec![bytes]);
            }
        }
    }
}

/// The error EIO.
pub(crate) fn failure(operation: Operation, offset: u64, len_bytes: u64) -> DeviceError {
    DeviceError::io(operation, offset, len_bytes, io::Error::from_raw_os_error(5))
}

impl Device for FaultDevice {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }

    fn read(&self, offset: u64, buf: AlignedBuf, done: Completion<AlignedBuf>) {
        let len_bytes = buf.len() as u64;
        match self.effect(Operation::Read, offset, len_bytes) {
            None => self.inner.read(offset, buf, done),
            Some(effect @ (Effect::FlippedBit | Effect::Zeros)) => {
                let bit = self.state.lock().rng.random_range(0..len_bytes * 8);
                let garble = move |result: Result<AlignedBuf, DeviceError>| {
                    done(result.map(|mut buf| {
                        match effect {
                            Effect::Zeros => buf.fill(0),
                            _ => buf[(bit / 8) as usize] ^= 1 << (bit % 8),
                        }
                        buf
                    }));
                };
                self.inner.read(offset, buf, Box::new(garble));
            }
            Some(Effect::Elsewhere) => {
                let places = (self.size_bytes() - len_bytes) / BLOCK_BYTES as u64;
                let place = self.state.lock().rng.random_range(0..=places) * BLOCK_BYTES as u64;
                self.inner.read(place, buf, done);
            }
            Some(_) => done(Err(failure(Operation::Read, offset, len_bytes))),
        }
    }

    fn write(&self, offset: u64, bufs: Vec<Bytes>, done: Completion<()>) {
        let len_bytes = bufs.iter().map(|buf| buf.len() as u64).sum();
        let Some(effect) = self.effect(Operation::Write, offset, len_bytes) else {
            self.keep_before(offset, len_bytes);
            return self.inner.write(offset, bufs, done);
        };
        if effect == Effect::Partial {
            let write = Volatile { offset, bufs, ended: false };
            let mut rng = ChaCha8Rng::seed_from_u64(self.state.lock().rng.random());
            tear(&self.inner, &write, &mut rng);
        }
        done(Err(failure(Operation::Write, offset, len_bytes)));
    }

    fn flush(&self, done: Completion<()>) {
        match self.effect(Operation::Flush, 0, 0) {
            None => {
                let state = self.state.clone();
                let flushed = move |result: Result<(), DeviceError>| {
                    if result.is_ok() {
                        state.lock().before.clear();
                    }
                    done(result);
                };
                self.inner.flush(Box::new(flushed));
            }
            Some(effect) => {
                if effect == Effect::Partial {
                    self.drop_some_writes();
                }
                done(Err(failure(Operation::Flush, 0, 0)));
            }
        }
    }

    fn discard(&self, offset: u64, len_bytes: u64, done: Completion<()>) {
        match self.effect(Operation::Discard, offset, len_bytes) {
            None => self.inner.discard(offset, len_bytes, done),
            Some(_) => done(Err(failure(Operation::Discard, offset, len_bytes))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use syncline_device::{DeviceExt, MemoryDevice, block_on};

    #[test]
    fn faults_hit_the_turns_and_places_they_name() {
        let device = FaultDevice::new(MemoryDevice::new(1 << 20));
        let block = || vec![AlignedBuf::copy_from(&[7; 4096]).into_bytes()];
        device.add(Fault { bytes: 8192..12288, after: 1, ..Fault::next(Operation::Write, 1) });
        assert!(block_on(device.write_at(0, block())).is_ok());
        assert!(block_on(device.write_at(8192, block())).is_ok());
        assert!(block_on(device.write_at(8192, block())).is_err());
        assert!(block_on(device.write_at(8192, block())).is_ok());
        device.add(Fault::next(Operation::Flush, u64::MAX));
        assert!(block_on(device.flush_all()).is_err());
        assert!(block_on(device.flush_all()).is_err());
        device.mend();
        assert!(block_on(device.flush_all()).is_ok());
        device.add(Fault { effect: Effect::FlippedBit, ..Fault::next(Operation::Read, 1) });
        let read = block_on(device.read_at(0, 4096)).unwrap();
        let flipped: u32 = read.iter().map(|byte| (byte ^ 7).count_ones()).sum();
        assert_eq!(flipped, 1);
        assert_eq!(device.injected(), 4);
    }

    #[test]
    fn a_flush_that_fails_may_drop_what_was_written() {
        let dropped = (0..20).filter(|seed| {
            let device = FaultDevice::seeded(MemoryDevice::new(1 << 20), *seed);
            block_on(device.write_at(0, vec![AlignedBuf::copy_from(&[7; 4096]).into_bytes()])).unwrap();
            device.add(Fault { effect: Effect::Partial, ..Fault::next(Operation::Flush, 1) });
            assert!(block_on(device.flush_all()).is_err());
            block_on(device.read_at(0, 4096)).unwrap()[0] == 0
        });
        assert!((1..20).contains(&dropped.count()));
    }
}
