//! Superblock fields that change while an image is in use: features, most of them added when
//! first used, and the filesystem's label and UUID.

use crate::{Store, StoreError};
use syncline_format::superblock::{FEATURE_LEASE, LABEL_BYTES, Superblock};

impl Store {
    /// True when the image has all of these features, or is just getting those that it lacks:
    /// [`Store::add_features`] tells when they are durable.
    pub fn has_features(&self, features: u32) -> bool {
        self.checkpoint.superblock.read().features & features == features
    }

    /// Returns once a durable superblock records that this object number was handed out: then no
    /// crash lets it be handed out again, even if no item was logged under it.
    pub async fn keep_number(&self, number: u64) -> Result<(), StoreError> {
        match self.unless_log_left(self.try_keep_number(number).await).await? {
            Some(done) => Ok(done),
            None => self.try_keep_number(number).await,
        }
    }

    async fn try_keep_number(&self, number: u64) -> Result<(), StoreError> {
        let mut state = self.checkpoint.lock().await;
        if self.checkpoint.superblock.read().next_object > number {
            return Ok(());
        }
        self.run_checkpoint(&mut state, false).await
    }

    /// Adds features to the image and returns once a durable superblock has them: only then may
    /// anything be logged that a program without these features does not understand.
    pub async fn add_features(&self, features: u32) -> Result<(), StoreError> {
        self.change_superblock(|superblock| superblock.features |= features).await
    }

    /// Makes every writer take the device lease from now on, or none, and returns once a durable
    /// superblock says so.
    pub async fn set_shared(&self, shared: bool) -> Result<(), StoreError> {
        let change = |superblock: &mut Superblock| match shared {
            true => superblock.features |= FEATURE_LEASE,
            false => superblock.features &= !FEATURE_LEASE,
        };
        self.change_superblock(change).await
    }

    /// Sets the filesystem's label (zero-padded) and returns once a durable superblock has it.
    pub async fn set_label(&self, label: [u8; LABEL_BYTES]) -> Result<(), StoreError> {
        self.change_superblock(|superblock| superblock.label = label).await
    }

    /// Sets the filesystem's UUID and returns once a durable superblock has it. Nothing else
    /// depends on the UUID: the log uses its epoch, and name hashes use a seed of their own.
    pub async fn set_uuid(&self, uuid: [u8; 16]) -> Result<(), StoreError> {
        self.change_superblock(|superblock| superblock.uuid = uuid).await
    }

    /// Changes fields that checkpoints only copy from one superblock to the next, and takes a
    /// checkpoint. A crash leaves the old superblock or the new one, as at any checkpoint.
    async fn change_superblock(&self, change: impl Fn(&mut Superblock)) -> Result<(), StoreError> {
        match self.unless_log_left(self.try_change_superblock(&change).await).await? {
            Some(done) => Ok(done),
            None => self.try_change_superblock(&change).await,
        }
    }

    async fn try_change_superblock(&self, change: &impl Fn(&mut Superblock)) -> Result<(), StoreError> {
        // Only the holder of this lock writes superblocks.
        let mut state = self.checkpoint.lock().await;
        let before = self.checkpoint.superblock.read().clone();
        let mut after = before.clone();
        change(&mut after);
        if after == before {
            return Ok(());
        }
        *self.checkpoint.superblock.write() = after;
        let result = self.run_checkpoint(&mut state, false).await;
        if result.is_err() {
            // Only a checkpoint that succeeds replaces the superblock.
            *self.checkpoint.superblock.write() = before;
        }
        result
    }
}
