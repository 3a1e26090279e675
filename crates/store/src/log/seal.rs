//! Sealing: the pending log becomes a batch on its way to the device.

use super::inflight::Write;
use super::shown::Show;
use super::transaction::DataWrites;
use crate::trace::{BatchesTrace, DurableMark};
use crate::{Canary, DataWrite, Store, StoreError};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::sync::Arc;
use syncline_device::{Durability, Flushed};
use syncline_format::BlockRun;
use syncline_format::batch::PAYLOAD_BYTES_MAX;
use syncline_log::{Chain, Pending, PendingCounts, Spare, Stamp};
use syncline_space::{Class, Space};
use syncline_sync::atomic::{AtomicU64, Ordering};

/// Returning this many bytes to the system takes about 50 µs, and 64 MiB a few milliseconds.
const FORGOTTEN_LATER_BYTES: u64 = 1 << 20;

/// A batch that is not known to be durable, with everything needed to write it and its data again.
pub(super) struct Sealed {
    pub(super) seq: u64,
    pub(super) op_seq: u64,
    pub(super) bytes: u64,
    /// Counts of its contents, for receipts.
    counts: PendingCounts,
    /// The batch itself.
    pub(super) log: Arc<Write>,
    /// The copy of the batch, if it leads to another segment.
    pub(super) copy: Option<Arc<Write>>,
    /// The data it names; writes still in flight when it was sealed are its dependencies (rule R1).
    pub(super) data: DataWrites,
}

impl Sealed {
    /// All writes that must have completed before a flush can acknowledge the batch.
    pub(super) fn writes(&self) -> impl Iterator<Item = &Arc<Write>> {
        self.data.iter().map(DataWrite::write).chain([&self.log]).chain(&self.copy)
    }

    /// Adds the batch to those that a sync waited for.
    pub(super) fn add_to(&self, batches: &mut BatchesTrace) {
        let PendingCounts { deletes, frees, coalesced, items, .. } = self.counts;
        if batches.count == 0 {
            batches.first = self.seq;
        }
        batches.count += 1;
        batches.last = self.seq;
        batches.log_bytes += self.log.run.len_bytes();
        batches.data_bytes += self.bytes - self.log.run.len_bytes();
        batches.items.0.iter_mut().zip(items).for_each(|(mine, more)| *mine += more);
        batches.removed += deletes;
        batches.freed += frees;
        batches.coalesced += coalesced;
        batches.op = self.op_seq;
    }
}

/// The end of the log, and the batches in flight there.
pub(super) struct LogEnd {
    pub(super) chain: Chain,
    /// Memory that the pending log gathers in after the next seal.
    pub(super) spare: Spare,
    /// Batches not known to be durable, oldest first.
    pub(super) sealed: VecDeque<Sealed>,
    /// Bytes of log and data that these batches hold in memory.
    pub(super) unflushed_bytes: u64,
    /// Highest batch known durable.
    pub(super) durable_seq: u64,
    /// Number of the marker batch written last; see `mark_durable_when_idle`.
    pub(super) marked_seq: u64,
    /// Segments in use since the last freeze, the current one last.
    pub(super) segments: Vec<BlockRun>,
    /// Log bytes written since the last freeze.
    pub(super) bytes_since_freeze: u64,
    /// Changes were frozen that the log does not have: nothing may be sealed until their superblock
    /// is durable.
    pub(super) stalled: bool,
}

impl LogEnd {
    /// The end of a log without batches after `durable_seq`.
    pub(super) fn new(chain: Chain, segment: BlockRun, durable_seq: u64) -> Self {
        Self {
            chain,
            spare: Spare::default(),
            sealed: VecDeque::new(),
            unflushed_bytes: 0,
            durable_seq,
            marked_seq: durable_seq,
            segments: vec![segment],
            bytes_since_freeze: 0,
            stalled: false,
        }
    }
}

impl Show for LogEnd {
    /// Log and data not covered by a flush.
    type Numbers = AtomicU64;

    fn show(&self, numbers: &AtomicU64) {
        numbers.store(self.unflushed_bytes, Ordering::Release);
    }
}

/// The contents of a batch to be sealed.
pub(super) struct Cut {
    pub(super) pending: Pending,
    pub(super) data: DataWrites,
    pub(super) generation: u64,
    pub(super) op_seq: u64,
    /// A new segment for the batch.
    pub(super) segment: Option<NewSegment>,
}

/// A segment that no batch leads to yet. It returns to free space unless a batch takes it.
pub(super) struct NewSegment {
    space: Arc<Space>,
    run: Option<BlockRun>,
}

impl NewSegment {
    /// Allocates a segment of `most` blocks, or of at least `least` where no run is that long.
    pub(super) fn allocate(space: &Arc<Space>, most: u64, least: u64) -> Option<Self> {
        let run = space.allocate(Class::Log, most, least, None)?;
        Some(Self { space: space.clone(), run: Some(run) })
    }

    /// Where it is.
    pub(super) fn run(&self) -> BlockRun {
        self.run.expect("only taking it takes it away")
    }

    /// Passes the segment to the log.
    pub(super) fn take(mut self) -> Option<BlockRun> {
        self.run.take()
    }
}

impl Drop for NewSegment {
    fn drop(&mut self) {
        self.run.take().into_iter().for_each(|run| self.space.give_back(run));
    }
}

/// The step that follows a batch.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Then {
    /// Nothing that matters for the batch.
    Nothing,
    /// A flush as soon as the batch is written.
    Flush,
}

impl Store {
    /// Seals the pending log and starts writing it; returns the number of the newest sealed batch.
    pub(crate) fn seal(&self) -> Result<u64, StoreError> {
        self.seal_with(Then::Nothing).map(|(seq, _)| seq)
    }

    /// Like `seal`, for a caller about to flush. If only the batch has yet to be written and the
    /// device supports it, the flush goes with the batch, and the returned `Durability` waits for
    /// it.
    pub(crate) fn seal_to_flush(&self) -> Result<(u64, Option<Durability>), StoreError> {
        self.seal_with(if self.options.lab.flushes_apart() { Then::Nothing } else { Then::Flush })
    }

    fn seal_with(&self, then: Then) -> Result<(u64, Option<Durability>), StoreError> {
        let mut log = self.log.end.lock();
        let mut commit = self.log.commit.lock();
        if log.stalled {
            // The changes that the log lacks are no longer pending, yet in no batch.
            return Err(StoreError::NoSpace);
        }
        if commit.pending.is_empty() {
            return Ok((log.chain.newest_seq(), None));
        }
        let segment = self.segment_for(&log, &commit.pending)?;
        let pending = commit.pending.take(std::mem::take(&mut log.spare));
        let data = commit.writes.take();
        let generation = commit.generation;
        let op_seq = self.log.last_op.load(Ordering::Acquire);
        drop(commit);
        let cut = Cut { pending, data, generation, op_seq, segment };
        let sealed = self.seal_into(&mut log, cut, then);
        drop(log);
        self.log.drained.notify(usize::MAX);
        Ok(sealed)
    }

    /// Allocates a new segment if the pending log does not fit into the current one; `NoSpace` if
    /// only a checkpoint can take it.
    pub(super) fn segment_for(
        &self,
        log: &LogEnd,
        pending: &Pending,
    ) -> Result<Option<NewSegment>, StoreError> {
        self.lab_refuse(pending)?;
        // A log too long for a batch is handled like one that finds no room: a checkpoint takes it
        // into the tree.
        if log.stalled || pending.payload_bytes() > PAYLOAD_BYTES_MAX {
            return Err(StoreError::NoSpace);
        }
        let wanted = log.chain.segment_wanted(pending.payload_bytes());
        // The log may not take what a checkpoint needs, even if the batch needs no new segment:
        // with a log but no checkpoint there is no recovery.
        if !self.has_room_for_log(wanted.map_or(0, |wanted| wanted.least)) {
            return Err(StoreError::NoSpace);
        }
        match wanted {
            None => Ok(None),
            Some(wanted) => {
                let most = if self.has_room_for_log(wanted.most) { wanted.most } else { wanted.least };
                NewSegment::allocate(self.room.space(), most, wanted.least)
                    .map(Some)
                    .ok_or(StoreError::NoSpace)
            }
        }
    }

    /// Chains, encodes and submits; returns the batch's number, and a handle that waits for the
    /// flush that went with it.
    pub(super) fn seal_into(&self, log: &mut LogEnd, cut: Cut, then: Then) -> (u64, Option<Durability>) {
        let Cut { pending, data, generation, op_seq, segment } = cut;
        let segment = segment.and_then(NewSegment::take);
        log.segments.extend(segment);
        let (pending, copies) = self.lab_copy(pending);
        let stamp = Stamp { generation, durable_seq: log.durable_seq, op_seq };
        let batches = log.chain.seal(&pending, stamp, segment);
        self.counters.sealed(&pending, &batches, copies);
        let (mut data, counts) = (Some(data), pending.counts());
        log.spare = pending.into_spare(std::mem::take(&mut log.spare));
        let last = batches.len() - 1;
        let mut flushed = None;
        for (index, batch) in batches.into_iter().enumerate() {
            // With a new segment, an empty batch that leads there goes first.
            let counts = if index == last { counts } else { PendingCounts::default() };
            let data = if index == last { data.take().unwrap_or_default() } else { DataWrites::new() };
            let log_bytes = batch.run.len_bytes();
            let bytes = log_bytes + data.iter().map(|data| data.run().len_bytes()).sum::<u64>();
            log.unflushed_bytes += bytes;
            log.bytes_since_freeze += log_bytes;
            let copy = batch.copy.map(|addr| {
                Write::start(&self.tracker, BlockRun::new(addr, batch.run.blocks), vec![batch.bytes.clone()])
            });
            let write = if index == last && then == Then::Flush && self.all_written(log, &data) {
                let (write, durability) = Write::start_through(&self.tracker, batch.run, vec![batch.bytes]);
                flushed = durability;
                write
            } else {
                Write::start(&self.tracker, batch.run, vec![batch.bytes])
            };
            let (seq, op_seq) = (batch.seq, batch.op_seq);
            log.sealed.push_back(Sealed { seq, op_seq, bytes, counts, log: write, copy, data });
        }
        let limit = self.options.log_bytes.min(self.geometry().total_blocks * 4096 / 8);
        if log.bytes_since_freeze >= limit {
            self.ask_for_checkpoint();
        }
        (log.chain.newest_seq(), flushed)
    }

    /// True when no write that a flush of the next batch must cover is still in flight (rule R1).
    fn all_written(&self, log: &LogEnd, data: &[DataWrite]) -> bool {
        let earlier = log.sealed.iter().flat_map(Sealed::writes);
        let all = data.iter().map(DataWrite::write).chain(earlier).all(|write| write.is_written());
        all || self.breaks(Canary::ThroughEarly)
    }

    /// Notes that this flush made every batch up to `seq` durable: their buffers are no longer
    /// needed.
    pub(crate) fn batches_durable(&self, seq: u64, by: Flushed) {
        let mut durable: SmallVec<[Sealed; 2]> = SmallVec::new();
        let mut retired: SmallVec<[_; 4]> = SmallVec::new();
        let mut log = self.log.end.lock();
        log.durable_seq = log.durable_seq.max(seq);
        while log.sealed.front().is_some_and(|sealed| sealed.seq <= seq) {
            let sealed = log.sealed.pop_front().expect("just seen");
            log.unflushed_bytes -= sealed.bytes;
            self.log.advance(DurableMark::flushed(sealed.op_seq, sealed.seq, by));
            // Under the lock: the checkpoint after which these blocks may be reused passes here
            // too, before it releases them.
            sealed.writes().for_each(|write| write.close());
            retired.extend(sealed.data.iter().map(|data| (data.clone(), self.log.inflight.retire(data))));
            durable.push(sealed);
        }
        drop(log);
        self.give_way();
        retired.into_iter().for_each(|(data, unnamed)| self.give_back_when_ended(&data, unnamed));
        self.forget(durable);
        self.log.drained.notify(usize::MAX);
    }

    /// Frees the memory of durable batches; a large amount on another task, while the callers that
    /// waited for them continue.
    fn forget(&self, durable: SmallVec<[Sealed; 2]>) {
        if durable.iter().map(|sealed| sealed.bytes).sum::<u64>() >= FORGOTTEN_LATER_BYTES {
            self.spawn.spawn(Box::pin(async move { drop(durable) }));
        }
    }

    /// Releases the buffers of a write that is durable or useless, and gives back the parts that
    /// were never named.
    pub(crate) fn retire(&self, data: &DataWrite) {
        data.write().close();
        self.give_back_when_ended(data, self.log.inflight.retire(data));
    }

    /// Gives back blocks of a write that were never named, once no attempt can reach them any more
    /// (rule R2).
    fn give_back_when_ended(&self, data: &DataWrite, unnamed: Vec<BlockRun>) {
        if unnamed.is_empty() {
            return;
        }
        let (space, write) = (self.room.space().clone(), data.write().clone());
        let give_back = move || {
            if write.failed_for_good() {
                space.quarantine(write.run);
            }
            unnamed.into_iter().for_each(|part| space.give_back_written(part));
        };
        data.write().on_end(Box::new(give_back));
    }
}
