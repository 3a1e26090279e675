//! Room: what may still be promised, so that a checkpoint, a delete or a replay never fails for lack of it.

use crate::memtable::Memtable;
use crate::{Ablation, Canary, DataWrite, Store, StoreError};
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use syncline_format::batch::PAYLOAD_BYTES_MAX;
use syncline_format::{BlockAddr, BlockRun};
use syncline_space::Class;

/// What a change is for; decides whether it may draw on the reserve.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Admission {
    /// Adds to the filesystem: refused with `NoSpace` before the reserve is touched.
    Grow,
    /// Releases space or is needed to do so (unlink, truncate, orphan cleanup, attribute changes): draws on the
    /// reserve.
    Shrink,
}

/// Space set aside for data that will be allocated later; gives back what was not used when dropped.
#[derive(Default)]
pub struct Reservation {
    store: Option<Arc<Store>>,
    blocks: u64,
}

impl Reservation {
    /// Blocks still set aside.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Takes over another reservation's blocks.
    pub fn merge(&mut self, mut other: Reservation) {
        self.blocks += std::mem::take(&mut other.blocks);
        if self.store.is_none() {
            self.store = other.store.take();
        }
    }

    /// Splits off `blocks` (at most what there is).
    pub fn split(&mut self, blocks: u64) -> Reservation {
        let blocks = blocks.min(self.blocks);
        self.blocks -= blocks;
        Reservation { store: self.store.clone(), blocks }
    }

    fn spend(&mut self, blocks: u64) {
        self.blocks -= blocks;
        if let Some(store) = &self.store {
            store.reserved.fetch_sub(blocks, Ordering::AcqRel);
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.spend(self.blocks);
    }
}

/// What is in memory because the device has not taken it yet.
#[derive(Clone, Copy, Debug)]
#[doc(hidden)]
pub struct Backlog {
    /// Log and data that no flush has covered.
    pub unflushed_bytes: u64,
    /// Log that is not sealed.
    pub pending_bytes: usize,
}

/// How often a writer that finds no room looks again after a checkpoint.
const CHECKPOINTS_FOR_ROOM: u32 = 2;

impl Store {
    /// Waits until memory and space allow another transaction of this sort. Call before taking leases.
    pub async fn admit(&self, admission: Admission) -> Result<(), StoreError> {
        self.health.writable()?;
        self.throttle().await?;
        match admission {
            Admission::Grow => self.find_room(0).await,
            Admission::Shrink => {
                let room = self.room();
                if room >= 0 {
                    return Ok(());
                }
                self.ask_for_checkpoint();
                // What is removed may stay with a snapshot and make no room at all; what deleting that takes must be left.
                let least = -(self.floor_blocks() as i64) / 2;
                if room < least && self.space.keeps_any() {
                    self.checkpoint().await?;
                    if self.room() < least {
                        return Err(StoreError::NoSpace);
                    }
                }
                Ok(())
            }
        }
    }

    /// Waits while memtables of twice the limit, far more unflushed log and data than the background lets be, or a pending log
    /// that nobody gets round to sealing are in memory. A device whose flush takes long makes writers slow by this, and nothing else.
    async fn throttle(&self) -> Result<(), StoreError> {
        loop {
            let ended = self.checkpoint_ended.listen();
            let fits = self.layers.read().memory_bytes() < 2 * self.options.memtable_bytes;
            if fits || self.leaving_log.load(Ordering::Acquire) {
                break;
            }
            self.health.writable()?;
            self.ask_for_checkpoint();
            ended.await;
        }
        loop {
            let drained = self.drained.listen();
            let backlog = self.backlog();
            let flushed = backlog.unflushed_bytes < 4 * self.options.unflushed_bytes;
            let sealed = backlog.pending_bytes < self.pending_bytes_max();
            let waits = !(flushed && (sealed || self.breaks(Canary::UnboundedPending)));
            if !waits || self.leaving_log.load(Ordering::Acquire) {
                return Ok(());
            }
            self.health.writable()?;
            self.wake.notify(usize::MAX);
            drained.await;
        }
    }

    /// Pending log at which writers wait until it is sealed.
    fn pending_bytes_max(&self) -> usize {
        // Where a measurement has little sealed in the background, half a batch is waited for.
        let least = if self.ablates(Ablation::DirBulk) { PAYLOAD_BYTES_MAX / 4 * 3 } else { 0 };
        self.options.pending_bytes.clamp(least, PAYLOAD_BYTES_MAX / 4 * 3)
    }

    /// For tests: what waits for the device.
    #[doc(hidden)]
    pub fn backlog(&self) -> Backlog {
        let log = self.log.lock();
        let commit = self.commit.lock();
        Backlog {
            unflushed_bytes: log.unflushed_bytes + commit.writes.bytes(),
            pending_bytes: commit.pending.payload_bytes(),
        }
    }

    /// Blocks that may still be promised; negative when the reserve is being drawn on.
    pub(crate) fn room(&self) -> i64 {
        let free = self.space.free_blocks() as i64;
        free - self.reserved.load(Ordering::Acquire) as i64 - self.reserve_blocks() as i64
    }

    /// Blocks that ordinary writers can still have: what is free now or after the next checkpoint, less what is promised
    /// and the reserve.
    pub fn available_blocks(&self) -> u64 {
        let promised = self.reserved.load(Ordering::Acquire) + self.reserve_blocks();
        let space = self.space.counters();
        (space.free + space.pending_free).saturating_sub(promised)
    }

    /// The same, without what so many blocks of data cost besides: as many as one file can get.
    pub fn available_data_blocks(&self) -> u64 {
        data_blocks(self.available_blocks())
    }

    /// Blocks an ordinary change must leave free: two checkpoints of what is in memory, log segments, and a floor for
    /// deletes on a full filesystem.
    pub(crate) fn reserve_blocks(&self) -> u64 {
        let layers = self.layers.read();
        let active = self.checkpoint_blocks(&layers.active, layers.tree_nodes);
        let frozen =
            layers.frozen.as_ref().map_or(0, |frozen| self.checkpoint_blocks(frozen, layers.tree_nodes));
        drop(layers);
        if self.breaks(Canary::NoReserve) {
            return 0;
        }
        active + frozen + self.floor_blocks() + 2 * self.segment_blocks()
    }

    /// The part of the reserve that is for whoever makes room on a full filesystem.
    fn floor_blocks(&self) -> u64 {
        (self.geometry().total_blocks / 64).clamp(256, 16 * 1024)
    }

    /// Blocks that a checkpoint of this memtable may need in the worst case: every leaf touched is written anew, with
    /// its parents, and what is added fills new nodes half.
    fn checkpoint_blocks(&self, memtable: &Memtable, tree_nodes: u64) -> u64 {
        let node = self.geometry().node_blocks();
        let touched = (memtable.len() as u64 * 2 + 2).min(tree_nodes + 2);
        let added = 2 * memtable.bytes() as u64 / u64::from(self.geometry().node_bytes) + 2;
        let pages = self.space.map_reserve_blocks();
        (touched + added) * node + pages
    }

    /// Blocks of a log segment: 4 MiB, less on a small image.
    pub(crate) fn segment_blocks(&self) -> u64 {
        segment_blocks(self.geometry().total_blocks)
    }

    /// True when so many blocks are left beside all that is promised and the reserve: for what could be done with less.
    pub fn is_roomy(&self, blocks: u64) -> bool {
        self.room() >= with_metadata(blocks) as i64
    }

    /// Sets aside room for `blocks` data blocks and what naming them costs, if there is room now.
    pub fn try_reserve(self: &Arc<Self>, blocks: u64) -> Option<Reservation> {
        if self.room() < with_metadata(blocks) as i64 {
            return None;
        }
        self.reserved.fetch_add(blocks, Ordering::AcqRel);
        Some(Reservation { store: Some(self.clone()), blocks })
    }

    /// The same for what releases space and needs a little to do so: draws on the reserve, down to what a checkpoint needs.
    pub fn try_reserve_to_shrink(self: &Arc<Self>, blocks: u64) -> Option<Reservation> {
        let room = self.room() + self.floor_blocks() as i64;
        if room < with_metadata(blocks) as i64 {
            return None;
        }
        self.reserved.fetch_add(blocks, Ordering::AcqRel);
        Some(Reservation { store: Some(self.clone()), blocks })
    }

    /// The same for data that replaces other, whose blocks are free after the next checkpoint: half of that part of the reserve is
    /// left to whoever makes room. With snapshots, which may keep what is replaced, there is nothing to be had.
    pub fn try_reserve_to_replace(self: &Arc<Self>, blocks: u64) -> Option<Reservation> {
        let room = self.room() + self.floor_blocks() as i64 / 2;
        if room < with_metadata(blocks) as i64 || self.space.keeps_any() {
            return None;
        }
        self.reserved.fetch_add(blocks, Ordering::AcqRel);
        Some(Reservation { store: Some(self.clone()), blocks })
    }

    /// Sets aside what there must be room for, whether or not there is: what was set aside before the image was unmounted, or the
    /// power went; or the share of blocks that have just been reserved. (Where there is none, which is damage, as much as there
    /// is.)
    pub fn reserve_again(self: &Arc<Self>, blocks: u64) -> Reservation {
        let blocks = blocks.min(self.space.free_blocks());
        self.reserved.fetch_add(blocks, Ordering::AcqRel);
        Reservation { store: Some(self.clone()), blocks }
    }

    /// The same as [`Store::try_reserve`], forcing a checkpoint before it answers `NoSpace`.
    pub async fn reserve(self: &Arc<Self>, blocks: u64) -> Result<Reservation, StoreError> {
        loop {
            if let Some(reservation) = self.try_reserve(blocks) {
                return Ok(reservation);
            }
            self.find_room(blocks).await?;
        }
    }

    /// Waits until `blocks` could be reserved, releasing by checkpoints what frees hold back.
    async fn find_room(&self, blocks: u64) -> Result<(), StoreError> {
        let wanted = with_metadata(blocks) as i64;
        for _ in 0..CHECKPOINTS_FOR_ROOM {
            if self.room() >= wanted {
                return Ok(());
            }
            self.health.writable()?;
            self.counters.checkpoints_for_room.fetch_add(1, Ordering::Relaxed);
            self.checkpoint().await?;
        }
        if self.room() >= wanted {
            return Ok(());
        }
        // Some may be kept for the moment that discarding it takes.
        let _batch = self.discarding.batch.lock().await;
        if self.room() >= wanted { Ok(()) } else { Err(StoreError::NoSpace) }
    }

    /// Turns reserved blocks into an address range: one run of up to `want` blocks, perhaps shorter (call again for
    /// the rest). It must be written and named, or abandoned.
    pub fn allocate(
        &self,
        from: &mut Reservation,
        want: u64,
        near: Option<BlockAddr>,
    ) -> Result<BlockRun, StoreError> {
        let want = want.min(from.blocks()).max(1);
        let run = self.space.allocate(Class::Data, want, 1, near).ok_or(StoreError::NoSpace)?;
        from.spend(run.blocks.min(from.blocks()));
        Ok(run)
    }

    /// Gives back blocks that were allocated and never written.
    pub fn give_back(&self, run: BlockRun) {
        self.space.give_back(run);
    }

    /// Starts writing `bufs` (multiples of a block, `run.len_bytes()` in all) to freshly allocated blocks.
    pub fn write_data(&self, run: BlockRun, bufs: Vec<Bytes>) -> DataWrite {
        self.give_way();
        debug_assert_eq!(run.len_bytes(), bufs.iter().map(|buf| buf.len() as u64).sum::<u64>());
        self.counters.data_bytes.fetch_add(run.len_bytes(), Ordering::Relaxed);
        self.inflight.start(&self.tracker, run, bufs)
    }

    /// Gives back `part` of a write that was never named, once it is no longer in flight.
    pub fn abandon(self: &Arc<Self>, data: &DataWrite, part: BlockRun) {
        if !self.inflight.abandon(data, part) {
            return;
        }
        // Nobody reads it any more, but the device may still be writing it (rule R2).
        let (store, write) = (self.clone(), data.clone());
        data.write().on_end(Box::new(move || store.retire(&write)));
    }
}

/// Data blocks with their share of items, log and checksums.
fn with_metadata(blocks: u64) -> u64 {
    blocks + blocks / 16 + 4
}

/// The most data blocks whose share is within `room` too.
fn data_blocks(room: u64) -> u64 {
    let room = room.saturating_sub(with_metadata(0));
    // Sixteen blocks take one more.
    room / 17 * 16 + (room % 17).min(15)
}

/// Blocks of a log segment: 4 MiB, or a 64th of a small image.
pub(crate) fn segment_blocks(total_blocks: u64) -> u64 {
    (total_blocks / 64).clamp(16, 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_blocks_that_fit_are_the_most_that_fit() {
        for room in 0..5000 {
            let blocks = data_blocks(room);
            assert!(blocks == 0 || with_metadata(blocks) <= room, "{room}: {blocks}");
            assert!(with_metadata(blocks + 1) > room, "{room}: {blocks}");
        }
    }
}
