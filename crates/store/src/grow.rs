//! Making a filesystem larger, while nobody uses it.
//!
//! It is a recovery that begins with the old size and ends with the new one: the superblock that ends it is the first to tell
//! of the new size, and decides. docs/DURABILITY.md has the crash cases.

use crate::slots::read_superblocks;
use crate::{RecoveryReport, Store, StoreError, StoreOptions};
use std::sync::Arc;
use syncline_device::{AlignedBuf, Device, DeviceExt, Spawn};
use syncline_format::space::MAX_BLOCKS;
use syncline_format::{BLOCK_BYTES, Geometry};

impl Store {
    /// Opens an image as [`open`](Self::open) does, and makes its filesystem `total_blocks` large, durably. The device has so many
    /// blocks already; what lies in them behind the filesystem's old end is lost.
    pub async fn grow(
        device: Arc<dyn Device>,
        options: StoreOptions,
        spawn: Arc<dyn Spawn>,
        total_blocks: u64,
    ) -> Result<(Arc<Self>, RecoveryReport), StoreError> {
        let present = read_superblocks(&device).await?.superblock.geometry;
        let geometry = check(&device, &options, present, total_blocks)?;
        // Whatever an earlier life of the device left where the second copies will lie, must not be taken for one.
        let zeros = AlignedBuf::zeroed(BLOCK_BYTES).into_bytes();
        for slot in 0..2 {
            let [_, second] = geometry.superblock_copies(slot);
            device.write_at(second * BLOCK_BYTES as u64, vec![zeros.clone()]).await?;
        }
        device.flush_all().await?;
        Self::open_as(device, options, spawn, Some(geometry)).await
    }

    /// Whether the superblocks of both slots tell of the size, so that nobody needs what lay at the old end: takes one
    /// checkpoint more, into the other slot, and gives that back.
    pub(crate) async fn settle_size(&self, old_tail: syncline_format::BlockRun) -> Result<(), StoreError> {
        let mut state = self.checkpoint.lock().await;
        self.run_checkpoint(&mut state, false).await?;
        self.space.give_back(old_tail);
        Ok(())
    }
}

fn check(
    device: &Arc<dyn Device>,
    options: &StoreOptions,
    present: Geometry,
    total_blocks: u64,
) -> Result<Geometry, StoreError> {
    let refuse = |text: &str| Err(StoreError::Unusable(text.into()));
    if options.read_only {
        return refuse("an image that is opened for reading does not grow");
    }
    if total_blocks > device.size_bytes() / BLOCK_BYTES as u64 {
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
