//! Writes that are not known to be durable: their buffers stay here, to serve reads and to be
//! written again.

use crate::StoreError;
use bytes::{Bytes, BytesMut};
use std::collections::BTreeMap;
use std::sync::Arc;
use syncline_device::{DeviceError, Durability, FlushTracker, Ticket, WriteHandle};
use syncline_format::{BLOCK_BYTES, BlockAddr, BlockRun, Crc, block_checksums};
use syncline_space::Space;
use syncline_sync::atomic::{AtomicUsize, Ordering};
use syncline_sync::{Mutex, RwLock};

/// Data writes of at least this size are submitted to the device at once: their checksums take 15
/// µs or more, which is worth a system call.
const SUBMIT_AT_ONCE_BYTES: u64 = 256 << 10;

/// A write that can be repeated identically at the same address, the only rewrite of data and log
/// in place (rule R5).
///
/// A repetition must never reach the device after the blocks have been freed and reused (rule R2).
/// Three things ensure that. Two attempts are never in flight at once. No attempt begins after
/// [`Write::close`], which comes before the blocks can be released. An attempt still in flight at
/// that point holds a pin, which keeps released blocks from being reused.
pub(crate) struct Write {
    pub(crate) run: BlockRun,
    bufs: Vec<Bytes>,
    attempts: Mutex<Attempts>,
}

struct Attempts {
    newest: WriteHandle,
    /// The blocks may be released from now on: they are not written again.
    closed: bool,
}

impl Write {
    /// Starts the write.
    pub(crate) fn start(tracker: &FlushTracker, run: BlockRun, bufs: Vec<Bytes>) -> Arc<Self> {
        let newest = tracker.write(run.offset_bytes(), bufs.clone());
        Arc::new(Self { run, bufs, attempts: Mutex::new(Attempts { newest, closed: false }) })
    }

    /// Starts the write with a flush behind it, if the device can do that in one request and is
    /// free to; the returned `Durability` then waits for that flush.
    pub(crate) fn start_through(
        tracker: &FlushTracker,
        run: BlockRun,
        bufs: Vec<Bytes>,
    ) -> (Arc<Self>, Option<Durability>) {
        let (newest, durability) = tracker.write_through(run.offset_bytes(), bufs.clone());
        (Arc::new(Self { run, bufs, attempts: Mutex::new(Attempts { newest, closed: false }) }), durability)
    }

    /// The newest attempt.
    pub(crate) fn attempt(&self) -> WriteHandle {
        self.attempts.lock().newest.clone()
    }

    /// True when the newest attempt failed, and not because a flush did: repeating it may never
    /// help.
    pub(crate) fn failed_for_good(&self) -> bool {
        let lost = |error| !matches!(error, DeviceError::Poisoned { .. });
        self.attempt().outcome().is_some_and(|outcome| outcome.is_err_and(lost))
    }

    /// True when the newest attempt has succeeded.
    pub(crate) fn is_written(&self) -> bool {
        matches!(self.attempt().outcome(), Some(Ok(_)))
    }

    /// Writes the same bytes again because a flush failed, which invalidates the ticket of the
    /// earlier attempt. An attempt still in flight is left alone: it will fail by itself, as
    /// poisoned.
    pub(crate) fn rewrite(&self, tracker: &FlushTracker, space: &Space) {
        self.begin_again(tracker, space, |newest| newest.outcome().is_some());
    }

    /// Writes the same bytes again if a flush failed before any covered them.
    pub(crate) fn rewrite_lost(&self, tracker: &FlushTracker, space: &Space) {
        self.begin_again(tracker, space, |newest| {
            newest.outcome().is_some_and(|outcome| outcome.is_ok_and(|ticket| tracker.is_lost(ticket)))
        });
    }

    /// Writes the same bytes again because `failed` has failed, unless somebody else has already
    /// done so.
    pub(crate) fn retry(&self, failed: &WriteHandle, tracker: &FlushTracker, space: &Space) {
        self.begin_again(tracker, space, |newest| newest.is_same(failed));
    }

    fn begin_again(&self, tracker: &FlushTracker, space: &Space, due: impl Fn(&WriteHandle) -> bool) {
        let mut attempts = self.attempts.lock();
        if attempts.closed || !due(&attempts.newest) {
            return;
        }
        let pin = space.pin();
        attempts.newest = self.submit(tracker);
        attempts.newest.on_end(Box::new(move |_| drop(pin)));
    }

    /// For the laboratory: writes again although the blocks may have been released, unless an
    /// attempt is in flight.
    pub(crate) fn lab_retry_late(&self, tracker: &FlushTracker) {
        let mut attempts = self.attempts.lock();
        if attempts.newest.outcome().is_some() {
            attempts.newest = self.submit(tracker);
        }
    }

    /// Submits the bytes to the device.
    fn submit(&self, tracker: &FlushTracker) -> WriteHandle {
        tracker.write(self.run.offset_bytes(), self.bufs.clone())
    }

    /// Allows no further attempt: the next step may release the blocks.
    pub(crate) fn close(&self) {
        self.attempts.lock().closed = true;
    }

    /// Waits for the newest attempt to end.
    pub(crate) async fn wait(&self) -> Result<Ticket, DeviceError> {
        self.attempt().wait().await
    }

    /// Runs `then` when the newest attempt ends, or at once if it has ended already.
    pub(crate) fn on_end(&self, then: Box<dyn FnOnce() + Send>) {
        self.attempt().on_end(Box::new(move |_| then()));
    }

    /// Total bytes of the buffers.
    pub(crate) fn held_bytes(&self) -> u64 {
        self.bufs.iter().map(|buf| buf.len() as u64).sum()
    }

    /// The block at `index` of the run.
    fn block(&self, index: usize) -> Bytes {
        let mut at = index * BLOCK_BYTES;
        for buf in &self.bufs {
            if at < buf.len() {
                return buf.slice(at..at + BLOCK_BYTES);
            }
            at -= buf.len();
        }
        unreachable!("callers ask for blocks inside the run")
    }

    /// The bytes of a part of the run, without a copy if one buffer holds them all.
    fn slice(&self, part: BlockRun) -> Bytes {
        let mut at = (part.start - self.run.start) as usize * BLOCK_BYTES;
        let len = part.len_bytes() as usize;
        for buf in &self.bufs {
            if at < buf.len() {
                if at + len <= buf.len() {
                    return buf.slice(at..at + len);
                }
                break;
            }
            at -= buf.len();
        }
        let mut joined = BytesMut::with_capacity(len);
        let first = (part.start - self.run.start) as usize;
        (first..first + part.blocks as usize).for_each(|index| joined.extend_from_slice(&self.block(index)));
        joined.freeze()
    }
}

struct DataWriteInner {
    write: Arc<Write>,
    checksums: Vec<Crc>,
    /// Parts that were never named; they are given back when the write leaves the table.
    abandoned: Mutex<Abandoned>,
}

#[derive(Default)]
struct Abandoned {
    parts: Vec<BlockRun>,
    /// The write has left the table.
    retired: bool,
}

/// Data in flight or on the device. Its buffers are immutable and stay in memory until a successful
/// flush covers a batch that names it (rules R6, R7); until then, reads of these blocks are served
/// from memory.
#[derive(Clone)]
pub struct DataWrite(Arc<DataWriteInner>);

impl DataWrite {
    /// The blocks it is written to.
    pub fn run(&self) -> BlockRun {
        self.0.write.run
    }
    /// One checksum per block.
    pub fn checksums(&self) -> &[Crc] {
        &self.0.checksums
    }
    /// The checksums of a part of the blocks.
    pub fn checksums_of(&self, part: BlockRun) -> &[Crc] {
        let first = (part.start - self.run().start) as usize;
        &self.0.checksums[first..first + part.blocks as usize]
    }
    /// Waits until the write has completed.
    pub async fn wait(&self) -> Result<(), StoreError> {
        self.0.write.wait().await?;
        Ok(())
    }
    pub(crate) fn write(&self) -> &Arc<Write> {
        &self.0.write
    }

    /// True if both are the same write.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// True when only the table holds the write, so nothing will ever retire it.
    pub(crate) fn is_forgotten(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }
}

/// The table of data writes that are not known to be durable, by address.
#[derive(Default)]
pub(crate) struct Inflight {
    writes: RwLock<BTreeMap<BlockAddr, DataWrite>>,
    count: AtomicUsize,
}

impl Inflight {
    /// Starts a data write and records it in the table. From here on the buffers are immutable
    /// (rule R7).
    ///
    /// A large write is submitted to the device at once, so that it runs while the checksums, the
    /// transaction that names it and the batch are made. Small writes are submitted at the end of
    /// the worker's turn together with those of other callers, and the block layer merges
    /// neighbours.
    pub(crate) fn start(&self, tracker: &FlushTracker, run: BlockRun, bufs: Vec<Bytes>) -> DataWrite {
        // The table must have the write before anyone can learn its address; nobody can before this
        // returns.
        let write = Write::start(tracker, run, bufs);
        if run.len_bytes() >= SUBMIT_AT_ONCE_BYTES {
            tracker.submit();
        }
        let checksums = write.bufs.iter().flat_map(|buf| block_checksums(buf)).collect();
        let abandoned = Mutex::default();
        let data = DataWrite(Arc::new(DataWriteInner { write, checksums, abandoned }));
        let mut writes = self.writes.write();
        writes.insert(run.start, data.clone());
        self.count.store(writes.len(), Ordering::Release);
        data
    }

    /// Removes a write that has become durable or was abandoned entirely; returns the parts to give
    /// back.
    pub(crate) fn retire(&self, data: &DataWrite) -> Vec<BlockRun> {
        let mut abandoned = data.0.abandoned.lock();
        if !abandoned.retired {
            abandoned.retired = true;
            let mut writes = self.writes.write();
            writes.remove(&data.run().start);
            self.count.store(writes.len(), Ordering::Release);
        }
        std::mem::take(&mut abandoned.parts)
    }

    /// Notes that `part` was never named. True when the whole write is now useless.
    ///
    /// The blocks are not given back at once, since a later write to them would collide with this
    /// one in the table.
    pub(crate) fn abandon(&self, data: &DataWrite, part: BlockRun) -> bool {
        let mut abandoned = data.0.abandoned.lock();
        abandoned.parts.push(part);
        let blocks: u64 = abandoned.parts.iter().map(|part| part.blocks).sum();
        abandoned.retired || blocks >= data.run().blocks
    }

    /// Calls `look` for each write in the table; returns the number of writes that the table
    /// counts.
    pub(crate) fn each(&self, mut look: impl FnMut(&DataWrite)) -> usize {
        self.writes.read().values().for_each(&mut look);
        self.count.load(Ordering::Acquire)
    }

    /// The bytes of `run`, if a single write holds them all.
    pub(crate) fn get(&self, run: BlockRun) -> Option<Bytes> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let writes = self.writes.read();
        let (_, data) = writes.range(..=run.start).next_back()?;
        (data.run().end() >= run.end()).then(|| data.write().slice(run))
    }

    /// True when a write in the table covers some block of `run`.
    pub(crate) fn touches(&self, run: BlockRun) -> bool {
        self.count.load(Ordering::Acquire) != 0
            && self
                .writes
                .read()
                .range(..run.end())
                .next_back()
                .is_some_and(|(_, data)| data.run().end() > run.start)
    }
}
