//! Data writes: starting them, and giving up blocks that nothing will name.
//!
//! The blocks of a data write are allocated in memory only, until a batch names them. So a crash
//! makes them free again by itself.

use super::inflight::DataWrite;
use crate::Store;
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

    /// Gives back the part of a write that was never named, once it is no longer in flight.
    pub fn abandon(self: &Arc<Self>, data: &DataWrite, part: BlockRun) {
        if !self.log.inflight.abandon(data, part) {
            return;
        }
        // Nobody reads it any more, but it may still be in flight (rule R2).
        let (store, write) = (self.clone(), data.clone());
        data.write().on_end(Box::new(move || store.retire(&write)));
    }
}
