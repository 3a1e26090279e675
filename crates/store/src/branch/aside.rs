//! A device whose superblocks are in memory: that of a branch.
//!
//! Its writes go to the device below, and its flushes through the tracker there. A flush that fails
//! may have dropped what anybody had written (rule R6), so both must hear of every one.

use bytes::Bytes;
use std::collections::HashMap;
use std::sync::Arc;
use syncline_device::{AlignedBuf, Claim, Completion, Device, DeviceError, FlushTracker, Operation, Spawn};
use syncline_format::{BLOCK_BYTES, Geometry};
use syncline_sync::atomic::{AtomicBool, AtomicU64, Ordering};
use syncline_sync::{Event, Mutex};

/// A device whose superblocks are in memory, aside of those of the device below.
pub(crate) struct Aside {
    below: Arc<FlushTracker>,
    spawn: Arc<dyn Spawn>,
    size_bytes: u64,
    /// Failed flushes below of which this device has told.
    failures_told: Arc<AtomicU64>,
    /// The blocks of superblocks, by their offset.
    slots: Mutex<HashMap<u64, Bytes>>,
    writes: Arc<Writes>,
}

/// The writes that are in flight.
#[derive(Default)]
struct Writes {
    in_flight: AtomicU64,
    /// No more writes are let through.
    ended: AtomicBool,
    /// Notified when there is none left.
    none_left: Event,
}

impl Writes {
    /// Counts a write, unless writing has ended.
    fn begin(&self) -> bool {
        self.in_flight.fetch_add(1, Ordering::SeqCst);
        let may = !self.ended.load(Ordering::SeqCst);
        if !may {
            self.end();
        }
        may
    }

    fn end(&self) {
        if self.in_flight.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.none_left.notify(usize::MAX);
        }
    }
}

impl Aside {
    pub(crate) fn new(below: Arc<FlushTracker>, spawn: Arc<dyn Spawn>, geometry: Geometry) -> Self {
        let copies = (0..2).flat_map(|slot| geometry.superblock_copies(slot));
        let zeros = Bytes::from(vec![0; BLOCK_BYTES]);
        let slots = copies.map(|addr| (addr * BLOCK_BYTES as u64, zeros.clone())).collect();
        let size_bytes = geometry.total_blocks * BLOCK_BYTES as u64;
        let failures_told = Arc::new(AtomicU64::new(below.failed_flushes().0));
        Self { below, spawn, size_bytes, failures_told, slots: Mutex::new(slots), writes: Arc::default() }
    }

    /// Refuses writes from now on, and waits for those in flight.
    pub(crate) async fn end_writing(&self) {
        self.writes.ended.store(true, Ordering::SeqCst);
        loop {
            let none_left = self.writes.none_left.listen();
            if self.writes.in_flight.load(Ordering::SeqCst) == 0 {
                return;
            }
            none_left.await;
        }
    }

    /// True if the range has a superblock in it.
    fn touches(&self, offset: u64, len_bytes: u64) -> bool {
        self.slots.lock().keys().any(|slot| *slot < offset + len_bytes && offset < slot + BLOCK_BYTES as u64)
    }
}

fn refused(operation: Operation, offset: u64, len_bytes: u64) -> DeviceError {
    DeviceError::io(operation, offset, len_bytes, std::io::ErrorKind::Unsupported.into())
}

impl Device for Aside {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn reads_bypass_caches(&self) -> bool {
        self.below.device().reads_bypass_caches()
    }

    fn read(&self, offset: u64, buf: AlignedBuf, done: Completion<AlignedBuf>) {
        let length = buf.len() as u64;
        let slot = self.slots.lock().get(&offset).cloned();
        match slot {
            Some(slot) if length == BLOCK_BYTES as u64 => done(Ok(AlignedBuf::copy_from(&slot))),
            None if !self.touches(offset, length) => self.below.device().read(offset, buf, done),
            _ => done(Err(refused(Operation::Read, offset, length))),
        }
    }

    fn write(&self, offset: u64, bufs: Vec<Bytes>, done: Completion<()>) {
        let length = bufs.iter().map(|buf| buf.len() as u64).sum();
        if !self.touches(offset, length) {
            if !self.writes.begin() {
                return done(Err(refused(Operation::Write, offset, length)));
            }
            let writes = self.writes.clone();
            let ended = move |result| {
                writes.end();
                done(result);
            };
            return self.below.device().write(offset, bufs, Box::new(ended));
        }
        let whole: Bytes = bufs.concat().into();
        let known = self.slots.lock().get_mut(&offset).filter(|_| whole.len() == BLOCK_BYTES).map(|slot| {
            *slot = whole;
        });
        done(known.ok_or_else(|| refused(Operation::Write, offset, length)));
    }

    /// Fails once for flushes of others that have failed since the last one here: what was written
    /// before that must be written again.
    fn flush(&self, done: Completion<()>) {
        let (below, told) = (self.below.clone(), self.failures_told.clone());
        let flushed = below.flush_now();
        self.spawn.spawn(Box::pin(async move {
            let result = flushed.await.map(drop);
            let (failures, source) = below.failed_flushes();
            let is_told = told.swap(failures, Ordering::AcqRel) == failures;
            done(match source {
                Some(source) if result.is_ok() && !is_told => Err(DeviceError::Poisoned { source }),
                _ => result,
            });
        }));
    }

    fn submit(&self) {
        self.below.submit();
    }

    fn enlarge(&self, size_bytes: u64, done: Completion<u64>) {
        done(Err(refused(Operation::Write, self.size_bytes, size_bytes)));
    }

    fn claim_snapshot(&self, number: u64, claim: Claim) -> Result<bool, DeviceError> {
        self.below.device().claim_snapshot(number, claim)
    }

    fn discards(&self) -> bool {
        false
    }

    fn discard(&self, offset: u64, len_bytes: u64, done: Completion<()>) {
        done(Err(refused(Operation::Discard, offset, len_bytes)));
    }
}
