//! What a superblock says that changes while an image is in use: features that it gets when they are first used, and what it is called.

use crate::{Store, StoreError};
use syncline_format::superblock::{LABEL_BYTES, Superblock};

impl Store {
    /// True when the image has all of these features.
    pub fn has_features(&self, features: u32) -> bool {
        self.superblock.read().features & features == features
    }

    /// Returns when a durable superblock says that this number of a new object was handed out: no crash lets it be drawn again, even if
    /// no item is logged under it.
    pub async fn keep_number(&self, number: u64) -> Result<(), StoreError> {
        match self.unless_log_left(self.try_keep_number(number).await).await? {
            Some(done) => Ok(done),
            None => self.try_keep_number(number).await,
        }
    }

    async fn try_keep_number(&self, number: u64) -> Result<(), StoreError> {
        let mut state = self.checkpoint.lock().await;
        if self.superblock.read().next_object > number {
            return Ok(());
        }
        self.run_checkpoint(&mut state, false).await
    }

    /// Gives the image features, and returns when a durable superblock says so: only then may anything be logged that a
    /// program without them does not know.
    pub async fn add_features(&self, features: u32) -> Result<(), StoreError> {
        self.change_superblock(|superblock| superblock.features |= features).await
    }

    /// Names the filesystem: its label, zero-padded, and returns when a durable superblock says so.
    pub async fn set_label(&self, label: [u8; LABEL_BYTES]) -> Result<(), StoreError> {
        self.change_superblock(|superblock| superblock.label = label).await
    }

    /// Gives the filesystem another UUID, and returns when a durable superblock says so. Nothing else depends on it: the log
    /// goes by its epoch, names are hashed with a seed of their own.
    pub async fn set_uuid(&self, uuid: [u8; 16]) -> Result<(), StoreError> {
        self.change_superblock(|superblock| superblock.uuid = uuid).await
    }

    /// Changes what checkpoints only copy from one superblock to the next, and takes one. A crash leaves the old superblock
    /// or the new one, as at any checkpoint.
    async fn change_superblock(&self, change: impl Fn(&mut Superblock)) -> Result<(), StoreError> {
        match self.unless_log_left(self.try_change_superblock(&change).await).await? {
            Some(done) => Ok(done),
            None => self.try_change_superblock(&change).await,
        }
    }

    async fn try_change_superblock(&self, change: &impl Fn(&mut Superblock)) -> Result<(), StoreError> {
        // Whoever holds it is the only one to write superblocks.
        let mut state = self.checkpoint.lock().await;
        let before = self.superblock.read().clone();
        let mut after = before.clone();
        change(&mut after);
        if after == before {
            return Ok(());
        }
        *self.superblock.write() = after;
        let result = self.run_checkpoint(&mut state, false).await;
        if result.is_err() {
            // Checkpoints replace it only when they succeed.
            *self.superblock.write() = before;
        }
        result
    }
}
