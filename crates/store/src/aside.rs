//! A device whose superblocks are in memory: that of a branch.

use bytes::Bytes;
use std::collections::HashMap;
use std::sync::Arc;
use syncline_device::{AlignedBuf, Claim, Completion, Device, DeviceError, Operation};
use syncline_format::{BLOCK_BYTES, Geometry};
use syncline_sync::atomic::{AtomicBool, AtomicU64, Ordering};
use syncline_sync::{Event, Mutex};

/// A device whose superblocks are in memory, aside of those of the device below.
pub(crate) struct Aside {
    below: Arc<dyn Device>,
    size_bytes: u64,
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
    pub(crate) fn new(below: Arc<dyn Device>, geometry: Geometry) -> Self {
        let copies = (0..2).flat_map(|slot| geometry.superblock_copies(slot));
        let zeros = Bytes::from(vec![0; BLOCK_BYTES]);
        let slots = copies.map(|addr| (addr * BLOCK_BYTES as u64, zeros.clone())).collect();
        let size_bytes = geometry.total_blocks * BLOCK_BYTES as u64;
        Self { below, size_bytes, slots: Mutex::new(slots), writes: Arc::default() }
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
        self.below.reads_bypass_caches()
    }

    fn read(&self, offset: u64, buf: AlignedBuf, done: Completion<AlignedBuf>) {
        let length = buf.len() as u64;
        let slot = self.slots.lock().get(&offset).cloned();
        match slot {
            Some(slot) if length == BLOCK_BYTES as u64 => done(Ok(AlignedBuf::copy_from(&slot))),
            None if !self.touches(offset, length) => self.below.read(offset, buf, done),
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
            return self.below.write(offset, bufs, Box::new(ended));
        }
        let whole: Bytes = bufs.concat().into();
        let known = self.slots.lock().get_mut(&offset).filter(|_| whole.len() == BLOCK_BYTES).map(|slot| {
            *slot = whole;
        });
        done(known.ok_or_else(|| refused(Operation::Write, offset, length)));
    }

    fn flush(&self, done: Completion<()>) {
        self.below.flush(done);
    }

    fn submit(&self) {
        self.below.submit();
    }

    fn enlarge(&self, size_bytes: u64, done: Completion<u64>) {
        done(Err(refused(Operation::Write, self.size_bytes, size_bytes)));
    }

    fn claim_snapshot(&self, number: u64, claim: Claim) -> Result<bool, DeviceError> {
        self.below.claim_snapshot(number, claim)
    }

    fn discards(&self) -> bool {
        false
    }

    fn discard(&self, offset: u64, len_bytes: u64, done: Completion<()>) {
        done(Err(refused(Operation::Discard, offset, len_bytes)));
    }
}
