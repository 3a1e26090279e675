//! A device whose operations end when the simulation picks them: delayed, and out of order.

use crate::Simulation;
use crate::executor::{Shared, spread};
use crate::fault::failure;
use bytes::Bytes;
use rand::Rng;
use rand_chacha::ChaCha8Rng;
use std::sync::{Arc, Weak};
use syncline_device::{AlignedBuf, Completion, Device, Operation};

/// Durations of operations in virtual nanoseconds: least and most.
#[derive(Clone, Copy, Debug)]
pub struct Latency {
    /// Reads.
    pub read_ns: (u64, u64),
    /// Writes and discards.
    pub write_ns: (u64, u64),
    /// Flushes.
    pub flush_ns: (u64, u64),
    /// One in this many operations takes twenty times as long; 0: none.
    pub slow_one_in: u64,
    /// One in this many operations stalls for up to a minute; 0: none.
    pub stall_one_in: u64,
    /// A stalled write fails in one case of two, without having taken place.
    pub stalls_fail: bool,
}

/// Range of the durations of flushes and stalls on a slow device.
const PATIENCE_NS: (u64, u64) = (100_000, 60_000_000_000);

impl Latency {
    /// A slow device: its flushes take between a tenth of a millisecond and a minute, and
    /// operations may stall.
    pub(crate) fn slow(rng: &mut ChaCha8Rng, stalls_fail: bool) -> Self {
        let flush_ns = spread(rng, PATIENCE_NS.0, PATIENCE_NS.1);
        let often = if stalls_fail { 30 } else { 100 };
        let stall_one_in = if rng.random() { 0 } else { rng.random_range(4..often) };
        let flush_ns = (flush_ns / 2, flush_ns);
        Self { flush_ns, slow_one_in: 0, stall_one_in, stalls_fail, ..Self::default() }
    }
}

impl Default for Latency {
    fn default() -> Self {
        Self {
            read_ns: (5_000, 60_000),
            write_ns: (10_000, 300_000),
            flush_ns: (50_000, 900_000),
            slow_one_in: 16,
            stall_one_in: 0,
            stalls_fail: false,
        }
    }
}

/// A device that carries out each operation on the device below after a delay that the seed
/// decides. An operation takes effect when it ends, all at once.
pub struct SimDevice {
    inner: Arc<dyn Device>,
    run: Weak<Shared>,
    latency: Latency,
}

impl SimDevice {
    /// Puts delays in front of `inner`, whose own operations should complete at once.
    pub fn new(simulation: &Simulation, inner: Arc<dyn Device>, latency: Latency) -> Arc<Self> {
        Arc::new(Self { inner, run: Arc::downgrade(simulation.shared()), latency })
    }

    /// Runs `job` after a delay and tells it whether to fail.
    fn later(&self, (least, most): (u64, u64), job: Box<dyn FnOnce(bool) + Send>) {
        // Once the run is over nothing can carry the job out: it is dropped unanswered, as at a
        // power cut.
        let Some(run) = self.run.upgrade() else { return };
        let slow = self.latency.slow_one_in > 0 && run.random_below(self.latency.slow_one_in) == 0;
        let factor = if slow { 20 } else { 1 };
        if self.latency.stall_one_in > 0 && run.random_below(self.latency.stall_one_in) == 0 {
            let stall_ns = run.random_spread(PATIENCE_NS.0, PATIENCE_NS.1);
            let fails = self.latency.stalls_fail && run.random_below(2) == 0;
            return run.schedule(stall_ns, stall_ns, Box::new(move || job(fails)));
        }
        run.schedule(least * factor, most * factor, Box::new(move || job(false)));
    }
}

impl Device for SimDevice {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }

    fn read(&self, offset: u64, buf: AlignedBuf, done: Completion<AlignedBuf>) {
        let inner = self.inner.clone();
        self.later(self.latency.read_ns, Box::new(move |_| inner.read(offset, buf, done)));
    }

    fn write(&self, offset: u64, bufs: Vec<Bytes>, done: Completion<()>) {
        let inner = self.inner.clone();
        let write = move |fails| {
            if fails {
                let len_bytes = bufs.iter().map(|buf| buf.len() as u64).sum();
                tracing::info!("a write of {len_bytes} bytes at {offset} has stalled and fails");
                return done(Err(failure(Operation::Write, offset, len_bytes)));
            }
            inner.write(offset, bufs, done);
        };
        self.later(self.latency.write_ns, Box::new(write));
    }

    fn flush(&self, done: Completion<()>) {
        let inner = self.inner.clone();
        self.later(self.latency.flush_ns, Box::new(move |_| inner.flush(done)));
    }

    fn discard(&self, offset: u64, len_bytes: u64, done: Completion<()>) {
        let inner = self.inner.clone();
        self.later(self.latency.write_ns, Box::new(move |_| inner.discard(offset, len_bytes, done)));
    }
}
