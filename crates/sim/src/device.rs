//! A device whose operations end when the simulated run picks them: delayed, and out of order.

use crate::Simulation;
use crate::executor::Shared;
use bytes::Bytes;
use std::sync::{Arc, Weak};
use syncline_device::{AlignedBuf, Completion, Device};

/// How long operations take, in virtual nanoseconds: from, to.
#[derive(Clone, Copy, Debug)]
pub struct Latency {
    /// Reads.
    pub read_ns: (u64, u64),
    /// Writes and discards.
    pub write_ns: (u64, u64),
    /// Flushes.
    pub flush_ns: (u64, u64),
    /// One operation in so many takes twenty times as long; 0 for none.
    pub slow_one_in: u64,
}

impl Default for Latency {
    fn default() -> Self {
        Self {
            read_ns: (5_000, 60_000),
            write_ns: (10_000, 300_000),
            flush_ns: (50_000, 900_000),
            slow_one_in: 16,
        }
    }
}

/// A device that carries out each operation on the one underneath after a delay that the seed decides. An operation
/// takes effect when it ends, at once and whole.
pub struct SimDevice {
    inner: Arc<dyn Device>,
    run: Weak<Shared>,
    latency: Latency,
}

impl SimDevice {
    /// Puts delays before `inner`, whose own operations should end at once.
    pub fn new(simulation: &Simulation, inner: Arc<dyn Device>, latency: Latency) -> Arc<Self> {
        Arc::new(Self { inner, run: Arc::downgrade(simulation.shared()), latency })
    }

    fn later(&self, (least, most): (u64, u64), job: Box<dyn FnOnce() + Send>) {
        // Without a run there is nobody who would carry it out: it is dropped unanswered, as at a power cut.
        let Some(run) = self.run.upgrade() else { return };
        let slow = self.latency.slow_one_in > 0 && run.random_below(self.latency.slow_one_in) == 0;
        let factor = if slow { 20 } else { 1 };
        run.schedule(least * factor, most * factor, job);
    }
}

impl Device for SimDevice {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }

    fn read(&self, offset: u64, buf: AlignedBuf, done: Completion<AlignedBuf>) {
        let inner = self.inner.clone();
        self.later(self.latency.read_ns, Box::new(move || inner.read(offset, buf, done)));
    }

    fn write(&self, offset: u64, bufs: Vec<Bytes>, done: Completion<()>) {
        let inner = self.inner.clone();
        self.later(self.latency.write_ns, Box::new(move || inner.write(offset, bufs, done)));
    }

    fn flush(&self, done: Completion<()>) {
        let inner = self.inner.clone();
        self.later(self.latency.flush_ns, Box::new(move || inner.flush(done)));
    }

    fn discard(&self, offset: u64, len_bytes: u64, done: Completion<()>) {
        let inner = self.inner.clone();
        self.later(self.latency.write_ns, Box::new(move || inner.discard(offset, len_bytes, done)));
    }
}
