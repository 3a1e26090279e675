//! The log's part in leaving a log that the device refuses (`health` has the whole of it).

use super::inflight::{DataWrite, Write};
use super::seal::{NewSegment, Sealed};
use super::tickets::Tickets;
use super::transaction::DataWrites;
use super::{Log, chain};
use crate::room::LEAST_SEGMENT_BLOCKS;
use crate::{Store, StoreError};
use std::sync::Arc;
use syncline_format::superblock::LogStart;
use syncline_format::{BlockRun, Epoch};

/// A log that a checkpoint opens.
pub(crate) struct NewLog {
    pub(crate) epoch: Epoch,
    start: LogStart,
    segment: NewSegment,
}

impl NewLog {
    /// Where it begins, behind the batches of the log before.
    pub(crate) fn start_behind(&mut self, end: LogStart) -> LogStart {
        (self.start.seq, self.start.prev) = (end.seq, end.prev);
        self.start
    }

    /// Takes the segment for good: the superblock that refers to it may be on the device, so nobody
    /// else may get it.
    pub(crate) fn keep_segment(self) -> Option<BlockRun> {
        self.segment.take()
    }
}

impl Log {
    /// True when a write of a sealed batch failed for a reason other than a failed flush: repeating
    /// it may never help.
    pub(crate) fn has_hole(&self) -> bool {
        let end = self.end.lock();
        // Changes that found no room in the log are still pending, whether or not their data could
        // be written.
        end.sealed.iter().flat_map(Sealed::writes).any(|write| write.failed_for_good())
            || self.commit.lock().writes.iter().any(|data| data.write().failed_for_good())
    }

    /// All data that batches or pending changes name and no flush covers yet.
    pub(crate) fn named_data(&self) -> Vec<DataWrite> {
        let end = self.end.lock();
        let mut named: Vec<DataWrite> =
            end.sealed.iter().flat_map(|sealed| sealed.data.iter().cloned()).collect();
        named.extend(self.commit.lock().writes.iter().cloned());
        named
    }

    /// The writes of sealed batches, and the data that each names.
    fn sealed_writes(&self) -> (Vec<Arc<Write>>, Vec<DataWrites>) {
        let end = self.end.lock();
        let logs = end.sealed.iter().flat_map(|sealed| [&sealed.log].into_iter().chain(&sealed.copy));
        (logs.cloned().collect(), end.sealed.iter().map(|sealed| sealed.data.clone()).collect())
    }
}

impl Store {
    /// Allocates a segment and draws an epoch for a new log.
    pub(crate) fn new_log(&self) -> Result<NewLog, StoreError> {
        let most = self.segment_blocks();
        // The log may not take what the checkpoint that opens it needs.
        let most = if self.has_room_for_log(most) { most } else { LEAST_SEGMENT_BLOCKS };
        let segment =
            NewSegment::allocate(self.room.space(), most, LEAST_SEGMENT_BLOCKS).ok_or(StoreError::NoSpace)?;
        let epoch = match self.options.epoch {
            Some(given) => epoch_after(given, self.log.generation()),
            None => rand::random(),
        };
        // The freeze sets its number and the batch before it.
        let start = LogStart::first_in(segment.run(), 0, 0);
        Ok(NewLog { epoch, start, segment })
    }

    /// Waits for the data of the batches that are left behind, and for `unsealed` data, until
    /// nothing is in flight to their blocks. Fails if data that could not be written is still
    /// `needed`.
    pub(crate) async fn settle_without_log(
        &self,
        unsealed: &[DataWrite],
        needed: impl Fn(BlockRun) -> bool,
    ) -> Result<Tickets, StoreError> {
        let mut tickets = Tickets::default();
        let (logs, data) = self.log.sealed_writes();
        if self.log.group.take_rewrite() {
            // A flush failed, and writes that had completed may be lost with it (rule R6).
            data.iter().flatten().for_each(|data| data.write().rewrite(&self.tracker, self.room.space()));
        }
        for write in logs {
            let _ = write.wait().await;
            if write.failed_for_good() {
                self.room.space().quarantine(write.run);
            }
        }
        for data in data.iter().flatten().chain(unsealed) {
            match self.completed(data.write()).await {
                Ok(ticket) => tickets.add(ticket, &self.tracker),
                Err(error) if needed(data.run()) => return Err(error.into()),
                Err(_) => {}
            }
        }
        Ok(tickets)
    }

    /// Switches to the new log once its superblock is durable: the old log's batches are durable
    /// too, since their changes are in the tree.
    pub(crate) fn enter_log(&self, new: NewLog, seq: u64, op: u64, generation: u64) {
        let mut end = self.log.end.lock();
        let mut left = Vec::new();
        while let Some(sealed) = end.sealed.pop_front() {
            end.unflushed_bytes -= sealed.bytes;
            sealed.writes().for_each(|write| write.close());
            left.push(sealed);
        }
        end.segments.drain(..).for_each(|segment| self.room.space().hold(segment, generation));
        end.segments.extend(new.segment.take());
        end.chain = chain(&self.options, new.epoch, self.segment_blocks(), new.start, op);
        (end.durable_seq, end.marked_seq, end.bytes_since_freeze) = (seq, seq, 0);
        drop(end);
        left.iter().flat_map(|sealed| &sealed.data).for_each(|data| self.retire(data));
        self.log.notify_drained();
    }
}

/// For simulations, which name their epochs: a different epoch for each log of a life.
fn epoch_after(mut epoch: Epoch, generation: u64) -> Epoch {
    epoch[8..].iter_mut().zip(generation.to_le_bytes()).for_each(|(byte, more)| *byte ^= more);
    epoch
}
