//! Blocks that are set aside for data before it is written, and what becomes of them.

use crate::admit::{Names, Others};
use crate::{DataWrite, Store, StoreError};
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use syncline_format::{BlockAddr, BlockRun};
use syncline_space::Class;

/// Space set aside for data that will be allocated later; gives back what was not used when dropped.
#[derive(Default)]
pub struct Reservation {
    store: Option<Arc<Store>>,
    blocks: u64,
    /// For the nodes in which the first of these blocks will be named, where that is not in what the blocks themselves have.
    names: Option<Names>,
}

impl Reservation {
    /// Blocks still set aside.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Room for the nodes in which a file that has dirty data will name it, and for no block.
    pub fn of_names(store: &Arc<Store>) -> Self {
        Self { store: None, blocks: 0, names: Some(Names::begin(store)) }
    }

    /// True when it has room for names.
    pub fn has_names(&self) -> bool {
        self.names.is_some()
    }

    /// Takes over another reservation's blocks.
    pub fn merge(&mut self, mut other: Reservation) {
        self.blocks += std::mem::take(&mut other.blocks);
        self.names = self.names.take().or(other.names.take());
        if self.store.is_none() {
            self.store = other.store.take();
        }
    }

    /// Splits off `blocks` (at most what there is).
    pub fn split(&mut self, blocks: u64) -> Reservation {
        let blocks = blocks.min(self.blocks);
        self.blocks -= blocks;
        Reservation { store: self.store.clone(), blocks, names: None }
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

impl Store {
    /// True when there are snapshots, which may keep what is replaced: then no checkpoint makes room for the next.
    pub fn keeps_replaced(&self) -> bool {
        self.space.keeps_any()
    }

    /// True when so many blocks are left beside all that is promised and the reserve: for what could be done with less.
    pub fn is_roomy(&self, blocks: u64) -> bool {
        self.room().holds(blocks)
    }

    /// Sets aside room for `blocks` data blocks and what naming them costs, if there is room now.
    pub fn try_reserve(self: &Arc<Self>, blocks: u64) -> Option<Reservation> {
        self.try_reserve_with(blocks, 0)
    }

    /// The same for what releases space and needs a little to do so: draws on the reserve, down to what a checkpoint needs.
    pub fn try_reserve_to_shrink(self: &Arc<Self>, blocks: u64) -> Option<Reservation> {
        self.try_reserve_with(blocks, self.floor_blocks())
    }

    /// The same for data that replaces other, whose blocks are free after the next checkpoint: half of that part of the reserve is
    /// left to whoever makes room. With snapshots, which may keep what is replaced, there is nothing to be had.
    pub fn try_reserve_to_replace(self: &Arc<Self>, blocks: u64) -> Option<Reservation> {
        if self.space.keeps_any() {
            return None;
        }
        self.try_reserve_with(blocks, self.floor_blocks() / 2)
    }

    /// Sets aside `blocks` if there is room with so much of what is set aside for others.
    fn try_reserve_with(self: &Arc<Self>, blocks: u64, of_reserve: u64) -> Option<Reservation> {
        // Promised before it is looked whether there is room: of two who look at the same time, neither overlooks the other.
        let reservation = self.set_aside(blocks);
        // What was promised just now, with its names, counts as gone already.
        let fits = match of_reserve {
            0 => self.room().holds_growth(),
            _ => self.room().and(of_reserve).holds(0),
        };
        fits.then_some(reservation)
    }

    fn set_aside(self: &Arc<Self>, blocks: u64) -> Reservation {
        self.reserved.fetch_add(blocks, Ordering::AcqRel);
        Reservation { store: Some(self.clone()), blocks, names: None }
    }

    /// Sets aside what there must be room for, whether or not there is: what was set aside before the image was unmounted, or the
    /// power went; or the share of blocks that have just been reserved. (Where there is none, which is damage, as much as there
    /// is.)
    pub fn reserve_again(self: &Arc<Self>, blocks: u64) -> Reservation {
        let blocks = blocks.min(self.space.free_blocks());
        self.set_aside(blocks)
    }

    /// The same as [`Store::try_reserve`], forcing a checkpoint before it answers `NoSpace`.
    pub async fn reserve(self: &Arc<Self>, blocks: u64) -> Result<Reservation, StoreError> {
        self.reserve_awaiting(blocks, Others::AreAwaited).await
    }

    /// The same for who has waited for others before: for checkpoints alone.
    pub async fn reserve_now(self: &Arc<Self>, blocks: u64) -> Result<Reservation, StoreError> {
        self.reserve_awaiting(blocks, Others::AreNotAwaited).await
    }

    async fn reserve_awaiting(
        self: &Arc<Self>,
        blocks: u64,
        others: Others,
    ) -> Result<Reservation, StoreError> {
        if blocks == 0 {
            return Ok(self.set_aside(0));
        }
        loop {
            if let Some(reservation) = self.try_reserve(blocks) {
                return Ok(reservation);
            }
            self.find_room(blocks, others).await?;
        }
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
