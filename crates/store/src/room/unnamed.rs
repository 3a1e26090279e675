//! Data that is durable before a batch names it: the data of an atomic write that is too large for
//! memory.
//!
//! Its blocks are allocated in memory only, and neither a batch nor a superblock leads to them. So a
//! crash makes them free again by itself. Other writes keep their buffers until a flush covers a
//! batch that names them (rule R6). A flush covers each of these writes before
//! its buffers go. From then on its blocks hold the written bytes, whether later flushes fail or not.

use crate::log::Tickets;
use crate::{Canary, DataWrite, Store, StoreError};
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Store {
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
            writes.iter().for_each(|data| data.write().rewrite_lost(&self.tracker, &self.room.space));
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
        self.room.unnamed_blocks.fetch_add(data.run().blocks, Ordering::AcqRel);
        // It has ended, unless that is what is broken on purpose.
        let (store, written) = (self.clone(), data.clone());
        data.write().on_end(Box::new(move || store.retire(&written)));
        covered
    }
}
