//! Making a filesystem larger while it is in use.
//!
//! A checkpoint ends with the first superblock that records the new size; that superblock decides.
//! Until it is durable nothing behind the old end is handed out, so everything a log names lies
//! within the size given by the superblock that leads to it. PROOF.md has the crash cases.

use crate::log::Tickets;
use crate::{Canary, Store, StoreError};
use syncline_device::{AlignedBuf, DeviceExt};
use syncline_format::space::MAX_BLOCKS;
use syncline_format::{BLOCK_BYTES, BlockRun, Geometry};

const BLOCK: u64 = BLOCK_BYTES as u64;

impl Store {
    /// Makes the filesystem `size_bytes` large (rounded down to whole blocks) while it is in use,
    /// durably. If it lies in an image file that is shorter, the file is enlarged first. Without a
    /// size, the filesystem becomes as large as its device is now. Returns the resulting size.
    ///
    /// A crash or an error leaves the old size or the new one. A given size less than 64 KiB
    /// above the present one is refused; without a size, such a small growth is skipped.
    pub async fn enlarge(&self, size_bytes: Option<u64>) -> Result<u64, StoreError> {
        self.health.writable()?;
        let _alone = self.checkpoint.growing.lock().await;
        let present = self.geometry();
        if let Some(total_blocks) = size_bytes.map(|bytes| bytes / BLOCK) {
            // A device that is too short may be enlarged.
            check_growth(u64::MAX, present, total_blocks)?;
        }
        let device_bytes = self.device().enlarge_to(size_bytes.unwrap_or(0) / BLOCK * BLOCK).await?;
        let total_blocks = size_bytes.unwrap_or(device_bytes) / BLOCK;
        if size_bytes.is_some() || total_blocks >= present.total_blocks + Geometry::TAIL_BLOCKS {
            self.enlarge_to(total_blocks).await?;
        }
        Ok(self.geometry().total_blocks * BLOCK)
    }

    /// Makes the filesystem `total_blocks` large once the device is large enough.
    pub(crate) async fn enlarge_to(&self, total_blocks: u64) -> Result<(), StoreError> {
        match self.unless_log_left(self.try_enlarge_to(total_blocks).await).await? {
            Some(done) => Ok(done),
            None => self.try_enlarge_to(total_blocks).await,
        }
    }

    async fn try_enlarge_to(&self, total_blocks: u64) -> Result<(), StoreError> {
        // Only the holder of this lock writes superblocks.
        let mut state = self.checkpoint.lock().await;
        self.health.writable()?;
        let present = self.geometry();
        let geometry = check_growth(self.device().size_bytes(), present, total_blocks)?;
        self.clear_second_copies(geometry).await?;
        self.room.space().resize_map(geometry)?;
        if self.breaks(Canary::GrowEarly) {
            self.hand_out_new(geometry);
        }
        if let Err(error) = self.run_checkpoint(&mut state, false).await {
            // If the superblock may be on the device after all, nothing is written any more.
            if self.health.writable().is_ok() && !self.breaks(Canary::GrowEarly) {
                self.room.space().resize_map(present)?;
            }
            return Err(error);
        }
        let old_tail = self.hand_out_new(geometry);
        // After this checkpoint both slots give the new size, so nothing needs the blocks at the
        // old end any more.
        self.run_checkpoint(&mut state, false).await?;
        self.room.space().give_back(old_tail);
        // Callers that wait for room now find some.
        self.checkpoint.notify_ended();
        Ok(())
    }

    /// Allows blocks behind the old end to be handed out. (Twice, when a canary has already done
    /// so.)
    fn hand_out_new(&self, geometry: Geometry) -> BlockRun {
        self.geometry.set_total(geometry.total_blocks);
        self.room.space().widen()
    }

    /// Zeros the places of the second copies, so that nothing left there by an earlier life of the
    /// device is taken for one.
    pub(crate) async fn clear_second_copies(&self, geometry: Geometry) -> Result<(), StoreError> {
        let zeros = AlignedBuf::zeroed(BLOCK_BYTES).into_bytes();
        let mut tickets = Tickets::default();
        for slot in 0..2 {
            let [_, second] = geometry.superblock_copies(slot);
            let write = self.tracker.write(second * BLOCK, vec![zeros.clone()]);
            tickets.add(write.wait().await?, &self.tracker);
        }
        // This also covers the file's new length and the zeros in it.
        self.make_durable(tickets).await.map(drop)
    }
}

fn refuse<T>(text: &str) -> Result<T, StoreError> {
    Err(StoreError::Unusable(text.into()))
}

/// The larger geometry, or why it is refused.
pub(crate) fn check_growth(
    device_bytes: u64,
    present: Geometry,
    total_blocks: u64,
) -> Result<Geometry, StoreError> {
    if total_blocks > device_bytes / BLOCK {
        return refuse("the device is smaller than that: enlarge it first");
    }
    if total_blocks > MAX_BLOCKS {
        return refuse("an image has at most 256 TiB");
    }
    // Otherwise the new second copies of the superblocks would overlap the present ones.
    if total_blocks < present.total_blocks + Geometry::TAIL_BLOCKS {
        return refuse("a filesystem grows by 64 KiB at least");
    }
    Ok(Geometry { total_blocks, ..present })
}
