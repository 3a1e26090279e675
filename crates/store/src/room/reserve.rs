//! Blocks reserved for data before it is written, and how they are used or given back.

use super::Room;
use super::admit::{Names, Others};
use crate::{Store, StoreError};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use syncline_format::{BlockAddr, BlockRun};
use syncline_space::Class;

/// Blocks reserved for data that will be allocated later; gives back the unused ones when dropped.
#[derive(Default)]
pub struct Reservation {
    room: Option<Arc<Room>>,
    blocks: u64,
    /// Room for the nodes in which the first of these blocks will be named, if the blocks' own
    /// share does not include it.
    names: Option<Names>,
}

impl Reservation {
    /// Blocks still reserved.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Reserves room only for the nodes in which a file's dirty data will be named, and no blocks.
    pub fn of_names(store: &Arc<Store>) -> Self {
        Self { room: None, blocks: 0, names: Some(Names::begin(&store.room)) }
    }

    /// True when it includes room for names.
    pub fn has_names(&self) -> bool {
        self.names.is_some()
    }

    /// Takes over the blocks of another reservation.
    pub fn merge(&mut self, mut other: Reservation) {
        self.blocks += std::mem::take(&mut other.blocks);
        self.names = self.names.take().or(other.names.take());
        if self.room.is_none() {
            self.room = other.room.take();
        }
    }

    /// Splits off `blocks`, or all if there are fewer.
    pub fn split(&mut self, blocks: u64) -> Reservation {
        let blocks = blocks.min(self.blocks);
        self.blocks -= blocks;
        Reservation { room: self.room.clone(), blocks, names: None }
    }

    fn spend(&mut self, blocks: u64) {
        self.blocks -= blocks;
        if let Some(room) = &self.room {
            room.reserved.fetch_sub(blocks, Ordering::AcqRel);
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.spend(self.blocks);
    }
}

impl Store {
    /// True when there are snapshots, which may keep replaced blocks: then a checkpoint need not
    /// make room for the next one.
    pub fn keeps_replaced(&self) -> bool {
        self.room.space.keeps_any()
    }

    /// True when `blocks` more are left beyond all promises and the reserve. For optional uses that
    /// could do with less.
    pub fn is_roomy(&self, blocks: u64) -> bool {
        self.headroom().holds(blocks)
    }

    /// Reserves `blocks` data blocks and what naming them costs, if there is room now.
    pub fn try_reserve(self: &Arc<Self>, blocks: u64) -> Option<Reservation> {
        self.try_reserve_with(blocks, 0)
    }

    /// Like `try_reserve`, for work that releases space and needs a little to do so: draws on the
    /// reserve, down to what a checkpoint needs.
    pub fn try_reserve_to_shrink(self: &Arc<Self>, blocks: u64) -> Option<Reservation> {
        self.try_reserve_with(blocks, self.floor_blocks())
    }

    /// Like `try_reserve`, for data that replaces other data, whose blocks are free after the next
    /// checkpoint: leaves half of the floor to those who make room. `None` with snapshots, which
    /// may keep the replaced blocks.
    pub fn try_reserve_to_replace(self: &Arc<Self>, blocks: u64) -> Option<Reservation> {
        if self.room.space.keeps_any() {
            return None;
        }
        self.try_reserve_with(blocks, self.floor_blocks() / 2)
    }

    /// Reserves `blocks` if there is room when `of_reserve` blocks of the reserve may be used.
    fn try_reserve_with(self: &Arc<Self>, blocks: u64, of_reserve: u64) -> Option<Reservation> {
        // Promise the blocks before checking for room, so that two concurrent callers both see each
        // other.
        let reservation = self.set_aside(blocks);
        // The blocks just promised, and their names, are already deducted.
        let fits = match of_reserve {
            0 => self.headroom().holds_growth(),
            _ => self.headroom().and(of_reserve).holds(0),
        };
        // Whoever applies a transaction has found the room before. During a standstill a writer without
        // room gets none: he can try again after it.
        let passes = || self.holds_off_checkpoints() && !self.is_standing_still();
        (fits || passes()).then_some(reservation)
    }

    /// Reserves blocks, whether or not there is room.
    pub(crate) fn set_aside(self: &Arc<Self>, blocks: u64) -> Reservation {
        self.room.reserved.fetch_add(blocks, Ordering::AcqRel);
        Reservation { room: Some(self.room.clone()), blocks, names: None }
    }

    /// Reserves blocks that there must be room for, without checking: blocks reserved before the
    /// image was unmounted or the power failed, or a share of blocks that have just been reserved.
    /// (If there are fewer free blocks, which is damage, it reserves those.)
    pub fn reserve_again(self: &Arc<Self>, blocks: u64) -> Reservation {
        let blocks = blocks.min(self.room.space.free_blocks());
        self.set_aside(blocks)
    }

    /// Like [`Store::try_reserve`], but takes a checkpoint before it answers `NoSpace`.
    pub async fn reserve(self: &Arc<Self>, blocks: u64) -> Result<Reservation, StoreError> {
        self.reserve_awaiting(blocks, Others::AreAwaited).await
    }

    /// Like `reserve`, for a caller that has already waited for others: it waits for checkpoints
    /// only.
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

    /// Turns reserved blocks into an address range: one run of up to `want` blocks, perhaps shorter
    /// (call again for the rest). The run must be written and named, or abandoned.
    pub fn allocate(
        &self,
        from: &mut Reservation,
        want: u64,
        near: Option<BlockAddr>,
    ) -> Result<BlockRun, StoreError> {
        let want = want.min(from.blocks()).max(1);
        let run = self.room.space.allocate(Class::Data, want, 1, near).ok_or(StoreError::NoSpace)?;
        from.spend(run.blocks.min(from.blocks()));
        Ok(run)
    }

    /// Gives back blocks that were allocated and never written.
    pub fn give_back(&self, run: BlockRun) {
        self.room.space.give_back(run);
    }
}
