//! Making a filesystem larger, while it is in use.
//!
//! A checkpoint ends with the first superblock that tells of the new size, and decides. Until it is durable nothing behind the old end is
//! handed out, so whatever a log names lies within the size of the superblock that leads to it. docs/DURABILITY.md has
//! the crash cases.

use crate::slots::read_superblocks;
use crate::tickets::Tickets;
use crate::{Canary, RecoveryReport, Store, StoreError, StoreOptions};
use std::sync::Arc;
use syncline_device::{AlignedBuf, Device, DeviceExt, Spawn};
use syncline_format::space::MAX_BLOCKS;
use syncline_format::{BLOCK_BYTES, BlockRun, Geometry};

const BLOCK: u64 = BLOCK_BYTES as u64;

impl Store {
    /// Opens an image as [`open`](Self::open) does, and makes its filesystem `total_blocks` large, durably. The device has so many
    /// blocks already; what lies in them behind the filesystem's old end is lost.
    pub async fn grow(
        device: Arc<dyn Device>,
        options: StoreOptions,
        spawn: Arc<dyn Spawn>,
        total_blocks: u64,
    ) -> Result<(Arc<Self>, RecoveryReport), StoreError> {
        if options.read_only {
            return refuse("an image that is opened for reading does not grow");
        }
        let present = read_superblocks(&device).await?.superblock.geometry;
        // Before anything is written.
        check(device.size_bytes(), present, total_blocks)?;
        let (store, report) = Self::open(device, options, spawn).await?;
        store.enlarge_to(total_blocks).await?;
        Ok((store, report))
    }

    /// Makes the filesystem `size_bytes` large (rounded down to whole blocks) while it is in use, durably, and first the image file it
    /// lies in, if that is shorter. Without a size it becomes as large as its device is by now. Returns how large it is.
    ///
    /// A crash, or an error, leaves the old size or the new one. A size less than 64 KiB above the present one is refused, but for
    /// that of the device.
    pub async fn enlarge(&self, size_bytes: Option<u64>) -> Result<u64, StoreError> {
        self.health.writable()?;
        let _alone = self.growing.lock().await;
        let present = self.geometry();
        if let Some(total_blocks) = size_bytes.map(|bytes| bytes / BLOCK) {
            // What the device lacks it may get.
            check(u64::MAX, present, total_blocks)?;
        }
        let device_bytes = self.device().enlarge_to(size_bytes.unwrap_or(0) / BLOCK * BLOCK).await?;
        let total_blocks = size_bytes.unwrap_or(device_bytes) / BLOCK;
        if size_bytes.is_some() || total_blocks >= present.total_blocks + Geometry::TAIL_BLOCKS {
            self.enlarge_to(total_blocks).await?;
        }
        Ok(self.geometry().total_blocks * BLOCK)
    }

    /// The same once the device is large enough.
    async fn enlarge_to(&self, total_blocks: u64) -> Result<(), StoreError> {
        match self.unless_log_left(self.try_enlarge_to(total_blocks).await).await? {
            Some(done) => Ok(done),
            None => self.try_enlarge_to(total_blocks).await,
        }
    }

    async fn try_enlarge_to(&self, total_blocks: u64) -> Result<(), StoreError> {
        // Whoever holds it is the only one to write superblocks.
        let mut state = self.checkpoint.lock().await;
        self.health.writable()?;
        let present = self.geometry();
        let geometry = check(self.device().size_bytes(), present, total_blocks)?;
        self.clear_second_copies(geometry).await?;
        self.space.resize_map(geometry)?;
        if self.breaks(Canary::GrowEarly) {
            self.hand_out_new(geometry);
        }
        if let Err(error) = self.run_checkpoint(&mut state, false).await {
            // If the superblock may be on the device after all, nothing is written any more.
            if self.health.writable().is_ok() && !self.breaks(Canary::GrowEarly) {
                self.space.resize_map(present)?;
            }
            return Err(error);
        }
        let old_tail = self.hand_out_new(geometry);
        // Then nobody needs what lay at the old end: both slots tell of the new one.
        self.run_checkpoint(&mut state, false).await?;
        self.space.give_back(old_tail);
        // Those who wait for room find some.
        self.checkpoint_ended.notify(usize::MAX);
        Ok(())
    }

    /// What lies behind the old end may be handed out. (Twice, when a canary did so before.)
    fn hand_out_new(&self, geometry: Geometry) -> BlockRun {
        self.geometry.set_total(geometry.total_blocks);
        self.space.widen()
    }

    /// Whatever an earlier life of the device left where the second copies will lie, must not be taken for one.
    pub(crate) async fn clear_second_copies(&self, geometry: Geometry) -> Result<(), StoreError> {
        let zeros = AlignedBuf::zeroed(BLOCK_BYTES).into_bytes();
        let mut tickets = Tickets::default();
        for slot in 0..2 {
            let [_, second] = geometry.superblock_copies(slot);
            let write = self.tracker.write(second * BLOCK, vec![zeros.clone()]);
            tickets.add(write.wait().await?, &self.tracker);
        }
        // The file's new length and the zeros in it as well.
        self.flush_before_superblock(tickets).await.map(drop)
    }
}

fn refuse<T>(text: &str) -> Result<T, StoreError> {
    Err(StoreError::Unusable(text.into()))
}

fn check(device_bytes: u64, present: Geometry, total_blocks: u64) -> Result<Geometry, StoreError> {
    if total_blocks > device_bytes / BLOCK {
        return refuse("the device is smaller than that: enlarge it first");
    }
    if total_blocks > MAX_BLOCKS {
        return refuse("an image has at most 256 TiB");
    }
    // Else the second copies of the superblocks would come to lie on those that there are.
    if total_blocks < present.total_blocks + Geometry::TAIL_BLOCKS {
        return refuse("a filesystem grows by 64 KiB at least");
    }
    Ok(Geometry { total_blocks, ..present })
}
