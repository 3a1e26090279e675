//! Data writes: starting them, giving up what nothing will name, and covering with a flush what is
//! durable before a batch names it (the data of an atomic write that is too large for memory).
//!
//! The blocks of such data are allocated in memory only, and neither a batch nor a superblock leads
//! to them. So a crash makes them free again by itself. Other writes keep their buffers until a
//! flush covers a batch that names them (rule R6). A flush covers each of these writes before its
//! buffers go. From then on its blocks hold the written bytes, whether later flushes fail or not.

use super::inflight::DataWrite;
use super::tickets::Tickets;
use crate::{Canary, Reservation, Store, StoreError};
use bytes::Bytes;
use std::sync::Arc;
use syncline_format::BlockRun;

impl Store {
    /// Starts writing `bufs` (multiples of a block, `run.len_bytes()` in all) to freshly allocated
    /// blocks.
    pub fn write_data(&self, run: BlockRun, bufs: Vec<Bytes>) -> DataWrite {
        self.give_way();
        debug_assert_eq!(run.len_bytes(), bufs.iter().map(|buf| buf.len() as u64).sum::<u64>());
        self.counters.data_bytes.add(run.len_bytes());
        self.log.inflight.start(&self.tracker, run, bufs)
    }

    /// Gives back a part of a write as [`abandon`](Self::abandon) does, and reserves as many blocks
    /// for the write that replaces it.
    pub fn abandon_for(self: &Arc<Self>, data: &DataWrite, part: BlockRun) -> Reservation {
        // Reserved first: a task that looks for room in between finds too little, never too much.
        let reservation = self.set_aside(part.blocks);
        self.abandon(data, part);
        reservation
    }

    /// Gives back the part of a write that was never named, once it is no longer in flight.
    pub fn abandon(self: &Arc<Self>, data: &DataWrite, part: BlockRun) {
        if !self.log.inflight.abandon(data, part) {
            return;
        }
        // Nobody reads it any more, but it may still be in flight (rule R2).
        let (store, write) = (self.clone(), data.clone());
        data.write().on_end(Box::new(move || store.retire(&write)));
    }

    /// Waits until these writes, which nothing names, have completed and a flush covers them. Returns
    /// writes that stand for them from then on, with their checksums and without their buffers. On an
    /// error they stay as they were.
    pub async fn cover_unnamed(self: &Arc<Self>, writes: &[DataWrite]) -> Result<Vec<DataWrite>, StoreError> {
        if !self.breaks(Canary::SpillUncovered) {
            self.flush_unnamed(writes).await?;
        }
        Ok(writes.iter().map(|data| self.without_memory(data)).collect())
    }

    async fn flush_unnamed(&self, writes: &[DataWrite]) -> Result<(), StoreError> {
        let mut tickets = self.tickets_of(writes).await?;
        if tickets.are_lost(&self.tracker) {
            // Another caller's flush has failed since (rule R6).
            writes.iter().for_each(|data| data.write().rewrite_lost(&self.tracker, self.room.space()));
            tickets = self.tickets_of(writes).await?;
        }
        self.give_way();
        self.make_durable(tickets).await.map(drop)
    }

    async fn tickets_of(&self, writes: &[DataWrite]) -> Result<Tickets, StoreError> {
        let mut tickets = Tickets::default();
        for data in writes {
            tickets.add(data.write().wait().await?, &self.tracker);
        }
        Ok(tickets)
    }

    fn without_memory(self: &Arc<Self>, data: &DataWrite) -> DataWrite {
        let covered = data.covered();
        self.room.begin_unnamed(data.run().blocks);
        // It has ended, unless that is what is broken on purpose.
        let (store, written) = (self.clone(), data.clone());
        data.write().on_end(Box::new(move || store.retire(&written)));
        covered
    }
}
